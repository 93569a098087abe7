//! Counters: totals once, or totals and then rates, one interval after the other.
//!
//! # Model
//! A sample is a moment of the daemon's clock and rows with counters. What is shown first are the totals
//! of the first sample; then, for each further sample, the difference to the one before divided by the
//! time that passed on the daemon's clock, so that a late wake-up here does not falsify a rate. A row
//! that is new, or whose counter fell because its object was made anew, counts from zero.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use serde::de::{DeserializeOwned, DeserializeSeed, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value, json};
use windlass_api::{Bridge, ErrorCode, Flow, FlowView, Name, ZoneRef};
use windlass_stats::{Drop, Stage};

use crate::Session;
use crate::failure::Failure;
use crate::fields;
use crate::objects::{self, Object};
use crate::options::{Counted, Repeat, StatArgs};
use crate::suggest::nearest;
use crate::table::{self, Chosen, Column, Form, Titles};

/// Lines after which the titles of a single repeated row are written again.
const LINES_PER_TITLE: u64 = 20;

/// [`windlass_api::Stats`] whose rows are what is shown: thousands of them are not taken apart and put together again.
#[derive(Debug, Deserialize)]
struct Stats<Row = Value> {
    time_ns: u64,
    members: Vec<Row>,
    #[serde(default)]
    bridges: Vec<Value>,
    #[serde(default)]
    workers: Vec<Value>,
    #[serde(default)]
    vnds: Vec<Value>,
}

/// Which keys of a member are read.
#[derive(Debug, Clone, Copy)]
enum Read {
    All,
    /// [`USUAL`]: what the usual columns show. Of thousands of members, most of the time would go into what nobody sees.
    Usual,
}

const USUAL: &[&str] = &[
    "name",
    "bridge",
    "rx_frames",
    "rx_bytes",
    "tx_frames",
    "tx_bytes",
    "rx_dropped",
    "tx_dropped",
];

impl Read {
    /// What a table of these columns needs. JSON shows rows as they are.
    fn for_table(chosen: &Chosen, form: Form) -> Read {
        let is_usual = |column: &&Column| {
            let key = column.name.replace('-', "_");
            USUAL.contains(&key.as_str())
        };
        match form != Form::Json && chosen.iter().all(is_usual) {
            true => Read::Usual,
            false => Read::All,
        }
    }
}

/// A row with the keys of [`USUAL`].
struct UsualRow(Value);

impl<'de> Deserialize<'de> for UsualRow {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<UsualRow, D::Error> {
        struct Row;
        impl<'de> Visitor<'de> for Row {
            type Value = UsualRow;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<UsualRow, A::Error> {
                let mut row = Map::new();
                while let Some(key) = map.next_key_seed(UsualKey)? {
                    match key {
                        Some(key) => drop(row.insert(key.to_owned(), map.next_value()?)),
                        None => drop(map.next_value::<IgnoredAny>()?),
                    }
                }
                Ok(UsualRow(Value::Object(row)))
            }
        }
        from.deserialize_map(Row)
    }
}

/// One of [`USUAL`], if it is one.
struct UsualKey;

impl<'de> DeserializeSeed<'de> for UsualKey {
    type Value = Option<&'static str>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_str(self)
    }
}

impl Visitor<'_> for UsualKey {
    type Value = Option<&'static str>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E>(self, key: &str) -> Result<Self::Value, E> {
        Ok(USUAL.iter().copied().find(|usual| *usual == key))
    }
}

/// The name that a row has under this key.
fn named<'a>(row: &'a Value, key: &str) -> &'a str {
    row.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// Keeps the rows with one of these names under the key; all if there is none.
fn retain(rows: &mut Vec<Value>, key: &str, names: &[Name]) {
    rows.retain(|row| {
        names.is_empty() || names.iter().any(|name| name.as_str() == named(row, key))
    });
}

/// Rows at one moment.
#[derive(Debug)]
pub(crate) struct Sample {
    pub(crate) time_ns: u64,
    pub(crate) rows: Vec<Value>,
}

/// Which keys of a row are counters, and which name the row.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Keys {
    pub(crate) name: &'static [&'static str],
    pub(crate) counters: &'static [&'static [&'static str]],
}

