//! `windlass status`: the whole on one screen.
//!
//! # Model
//! What the daemon answers to a few questions, put together here: who it is, how busy its workers are over
//! [`INTERVAL`], which members are not up and why, what was dropped in the last minute, who carries the sockets of
//! accelerated programs, and which limits are near. With `-j` the same as one object.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};
use windlass_api::{
    Bridge, BridgeView, DaemonView, Overlay, OverlayView, RecentDrops, State, Stats, Uplink,
    UplinkView, Vnic, VnicView,
};
use windlass_client::{Client, Error};

use crate::Session;
use crate::failure::Failure;
use crate::sockets;
use crate::table::{Form, clean};

/// Time over which the load of workers is measured.
const INTERVAL: Duration = Duration::from_millis(250);
/// Share of a limit from which on it is near.
const NEAR: f64 = 0.8;
/// Lines that each list has at most on the screen; JSON has all.
const LINES_MAX: usize = 10;

const WHAT: &str = "show the status";

/// `windlass status`
pub(crate) fn show(session: &mut Session<'_>) -> Result<(), Failure> {
    if session.options.fields.is_some() {
        let todo = "-j writes everything; \"windlass vnic show -o\" and its like have fields";
        return Err(Failure::usage("the status has no fields to choose", todo));
    }
    let asked = ask(session.client(WHAT)?).map_err(|error| Failure::of(WHAT, error))?;
    let status = Status::of(&asked, sockets::now()?);
    match session.form {
        Form::Json => {
            let text = json!([status.json(&asked)]);
            Ok(writeln!(session.out, "{text}")?)
        }
        _ => {
            let text = status.screen(
                &asked,
                &session.client(WHAT)?.socket().display().to_string(),
            );
            Ok(session.out.write_all(text.as_bytes())?)
        }
    }
}

/// What the daemon said.
struct Asked {
    daemon: DaemonView,
    before: Stats,
    after: Stats,
    bridges: Vec<BridgeView>,
    uplinks: Vec<UplinkView>,
    overlays: Vec<OverlayView>,
    vnics: Vec<VnicView>,
    drops: RecentDrops,
}

fn ask(client: &Client) -> Result<Asked, Error> {
    let daemon = client.daemon()?;
    let before = client.stats()?;
    if daemon.you.operator {
        std::thread::sleep(INTERVAL);
    }
    Ok(Asked {
        daemon,
        before,
        after: client.stats()?,
        bridges: client.list::<Bridge>()?,
        uplinks: client.list::<Uplink>()?,
        overlays: client.list::<Overlay>()?,
        vnics: client.list::<Vnic>()?,
        drops: client.drops()?,
    })
}

/// What is made of it.
struct Status {
    workers: Vec<Load>,
    members: Members,
    sockets: Option<Carried>,
    near: Vec<String>,
}

/// What a worker did in [`INTERVAL`].
struct Load {
    worker: u32,
    core: Option<u32>,
    rings: u32,
    /// Share of the time in visits that found frames, 0 to 1.
    busy: f64,
    /// The same of visits that found none.
    polling: f64,
    frames_per_s: f64,
    held: u64,
}

/// Members by state.
#[derive(Default)]
struct Members {
    up: usize,
    waiting: usize,
    down: usize,
    not_up: Vec<(String, State, String)>,
}

/// Sockets of accelerated programs.
struct Carried {
    ring: usize,
    kernel: usize,
    /// Why the kernel carries some, with their number.
    reasons: BTreeMap<String, usize>,
}

impl Status {
    fn of(asked: &Asked, sockets: Option<Vec<Value>>) -> Self {
        Self {
            workers: loads(&asked.before, &asked.after),
            members: Members::of(asked),
            sockets: sockets.map(|rows| Carried::of(&rows)),
            near: near(asked),
        }
    }

