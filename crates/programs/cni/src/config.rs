//! The network's configuration, from stdin.

use std::net::IpAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use windlass_api::{MacAddr, Name, ZoneRef};

use crate::call::{Call, Verb, is_name};
use crate::failure::{Code, Failure};
use crate::ranges::{Net, RangeSet};

/// Versions of the specification, oldest first.
pub const VERSIONS: [&str; 4] = ["0.3.1", "0.4.0", "1.0.0", "1.1.0"];
/// Where what was given to whom is written down, unless `dataDir` says otherwise.
const DATA_DIR: &str = "/var/lib/windlass/cni";
/// Keys of a configuration, those of the specification last.
const KEYS: [&str; 19] = [
    "bridge",
    "overlay",
    "zone",
    "vlan",
    "mtu",
    "attach",
    "socket",
    "dataDir",
    "cniVersion",
    "name",
    "type",
    "ipam",
    "dns",
    "args",
    "capabilities",
    "runtimeConfig",
    "prevResult",
    "cni.dev/valid-attachments",
    "cni.dev/attachments",
];
/// Keys of `ipam` where it is ours.
const IPAM_KEYS: [&str; 4] = ["type", "pool", "ranges", "routes"];
/// The `type` of `ipam` where it is ours.
const OWN_IPAM: &str = "windlass";

/// A route of the container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// Where to.
    pub dst: Net,
    /// The next hop; none: what is on the link itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gw: Option<IpAddr>,
}

/// Where addresses come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ipam {
    /// There are none but those that the runtime names.
    None,
    /// Out of these, one of each set.
    Own {
        sets: Vec<RangeSet>,
        routes: Vec<Route>,
        /// Whose addresses the overlay's registry gives to its hosts; none: this host has them for itself.
        pool: Option<String>,
    },
    /// From another plugin.
    Delegate(String),
}

/// What a runtime may say of one interface.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Its address; none: the daemon draws one.
    pub mac: Option<MacAddr>,
    /// Its IP addresses.
    pub ips: Vec<Net>,
    /// Mbit/s in each direction; none: no limit.
    pub maxbw: Option<u64>,
}

/// An interface that GC is to leave.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Attachment {
    /// The container.
    #[serde(rename = "containerID")]
    pub container: String,
    /// The interface.
    #[serde(rename = "ifname")]
    pub interface: String,
}

/// What VNICs are on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A bridge.
    Bridge(Name),
    /// The bridge of an overlay.
    Overlay(Name),
}

/// A network.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Version of the specification.
    pub version: &'static str,
    /// The network's name.
    pub name: String,
    /// What its VNICs are on.
    pub place: Place,
    /// Their zone.
    pub zone: ZoneRef,
    /// Their untagged VLAN, if the bridge filters.
    pub vlan: Option<u64>,
    /// Their MTU in bytes.
    pub mtu: Option<u32>,
    /// The kind of their attachment.
    pub attach: String,
    /// The control socket; none: one of the usual places.
    pub socket: Option<PathBuf>,
    /// Where the ledger is.
    pub data_dir: PathBuf,
    /// Where addresses come from.
    pub ipam: Ipam,
    /// Given back in results.
    pub dns: Option<Value>,
    /// The result of the ADD.
    pub previous: Option<Value>,
    /// The interfaces that there are, for GC.
    pub valid: Option<Vec<Attachment>>,
    runtime: Map<String, Value>,
}

fn invalid(key: &str, why: impl std::fmt::Display) -> Failure {
    Failure::new(Code::Config, format!("{key}: {why}"))
}

/// A key's value as a type; none if it is missing or null.
fn take<T: serde::de::DeserializeOwned>(
    object: &Map<String, Value>,
    key: &str,
) -> Result<Option<T>, Failure> {
    let value = object.get(key).cloned().unwrap_or_default();
    serde_json::from_value(value).map_err(|error| invalid(key, error))
}

fn needed<T>(key: &str, value: Option<T>) -> Result<T, Failure> {
    value.ok_or_else(|| invalid(key, "is missing"))
}

/// Refuses keys that are not among those.
fn refuse_others(object: &Map<String, Value>, keys: &[&str], of: &str) -> Result<(), Failure> {
    match object.iter().find(|(key, _)| !keys.contains(&key.as_str())) {
        None => Ok(()),
        Some((key, value)) => {
            let why = format!("{of}there is no key \"{key}\", which has the value {value}");
            Err(Failure::new(Code::Field, why))
        }
    }
}

/// A configuration as it came.
///
/// # Errors
/// [`Code::Decode`].
pub fn object(text: &[u8]) -> Result<Map<String, Value>, Failure> {
    let decoded = serde_json::from_slice(text);
    decoded.map_err(|error| Failure::new(Code::Decode, format!("the configuration: {error}")))
}

/// The version that errors and results are to have, also if the rest of the configuration is not good.
pub fn version_of(text: &[u8]) -> String {
    let version = object(text).ok().and_then(|object| {
        let version = object.get("cniVersion")?.as_str();
        version.map(str::to_owned)
    });
    version.unwrap_or_else(|| VERSIONS.last().copied().unwrap_or_default().to_owned())
}

