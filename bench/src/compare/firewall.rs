//! A firewall between two memif ports: the same rules, with connection tracking, as windlass' and as OpenFlow.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;

use super::peers::{Plug, Subject};
use super::rate::{self, Case, Run, Turns};
use crate::frames::UDP_PORT;

/// Datagrams of 64 bytes through rules that they do not match, up to the last ones, which let them begin and go on.
#[derive(Args, Debug)]
pub struct Options {
    /// Subjects, in the order of their turns
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "windlass,ovs"
    )]
    subjects: Vec<Subject>,
    /// Rules; 0: no firewall
    #[arg(long, value_delimiter = ',', default_value = "0,100,1000")]
    rules: Vec<u16>,
    /// Flows at a time
    #[arg(long, value_delimiter = ',', default_value = "64,10000")]
    flows: Vec<u16>,
    #[command(flatten)]
    turns: Turns,
}

/// Measures and prints.
///
/// # Errors
/// As [`rate::run`].
pub fn run(options: &Options, programs: &Path, json: Option<&PathBuf>) -> Result<()> {
    let mut cases = Vec::new();
    for &rules in &options.rules {
        for &flows in &options.flows {
            cases.push(Case::Filtered { rules, flows });
        }
    }
    let run = Run {
        turns: &options.turns,
        subjects: &options.subjects,
        cases,
        plug: Plug::Memif,
    };
    rate::take_turns(&run, programs, json)
}

/// A rule that drops what no frame here is: protocol, the prefix that it comes from or goes to, destination port.
struct Refusal {
    protocol: &'static str,
    from: Option<String>,
    to: Option<String>,
    port: Option<u16>,
}

/// The `n`-th: of three kinds in turn, each with another prefix.
fn refusal(n: u16) -> Refusal {
    let [high, low] = (n << 4).to_be_bytes();
    let prefix = |first: u8| format!("{first}.{}.{high}.{low}/28", n >> 12);
    let (from, to, port) = match n % 3 {
        0 => (None, Some(prefix(11)), None),
        1 => (None, Some(prefix(10)), Some(n)),
        _ => (Some(prefix(12)), Some("10.0.0.0/8".into()), Some(n)),
    };
    Refusal {
        protocol: if n % 3 == 1 { "tcp" } else { "udp" },
        from,
        to,
        port,
    }
}

/// So many rules as windlass' property has them: the last three accept and end.
#[must_use]
pub fn windlass(rules: u16) -> String {
    let mut text = String::new();
    for n in 0..rules.saturating_sub(3) {
        let rule = refusal(n);
        let _ = write!(text, "drop out {}", rule.protocol);
        if let Some(from) = rule.from {
            let _ = write!(text, " from {from}");
        }
        if let Some(to) = rule.to {
            let _ = write!(text, " to {to}");
        }
        if let Some(port) = rule.port {
            let _ = write!(text, " port {port}");
        }
        text.push(';');
    }
    let _ = write!(
        text,
        "accept out udp to port {UDP_PORT} state new; accept out state established; drop out"
    );
    text
}

/// The same as flows of OpenFlow, one a line: table 0 has connections looked up, table 1 has the rules.
#[must_use]
pub fn open_flow(rules: u16) -> String {
    if rules == 0 {
        return "table=0,priority=0,actions=normal\n".into();
    }
    let mut text = String::from(
        "table=0,priority=100,ip,ct_state=-trk,actions=ct(table=1)\ntable=0,priority=0,actions=normal\n",
    );
    for n in 0..rules.saturating_sub(3) {
        let rule = refusal(n);
        let priority = u32::from(u16::MAX - n);
        let _ = write!(
            text,
            "table=1,priority={priority},in_port=m0,{}",
            rule.protocol
        );
        if let Some(from) = rule.from {
            let _ = write!(text, ",nw_src={from}");
        }
        if let Some(to) = rule.to {
            let _ = write!(text, ",nw_dst={to}");
        }
        if let Some(port) = rule.port {
            let _ = write!(text, ",tp_dst={port}");
        }
        text.push_str(",actions=drop\n");
    }
    let _ = write!(
        text,
        "table=1,priority=3,in_port=m0,udp,tp_dst={UDP_PORT},ct_state=+new,actions=ct(commit),normal\n\
         table=1,priority=2,ip,ct_state=+est,actions=normal\n\
         table=1,priority=1,in_port=m0,actions=drop\n\
         table=1,priority=0,actions=normal\n"
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As many rules as are asked for, of which windlass takes each; OpenFlow has a few more lines around them.
    #[test]
    fn rules_are_as_many_as_asked_for() {
        for rules in [3, 100, 1000] {
            let count = windlass(rules).split(';').count();
            assert_eq!(count, usize::from(rules));
            assert_eq!(open_flow(rules).lines().count(), count + 3);
        }
        assert!(
            windlass(1000).len() < 128 * 1024,
            "an argument of a command"
        );
    }
}
