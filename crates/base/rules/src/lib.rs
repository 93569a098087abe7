//! Firewall rules, and the attributes of flows ([`FlowMatch`]): what they are, and how they are written.
//!
//! # Model
//! [`Rules`] are an ordered list; the first [`Rule`] that matches a packet decides about it, and what none matches passes.
//! The text form is that of the API, of documents and of the command line. Rules stand one a line, or behind semicolons; `#`
//! begins a comment.
//!
//! ```text
//! set NAME PREFIX,..
//! accept | drop | reject [count] [log] [in | out] [ipv4 | ipv6] [tcp | udp | icmp | icmp6 | proto NUMBER] [type TYPE[/CODE]]
//!     [from PREFIX,.. | from @SET] [port PORT,..] [to PREFIX,.. | to @SET] [port PORT,..] [state STATE,..]
//! ```
//!
//! | word | meaning |
//! | --- | --- |
//! | `count` | frames and bytes of what it decides are counted |
//! | `log` | what it decides is told, up to a rate |
//! | `in`, `out` | towards the guest, from it; both without the word |
//! | `port` | of the side that stands before it; `80`, `8000-8080` |
//! | `state` | `new`, `established`, `related`, `invalid` |
//!
//! What is printed is canonical: it reads back as the same rules.
//!
//! # Limits
//! [`RULES_MAX`], [`PREFIXES_MAX`], [`PORTS_MAX`], [`SETS_MAX`], [`TEXT_MAX`].
#![forbid(unsafe_code)]

mod flow;
mod prefix;
mod text;

pub use flow::{FlowError, FlowMatch, TRANSPORTS};
pub use prefix::{Prefix, PrefixError};
pub use text::RuleError;

/// Rules of a list.
pub const RULES_MAX: usize = 10_000;
/// Prefixes of a list, those of its sets among them: sets of 10,000 both ways.
pub const PREFIXES_MAX: usize = 32_768;
/// Ports and ranges of ports of a side of a rule.
pub const PORTS_MAX: usize = 64;
/// Sets of a list.
pub const SETS_MAX: usize = 256;
/// Bytes of a list as text.
pub const TEXT_MAX: usize = 1 << 20;

/// An ordered list of rules.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules {
    /// Sets of prefixes that rules name.
    pub sets: Vec<Set>,
    /// The rules; the first that matches decides.
    pub rules: Vec<Rule>,
}

/// A set of prefixes with a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Set {
    /// Its name.
    pub name: String,
    /// What is in it.
    pub prefixes: Vec<Prefix>,
}

/// What becomes of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// It goes on.
    Accept,
    /// It is dropped.
    Drop,
    /// It is dropped, and its sender is told.
    Reject,
}

/// Which way a packet goes, as the guest sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Towards the guest.
    In,
    /// From the guest.
    Out,
}

/// A version of IP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// What a packet is to the connections that are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum State {
    /// It begins one, or belongs to none.
    New,
    /// It belongs to one in which both sides have spoken, or answers one.
    Established,
    /// It is an error about one.
    Related,
    /// It can belong to none.
    Invalid,
}

impl State {
    /// All of them.
    pub const ALL: [State; 4] = [
        State::New,
        State::Established,
        State::Related,
        State::Invalid,
    ];
}

/// Some states; none named: any.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct States(u8);

impl States {
    /// Names a state.
    pub fn insert(&mut self, state: State) {
        self.0 |= 1 << state as u8;
    }

    /// Whether any is named.
    pub fn is_any(&self) -> bool {
        self.0 == 0
    }

    /// Whether a packet in this state matches.
    pub fn matches(&self, state: State) -> bool {
        self.is_any() || self.0 & 1 << state as u8 != 0
    }
}

/// Addresses of a side of a rule.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Addresses {
    /// All.
    #[default]
    Any,
    /// These.
    These(Vec<Prefix>),
    /// Those of [`Rules::sets`] at this index.
    Set(usize),
}

/// A side of a rule: where packets come from, or where they go.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Side {
    /// Its addresses.
    pub addresses: Addresses,
    /// Its ports, first and last of each range; none: any.
    pub ports: Vec<(u16, u16)>,
}

/// One rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// What it does.
    pub action: Action,
    /// Frames and bytes of what it decides are counted.
    pub count: bool,
    /// What it decides is told.
    pub log: bool,
    /// Which way; none: both.
    pub direction: Option<Direction>,
    /// Which version of IP; none: both.
    pub family: Option<Family>,
    /// The number of the transport protocol; none: any.
    pub protocol: Option<u8>,
    /// Type and code of an ICMP message.
    pub icmp: Option<(u8, Option<u8>)>,
    /// Where packets come from.
    pub from: Side,
    /// Where they go.
    pub to: Side,
    /// The states of their connections.
    pub states: States,
}

impl Rules {
    /// The prefixes of a side; none: any address.
    pub fn prefixes<'a>(&'a self, side: &'a Side) -> Option<&'a [Prefix]> {
        match &side.addresses {
            Addresses::Any => None,
            Addresses::These(prefixes) => Some(prefixes),
            Addresses::Set(index) => Some(self.sets.get(*index).map_or(&[], |set| &set.prefixes)),
        }
    }

    /// Whether there is nothing.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty() && self.sets.is_empty()
    }
}