/// The counters of [`windlass_api::Counters`]; `rx_held` and `tx_held` are levels and have no rate.
const FRAMES: &[&str] = &[
    "rx_frames",
    "rx_bytes",
    "rx_unicast",
    "rx_flooded",
    "rx_copies",
    "rx_floods_cut",
    "rx_local",
    "rx_dropped",
    "rx_cut",
    "rx_marked",
    "tx_offered",
    "tx_cut",
    "tx_marked",
    "tx_frames",
    "tx_bytes",
    "tx_dropped",
    "tx_span",
    "tx_spilled",
    "tx_segments",
    "kicks",
    "kernel_drops",
    "stalled_ns",
];
const TRAFFIC: Keys = Keys {
    name: &["name"],
    counters: &[FRAMES],
};
const DROPS: Keys = Keys {
    name: &["name", "reason"],
    counters: &[&["frames"]],
};
const TABLE: Keys = Keys {
    name: &["name"],
    counters: &[
        &[
            "learned",
            "moved",
            "moves_refused",
            "expired",
            "evicted",
            "refused",
            "sightings_lost",
        ],
        FRAMES,
    ],
};
/// The counters of [`windlass_api::FlowCounters`].
const FLOW: Keys = Keys {
    name: &["name"],
    counters: &[&[
        "rx_matched",
        "rx_frames",
        "rx_bytes",
        "rx_marked",
        "rx_dropped",
        "tx_matched",
        "tx_frames",
        "tx_bytes",
        "tx_marked",
        "tx_dropped",
    ]],
};
/// The counters of [`windlass_api::VndStats`].
const VND: Keys = Keys {
    name: &["zone", "vnic"],
    counters: &[&["device_rx_bytes", "device_tx_bytes", "drops", "txfc"]],
};
const WORKER: Keys = Keys {
    name: &["worker"],
    counters: &[&[
        "frames",
        "visits",
        "visits_empty",
        "sleeps",
        "yields",
        "cycles_busy",
        "cycles_polling",
    ]],
};

/// `windlass vnic show -s` and `windlass uplink show -s`.
pub(crate) fn of<O: Object>(
    session: &mut Session<'_>,
    names: &[Name],
    keep: impl Fn(&O::View) -> bool,
    counted: &Counted,
) -> Result<(), Failure> {
    let sample = |session: &mut Session<'_>, read: Read| {
        let mut views = objects::views::<O>(session, names)?;
        views.retain(&keep);
        let kept: BTreeSet<Name> = views
            .into_iter()
            .map(|view| O::of(view).name().clone())
            .collect();
        let mut stats = traffic_of(session, read)?;
        stats
            .members
            .retain(|row| kept.contains(named(row, "name")));
        Ok(stats)
    };
    traffic(
        session,
        counted.drops || counted.statistics > 1,
        &counted.repeat,
        sample,
    )
}

/// `windlass flow show -i`. Views of flows have no moment of the daemon's clock: this program's is taken.
pub(crate) fn flows(
    session: &mut Session<'_>,
    names: &[Name],
    keep: impl Fn(&FlowView) -> bool,
    how_often: &Repeat,
) -> Result<(), Failure> {
    let Some(chosen) = session.choose(fields::FLOW)? else {
        return Ok(());
    };
    let begun = Instant::now();
    repeat(session, &chosen, how_often, FLOW, |session| {
        let mut views = objects::views::<Flow>(session, names)?;
        views.retain(&keep);
        Ok(Sample {
            time_ns: begun.elapsed().as_nanos() as u64,
            rows: table::rows(&views)?,
        })
    })
}

/// `windlass stat`
pub(crate) fn members(session: &mut Session<'_>, args: &StatArgs) -> Result<(), Failure> {
    let names = &args.names.names;
    traffic(session, args.drops, &args.repeat, |session, read| {
        let mut stats = traffic_of(session, read)?;
        for name in names {
            if !stats
                .members
                .iter()
                .any(|row| named(row, "name") == name.as_str())
            {
                return Err(absent(name, &stats));
            }
        }
        retain(&mut stats.members, "name", names);
        Ok(stats)
    })
}

fn absent(name: &Name, stats: &Stats) -> Failure {
    let known = stats.members.iter().map(|row| named(row, "name"));
    let todo = match nearest(name.as_str(), known) {
        Some(near) => format!("did you mean \"{near}\"? \"windlass stat\" lists them"),
        None => "\"windlass stat\" lists them".into(),
    };
    let why = format!("there is no uplink, overlay or VNIC \"{name}\"");
    Failure::new(ErrorCode::NotFound, "show statistics", why, todo)
}

/// `windlass bridge show -s`
pub(crate) fn bridges(
    session: &mut Session<'_>,
    names: &[Name],
    counted: &Counted,
) -> Result<(), Failure> {
    let check = |session: &mut Session<'_>| -> Result<Stats, Failure> {
        if !names.is_empty() {
            objects::views::<Bridge>(session, names)?;
        }
        stats(session)
    };
    if counted.drops || counted.statistics > 1 {
        return traffic(session, true, &counted.repeat, |session, _| {
            let mut stats = check(session)?;
            retain(&mut stats.members, "bridge", names);
            Ok(stats)
        });
    }
    let Some(chosen) = session.choose(fields::TABLE)? else {
        return Ok(());
    };
    repeat(session, &chosen, &counted.repeat, TABLE, |session| {
        let mut stats = check(session)?;
        retain(&mut stats.bridges, "name", names);
        Ok(Sample {
            time_ns: stats.time_ns,
            rows: stats.bridges,
        })
    })
}

