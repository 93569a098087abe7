//! Forwarding tables: `windlass fdb ...` and `windlass bridge fdb ...`.

use std::io::Write;

use serde::Serialize;
use windlass_api::{Bridge, ErrorCode, FdbAdd, FdbEntry, FdbQuery, Name, StaticEntry, StaticKind};
use windlass_client::Error;

use crate::Session;
use crate::failure::Failure;
use crate::fields;
use crate::objects::{self, Object};
use crate::options::{FdbAddArgs, FdbDelete, FdbFlush, FdbShow, FdbVerb};
use crate::table::{Chosen, Form};

/// Does what the verb says.
pub(crate) fn run(session: &mut Session<'_>, verb: FdbVerb) -> Result<(), Failure> {
    match verb {
        FdbVerb::Show(args) => show(session, args),
        FdbVerb::Add(args) => add(session, args),
        FdbVerb::Delete(args) => delete(session, args),
        FdbVerb::Flush(args) => flush(session, args),
    }
}

#[derive(Debug, Serialize)]
struct Row<'a> {
    bridge: &'a Name,
    #[serde(flatten)]
    entry: FdbEntry,
}

fn show(session: &mut Session<'_>, args: FdbShow) -> Result<(), Failure> {
    let Some(chosen) = session.choose(fields::FDB)? else {
        return Ok(());
    };
    let bridges: Vec<Name> = if args.names.names.is_empty() {
        let views = objects::views::<Bridge>(session, &[])?;
        views
            .into_iter()
            .map(|view| Bridge::of(view).name)
            .collect()
    } else {
        args.names.names
    };
    let FdbShow {
        member,
        vlan,
        mac,
        limit,
        ..
    } = args;
    let query = FdbQuery {
        member,
        vlan,
        mac,
        limit,
    };
    let mut rows = Vec::new();
    for bridge in &bridges {
        let what = format!("show fdb of bridge {bridge}");
        let page = session.client(&what)?.fdb(bridge, &query);
        let page = page.map_err(|error| Failure::of(&*what, error))?;
        let shown = page.entries.len() as u64;
        if shown < page.total {
            let note = format!("{shown} of {} entries of {bridge} shown", page.total);
            writeln!(
                std::io::stderr().lock(),
                "windlass: {note}; --limit shows more"
            )?;
        }
        rows.extend(page.entries.into_iter().map(|entry| Row { bridge, entry }));
    }
    session.rows(&rows, &chosen)
}

fn add(session: &mut Session<'_>, args: FdbAddArgs) -> Result<(), Failure> {
    let kind = if args.sticky {
        StaticKind::Sticky
    } else {
        StaticKind::Static
    };
    let FdbAddArgs { mac, vlan, .. } = args;
    let (bridge, member) = (args.bridge.name, args.member.name);
    let what = format!("add {mac} to fdb of bridge {bridge}");
    if args.how.dry_run {
        let entry = StaticEntry {
            bridge,
            vlan: vlan.unwrap_or(0),
            mac,
            member,
            kind,
            target: None,
        };
        return objects::dry_run(session, &what, |document| {
            document.fdb.push(entry);
            Ok(())
        });
    }
    let entry = FdbAdd {
        vlan,
        mac,
        member: member.clone(),
        kind,
        target: None,
    };
    match session.client(&what)?.fdb_add(&bridge, &entry) {
        Ok(applied) => session.applied(&applied, false),
        Err(Error::Refused(body)) if body.code == ErrorCode::Exists && args.how.may_exist => {
            let query = FdbQuery {
                vlan,
                mac: Some(mac),
                ..FdbQuery::default()
            };
            let page = session.client(&what)?.fdb(&bridge, &query);
            let page = page.map_err(|error| Failure::of(&*what, error))?;
            if page.entries.iter().any(|entry| entry.member == member) {
                return Ok(());
            }
            Err(Failure::of(what, Error::Refused(body)).advise(DELETE_FIRST))
        }
        Err(Error::Refused(body)) if body.code == ErrorCode::Exists => {
            Err(Failure::of(what, Error::Refused(body)).advise(DELETE_FIRST))
        }
        Err(error) => Err(Failure::of(what, error)),
    }
}

/// What to do about an entry that stands in the way: it cannot be set.
const DELETE_FIRST: &str = "\"windlass fdb delete\" removes it";

fn delete(session: &mut Session<'_>, args: FdbDelete) -> Result<(), Failure> {
    let FdbDelete {
        mac,
        vlan,
        if_exists,
        ..
    } = args;
    let bridge = args.bridge.name;
    let what = format!("delete {mac} from fdb of bridge {bridge}");
    let query = FdbQuery {
        vlan,
        mac: Some(mac),
        ..FdbQuery::default()
    };
    match session.client(&what)?.fdb_delete(&bridge, &query) {
        Ok(applied) => session.applied(&applied, false),
        Err(Error::Refused(body)) if body.code == ErrorCode::NotFound && if_exists => Ok(()),
        Err(error) => {
            let failure = Failure::of(what, error);
            Err(match failure.code() {
                Some(ErrorCode::NotFound) => {
                    failure.advise(format!("\"windlass fdb show {bridge}\" lists the entries"))
                }
                _ => failure,
            })
        }
    }
}

fn flush(session: &mut Session<'_>, args: FdbFlush) -> Result<(), Failure> {
    let FdbFlush {
        member, vlan, mac, ..
    } = args;
    let bridge = args.bridge.name;
    let what = format!("flush fdb of bridge {bridge}");
    let query = FdbQuery {
        member,
        vlan,
        mac,
        limit: None,
    };
    let flushed = session.client(&what)?.fdb_flush(&bridge, &query);
    let flushed = flushed.map_err(|error| Failure::of(what, error))?;
    if session.form == Form::Json {
        return session.rows(&[flushed], &Chosen::new());
    }
    Ok(())
}
