//! Reading the rules of nftables (`<linux/netfilter/nf_tables.h>`).
//!
//! # Model
//! A [`Ruleset`] is what the kernel lists: chains, rules as lists of [`Expression`]s, and the sets whose elements do
//! something of their own. Only what decides where a packet goes and what is done at each packet is taken apart; the
//! rest is [`Expression::Match`].
//!
//! # Not done
//! Changing anything, and rules of the older `iptables-legacy`, which the kernel does not list here.

#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::arithmetic_side_effects,
    clippy::panic
)]

use rustix::io::Errno;
use rustix::net::netlink;

use super::message::{self, DUMP, Malformed, Reader, Received, Request};
use super::{Netlink, NetlinkError};

/// `NFNL_SUBSYS_NFTABLES << 8`.
const SUBSYSTEM: u16 = 10 << 8;
const NEW_CHAIN: u16 = SUBSYSTEM | 3;
const GET_CHAIN: u16 = SUBSYSTEM | 4;
const NEW_RULE: u16 = SUBSYSTEM | 6;
const GET_RULE: u16 = SUBSYSTEM | 7;
const NEW_SET: u16 = SUBSYSTEM | 9;
const GET_SET: u16 = SUBSYSTEM | 10;
/// `struct nfgenmsg`: family, version, resource.
const HEADER: usize = 4;

/// `NFPROTO_IPV4` and so on.
pub const FAMILY_INET: u8 = 1;
/// IPv4 only.
pub const FAMILY_IPV4: u8 = 2;
/// One device.
pub const FAMILY_NETDEV: u8 = 5;
/// IPv6 only.
pub const FAMILY_IPV6: u8 = 10;

/// Where a chain is hung in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hook {
    /// `enum nf_inet_hooks`, or of a device: 0 ingress, 1 egress.
    pub number: u32,
    /// `filter`, `nat` or `route`.
    pub kind: String,
    /// The devices of a chain that belongs to some.
    pub devices: Vec<String>,
    /// Every packet that comes to its end is counted.
    pub counts: bool,
}

/// A chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// The family of its table.
    pub family: u8,
    /// Its table.
    pub table: String,
    /// Its name.
    pub name: String,
    /// Where it begins; `None` for one that others jump to.
    pub hook: Option<Hook>,
}

/// A rule; they are listed in their order in the chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The family of its table.
    pub family: u8,
    /// Its table.
    pub table: String,
    /// Its chain.
    pub chain: String,
    /// Its number in the kernel.
    pub handle: u64,
    /// What it does, one after the other.
    pub expressions: Vec<Expression>,
}

/// A set whose elements do something at each packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    /// The family of its table.
    pub family: u8,
    /// Its table.
    pub table: String,
    /// Its name.
    pub name: String,
    /// What its elements do: names of expressions.
    pub does: Vec<String>,
}

/// A part of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expression {
    /// Something of the packet's circumstances (`enum nft_meta_keys`) goes to a register.
    Meta {
        /// Which.
        key: u32,
        /// Where it goes.
        register: u32,
    },
    /// A register is compared with a value.
    Compare {
        /// Which.
        register: u32,
        /// `enum nft_cmp_ops`: 0 equal, 1 unequal.
        operation: u32,
        /// With what.
        value: Vec<u8>,
    },
    /// The rule's verdict.
    Verdict(Verdict),
    /// A set is asked; a verdict may come from it.
    Lookup {
        /// Its name.
        set: String,
        /// The set's elements hold verdicts.
        verdict: bool,
    },
    /// A connection's counts of packets or bytes are looked at.
    Counts,
    /// Something of this name that does not hold a packet back: what it does, the name says. Of a set's elements and
    /// of named objects, the same names are used.
    Does(String),
    /// A match or target of iptables, by its name.
    Xtables(String),
    /// Anything else: the packet may match or not, and a register may have changed.
    Match,
}

/// What becomes of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Accepted, dropped or stolen: it is done with the chain.
    Final,
    /// User space gets it.
    Queue,
    /// On with another chain, and back.
    Jump(String),
    /// On with another chain.
    Goto(String),
    /// Back to the chain that jumped here.
    Return,
    /// On with the next rule.
    Continue,
}

