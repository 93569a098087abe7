//! How an option is declared, once: its name, type, unit, default, limits and a sentence.
//!
//! Two tables are made of these rows: [`PROPERTIES`](crate::PROPERTIES), what can be set on an object,
//! and [`DAEMON_OPTIONS`], what `windlassd` is told in its TOML file and on its command line.
//! Validation, `--help`, `show-props` and the documentation are all read from them.

use std::fmt::Display;
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;

use thiserror::Error;
use windlass_rules::{RuleError, Rules};

use crate::guard::{AllowedError, AllowedIps, ClientIds, DynamicMethods, Macs};
use crate::overlay::{Remotes, Vnis};
use crate::rss::RssWeights;
use crate::snoop::StaticGroups;
use crate::vlan::{VlanError, VlanSet};

/// The type of an option's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueKind {
    /// `on` or `off`; a boolean in JSON and TOML.
    Flag,
    /// A whole number between the row's limits; `k`, `M` and `G` may follow it in text.
    Number,
    /// A number of bytes between the row's limits; `K`, `M` and `G`, which are powers of 1024, may follow it in text.
    Bytes,
    /// A [`VlanSet`]; a string in JSON.
    Vlans,
    /// An [`AllowedIps`]; a string in JSON.
    Ips,
    /// An IPv4 address of one host, or 0.0.0.0; a string in JSON.
    Ipv4,
    /// A [`ClientIds`]; a string in JSON.
    ClientIds,
    /// [`DynamicMethods`]; a string in JSON.
    Methods,
    /// [`Macs`]; a string in JSON.
    Macs,
    /// [`StaticGroups`]; a string in JSON.
    Groups,
    /// [`RssWeights`]; a string in JSON.
    Weights,
    /// [`Rules`] of a firewall; a string in JSON.
    Rules,
    /// A path of a file or a directory; a string.
    Path,
    /// A list of processor cores, "0,2-3"; a string.
    Cores,
    /// An IPv4 or IPv6 address, or nothing; a string in JSON.
    Address,
    /// [`Vnis`]; a string in JSON.
    Vnis,
    /// [`Remotes`]; a string in JSON.
    Remotes,
    /// Any of these words, separated by commas; a string.
    Set(&'static [&'static str]),
    /// One of these words; a string.
    Words(&'static [&'static str]),
    /// Free text; a string.
    Text,
}

/// One row: everything that is to be known of an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OptionSpec {
    /// Its name, the same on the command line, in JSON and in TOML.
    pub name: &'static str,
    /// The type of its values.
    pub kind: ValueKind,
    /// The unit of a number: `s`, `us`, `bytes`, `frames/s`, ...; empty if it has none.
    pub unit: &'static str,
    /// The value when none is given, as text. `auto`: the sentence says what is done then.
    pub default: &'static str,
    /// Smallest number.
    pub min: u64,
    /// Largest number.
    pub max: u64,
    /// What it does, in a sentence.
    pub sentence: &'static str,
}

/// The canonical form of a text.
fn canonical<T: FromStr + Display>(text: &str) -> Result<Value, T::Err> {
    text.parse::<T>()
        .map(|value| Value::Text(value.to_string()))
}

/// So much of an offending value as a message has.
fn cut(text: &str) -> String {
    text.chars().take(96).collect()
}

/// The text of a default that is not a value.
pub const AUTO: &str = "auto";

/// A checked value of an option that objects have.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Value {
    /// Of a [`ValueKind::Flag`].
    Flag(bool),
    /// Of a [`ValueKind::Number`].
    Number(u64),
    /// Of a [`ValueKind::Vlans`].
    Vlans(VlanSet),
    /// Of any other kind.
    Text(String),
}

impl Display for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Flag(true) => f.pad("on"),
            Self::Flag(false) => f.pad("off"),
            Self::Number(number) => f.pad(&number.to_string()),
            Self::Vlans(vlans) => f.pad(&vlans.to_string()),
            Self::Text(text) => f.pad(text),
        }
    }
}

