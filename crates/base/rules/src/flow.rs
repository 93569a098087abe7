//! Which of a VNIC's packets are a flow: [`FlowMatch`].

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use crate::prefix::{Prefix, PrefixError};

/// The transports that a flow can name, with their protocol numbers.
pub const TRANSPORTS: [(&str, u8); 5] = [
    ("tcp", 6),
    ("udp", 17),
    ("sctp", 132),
    ("icmp", 1),
    ("icmpv6", 58),
];
/// Those of them that have ports.
const WITH_PORTS: [u8; 3] = [6, 17, 132];

/// The attributes of a flow: one of flowadm's six combinations. *Local* is the VNIC's side: the source of what it sends, the
/// destination of what it gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FlowMatch {
    /// `local_ip=PREFIX`
    LocalIp(Prefix),
    /// `remote_ip=PREFIX`
    RemoteIp(Prefix),
    /// `transport=PROTOCOL`
    Transport(u8),
    /// `transport=PROTOCOL,local_port=PORT`
    LocalPort(u8, u16),
    /// `transport=PROTOCOL,remote_port=PORT`
    RemotePort(u8, u16),
    /// `dsfield=VALUE[:MASK]`: bits of the IPv4 type of service or the IPv6 traffic class.
    DsField {
        /// What they are; 0 outside the mask.
        value: u8,
        /// Which of them count.
        mask: u8,
    },
}

/// Why a text is no flow's attributes.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FlowError {
    /// A part without `=`.
    #[error("\"{0}\" is not of the form ATTRIBUTE=VALUE")]
    Form(String),
    /// No such attribute.
    #[error(
        "there is no attribute \"{0}\" (there are: local_ip, remote_ip, transport, local_port, remote_port, dsfield)"
    )]
    Unknown(String),
    /// An attribute that is there already.
    #[error("{0} is given twice")]
    Twice(String),
    /// Attributes that no flow has together.
    #[error(
        "a flow has one of: local_ip; remote_ip; transport; transport and local_port; transport and remote_port; dsfield"
    )]
    Combination,
    /// A transport without ports.
    #[error("a port needs transport=tcp, udp or sctp")]
    NoPorts,
    /// An address.
    #[error("{0}: {1}")]
    Prefix(String, PrefixError),
    /// Another value.
    #[error("{0}: {1} is not {2}")]
    Value(String, String, &'static str),
}

/// A text without what is after the first bytes.
fn short(text: &str) -> String {
    text.chars().take(64).collect()
}

impl FlowMatch {
    /// Which of the six combinations it is: all flows of a VNIC are of the same.
    pub fn combination(&self) -> &'static str {
        match self {
            Self::LocalIp(_) => "local_ip",
            Self::RemoteIp(_) => "remote_ip",
            Self::Transport(_) => "transport",
            Self::LocalPort(..) => "transport,local_port",
            Self::RemotePort(..) => "transport,remote_port",
            Self::DsField { .. } => "dsfield",
        }
    }
}

