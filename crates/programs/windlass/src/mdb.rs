//! Groups of bridges that snoop: `windlass bridge mdb ...`.

use std::net::IpAddr;

use serde::Serialize;
use windlass_api::{Bridge, BridgeView, Document, Name, Properties, Scope};

use crate::Session;
use crate::failure::Failure;
use crate::fields;
use crate::objects;
use crate::options::{MdbAdd, MdbDelete, MdbOf, MdbVerb};

/// The property that a document has them in.
const PROPERTY: &str = "multicast-groups";

/// Does what the verb says.
pub(crate) fn run(session: &mut Session<'_>, verb: MdbVerb) -> Result<(), Failure> {
    match verb {
        MdbVerb::Show(names) => show(session, &names.names),
        MdbVerb::Add(args) => add(session, &args),
        MdbVerb::Delete(args) => delete(session, &args),
    }
}

#[derive(Debug, Serialize)]
struct Row<'a> {
    bridge: &'a Name,
    vlan: u16,
    group: IpAddr,
    member: &'a Name,
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    left_s: Option<u64>,
}

fn show(session: &mut Session<'_>, names: &[Name]) -> Result<(), Failure> {
    let Some(chosen) = session.choose(fields::MDB)? else {
        return Ok(());
    };
    let views: Vec<BridgeView> = objects::views::<Bridge>(session, names)?;
    let groups = views.iter().flat_map(|view| {
        let groups = view.multicast.iter().flat_map(|found| &found.groups);
        groups.map(|group| (&view.config.name, group))
    });
    let rows = groups.flat_map(|(bridge, group)| {
        group.members.iter().map(move |(member, left)| Row {
            bridge,
            vlan: group.vlan,
            group: group.group,
            member,
            kind: if left.is_none() {
                "permanent"
            } else {
                "learned"
            },
            left_s: *left,
        })
    });
    session.rows(&rows.collect::<Vec<_>>(), &chosen)
}

/// What a member has of one group in one VLAN.
struct Entries<'a> {
    properties: &'a mut Properties,
    scope: Scope,
    /// Everything else, as text.
    others: Vec<String>,
    /// Whether it is among them.
    is_there: bool,
}

impl<'a> Entries<'a> {
    /// Those of the member that is meant.
    fn of(document: &'a mut Document, of: &MdbOf, what: &str) -> Result<Entries<'a>, Failure> {
        let (bridge, name) = (&of.bridge.name, &of.member.name);
        let member = document.member(name.as_str());
        let Some(member) = member.filter(|member| member.bridge() == bridge) else {
            let why = format!("bridge \"{bridge}\" has no member \"{name}\"");
            let todo = format!("\"windlass bridge show --ports {bridge}\" lists them");
            return Err(Failure::new(
                windlass_api::ErrorCode::NotFound,
                what,
                why,
                todo,
            ));
        };
        let (scope, settings) = (member.scope(), member.settings());
        let meant = (of.vlan.or(settings.vlan), of.group);
        let groups = settings.snoop.groups.iter();
        let (same, others): (Vec<_>, Vec<_>) =
            groups.partition(|(vlan, group)| (vlan.or(settings.vlan), *group) == meant);
        let uplink = document.uplinks.iter_mut().find(|u| u.name == *name);
        let properties = match uplink {
            Some(uplink) => Some(&mut uplink.properties),
            None => {
                let vnic = document.vnics.iter_mut().find(|v| v.name == *name);
                vnic.map(|vnic| &mut vnic.properties)
            }
        };
        Ok(Entries {
            properties: properties.expect("it was found"),
            scope,
            others: others.into_iter().map(text).collect(),
            is_there: !same.is_empty(),
        })
    }

    fn write(self, what: &str) -> Result<(), Failure> {
        let value = self.others.join(",");
        let set = self.properties.set(self.scope, PROPERTY, &value);
        set.map_err(|error| Failure::usage(format!("{what}: {error}"), HINT))
    }
}

const HINT: &str = "a group is such as 239.1.1.1 or ff05::1:3";

fn text((vlan, group): (Option<u16>, IpAddr)) -> String {
    match vlan {
        Some(vlan) => format!("{vlan}/{group}"),
        None => group.to_string(),
    }
}

fn add(session: &mut Session<'_>, args: &MdbAdd) -> Result<(), Failure> {
    let of = &args.of;
    let what = format!("add {} to mdb of bridge {}", of.group, of.bridge.name);
    objects::edit(session, &what, args.how.dry_run, |document| {
        let mut entries = Entries::of(document, of, &what)?;
        if entries.is_there && args.how.may_exist {
            return Ok(());
        }
        if entries.is_there {
            let why = format!("member \"{}\" is in this group already", of.member.name);
            let todo = "use --may-exist";
            return Err(Failure::new(
                windlass_api::ErrorCode::Exists,
                &*what,
                why,
                todo,
            ));
        }
        entries.others.push(text((of.vlan, of.group)));
        entries.write(&what)
    })
}

fn delete(session: &mut Session<'_>, args: &MdbDelete) -> Result<(), Failure> {
    let of = &args.of;
    let what = format!("delete {} from mdb of bridge {}", of.group, of.bridge.name);
    objects::edit(session, &what, args.dry_run, |document| {
        let entries = Entries::of(document, of, &what)?;
        if !entries.is_there && !args.if_exists {
            let why = format!(
                "member \"{}\" is not in this group by configuration",
                of.member.name
            );
            let todo = format!(
                "\"windlass bridge mdb show {}\" lists the groups",
                of.bridge.name
            );
            return Err(Failure::new(
                windlass_api::ErrorCode::NotFound,
                &*what,
                why,
                todo,
            ));
        }
        entries.write(&what)
    })
}