/// `windlass worker show`
pub(crate) fn workers(session: &mut Session<'_>, how_often: &Repeat) -> Result<(), Failure> {
    let Some(chosen) = session.choose(fields::WORKER)? else {
        return Ok(());
    };
    repeat(session, &chosen, how_often, WORKER, |session| {
        if how_often.interval.is_some() {
            let stats = stats(session)?;
            return Ok(Sample {
                time_ns: stats.time_ns,
                rows: stats.workers,
            });
        }
        let workers = session.client("show workers")?.workers();
        let workers = workers.map_err(|error| Failure::of("show workers", error))?;
        Ok(Sample {
            time_ns: 0,
            rows: table::rows(&workers)?,
        })
    })
}

/// `windlass vnd stat`
pub(crate) fn vnds(
    session: &mut Session<'_>,
    zone: Option<&ZoneRef>,
    how_often: &Repeat,
) -> Result<(), Failure> {
    let Some(chosen) = session.choose(fields::VND_STAT)? else {
        return Ok(());
    };
    repeat(session, &chosen, how_often, VND, |session| {
        let mut stats = stats(session)?;
        let of_zone = |row: &Value| zone.is_none_or(|zone| named(row, "zone") == zone.as_str());
        stats.vnds.retain(of_zone);
        Ok(Sample {
            time_ns: stats.time_ns,
            rows: stats.vnds,
        })
    })
}

fn stats(session: &mut Session<'_>) -> Result<Stats, Failure> {
    stats_of(session)
}

fn stats_of<Row: DeserializeOwned>(session: &mut Session<'_>) -> Result<Stats<Row>, Failure> {
    let what = "show statistics";
    session
        .client(what)?
        .stats_as()
        .map_err(|error| Failure::of(what, error))
}

/// The members, with the keys that are read.
fn traffic_of(session: &mut Session<'_>, read: Read) -> Result<Stats, Failure> {
    let Read::Usual = read else {
        return stats(session);
    };
    let Stats {
        time_ns,
        members,
        bridges,
        workers,
        vnds,
    } = stats_of::<UsualRow>(session)?;
    Ok(Stats {
        time_ns,
        members: members.into_iter().map(|row| row.0).collect(),
        bridges,
        workers,
        vnds,
    })
}