/// Why a value is not one of an option's.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ValueError {
    /// Neither on nor off.
    #[error("{name} is on or off, not \"{text}\"")]
    Flag {
        /// The option.
        name: &'static str,
        /// The offending value.
        text: String,
    },
    /// Not a number, or outside the limits.
    #[error("{name} is a whole number from {min} to {max}{unit}, not \"{text}\"")]
    Number {
        /// The option.
        name: &'static str,
        /// The offending value.
        text: String,
        /// Smallest.
        min: u64,
        /// Largest.
        max: u64,
        /// A space and the unit, or nothing.
        unit: String,
    },
    /// Not a list of VLANs.
    #[error("{name}: {error}")]
    Vlans {
        /// The option.
        name: &'static str,
        /// What is wrong with it.
        error: VlanError,
    },
    /// Not a list of what is allowed.
    #[error("{name}: {error}")]
    Allowed {
        /// The option.
        name: &'static str,
        /// What is wrong with it.
        error: AllowedError,
    },
    /// Not the IPv4 address of a host.
    #[error("{name} is an IPv4 address of a host, not \"{text}\"")]
    Ipv4 {
        /// The option.
        name: &'static str,
        /// The offending value.
        text: String,
    },
    /// Not a list of weights.
    #[error(
        "{name} is a list of at most 16 numbers from 0 to 255, not all of them 0, such as 1,1,2; not \"{text}\""
    )]
    Weights {
        /// The option.
        name: &'static str,
        /// The offending value.
        text: String,
    },
    /// Not an address, or not a list of what it is to be.
    #[error("{name}: {error}")]
    List {
        /// The option.
        name: &'static str,
        /// What is wrong with it, with the offending value.
        error: String,
    },
    /// None of the words that there are.
    #[error("{name} is {possible}, not \"{text}\"")]
    Word {
        /// The option.
        name: &'static str,
        /// The words.
        possible: String,
        /// The offending value.
        text: String,
    },
    /// Not a list of rules.
    #[error("{name}: {error}")]
    Rules {
        /// The option.
        name: &'static str,
        /// What is wrong with it.
        error: RuleError,
    },
    /// Not of the JSON type that the option has.
    #[error("{name} is {expected}, not {found}")]
    Type {
        /// The option.
        name: &'static str,
        /// The type that it has.
        expected: &'static str,
        /// The offending value, as JSON.
        found: String,
    },
}

impl OptionSpec {
    /// Reads a value as it is typed on the command line.
    ///
    /// # Errors
    /// If the text is not of the option's type, or outside its limits.
    pub fn parse(&self, text: &str) -> Result<Value, ValueError> {
        let name = self.name;
        match self.kind {
            ValueKind::Flag => match text {
                "on" | "true" => Ok(Value::Flag(true)),
                "off" | "false" => Ok(Value::Flag(false)),
                _ => {
                    let text = text.into();
                    Err(ValueError::Flag { name, text })
                }
            },
            ValueKind::Number => self.scaled(text, 1000),
            ValueKind::Bytes => self.scaled(text, 1024),
            ValueKind::Vlans => match text.parse() {
                Ok(vlans) => Ok(Value::Vlans(vlans)),
                Err(error) => Err(ValueError::Vlans { name, error }),
            },
            ValueKind::Ips => {
                canonical::<AllowedIps>(text).map_err(|error| ValueError::Allowed { name, error })
            }
            ValueKind::Ipv4 => match text.parse::<Ipv4Addr>() {
                Ok(ip) if !ip.is_multicast() && !ip.is_broadcast() => {
                    Ok(Value::Text(ip.to_string()))
                }
                _ => Err(ValueError::Ipv4 {
                    name,
                    text: text.chars().take(64).collect(),
                }),
            },
            ValueKind::ClientIds => {
                canonical::<ClientIds>(text).map_err(|error| ValueError::Allowed { name, error })
            }
            ValueKind::Methods => canonical::<DynamicMethods>(text)
                .map_err(|error| ValueError::Allowed { name, error }),
            ValueKind::Macs => {
                canonical::<Macs>(text).map_err(|error| ValueError::Allowed { name, error })
            }
            ValueKind::Groups => {
                canonical::<StaticGroups>(text).map_err(|error| ValueError::Allowed { name, error })
            }
            ValueKind::Weights => {
                canonical::<RssWeights>(text).map_err(|text| ValueError::Weights { name, text })
            }
            ValueKind::Rules => {
                canonical::<Rules>(text).map_err(|error| ValueError::Rules { name, error })
            }
            ValueKind::Address | ValueKind::Vnis | ValueKind::Remotes | ValueKind::Set(_) => {
                let value = self.listed(text).map(Value::Text);
                value.map_err(|error| ValueError::List {
                    name,
                    error: cut(&error),
                })
            }
            ValueKind::Words(words) if !words.contains(&text) => Err(ValueError::Word {
                name,
                possible: words.join(" or "),
                text: text.into(),
            }),
            ValueKind::Words(_) | ValueKind::Path | ValueKind::Cores | ValueKind::Text => {
                Ok(Value::Text(text.into()))
            }
        }
    }