    fn json(&self, asked: &Asked) -> Value {
        let workers = self.workers.iter().map(|load| {
            json!({
                "worker": load.worker, "core": load.core, "rings": load.rings, "busy": load.busy,
                "polling": load.polling, "frames_per_s": load.frames_per_s, "held": load.held,
            })
        });
        let bridges = asked.bridges.iter().map(|bridge| {
            json!({
                "name": bridge.config.name, "members": bridge.members.len(),
                "addresses": bridge.table.addresses,
                "addresses_max": bridge.config.settings().addresses_max,
            })
        });
        let not_up = self.members.not_up.iter();
        let not_up = not_up
            .map(|(name, state, reason)| json!({"name": name, "state": state, "reason": reason}));
        json!({
            "daemon": asked.daemon,
            "workers": workers.collect::<Vec<_>>(),
            "bridges": bridges.collect::<Vec<_>>(),
            "members": {
                "up": self.members.up, "waiting": self.members.waiting, "down": self.members.down,
                "not_up": not_up.collect::<Vec<_>>(),
            },
            "drops": asked.drops,
            "sockets": self.sockets.as_ref().map(|carried| json!({
                "ring": carried.ring, "kernel": carried.kernel, "reasons": carried.reasons,
            })),
            "near_limits": self.near,
        })
    }

    fn screen(&self, asked: &Asked, socket: &str) -> String {
        let mut screen = Screen::default();
        let daemon = &asked.daemon;
        let (version, pid, revision) = (&daemon.version, daemon.pid, daemon.revision);
        let up = duration(daemon.uptime_s);
        screen.line(
            "daemon",
            format!("windlassd {version}, pid {pid}, up {up}, revision {revision}, {socket}"),
        );
        if !daemon.you.operator {
            let zones: Vec<_> = daemon.you.zones.iter().map(|zone| zone.as_str()).collect();
            let zones = if zones.is_empty() {
                "none".into()
            } else {
                zones.join(", ")
            };
            screen.line("you", format!("user {}, zones: {zones}", daemon.you.uid));
        }
        screen.list("workers", &self.workers, |load| {
            let core = load
                .core
                .map_or(String::new(), |core| format!(" on core {core}"));
            format!(
                "{}{core}: {} rings, {:.1} % busy, {:.1} % polling, {:.0} frames/s, {} frames held",
                load.worker,
                load.rings,
                load.busy * 100.0,
                load.polling * 100.0,
                load.frames_per_s,
                load.held
            )
        });
        screen.list("bridges", &asked.bridges, |bridge| {
            let (name, members) = (&bridge.config.name, bridge.members.len());
            let max = bridge.config.settings().addresses_max;
            match daemon.you.operator {
                true => format!(
                    "{name}: {members} members, {} of {max} addresses",
                    bridge.table.addresses
                ),
                false => format!("{name}: {members} members of yours"),
            }
        });
        self.what_is_wrong(asked, &mut screen);
        screen.text
    }

    fn what_is_wrong(&self, asked: &Asked, screen: &mut Screen) {
        let members = &self.members;
        screen.line(
            "members",
            format!(
                "{} up, {} waiting, {} down",
                members.up, members.waiting, members.down
            ),
        );
        screen.list("", &members.not_up, |(name, state, reason)| {
            format!("{name} {}: {reason}", state.as_str())
        });
        let seconds = asked.drops.seconds;
        if asked.drops.drops.is_empty() {
            screen.line("drops", format!("none in the last {seconds} s"));
        } else {
            screen.line("drops", format!("in the last {seconds} s"));
            screen.list("", &by_reason(&asked.drops), |(reason, frames, most)| {
                format!("{reason}: {frames} frames, most at {most}")
            });
        }
        match &self.sockets {
            None => screen.line("sockets", "no program is accelerated".into()),
            Some(carried) => {
                screen.line(
                    "sockets",
                    format!("{} by ring, {} by the kernel", carried.ring, carried.kernel),
                );
                let reasons: Vec<_> = carried.reasons.iter().collect();
                screen.list("", &reasons, |(reason, count)| format!("{reason}: {count}"));
            }
        }
        screen.list("near limits", &self.near, String::clone);
    }
}

/// Lines with a title before each group.
#[derive(Default)]
struct Screen {
    text: String,
}

impl Screen {
    fn line(&mut self, title: &str, line: String) {
        self.text
            .push_str(&format!("{title:11} {}\n", clean(&line)));
    }

    /// A line for each item, the first one with the title.
    fn list<T>(&mut self, title: &str, items: &[T], line: impl Fn(&T) -> String) {
        for (at, item) in items.iter().take(LINES_MAX).enumerate() {
            self.line(if at == 0 { title } else { "" }, line(item));
        }
        if items.len() > LINES_MAX {
            self.line("", format!("and {} more: see -j", items.len() - LINES_MAX));
        }
    }
}