/// Everything that is looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ruleset {
    /// Chains of all tables.
    pub chains: Vec<Chain>,
    /// Rules of all chains.
    pub rules: Vec<Rule>,
    /// Sets whose elements do something.
    pub sets: Vec<Set>,
}

/// Names of expressions that only do, and are looked at by name.
const DOES: [&str; 7] = ["counter", "limit", "quota", "log", "queue", "dup", "fwd"];
/// Expressions that every packet passes, and that do nothing to it that matters here.
const HARMLESS: [&str; 6] = ["notrack", "nat", "masq", "redir", "flow_offload", "last"];

impl Netlink {
    /// Opens a socket for the packet filter in the calling thread's namespace.
    pub fn open_netfilter() -> Result<Self, NetlinkError> {
        Self::open_for(Some(netlink::NETFILTER))
    }

    /// The rules of the socket's namespace; none where the kernel has no nftables. Needs `CAP_NET_ADMIN` there.
    pub fn ruleset(&mut self) -> Result<Ruleset, NetlinkError> {
        match self.listed_ruleset() {
            Err(error)
                if matches!(
                    error.errno(),
                    Some(Errno::NOENT | Errno::OPNOTSUPP | Errno::INVAL | Errno::PROTONOSUPPORT)
                ) =>
            {
                Ok(Ruleset::default())
            }
            other => other,
        }
    }

    fn listed_ruleset(&mut self) -> Result<Ruleset, NetlinkError> {
        let request = |kind| move || Request::start(kind, DUMP, &[0; HEADER]);
        Ok(Ruleset {
            chains: self.dump(request(GET_CHAIN), "list chains", parse_chain)?,
            rules: self.dump(request(GET_RULE), "list rules", parse_rule)?,
            sets: self.dump(request(GET_SET), "list sets", parse_set)?,
        })
    }
}

/// Numbers in attributes of netfilter are big-endian.
fn number(value: &[u8]) -> Result<u32, Malformed> {
    Reader(value).u32().map(u32::from_be)
}

/// The family of a message, and its attributes.
fn parts<'a>(received: &Received<'a>) -> Result<(u8, &'a [u8]), Malformed> {
    let mut reader = Reader(received.payload);
    let family = reader.u8()?;
    reader.bytes(3)?;
    Ok((family, reader.0))
}

fn parse_chain(received: &Received<'_>) -> Result<Option<Chain>, Malformed> {
    if received.kind != NEW_CHAIN {
        return Ok(None);
    }
    let (family, rest) = parts(received)?;
    let (mut table, mut name, mut hook) = (String::new(), String::new(), None);
    let (mut kind, mut counts) = (String::new(), false);
    for attribute in message::attributes(rest) {
        match attribute? {
            (1, value) => table = message::text(value),
            (3, value) => name = message::text(value),
            (4, value) => hook = Some(parse_hook(value)?),
            (7, value) => kind = message::text(value),
            (8, _) => counts = true,
            _ => {}
        }
    }
    if let Some(hook) = &mut hook {
        (hook.kind, hook.counts) = (kind, counts);
    }
    Ok(Some(Chain {
        family,
        table,
        name,
        hook,
    }))
}

fn parse_hook(value: &[u8]) -> Result<Hook, Malformed> {
    let (mut number_of, mut devices) = (0, Vec::new());
    for attribute in message::attributes(value) {
        match attribute? {
            (1, value) => number_of = number(value)?,
            (3, value) => devices.push(message::text(value)),
            (4, value) => {
                for device in message::attributes(value) {
                    devices.push(message::text(device?.1));
                }
            }
            _ => {}
        }
    }
    Ok(Hook {
        number: number_of,
        kind: String::new(),
        devices,
        counts: false,
    })
}