fn traffic(
    session: &mut Session<'_>,
    by_reason: bool,
    how_often: &Repeat,
    sample: impl Fn(&mut Session<'_>, Read) -> Result<Stats, Failure>,
) -> Result<(), Failure> {
    let (columns, keys): (&'static [Column], Keys) = if by_reason {
        (fields::DROPS, DROPS)
    } else {
        (fields::TRAFFIC, TRAFFIC)
    };
    let Some(chosen) = session.choose(columns)? else {
        return Ok(());
    };
    let read = match by_reason {
        true => Read::All,
        false => Read::for_table(&chosen, session.form),
    };
    repeat(session, &chosen, how_often, keys, |session| {
        let stats = sample(session, read)?;
        let rows = if by_reason {
            stats.members.iter().flat_map(drops).collect()
        } else {
            stats.members
        };
        Ok(Sample {
            time_ns: stats.time_ns,
            rows,
        })
    })
}

/// The reasons for which frames of a member were dropped, each a row.
fn drops(member: &Value) -> Vec<Value> {
    let (name, bridge) = (named(member, "name"), named(member, "bridge"));
    let drops = member.get("drops").and_then(Value::as_object);
    let rows = drops
        .into_iter()
        .flatten()
        .filter(|(_, frames)| frames.as_u64() != Some(0))
        .map(|(reason, frames)| {
            let known = Drop::ALL.iter().find(|drop| drop.name() == reason);
            let stage = known.map(|drop| match drop.stage() {
                Stage::Ingress => "ingress",
                Stage::Egress => "egress",
            });
            json!({
                "name": name, "bridge": bridge, "reason": reason, "stage": stage,
                "frames": frames, "explanation": known.map(|drop| drop.explanation()),
            })
        });
    rows.collect()
}

/// Shows samples: once, or for ever, or so often.
pub(crate) fn repeat(
    session: &mut Session<'_>,
    chosen: &Chosen,
    how_often: &Repeat,
    keys: Keys,
    sample: impl Fn(&mut Session<'_>) -> Result<Sample, Failure>,
) -> Result<(), Failure> {
    let mut last = sample(session)?;
    write(session, chosen, &last.rows, (0, 0))?;
    let Some(interval) = how_often.interval else {
        return Ok(());
    };
    let mut next = Instant::now() + interval;
    for count in 1..how_often.count.unwrap_or(u64::MAX) {
        session.out.flush()?;
        next = sleep(next, interval);
        let now = sample(session)?;
        let rows = rates(&last, &now, keys);
        write(session, chosen, &rows, (count, last.rows.len()))?;
        last = now;
    }
    Ok(())
}

/// Waits until the moment, and gives the one after it; moments that passed meanwhile are left out.
fn sleep(until: Instant, interval: Duration) -> Instant {
    std::thread::sleep(until.saturating_duration_since(Instant::now()));
    (until + interval).max(Instant::now())
}

fn write(
    session: &mut Session<'_>,
    chosen: &Chosen,
    rows: &[Value],
    (count, rows_before): (u64, usize),
) -> Result<(), Failure> {
    let mut form = session.form;
    if let Form::Table {
        titles: titles @ Titles::Shown,
        ..
    } = &mut form
    {
        let single = rows.len() == 1 && rows_before == 1;
        if single && count > 1 && count % LINES_PER_TITLE != 0 {
            *titles = Titles::Before;
        } else if count > 0 {
            writeln!(session.out)?;
        }
    }
    session.write(rows, chosen, form, "/S")
}

/// The rows of the second sample, each with its rates since the first.
fn rates(last: &Sample, now: &Sample, keys: Keys) -> Vec<Value> {
    let name = |row: &Value| -> String {
        keys.name
            .iter()
            .map(|key| row[*key].to_string())
            .collect::<Vec<_>>()
            .join(" ")
    };
    let before: HashMap<String, &Value> = last.rows.iter().map(|row| (name(row), row)).collect();
    let elapsed_s = now.time_ns.saturating_sub(last.time_ns) as f64 / 1e9;
    let with_rates = now.rows.iter().map(|row| {
        let old = before.get(&name(row));
        let rates = keys.counters.iter().copied().flatten().map(|key| {
            let count = row[*key].as_u64().unwrap_or(0);
            let count_old = old.and_then(|old| old[*key].as_u64()).unwrap_or(0);
            let gained = count.checked_sub(count_old).unwrap_or(count);
            let rate = if elapsed_s > 0.0 {
                gained as f64 / elapsed_s
            } else {
                0.0
            };
            (format!("{key}_per_s"), json!(rate))
        });
        let mut row = row.clone();
        if let Value::Object(row) = &mut row {
            row.insert("interval_s".into(), json!(elapsed_s));
            let rates: Map<String, Value> = rates.collect();
            row.insert("rates".into(), Value::Object(rates));
        }
        row
    });
    with_rates.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table of the usual columns is made of the usual keys, however they are written; JSON and other columns of all.
    #[test]
    fn usual_columns_need_the_usual_keys() {
        let usual = |columns: &'static [Column]| columns.iter().filter(|c| c.usual).collect();
        let table = Form::Parsable;
        let read = |chosen: &Chosen, form| Read::for_table(chosen, form);
        let chosen: Chosen = usual(fields::TRAFFIC);
        assert_eq!(chosen.len(), USUAL.len());
        assert!(matches!(read(&chosen, table), Read::Usual));
        assert!(matches!(read(&chosen, Form::Json), Read::All));
        let all: Chosen = fields::TRAFFIC.iter().collect();
        assert!(matches!(read(&all, table), Read::All));
        let text = r#"{"name": "a", "kicks": 3, "drops": {"vlan": 1}, "rx_\u0066rames": 7}"#;
        let row: UsualRow = serde_json::from_str(text).expect("a row");
        assert_eq!(row.0, json!({"name": "a", "rx_frames": 7}));
    }

    /// Rates are per second of the daemon's clock; a new row and a counter that fell count from zero.
    #[test]
    fn rates_follow_the_daemons_clock() {
        let sample = |time_ns, rows: &[(&str, u64)]| Sample {
            time_ns,
            rows: rows
                .iter()
                .map(|(name, n)| json!({"name": name, "rx_frames": n}))
                .collect(),
        };
        let last = sample(1_000_000_000, &[("a", 100), ("b", 50)]);
        let now = sample(3_000_000_000, &[("a", 300), ("b", 10), ("c", 8)]);
        let rates = rates(&last, &now, TRAFFIC);
        let rate = |i: usize| rates[i]["rates"]["rx_frames_per_s"].as_f64().expect("rate");
        assert_eq!((rate(0), rate(1), rate(2)), (100.0, 5.0, 4.0));
        assert_eq!(rates[0]["interval_s"], 2.0);
        assert_eq!(rates[0]["rx_frames"], 300, "totals stay beside the rates");
        let still = super::rates(&now, &now, TRAFFIC);
        assert_eq!(still[0]["rates"]["rx_frames_per_s"], 0.0);
    }
}
