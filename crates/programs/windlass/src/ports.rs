//! Members of bridges beside each other: `windlass bridge show --ports`.

use serde::Serialize;
use windlass_api::{
    Bridge, Counters, MemberSettings, Name, Overlay, State, TreePortView, Uplink, Vnic,
};

use crate::Session;
use crate::failure::Failure;
use crate::fields;
use crate::objects;

#[derive(Debug, Serialize)]
struct Row<'a> {
    name: &'a Name,
    bridge: &'a Name,
    state: State,
    /// Nothing where spanning tree does not decide.
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<u32>,
    priority: u8,
    flags: Vec<&'static str>,
    #[serde(flatten)]
    counters: &'a Counters,
}

/// The properties of these that are on.
fn flags(settings: &MemberSettings) -> Vec<&'static str> {
    let stp = &settings.stp;
    let flags = [
        (settings.learn, "learn"),
        (settings.discover, "discover"),
        (settings.private, "private"),
        (settings.locked, "locked"),
        (settings.sticky, "sticky"),
        (settings.span, "span"),
        (stp.member, "stp"),
        (stp.edge == Some(true), "edge"),
        (stp.edge.is_none(), "auto-edge"),
        (stp.point_to_point, "point-to-point"),
        (stp.root_guard, "root-guard"),
        (stp.bpdu_guard, "bpdu-guard"),
    ];
    let flags = flags.iter();
    flags
        .filter_map(|(is_on, word)| is_on.then_some(*word))
        .collect()
}

/// Shows the members of these bridges; of all if there is none.
pub(crate) fn show(session: &mut Session<'_>, names: &[Name]) -> Result<(), Failure> {
    let Some(chosen) = session.choose(fields::PORTS)? else {
        return Ok(());
    };
    let bridges = objects::views::<Bridge>(session, names)?;
    let (uplinks, overlays, vnics) = (
        objects::views::<Uplink>(session, &[])?,
        objects::views::<Overlay>(session, &[])?,
        objects::views::<Vnic>(session, &[])?,
    );
    let overlays = overlays.iter().map(|view| {
        let config = &view.config;
        (
            &config.name,
            config.bridge(),
            config.member(),
            &view.status,
            &view.counters,
        )
    });
    let uplinks = uplinks.iter().map(|view| {
        let config = &view.config;
        (
            &config.name,
            &config.bridge,
            config.settings(),
            &view.status,
            &view.counters,
        )
    });
    let vnics = vnics.iter().map(|view| {
        let config = &view.config;
        (
            &config.name,
            &config.bridge,
            config.settings(),
            &view.status,
            &view.counters,
        )
    });
    let mut rows: Vec<_> = uplinks
        .chain(overlays)
        .chain(vnics)
        .filter_map(|(name, bridge, settings, status, counters)| {
            let view = bridges.iter().find(|view| view.config.name == *bridge)?;
            let ports = view.tree.iter().flat_map(|tree| &tree.ports);
            let port: Option<&TreePortView> = ports.into_iter().find(|port| port.member == *name);
            Some(Row {
                name,
                bridge,
                state: status.state,
                role: port.map(|port| port.part.as_str()),
                cost: port.map(|port| port.cost).or(settings.stp.cost),
                priority: settings.stp.priority,
                flags: flags(&settings),
                counters,
            })
        })
        .collect();
    rows.sort_by_key(|row| (row.bridge, row.name));
    session.rows(&rows, &chosen)
}