fn parse_rule(received: &Received<'_>) -> Result<Option<Rule>, Malformed> {
    if received.kind != NEW_RULE {
        return Ok(None);
    }
    let (family, rest) = parts(received)?;
    let mut rule = Rule {
        family,
        table: String::new(),
        chain: String::new(),
        handle: 0,
        expressions: Vec::new(),
    };
    for attribute in message::attributes(rest) {
        match attribute? {
            (1, value) => rule.table = message::text(value),
            (2, value) => rule.chain = message::text(value),
            (3, value) => rule.handle = Reader(value).u64().map(u64::from_be)?,
            (4, value) => rule.expressions = expressions(value)?,
            _ => {}
        }
    }
    Ok(Some(rule))
}

fn parse_set(received: &Received<'_>) -> Result<Option<Set>, Malformed> {
    if received.kind != NEW_SET {
        return Ok(None);
    }
    let (family, rest) = parts(received)?;
    let mut set = Set {
        family,
        table: String::new(),
        name: String::new(),
        does: Vec::new(),
    };
    for attribute in message::attributes(rest) {
        match attribute? {
            (1, value) => set.table = message::text(value),
            (2, value) => set.name = message::text(value),
            (17, value) => set.does.push(expression_name(value)?),
            (18, value) => set.does.extend(expression_names(value)?),
            _ => {}
        }
    }
    Ok(Some(set).filter(|set| !set.does.is_empty()))
}

fn expression_name(value: &[u8]) -> Result<String, Malformed> {
    for attribute in message::attributes(value) {
        if let (1, name) = attribute? {
            return Ok(message::text(name));
        }
    }
    Err(Malformed)
}

fn expression_names(list: &[u8]) -> Result<Vec<String>, Malformed> {
    message::attributes(list)
        .map(|element| expression_name(element?.1))
        .collect()
}

fn expressions(list: &[u8]) -> Result<Vec<Expression>, Malformed> {
    let mut found = Vec::new();
    for element in message::attributes(list) {
        let (mut name, mut data) = (String::new(), &[][..]);
        for attribute in message::attributes(element?.1) {
            match attribute? {
                (1, value) => name = message::text(value),
                (2, value) => data = value,
                _ => {}
            }
        }
        expression(&name, data, &mut found)?;
    }
    Ok(found)
}

/// Adds what an expression is; one with others inside is several.
fn expression(name: &str, data: &[u8], found: &mut Vec<Expression>) -> Result<(), Malformed> {
    let attribute = |wanted: u16| -> Result<Option<&[u8]>, Malformed> {
        for attribute in message::attributes(data) {
            let (kind, value) = attribute?;
            if kind == wanted {
                return Ok(Some(value));
            }
        }
        Ok(None)
    };
    let numbered = |wanted| attribute(wanted)?.map(number).transpose();
    let named =
        |wanted| Ok::<_, Malformed>(attribute(wanted)?.map(message::text).unwrap_or_default());
    match name {
        "meta" => found.extend(match numbered(1)? {
            Some(register) => Some(Expression::Meta {
                key: numbered(2)?.ok_or(Malformed)?,
                register,
            }),
            // Something of the packet is set.
            None => None,
        }),
        "cmp" => found.push(Expression::Compare {
            register: numbered(1)?.ok_or(Malformed)?,
            operation: numbered(2)?.ok_or(Malformed)?,
            value: first(attribute(3)?.ok_or(Malformed)?, 1)?.to_vec(),
        }),
        "immediate" if numbered(1)? == Some(0) => {
            let verdict = first(attribute(2)?.ok_or(Malformed)?, 2)?;
            found.push(Expression::Verdict(parse_verdict(verdict)?));
        }
        "immediate" => {}
        "lookup" => found.push(Expression::Lookup {
            set: named(1)?,
            verdict: numbered(3)? == Some(0),
        }),
        // The counts of a connection: packets, bytes, and bytes a packet.
        "ct" if numbered(1)?.is_some() && matches!(numbered(2)?, Some(14..=16)) => {
            found.push(Expression::Counts);
        }
        "objref" => found.push(match numbered(1)? {
            Some(1) => Expression::Does("counter".into()),
            Some(2) => Expression::Does("quota".into()),
            Some(4) => Expression::Does("limit".into()),
            Some(_) => return Ok(()),
            // A map says which object.
            None => Expression::Does("named object".into()),
        }),
        "dynset" => {
            found.push(Expression::Match);
            let one = attribute(7)?.map(expression_name).transpose()?;
            let list = attribute(10)?.map(expression_names).transpose()?;
            let all = one.into_iter().chain(list.into_iter().flatten());
            found.extend(all.map(Expression::Does));
        }
        "match" | "target" => found.push(Expression::Xtables(named(1)?)),
        name if DOES.contains(&name) => found.push(Expression::Does(name.into())),
        name if HARMLESS.contains(&name) => {}
        _ => found.push(Expression::Match),
    }
    Ok(())
}

