//! Whether the rules of nftables do something to each packet of a connection over `lo`.
//!
//! # Purpose
//! A rule that counts, limits, logs or copies packets means every packet. Packets that windlass takes past the kernel's filter would
//! go by it unseen. [`finding()`] says where there is such a rule, so that those packets stay with the kernel.
//!
//! # Where it sits
//! ```text
//!   windlass-sys (netlink)  --Ruleset-->  finding()  --in words-->  windlass-broker: a pair stays on the kernel
//! ```
//!
//! # Model
//! A pure function of a [`Ruleset`]. The chains are followed as a TCP packet over `lo` would be, with three answers to each
//! question: yes, no, and maybe for all that depends on more than the interface and the protocol. What would be done to a packet
//! that does or may come by is a finding; a rule that certainly accepts (`iif lo accept`) ends its chain.
//!
//! Chains of type `nat` see only the first packet of a connection and are left out, as is forwarding. A counter in the
//! tables of iptables says nothing: every rule there has one.
//!
//! # Limits
//! 50,000 rules are followed, and 16 jumps deep; a ruleset that takes more counts as a finding.
//!
//! # Failure modes
//! None. A ruleset comes from whoever owns a network namespace: circles of jumps end, and an expression that is not known is a maybe.
#![forbid(unsafe_code)]
#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::arithmetic_side_effects,
    clippy::panic
)]

use std::collections::{HashMap, HashSet};

use windlass_sys::hooks::LOOPBACK_INDEX;
use windlass_sys::netlink::{
    Chain, Expression, FAMILY_INET, FAMILY_IPV4, FAMILY_IPV6, FAMILY_NETDEV, Rule, Ruleset, Verdict,
};

/// Rules that are looked at, one more than once if several chains lead there.
const VISITS_MAX: u32 = 50_000;
/// As the kernel's `NFT_JUMP_STACK_SIZE`.
const JUMPS_MAX: u32 = 16;

/// `NFT_META_L4PROTO`; 4 to 9 are `NFT_META_IIF` to `NFT_META_OIFTYPE`.
const L4PROTO: u32 = 16;
/// `IPPROTO_TCP`.
const TCP: u8 = 6;
const LO_NAME: [u8; 16] = *b"lo\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
const ARPHRD_LOOPBACK: u16 = 772;

/// Matches and targets of iptables that do something to each packet, or look at what has been done.
const XTABLES: [&str; 14] = [
    "limit",
    "hashlimit",
    "quota",
    "connbytes",
    "nfacct",
    "rateest",
    "statistic",
    "LOG",
    "NFLOG",
    "ULOG",
    "NFQUEUE",
    "TEE",
    "RATEEST",
    "IDLETIMER",
];

/// Which way the packet goes past a chain.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    In,
    Out,
}

type Key<'a> = (u8, &'a str, &'a str);

/// The first thing that a ruleset does to a packet over `lo`, in words; `None` if there is none.
pub fn finding(ruleset: &Ruleset) -> Option<String> {
    let mut rules: HashMap<Key<'_>, Vec<&Rule>> = HashMap::new();
    for rule in &ruleset.rules {
        let key = (rule.family, rule.table.as_str(), rule.chain.as_str());
        rules.entry(key).or_default().push(rule);
    }
    let mut walk = Walk {
        ruleset,
        rules,
        visits: 0,
        mapped: HashSet::new(),
    };
    for chain in &ruleset.chains {
        let Some(way) = way(chain) else { continue };
        if chain.hook.as_ref().is_some_and(|hook| hook.counts)
            && !of_iptables(chain.family, &chain.table)
        {
            let place = place(chain.family, &chain.table, &chain.name);
            return Some(format!("{place}: counter"));
        }
        walk.mapped.clear();
        if let Err(found) = walk.chain((chain.family, &chain.table, &chain.name), way, 0) {
            return Some(found);
        }
    }
    None
}

/// Which way packets over `lo` pass a base chain; `None` if they do not, or if only the first one does.
fn way(chain: &Chain) -> Option<Way> {
    let hook = chain.hook.as_ref().filter(|hook| hook.kind != "nat")?;
    let on_lo = hook.devices.iter().any(|device| device == "lo");
    match (chain.family, hook.number) {
        (FAMILY_INET | FAMILY_IPV4 | FAMILY_IPV6, 0 | 1) => Some(Way::In),
        (FAMILY_INET | FAMILY_IPV4 | FAMILY_IPV6, 3 | 4) => Some(Way::Out),
        (FAMILY_INET, 5) | (FAMILY_NETDEV, 0) if on_lo => Some(Way::In),
        (FAMILY_NETDEV, 1) if on_lo => Some(Way::Out),
        _ => None,
    }
}

fn of_iptables(family: u8, table: &str) -> bool {
    matches!(family, FAMILY_IPV4 | FAMILY_IPV6)
        && ["filter", "nat", "mangle", "raw", "security"].contains(&table)
}

fn place(family: u8, table: &str, chain: &str) -> String {
    let family = match family {
        FAMILY_INET => "inet",
        FAMILY_IPV4 => "ip",
        FAMILY_IPV6 => "ip6",
        _ => "netdev",
    };
    format!("nftables {family} {table} {chain}")
}

struct Walk<'a> {
    ruleset: &'a Ruleset,
    rules: HashMap<Key<'a>, Vec<&'a Rule>>,
    visits: u32,
    /// Chains that were followed because a map of verdicts may lead there.
    mapped: HashSet<Key<'a>>,
}

