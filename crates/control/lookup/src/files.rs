//! illumos' files of endpoints (overlay_files(5)).
//!
//! # Model
//! One JSON object: a MAC address, in any form that ether_aton(3) takes, to an object of
//!
//! | key | value |
//! | --- | --- |
//! | `ip` | the host's address, IPv4 or IPv6; required |
//! | `port` | the host's UDP port, 1 to 65535; 4789 if absent |
//! | `arp`, `ndp` | the endpoint's IPv4, IPv6 address |
//! | `dhcp-proxy` | the MAC address of its DHCP server |
//!
//! A file is good as a whole or bad as a whole. Other keys, and a MAC address, `arp` or `ndp` that comes twice, make it bad.
//!
//! # Limits
//! [`FILE_BYTES_MAX`]; [`ENTRIES_MAX`] endpoints. Values are read one after another, never as a tree.

use std::collections::HashMap;
use std::collections::hash_map;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use serde::Deserializer;
use serde::de::{DeserializeSeed, Error, MapAccess, Visitor};
use thiserror::Error;
use windlass_wire::MacAddr;

use crate::line::clean;
use crate::protocol::{self, Target};
use crate::table::{ENTRIES_MAX, Record};

/// Largest file, in bytes.
pub const FILE_BYTES_MAX: usize = 64 << 20;

/// Why a file is bad.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FileError {
    /// It has no byte.
    #[error("the file is empty")]
    Empty,
    /// It is too large.
    #[error("the file has more than {FILE_BYTES_MAX} bytes")]
    TooLarge,
    /// Something in it is wrong.
    #[error("line {line}, column {column}: {reason}")]
    Bad {
        /// The line, from 1.
        line: usize,
        /// The column, from 1; behind what is wrong.
        column: usize,
        /// What is wrong, with key and value.
        reason: String,
    },
}

/// The endpoints of a file.
///
/// # Errors
/// If it is bad.
pub fn parse(file: &[u8]) -> Result<HashMap<MacAddr, Arc<Record>>, FileError> {
    match file.len() {
        0 => return Err(FileError::Empty),
        1..=FILE_BYTES_MAX => {}
        _ => return Err(FileError::TooLarge),
    }
    let mut from = serde_json::Deserializer::from_slice(file);
    let mut whole = Whole::default();
    let read = from.deserialize_map(&mut whole);
    read.and_then(|()| from.end()).map_err(|error| {
        let (line, column, text) = (error.line(), error.column(), error.to_string());
        let place = format!(" at line {line} column {column}");
        FileError::Bad {
            line,
            column,
            reason: clean(text.strip_suffix(&place).unwrap_or(&text), 400),
        }
    })?;
    Ok(whole.records)
}

/// The file so far.
#[derive(Default)]
struct Whole {
    records: HashMap<MacAddr, Arc<Record>>,
    /// Whose each IP address is.
    owners: HashMap<IpAddr, MacAddr>,
}

impl<'de> Visitor<'de> for &mut Whole {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of MAC addresses")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            let Some(mac) = ether_aton(&key) else {
                return Err(A::Error::custom(format!("\"{key}\" is no MAC address")));
            };
            if !mac.is_unicast_source() {
                let reason = format!("\"{key}\" is no MAC address of an endpoint");
                return Err(A::Error::custom(reason));
            }
            if self.records.contains_key(&mac) {
                return Err(A::Error::custom(format!("{mac} comes twice")));
            }
            if self.records.len() >= ENTRIES_MAX {
                let reason = format!("more than {ENTRIES_MAX} endpoints");
                return Err(A::Error::custom(reason));
            }
            let record = map.next_value_seed(Endpoint { mac, whole: self })?;
            self.records.insert(mac, Arc::new(record));
        }
        Ok(())
    }
}

/// One endpoint's object.
struct Endpoint<'a> {
    mac: MacAddr,
    whole: &'a mut Whole,
}