/// The first attribute of this type inside another one.
fn first(value: &[u8], wanted: u16) -> Result<&[u8], Malformed> {
    for attribute in message::attributes(value) {
        let (kind, value) = attribute?;
        if kind == wanted {
            return Ok(value);
        }
    }
    Err(Malformed)
}

fn parse_verdict(value: &[u8]) -> Result<Verdict, Malformed> {
    let code = number(first(value, 1)?)?.cast_signed();
    let chain = || first(value, 2).map(message::text);
    Ok(match code {
        -1 | -2 => Verdict::Continue,
        -3 => Verdict::Jump(chain()?),
        -4 => Verdict::Goto(chain()?),
        -5 => Verdict::Return,
        code if code & 0xff == 3 => Verdict::Queue,
        _ => Verdict::Final,
    })
}

#[cfg(test)]
#[allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]
mod tests {
    use super::*;

    fn be(value: u32) -> [u8; 4] {
        value.to_be_bytes()
    }

    /// `iifname "lo" accept`, then a named counter, as the kernel lists them.
    fn sample() -> Vec<u8> {
        let mut request = Request::start(NEW_RULE, 0, &[FAMILY_INET, 0, 0, 0]);
        request.string(1, "t");
        request.string(2, "c");
        request.attribute(3, &7u64.to_be_bytes());
        request.nested(4, |list| {
            list.nested(1, |expression| {
                expression.string(1, "meta");
                expression.nested(2, |data| {
                    data.attribute(1, &be(1));
                    data.attribute(2, &be(6));
                });
            });
            list.nested(1, |expression| {
                expression.string(1, "cmp");
                expression.nested(2, |data| {
                    data.attribute(1, &be(1));
                    data.attribute(2, &be(0));
                    data.nested(3, |value| value.attribute(1, b"lo\0"));
                });
            });
            list.nested(1, |expression| {
                expression.string(1, "immediate");
                expression.nested(2, |data| {
                    data.attribute(1, &be(0));
                    data.nested(2, |value| {
                        value.nested(2, |verdict| verdict.attribute(1, &be(1)))
                    });
                });
            });
            list.nested(1, |expression| {
                expression.string(1, "objref");
                expression.nested(2, |data| data.attribute(1, &be(1)));
            });
        });
        request.finish(1)
    }

    fn parse(bytes: &[u8]) -> Vec<Result<Option<Rule>, Malformed>> {
        let messages = message::split(bytes).flatten();
        messages.map(|received| parse_rule(&received)).collect()
    }

    /// A rule is taken apart into what decides about a packet.
    #[test]
    fn reads_a_rule() {
        let rule = parse(&sample()).remove(0).unwrap().unwrap();
        assert_eq!(
            (rule.table.as_str(), rule.chain.as_str(), rule.handle),
            ("t", "c", 7)
        );
        let expected = [
            Expression::Meta {
                key: 6,
                register: 1,
            },
            Expression::Compare {
                register: 1,
                operation: 0,
                value: b"lo\0".to_vec(),
            },
            Expression::Verdict(Verdict::Final),
            Expression::Does("counter".into()),
        ];
        assert_eq!(rule.expressions, expected);
    }

    /// No prefix and no single changed byte of a listing makes the parser panic or loop.
    #[test]
    fn survives_damage() {
        let good = sample();
        for len in 0..=good.len() {
            parse(&good[..len]);
        }
        for at in 0..good.len() {
            for value in [0, 1, 3, 0x7f, 0xff] {
                let mut bad = good.clone();
                bad[at] = value;
                assert!(parse(&bad).len() <= bad.len());
            }
        }
    }
}
