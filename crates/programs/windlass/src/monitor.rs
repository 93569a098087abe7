//! `monitor`: what changes, a line each, as it does.

use std::io;

use windlass_api::{EventKind, MonitorEvent};

use crate::Session;
use crate::failure::Failure;
use crate::options::MonitorArgs;
use crate::table::{Form, clean};

/// Writes events until the daemon ends, nobody reads any more, or so many were written.
pub(crate) fn run(session: &mut Session<'_>, args: &MonitorArgs) -> Result<(), Failure> {
    let json = session.form == Form::Json;
    session.client("monitor")?;
    let Session {
        client: Some(client),
        out,
        ..
    } = session
    else {
        return Ok(());
    };
    let events = client
        .monitor()
        .map_err(|error| Failure::of("monitor", error))?;
    let limit = usize::try_from(args.count.unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
    for event in events.take(limit) {
        let event = event.map_err(|error| Failure::of("monitor", error))?;
        if json {
            serde_json::to_writer(&mut **out, &event).map_err(io::Error::from)?;
            writeln!(out)?;
        } else {
            writeln!(out, "{}", clean(&line(&event)))?;
        }
        out.flush()?;
    }
    Ok(())
}

fn line(event: &MonitorEvent) -> String {
    let what = match &event.kind {
        EventKind::Start => "= start".to_owned(),
        EventKind::Change { change } => change.to_string(),
        EventKind::State { name, status } => match &status.reason {
            Some(reason) => format!("! {name} {}: {reason}", status.state.as_str()),
            None => format!("! {name} {}", status.state.as_str()),
        },
        EventKind::Clash {
            bridge,
            vlan,
            mac,
            holder,
            member,
        } => format!("? {bridge} vlan {vlan} {mac} of {holder} is used by {member}, too"),
        EventKind::Lost { events } => format!("? {events} events lost"),
    };
    format!("{} {} {what}", utc(event.time_ns), event.revision)
}

/// The time of day in UTC, by RFC 3339, to the millisecond.
fn utc(time_ns: u64) -> String {
    let (seconds, millis) = (time_ns / 1_000_000_000, time_ns / 1_000_000 % 1000);
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

/// Year, month and day of a number of days since 1970-01-01 in the Gregorian calendar. Counts eras of 400
/// years that begin on 1 March, so that the leap day is a year's last.
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Days before and after leap days, and of a century that has none.
    #[test]
    fn dates_are_right() {
        for (days, date) in [
            (0, (1970, 1, 1)),
            (11_016, (2000, 2, 29)),
            (11_017, (2000, 3, 1)),
            (20_513, (2026, 3, 1)),
            (47_540, (2100, 2, 28)),
            (47_541, (2100, 3, 1)),
        ] {
            assert_eq!(civil(days), date, "{days}");
        }
        assert_eq!(utc(1_795_273_446_123_456_789), "2026-11-21T15:04:06.123Z");
    }
}