impl Config {
    /// Reads what is valid for this verb.
    ///
    /// # Errors
    /// [`Code::Decode`], [`Code::Version`], [`Code::Field`] and [`Code::Config`].
    pub fn read(text: &[u8], verb: Verb) -> Result<Self, Failure> {
        let object = object(text)?;
        let version = version(&object, verb)?;
        refuse_others(&object, &KEYS, "")?;
        let name: String = needed("name", take(&object, "name")?)?;
        if !is_name(&name) {
            return Err(invalid("name", format!("\"{name}\" is not a network's")));
        }
        let place = place(take(&object, "bridge")?, take(&object, "overlay")?)?;
        let ipam = ipam(take(&object, "ipam")?)?;
        if let (Ipam::Own { pool: Some(_), .. }, Place::Bridge(_)) = (&ipam, &place) {
            return Err(invalid("ipam.pool", "a bridge has no registry"));
        }
        Ok(Self {
            version,
            name,
            place,
            zone: take(&object, "zone")?.unwrap_or_default(),
            vlan: take(&object, "vlan")?,
            mtu: take(&object, "mtu")?,
            attach: take(&object, "attach")?.unwrap_or_else(|| "veth".into()),
            socket: take(&object, "socket")?,
            data_dir: take(&object, "dataDir")?.unwrap_or_else(|| DATA_DIR.into()),
            ipam,
            dns: take(&object, "dns")?,
            previous: take(&object, "prevResult")?,
            valid: valid(&object)?,
            runtime: take(&object, "runtimeConfig")?.unwrap_or_default(),
        })
    }

    /// What the runtime says of an interface: capabilities, else `CNI_ARGS`.
    ///
    /// # Errors
    /// [`Code::Config`] and [`Code::Environment`].
    pub fn wanted(&self, call: &Call) -> Result<Wanted, Failure> {
        let mut wanted = Wanted {
            mac: take(&self.runtime, "mac")?,
            ips: take(&self.runtime, "ips")?.unwrap_or_default(),
            maxbw: bandwidth(take(&self.runtime, "bandwidth")?)?,
        };
        let wrong = |key: &str| Failure::new(Code::Environment, format!("CNI_ARGS: {key}"));
        for (key, value) in &call.args {
            match key.as_str() {
                "MAC" if wanted.mac.is_none() => {
                    wanted.mac = Some(value.parse().map_err(|_| wrong(key))?);
                }
                "IP" if wanted.ips.is_empty() => {
                    let ips = value
                        .split(',')
                        .map(|ip| ip.parse().map_err(|_| wrong(key)));
                    wanted.ips = ips.collect::<Result<_, _>>()?;
                }
                _ => {}
            }
        }
        Ok(wanted)
    }
}

/// Runtimes that have no interface say null.
fn valid(object: &Map<String, Value>) -> Result<Option<Vec<Attachment>>, Failure> {
    const KEY: &str = "cni.dev/valid-attachments";
    let valid = take(object, KEY)?;
    Ok(valid.or_else(|| object.contains_key(KEY).then(Vec::new)))
}

fn place(bridge: Option<Name>, overlay: Option<Name>) -> Result<Place, Failure> {
    match (bridge, overlay) {
        (Some(bridge), None) => Ok(Place::Bridge(bridge)),
        (None, Some(overlay)) => Ok(Place::Overlay(overlay)),
        _ => Err(invalid("bridge", "say either bridge or overlay")),
    }
}

/// The configuration's version, if the verb is one of it.
fn version(object: &Map<String, Value>, verb: Verb) -> Result<&'static str, Failure> {
    let given: String = take(object, "cniVersion")?.unwrap_or_else(|| "0.1.0".into());
    let found = VERSIONS.into_iter().find(|version| *version == given);
    let numbers = |version: &str| {
        let mut numbers = version.split('.').map(|number| number.parse().unwrap_or(0));
        (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
    };
    match found {
        Some(version) if numbers(version) >= verb.since() => Ok(version),
        Some(version) => {
            let why = format!("version {version} has no such command");
            Err(Failure::new(Code::Version, why))
        }
        None => {
            let why = format!(
                "there is no version {given} here (there are: {})",
                VERSIONS.join(", ")
            );
            Err(Failure::new(Code::Version, why))
        }
    }
}

fn ipam(object: Option<Map<String, Value>>) -> Result<Ipam, Failure> {
    let Some(object) = object.filter(|object| !object.is_empty()) else {
        return Ok(Ipam::None);
    };
    let kind: String = needed("ipam.type", take(&object, "type")?)?;
    if kind != OWN_IPAM {
        return Ok(Ipam::Delegate(kind));
    }
    refuse_others(&object, &IPAM_KEYS, "ipam: ")?;
    let sets: Vec<RangeSet> = needed("ipam.ranges", take(&object, "ranges")?)?;
    if sets.is_empty() || sets.iter().any(RangeSet::is_empty) {
        return Err(invalid("ipam.ranges", "there is a set without a range"));
    }
    Ok(Ipam::Own {
        sets,
        routes: take(&object, "routes")?.unwrap_or_default(),
        pool: take(&object, "pool")?,
    })
}

/// The smaller one of two rates in bits a second, as what a VNIC has in each direction; 0: no limit.
fn bandwidth(object: Option<Map<String, Value>>) -> Result<Option<u64>, Failure> {
    let object = object.unwrap_or_default();
    let mut rates = Vec::new();
    for key in ["ingressRate", "egressRate"] {
        rates.extend(take::<u64>(&object, key)?.filter(|&rate| rate != 0));
    }
    Ok(rates.into_iter().min().map(|rate| rate.div_ceil(1_000_000)))
}