fn number(name: &str, text: &str, (most, what): (u32, &'static str)) -> Result<u32, FlowError> {
    let value = match text.strip_prefix("0x") {
        Some(hex) if hex.bytes().all(|b| b.is_ascii_hexdigit()) => {
            u32::from_str_radix(hex, 16).ok()
        }
        None if text.bytes().all(|b| b.is_ascii_digit()) => text.parse().ok(),
        _ => None,
    };
    let value = value.filter(|value| *value <= most);
    value.ok_or_else(|| FlowError::Value(name.into(), short(text), what))
}

fn transport(text: &str) -> Result<u8, FlowError> {
    let mut known = TRANSPORTS.iter();
    let found = known
        .find(|(name, _)| *name == text)
        .map(|(_, number)| *number);
    let what = "one of tcp, udp, sctp, icmp, icmpv6";
    found.ok_or_else(|| FlowError::Value("transport".into(), short(text), what))
}

fn port(name: &str, text: &str) -> Result<u16, FlowError> {
    const WHAT: &str = "a port from 1 to 65535";
    match u16::try_from(number(name, text, (65_535, WHAT))?) {
        Ok(port) if port != 0 => Ok(port),
        _ => Err(FlowError::Value(name.into(), short(text), WHAT)),
    }
}

fn dsfield(text: &str) -> Result<FlowMatch, FlowError> {
    let byte = |text| {
        let byte = number(
            "dsfield",
            text,
            (255, "a byte such as 0x2e, or two as in 0xb8:0xfc"),
        )?;
        Ok(byte as u8)
    };
    let (value, mask) = match text.split_once(':') {
        Some((value, mask)) => (byte(value)?, byte(mask)?),
        None => (byte(text)?, 0xff),
    };
    let what = "a value within a mask that is not 0";
    match mask != 0 && value & !mask == 0 {
        true => Ok(FlowMatch::DsField { value, mask }),
        false => Err(FlowError::Value("dsfield".into(), short(text), what)),
    }
}

impl FromStr for FlowMatch {
    type Err = FlowError;

    fn from_str(text: &str) -> Result<Self, FlowError> {
        let mut parts: Vec<(&str, &str)> = Vec::new();
        for part in text.split(',') {
            let (name, value) = part
                .split_once('=')
                .ok_or_else(|| FlowError::Form(short(part)))?;
            const KNOWN: [&str; 6] = [
                "local_ip",
                "remote_ip",
                "transport",
                "local_port",
                "remote_port",
                "dsfield",
            ];
            if !KNOWN.contains(&name) {
                return Err(FlowError::Unknown(short(name)));
            }
            if parts.iter().any(|(other, _)| *other == name) {
                return Err(FlowError::Twice(name.into()));
            }
            parts.push((name, value));
        }
        parts.sort_by_key(|(name, _)| *name != "transport");
        let prefix = |name: &str, text: &str| {
            let prefix = text.parse::<Prefix>();
            prefix.map_err(|error| FlowError::Prefix(name.into(), error))
        };
        match *parts.as_slice() {
            [("local_ip", text)] => Ok(Self::LocalIp(prefix("local_ip", text)?)),
            [("remote_ip", text)] => Ok(Self::RemoteIp(prefix("remote_ip", text)?)),
            [("transport", text)] => Ok(Self::Transport(transport(text)?)),
            [("dsfield", text)] => dsfield(text),
            [
                ("transport", protocol),
                (side @ ("local_port" | "remote_port"), text),
            ] => {
                let protocol = transport(protocol)?;
                if !WITH_PORTS.contains(&protocol) {
                    return Err(FlowError::NoPorts);
                }
                let port = port(side, text)?;
                Ok(match side {
                    "local_port" => Self::LocalPort(protocol, port),
                    _ => Self::RemotePort(protocol, port),
                })
            }
            [("local_port" | "remote_port", _)] => Err(FlowError::NoPorts),
            _ => Err(FlowError::Combination),
        }
    }
}

impl fmt::Display for FlowMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |protocol: &u8| {
            let mut known = TRANSPORTS.iter();
            let found = known.find(|(_, number)| number == protocol);
            found.map_or("?", |(name, _)| *name)
        };
        match self {
            Self::LocalIp(prefix) => write!(f, "local_ip={prefix}"),
            Self::RemoteIp(prefix) => write!(f, "remote_ip={prefix}"),
            Self::Transport(protocol) => write!(f, "transport={}", name(protocol)),
            Self::LocalPort(protocol, port) => {
                write!(f, "transport={},local_port={port}", name(protocol))
            }
            Self::RemotePort(protocol, port) => {
                write!(f, "transport={},remote_port={port}", name(protocol))
            }
            Self::DsField { value, mask: 0xff } => write!(f, "dsfield={value:#04x}"),
            Self::DsField { value, mask } => write!(f, "dsfield={value:#04x}:{mask:#04x}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The six combinations read back as they print, in whatever order their attributes stand.
    #[test]
    fn combinations() {
        for (text, canonical) in [
            ("local_ip=10.0.0.1", "local_ip=10.0.0.1"),
            ("remote_ip=fd00::/64", "remote_ip=fd00::/64"),
            ("transport=icmpv6", "transport=icmpv6"),
            ("local_port=80,transport=tcp", "transport=tcp,local_port=80"),
            (
                "transport=sctp,remote_port=7",
                "transport=sctp,remote_port=7",
            ),
            ("dsfield=0xB8:252", "dsfield=0xb8:0xfc"),
            ("dsfield=46", "dsfield=0x2e"),
        ] {
            let flow: FlowMatch = text.parse().expect(text);
            assert_eq!(flow.to_string(), canonical);
            assert_eq!(canonical.parse(), Ok(flow));
            assert!(canonical.starts_with(flow.combination().split(',').next().expect("one")));
        }
    }

    /// What is none of them is refused with the reason.
    #[test]
    fn other_combinations_are_refused() {
        for (text, reason) in [
            ("", "not of the form"),
            ("local_ip", "not of the form"),
            ("colour=red", "no attribute \"colour\""),
            ("local_ip=10.0.0.1,local_ip=10.0.0.2", "given twice"),
            ("local_ip=10.0.0.1,remote_ip=10.0.0.2", "a flow has one of"),
            (
                "transport=tcp,local_port=1,remote_port=2",
                "a flow has one of",
            ),
            ("transport=tcp,dsfield=1", "a flow has one of"),
            ("local_ip=10.0.0.1/8", "bits beyond the prefix"),
            ("transport=gre", "gre is not one of"),
            ("local_port=80", "a port needs"),
            ("transport=icmp,local_port=80", "a port needs"),
            ("transport=tcp,local_port=0", "a port from 1"),
            ("transport=tcp,local_port=65536", "a port from 1"),
            ("transport=tcp,local_port=+1", "a port from 1"),
            ("dsfield=0x100", "a byte"),
            ("dsfield=0x01:0x00", "a mask that is not 0"),
            ("dsfield=0x03:0xfc", "within a mask"),
        ] {
            let error = text.parse::<FlowMatch>().expect_err(text).to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