/// A time in the two largest of its units.
pub(crate) fn duration(seconds: u64) -> String {
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60);
    match (days, hours) {
        (0, 0) if minutes == 0 => format!("{seconds} s"),
        (0, 0) => format!("{minutes} min"),
        (0, _) => format!("{hours} h {minutes} min"),
        _ => format!("{days} d {hours} h"),
    }
}

fn loads(before: &Stats, after: &Stats) -> Vec<Load> {
    let elapsed_s = after.time_ns.saturating_sub(before.time_ns) as f64 / 1e9;
    let share = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
    let of = after.workers.iter().map(|now| {
        let then = before.workers.iter().find(|then| then.worker == now.worker);
        let gained = |of: fn(&windlass_api::WorkerStats) -> u64| {
            of(now).saturating_sub(then.map_or(0, of)) as f64
        };
        let cycles = elapsed_s * now.cycles_per_second as f64;
        Load {
            worker: now.worker,
            core: now.core,
            rings: now.rings,
            busy: share(gained(|worker| worker.cycles_busy), cycles),
            polling: share(gained(|worker| worker.cycles_polling), cycles),
            frames_per_s: share(gained(|worker| worker.frames), elapsed_s),
            held: now.held,
        }
    });
    of.collect()
}

impl Members {
    fn of(asked: &Asked) -> Self {
        let uplinks = asked
            .uplinks
            .iter()
            .map(|view| (&view.config.name, &view.status));
        let vnics = asked
            .vnics
            .iter()
            .map(|view| (&view.config.name, &view.status));
        let overlays = asked.overlays.iter();
        let overlays = overlays.map(|view| (&view.config.name, &view.status));
        let mut members = Self::default();
        for (name, status) in uplinks.chain(overlays).chain(vnics) {
            match status.state {
                State::Up => members.up += 1,
                State::Waiting => members.waiting += 1,
                State::Down => members.down += 1,
            }
            if status.state != State::Up {
                let reason = status.reason.clone().unwrap_or_default();
                members
                    .not_up
                    .push((name.to_string(), status.state, reason));
            }
        }
        members
    }
}

impl Carried {
    fn of(rows: &[Value]) -> Self {
        let mut carried = Self {
            ring: 0,
            kernel: 0,
            reasons: BTreeMap::new(),
        };
        for row in rows {
            if row["state"] == "ring" {
                carried.ring += 1;
            } else {
                carried.kernel += 1;
                let reason = row["reason"].as_str().unwrap_or_default().to_owned();
                *carried.reasons.entry(reason).or_default() += 1;
            }
        }
        carried
    }
}

/// Each reason with all its frames and the member that lost most, most first.
fn by_reason(recent: &RecentDrops) -> Vec<(&str, u64, &str)> {
    let mut reasons: Vec<(&str, u64, &str)> = Vec::new();
    // The drops come sorted, so that the first of a reason is the member with most.
    for drop in &recent.drops {
        match reasons
            .iter_mut()
            .find(|(reason, ..)| *reason == drop.reason)
        {
            Some((_, frames, _)) => *frames += drop.frames,
            None => reasons.push((&drop.reason, drop.frames, drop.name.as_str())),
        }
    }
    reasons.sort_by_key(|(_, frames, _)| std::cmp::Reverse(*frames));
    reasons
}

fn near(asked: &Asked) -> Vec<String> {
    let full = asked.bridges.iter().filter_map(|bridge| {
        let max = bridge.config.settings().addresses_max;
        let addresses = bridge.table.addresses;
        let name = &bridge.config.name;
        (addresses as f64 >= f64::from(max) * NEAR)
            .then(|| format!("bridge {name}: {addresses} of {max} addresses (addresses-max)"))
    });
    let limits = asked.daemon.limits.iter();
    let own = limits
        .filter(|limit| f64::from(limit.used) >= f64::from(limit.max) * NEAR)
        .map(|l| {
            let (uid, used, max) = (l.uid, l.used, l.max);
            format!("user {uid}: {used} of {max} {} ({})", l.unit, l.limit)
        });
    full.chain(own).collect()
}