    /// Checks a value as it stands in JSON or TOML: booleans are booleans, numbers are numbers.
    ///
    /// # Errors
    /// If it is of another type, or outside the limits.
    pub fn check(&self, value: &serde_json::Value) -> Result<Value, ValueError> {
        use serde_json::Value as Json;
        let wrong = |expected| ValueError::Type {
            name: self.name,
            expected,
            found: value.to_string().chars().take(64).collect(),
        };
        match (self.kind, value) {
            (ValueKind::Flag, Json::Bool(flag)) => Ok(Value::Flag(*flag)),
            (ValueKind::Flag, _) => Err(wrong("true or false")),
            (ValueKind::Number | ValueKind::Bytes, Json::Number(number)) => match number.as_u64() {
                Some(number) => self.number(number),
                None => Err(self.number_error(number.to_string())),
            },
            (ValueKind::Number | ValueKind::Bytes, _) => Err(wrong("a number")),
            (_, Json::String(text)) => self.parse(text),
            (_, _) => Err(wrong("a string")),
        }
    }

    /// The default as a value; `None` when it is [`AUTO`].
    pub fn default_value(&self) -> Option<Value> {
        if self.default == AUTO {
            None
        } else {
            self.parse(self.default).ok()
        }
    }

    /// What values there are, for a table: `on,off`, `0-255`, `VLANs`.
    pub fn possible(&self) -> String {
        match self.kind {
            ValueKind::Flag => "on,off".into(),
            ValueKind::Number | ValueKind::Bytes => format!("{}-{}", self.min, self.max),
            ValueKind::Vlans => "list of 1-4094".into(),
            ValueKind::Ips => "list of addresses and prefixes".into(),
            ValueKind::Ipv4 => "IPv4 address".into(),
            ValueKind::ClientIds => "any, or list of identifiers".into(),
            ValueKind::Methods => "list of dhcpv4,dhcpv6,slaac,addrconf".into(),
            ValueKind::Macs => "list of MAC addresses".into(),
            ValueKind::Groups => "list of groups".into(),
            ValueKind::Weights => "list of 0-255".into(),
            ValueKind::Rules => "rules".into(),
            ValueKind::Path => "path".into(),
            ValueKind::Cores => "list of cores".into(),
            ValueKind::Address => "IP address".into(),
            ValueKind::Vnis => "list of VLAN=VNI".into(),
            ValueKind::Remotes => "list of IP or IP:PORT".into(),
            ValueKind::Set(words) => format!("list of {}", words.join(",")),
            ValueKind::Words(words) => words.join(","),
            ValueKind::Text => "text".into(),
        }
    }

    /// An address or a list of an overlay, in its canonical form; else why it is none.
    fn listed(&self, text: &str) -> Result<String, String> {
        match self.kind {
            _ if text.is_empty() => Ok(String::new()),
            ValueKind::Address => match text.parse::<IpAddr>() {
                Ok(ip) if !ip.is_unspecified() => Ok(ip.to_string()),
                _ => Err(format!("\"{text}\" is not the IP address of a host")),
            },
            ValueKind::Vnis => text.parse::<Vnis>().map(|vnis| vnis.to_string()),
            ValueKind::Remotes => text.parse::<Remotes>().map(|remotes| remotes.to_string()),
            ValueKind::Set(words) => {
                let given: Vec<&str> = text.split(',').collect();
                if let Some(bad) = given.iter().find(|word| !words.contains(word)) {
                    return Err(format!("\"{bad}\" is none of {}", words.join(", ")));
                }
                let known = words.iter().copied().filter(|word| given.contains(word));
                Ok(known.collect::<Vec<_>>().join(","))
            }
            _ => Ok(text.to_owned()),
        }
    }