/// What a register holds.
struct Value {
    register: u32,
    bytes: Vec<u8>,
    /// There is no such interface: kernels differ in what they say of it.
    absent: bool,
}

impl<'a> Walk<'a> {
    /// Follows a chain. Whether the packet is accepted or dropped there for certain; else it may go on behind it.
    fn chain(&mut self, key: Key<'a>, way: Way, depth: u32) -> Result<bool, String> {
        for rule in self.rules.get(&key).cloned().unwrap_or_default() {
            self.visits = self.visits.saturating_add(1);
            if self.visits > VISITS_MAX || depth > JUMPS_MAX {
                return Err("nftables: more rules than can be followed".into());
            }
            if let Some(ends) = self.rule(rule, way, depth)? {
                return Ok(ends);
            }
        }
        Ok(false)
    }

    /// Follows a rule. `Some`: for certain, nothing behind it in its chain is reached; with what the chain comes to.
    fn rule(&mut self, rule: &'a Rule, way: Way, depth: u32) -> Result<Option<bool>, String> {
        // Whether the packet came here for certain, and what is known of it.
        let (mut sure, mut known): (bool, Option<Value>) = (true, None);
        for expression in &rule.expressions {
            match expression {
                Expression::Meta { key, register } => known = value(*key, *register, way),
                Expression::Compare {
                    register,
                    operation,
                    value,
                } => match known.as_ref().filter(|known| known.register == *register) {
                    Some(known) if *operation <= 1 => {
                        if known.bytes.starts_with(value) != (*operation == 0) {
                            return Ok(None);
                        }
                        sure &= !known.absent;
                    }
                    // Anything else may be.
                    _ => sure = false,
                },
                Expression::Verdict(verdict) => {
                    let ends = self.verdict(rule, verdict, way, depth)?;
                    return Ok(ends.filter(|_| sure));
                }
                Expression::Lookup { set, verdict } => {
                    sure = false;
                    self.elements(rule, set)?;
                    if *verdict {
                        self.mapped(rule, way, depth)?;
                    }
                }
                Expression::Counts => return Err(found(rule, "ct bytes")),
                Expression::Does(what)
                    if what == "counter" && of_iptables(rule.family, &rule.table) => {}
                Expression::Does(what) => return Err(found(rule, what)),
                Expression::Xtables(name) if XTABLES.contains(&name.as_str()) => {
                    return Err(found(rule, name));
                }
                Expression::Xtables(_) | Expression::Match => (sure, known) = (false, None),
            }
        }
        Ok(None)
    }

    /// What a rule with this verdict comes to.
    fn verdict(
        &mut self,
        rule: &'a Rule,
        verdict: &'a Verdict,
        way: Way,
        depth: u32,
    ) -> Result<Option<bool>, String> {
        let mut follow = |chain| {
            self.chain(
                (rule.family, &rule.table, chain),
                way,
                depth.saturating_add(1),
            )
        };
        Ok(match verdict {
            Verdict::Queue => return Err(found(rule, "queue")),
            Verdict::Continue => None,
            Verdict::Final => Some(true),
            Verdict::Return => Some(false),
            Verdict::Jump(chain) => follow(chain)?.then_some(true),
            Verdict::Goto(chain) => Some(follow(chain)?),
        })
    }

    /// What the elements of a set do.
    fn elements(&self, rule: &Rule, name: &str) -> Result<(), String> {
        let mut sets = self.ruleset.sets.iter();
        let set = sets.find(|set| {
            (set.family, set.table.as_str(), set.name.as_str()) == (rule.family, &rule.table, name)
        });
        match set.and_then(|set| set.does.first()) {
            Some(what) => Err(found(rule, &format!("{what} of set {name}"))),
            None => Ok(()),
        }
    }

    /// Follows all chains of the table that a map of verdicts may lead to.
    fn mapped(&mut self, rule: &'a Rule, way: Way, depth: u32) -> Result<(), String> {
        let chains = self.ruleset.chains.iter().filter(|chain| {
            chain.hook.is_none() && (chain.family, &chain.table) == (rule.family, &rule.table)
        });
        for chain in chains {
            let key = (chain.family, chain.table.as_str(), chain.name.as_str());
            if self.mapped.insert(key) {
                self.chain(key, way, depth.saturating_add(1))?;
            }
        }
        Ok(())
    }
}

fn found(rule: &Rule, what: &str) -> String {
    let place = place(rule.family, &rule.table, &rule.chain);
    format!("{place}, handle {}: {what}", rule.handle)
}

/// What the kernel says of a TCP packet over `lo`; `None` if that depends.
fn value(key: u32, register: u32, way: Way) -> Option<Value> {
    // Even keys are of the interface that it came in by, odd ones of the one that it leaves by.
    let absent = key != L4PROTO && key.is_multiple_of(2) != (way == Way::In);
    let mut bytes = match key {
        L4PROTO => vec![TCP],
        4 | 5 => LOOPBACK_INDEX.to_ne_bytes().to_vec(),
        6 | 7 => LO_NAME.to_vec(),
        8 | 9 => ARPHRD_LOOPBACK.to_ne_bytes().to_vec(),
        _ => return None,
    };
    if absent {
        bytes.fill(0);
    }
    Some(Value {
        register,
        bytes,
        absent,
    })
}