impl<'de> DeserializeSeed<'de> for Endpoint<'_> {
    type Value = Record;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Record, D::Error> {
        from.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Endpoint<'_> {
    type Value = Record;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an object for {}", self.mac)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Record, A::Error> {
        let mac = self.mac;
        let (mut ip, mut port, mut arp, mut ndp, mut dhcp) = (None, None, None, None, None);
        while let Some(key) = map.next_key::<String>()? {
            let field = Field { mac, key: &key };
            let is_new = match key.as_str() {
                "ip" => ip.replace(map.next_value_seed(Text(field, IP))?).is_none(),
                "port" => port.replace(map.next_value_seed(Port(field))?).is_none(),
                "arp" => arp.replace(map.next_value_seed(Text(field, V4))?).is_none(),
                "ndp" => ndp.replace(map.next_value_seed(Text(field, V6))?).is_none(),
                "dhcp-proxy" => {
                    let server = map.next_value_seed(Text(field, MAC))?;
                    dhcp.replace(server).is_none()
                }
                _ => {
                    let keys = "ip, port, arp, ndp, dhcp-proxy";
                    let reason = format!("{mac}: unknown key \"{key}\" ({keys})");
                    return Err(A::Error::custom(reason));
                }
            };
            if !is_new {
                return Err(A::Error::custom(format!("{mac}: \"{key}\" comes twice")));
            }
        }
        let ip = ip.ok_or_else(|| A::Error::custom(format!("{mac}: \"ip\" is missing")))?;
        let port = port.unwrap_or(protocol::PORT);
        protocol::is_target(&Target { ip, port })
            .map_err(|reason| A::Error::custom(format!("{mac}: \"ip\": {reason}")))?;
        let ips: Box<[IpAddr]> = arp.into_iter().chain(ndp).collect();
        for ip in &ips {
            match self.whole.owners.entry(*ip) {
                hash_map::Entry::Vacant(free) => free.insert(mac),
                hash_map::Entry::Occupied(of) => {
                    let reason = format!("{mac}: {ip} is the address of {} already", of.get());
                    return Err(A::Error::custom(reason));
                }
            };
        }
        Ok(Record {
            target: SocketAddr::new(ip, port),
            ips,
            dhcp,
            host: None,
            generation: 0,
        })
    }
}

/// Which value is read.
struct Field<'a> {
    mac: MacAddr,
    key: &'a str,
}

/// What a text is, and how it is read.
struct As<T>(&'static str, fn(&str) -> Option<T>);

const IP: As<IpAddr> = As("an IP address", |text| {
    text.parse().ok().map(|ip: IpAddr| ip.to_canonical())
});
const V4: As<IpAddr> = As("an IPv4 address of an endpoint", |text| {
    let ip = text.parse::<Ipv4Addr>().ok()?;
    let is_host = !ip.is_unspecified() && !ip.is_multicast() && !ip.is_broadcast();
    is_host.then_some(ip.into())
});
const V6: As<IpAddr> = As("an IPv6 address of an endpoint", |text| {
    let ip = text.parse::<Ipv6Addr>().ok()?;
    let is_host = !ip.is_unspecified() && !ip.is_multicast();
    is_host.then_some(ip.into())
});
const MAC: As<MacAddr> = As("a MAC address", |text| {
    ether_aton(text).filter(|mac| mac.is_unicast_source())
});

/// A value that is a text.
struct Text<'a, T: 'static>(Field<'a>, As<T>);

impl<'de, T> DeserializeSeed<'de> for Text<'_, T> {
    type Value = T;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<T, D::Error> {
        from.deserialize_any(self)
    }
}

impl<T> Visitor<'_> for Text<'_, T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(Field { mac, key }, As(what, _)) = self;
        write!(f, "{what} as \"{key}\" of {mac}")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        let Self(Field { mac, key }, As(what, read)) = self;
        let reason = || format!("{mac}: \"{key}\": \"{text}\" is not {what}");
        read(text).ok_or_else(|| E::custom(reason()))
    }
}

/// A value that is a port.
struct Port<'a>(Field<'a>);

impl<'de> DeserializeSeed<'de> for Port<'_> {
    type Value = u16;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<u16, D::Error> {
        from.deserialize_any(self)
    }
}

impl Visitor<'_> for Port<'_> {
    type Value = u16;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(Field { mac, key }) = self;
        write!(f, "a number from 1 to 65535 as \"{key}\" of {mac}")
    }

    fn visit_u64<E: Error>(self, port: u64) -> Result<u16, E> {
        let Self(Field { mac, key }) = self;
        let read = u16::try_from(port).ok().filter(|port| *port != 0);
        let reason = || format!("{mac}: \"{key}\": {port} is not from 1 to 65535");
        read.ok_or_else(|| E::custom(reason()))
    }
}

/// A MAC address in any form that ether_aton(3) takes: six bytes of one or two hexadecimal digits.
fn ether_aton(text: &str) -> Option<MacAddr> {
    let mut mac = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut mac {
        let part = parts.next()?;
        let is_byte = (1..=2).contains(&part.len()) && part.bytes().all(|c| c.is_ascii_hexdigit());
        *byte = is_byte.then(|| u8::from_str_radix(part, 16).ok())??;
    }
    parts.next().is_none().then_some(MacAddr(mac))
}