    /// A number in text, whose suffixes are powers of `kilo`.
    fn scaled(&self, text: &str, kilo: u64) -> Result<Value, ValueError> {
        match parse_number(text, kilo) {
            Some(number) => self.number(number),
            None => Err(self.number_error(text.into())),
        }
    }

    fn number(&self, number: u64) -> Result<Value, ValueError> {
        if (self.min..=self.max).contains(&number) {
            Ok(Value::Number(number))
        } else {
            Err(self.number_error(number.to_string()))
        }
    }

    fn number_error(&self, text: String) -> ValueError {
        let unit = if self.unit.is_empty() {
            String::new()
        } else {
            format!(" {}", self.unit)
        };
        ValueError::Number {
            name: self.name,
            text,
            min: self.min,
            max: self.max,
            unit,
        }
    }
}

/// A whole number, of which a suffix is a power of `kilo`.
fn parse_number(text: &str, kilo: u64) -> Option<u64> {
    const SUFFIXES: [(char, u32); 4] = [('k', 1), ('K', 1), ('M', 2), ('G', 3)];
    let scaled = SUFFIXES
        .iter()
        .find_map(|&(suffix, power)| Some((text.strip_suffix(suffix)?, power)));
    let (digits, power) = scaled.unwrap_or((text, 0));
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let factor = kilo.checked_pow(power)?;
    digits.parse::<u64>().ok()?.checked_mul(factor)
}

const fn row(
    name: &'static str,
    kind: ValueKind,
    unit: &'static str,
    default: &'static str,
    limits: (u64, u64),
    sentence: &'static str,
) -> OptionSpec {
    OptionSpec {
        name,
        kind,
        unit,
        default,
        min: limits.0,
        max: limits.1,
        sentence,
    }
}

/// The options of `windlassd`: keys of its TOML file, and where the sentence says so of its command
/// line. A reload (SIGHUP) takes new values of all but those whose sentence ends in "Needs a restart."
pub const DAEMON_OPTIONS: &[OptionSpec] = &[
    row(
        "socket",
        ValueKind::Path,
        "",
        AUTO,
        (0, 0),
        "Control socket. auto: control.sock in the runtime directory. Also --socket and WINDLASS_SOCKET. \
         Needs a restart.",
    ),
    row(
        "state-dir",
        ValueKind::Path,
        "",
        AUTO,
        (0, 0),
        "Directory of the stored configuration. auto: /var/lib/windlass for root, else \
         $XDG_STATE_HOME/windlass or ~/.local/state/windlass. Also --state-dir. Needs a \
         restart.",
    ),
    row(
        "runtime-dir",
        ValueKind::Path,
        "",
        AUTO,
        (0, 0),
        "Directory of sockets. auto: /run/windlass for root, else $XDG_RUNTIME_DIR/windlass, else \
         /tmp/windlass-UID. Also --runtime-dir. Needs a restart.",
    ),
    row(
        "workers",
        ValueKind::Cores,
        "",
        AUTO,
        (0, 0),
        "Cores that data workers are pinned to, one worker each: \"0,2-3\". auto: one worker, on any \
         core. Also --workers. Needs a restart.",
    ),
    row(
        "shortcut",
        ValueKind::Words(&[AUTO, "tcx", "clsact", "off"]),
        "",
        AUTO,
        (0, 0),
        "Where the kernel's shortcut between VNICs of attachment veth has its eBPF programs. auto: clsact, else tcx (Linux 6.6). off: \
         no shortcut; such a VNIC gets a TAP. Needs a restart.",
    ),
    row(
        "connections-max",
        ValueKind::Number,
        "connections",
        "256",
        (1, 4096),
        "Connections to the control socket at once of all users who are no operators.",
    ),
    row(
        "connections-per-uid-max",
        ValueKind::Number,
        "connections",
        "32",
        (1, 4096),
        "Connections to the control socket at once from one user who is no operator.",
    ),
    row(
        "vnics-per-uid-max",
        ValueKind::Number,
        "VNICs",
        "256",
        (1, 65_535),
        "VNICs that the owner of zones may have in all of them. Operators may make more.",
    ),
    row(
        "descriptors-per-uid-max",
        ValueKind::Number,
        "descriptors",
        "8192",
        (16, 1_048_576),
        "Descriptors that one owner's VNICs may need: a TAP 5 and 1 a queue, a veth 10, a memif 10 and 2 a ring, a vnd device 12, \
         a virtual machine 6 and 6 a queue. Operators may make more.",
    ),
    row(
        "flows-per-uid-max",
        ValueKind::Number,
        "flows",
        "1024",
        (0, 16_384),
        "Flows that all VNICs of one owner may have. Operators may make more.",
    ),
    row(
        "mappings-per-uid-max",
        ValueKind::Number,
        "mappings",
        "4096",
        (16, 32_768),
        "Shared mappings that the peers of all VNICs of one owner may have: a region of a guest's or of a memif \
         client's memory is one. An operator's VNIC may have 1024. Needs a restart.",
    ),
    row(
        "addresses-per-uid-max",
        ValueKind::Number,
        "addresses",
        "4096",
        (16, 1_048_576),
        "Addresses that may be learned on all VNICs of one owner, in all bridges together; further ones are not learned. \
         Needs a restart.",
    ),
    row(
        "monitors-per-uid-max",
        ValueKind::Number,
        "monitors",
        "8",
        (1, 4096),
        "Readers of events that a user who is no operator may have at once.",
    ),
    row(
        "captures-per-uid-max",
        ValueKind::Number,
        "captures",
        "4",
        (1, 32),
        "Captures (windlass snoop) that a user who is no operator may have at once.",
    ),
    row(
        "answers-per-uid-max",
        ValueKind::Number,
        "answers",
        "16",
        (1, 4096),
        "Other answers to GET that are being made for, or read by, a user who is no operator.",
    ),
    row(
        "body-bytes-max",
        ValueKind::Number,
        "bytes",
        "4194304",
        (1024, 67_108_864),
        "Largest body of a request.",
    ),
    row(
        "read-timeout-ms",
        ValueKind::Number,
        "ms",
        "10000",
        (10, 600_000),
        "Time in which the next request, its head, and then its body must arrive, and in which the peer must \
         take some of an answer; else the connection is closed.",
    ),
    row(
        "monitor-events-max",
        ValueKind::Number,
        "events",
        "1024",
        (16, 65_536),
        "Events that a slow reader of the monitor may lag behind; then it loses the oldest, and is told. \
         Needs a restart.",
    ),
    row(
        "log-lines-burst",
        ValueKind::Number,
        "lines",
        "64",
        (1, 65_536),
        "Lines of the log that a user who is no operator, or a zone, may cause at once.",
    ),
    row(
        "log-lines-per-s",
        ValueKind::Number,
        "lines/s",
        "4",
        (1, 65_536),
        "Lines a second after these; the next one says how many were left out.",
    ),
    row(
        "log-level",
        ValueKind::Text,
        "",
        "info",
        (0, 0),
        "What is logged: error, warn, info, debug or trace. Also --log-level.",
    ),
    row(
        "log-format",
        ValueKind::Text,
        "",
        AUTO,
        (0, 0),
        "Form of the log: text, json (one object a line), or auto: fields to the journal under systemd, else text. Needs a \
         restart.",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    /// Each default is a value of its own option, and each row has a sentence.
    #[test]
    fn defaults_are_valid() {
        for spec in DAEMON_OPTIONS {
            assert!(
                spec.default == AUTO || spec.default_value().is_some(),
                "{}",
                spec.name
            );
            assert!(spec.sentence.ends_with('.'), "{}", spec.name);
        }
    }

    /// Suffixes scale, and what overflows or is no number is refused.
    #[test]
    fn numbers_have_suffixes() {
        assert_eq!(parse_number("10k", 1000), Some(10_000));
        assert_eq!(parse_number("2G", 1000), Some(2_000_000_000));
        assert_eq!(parse_number("2M", 1024), Some(2_097_152));
        for bad in [
            "",
            "k",
            "-1",
            "+1",
            "1.5",
            "99999999999999999999",
            "99999999999G",
            "1kk",
        ] {
            assert_eq!(parse_number(bad, 1000), None, "{bad}");
        }
    }
}
