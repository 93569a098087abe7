//! vnd devices: VNICs that programs read and write frame by frame.
//!
//! # Model
//! A [`Vnd`] gives a VNIC a name that a program opens. The name is unique in its zone, which is the VNIC's zone. A device is the one
//! active consumer of its VNIC: a VNIC with an attachment, or with another device, is refused.
//!
//! Everything that a device calls rx and tx is the program's view, as with vndadm(1M): `rxbuf` is for frames that the program will
//! read.
//!
//! # Life of a device
//! ```text
//! create --> listed --- destroy, nobody has it open ---------------> gone
//!             | ^  \--- destroy, a program has it open --> unlinked --- the program ends, the VNIC goes --> gone
//!      rename | |
//!             '-'
//! ```
//! An unlinked device is in no document. It has no name and no socket, and it keeps its VNIC until it is gone.
//!
//! # Failure modes
//! Each [`VndError`] has the name that libvnd gives it ([`VndErrno`]), which is in [`Detail::errno`](crate::error::Detail::errno).

use std::collections::{BTreeMap, HashMap, HashSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::error::{Detail, ErrorBody, ErrorCode};
use crate::name::{Name, VndName, ZoneRef};
use crate::object::{Document, Vnic};
use crate::option::{OptionSpec, ValueKind};
use crate::property::{Properties, PropertyPatch, PropertySpec, Scope, property};
use crate::view::Status;

/// Largest `rxbuf` and `txbuf`, in bytes: the property `maxsize`.
pub const MAXSIZE: u32 = 4 << 20;
/// Shortest frame that a device takes, in bytes: the property `mintu`.
pub const MINTU: u32 = 0;
/// Bytes of an Ethernet header with a tag: `maxtu` less the VNIC's MTU.
const HEADER_BYTES: u32 = 18;
/// Properties that cannot be set.
const READ_ONLY: &[&str] = &["maxsize", "mintu", "maxtu"];
/// Bytes of the shortest frame, of which a buffer has room for as many as its size says.
const FRAME_BYTES_MIN: u32 = 64;
/// Fewest and most slots of a memif ring.
const SLOTS: (u32, u32) = (32, 1 << 14);

const fn buffer(name: &'static str, sentence: &'static str) -> PropertySpec {
    PropertySpec {
        scopes: &[Scope::Vnd],
        tenant: true,
        option: OptionSpec {
            name,
            kind: ValueKind::Bytes,
            unit: "bytes",
            default: "65536",
            // The least is the device's `maxtu`: `check_buffers`.
            min: 0,
            max: MAXSIZE as u64,
            sentence,
        },
    }
}

pub(crate) const RXBUF: PropertySpec = buffer(
    "rxbuf",
    "Frames for the program that may wait for it, at least maxtu.",
);
pub(crate) const TXBUF: PropertySpec = buffer(
    "txbuf",
    "Frames of the program that may wait to be sent, at least maxtu.",
);

/// A framed-I/O device over a VNIC.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Vnd {
    /// Its name, unique in its zone.
    pub name: VndName,
    /// Its zone, which is that of its VNIC.
    #[serde(default)]
    pub zone: ZoneRef,
    /// The VNIC, which has no attachment and no other device.
    pub vnic: Name,
    /// What was set of its properties.
    #[serde(default, skip_serializing_if = "Properties::is_empty")]
    pub properties: Properties,
}

impl Vnd {
    /// How messages and events name it: `ZONE/NAME`.
    pub fn label(&self) -> String {
        format!("{}/{}", self.zone, self.name)
    }

    /// Whether it has this name in this zone.
    pub fn is(&self, zone: &str, name: &str) -> bool {
        self.zone.as_str() == zone && self.name.as_str() == name
    }

    fn bytes(&self, property: &str) -> u32 {
        let set = self.properties.number(Scope::Vnd, property);
        set.unwrap_or(MAXSIZE)
    }

    /// Bytes of frames that may wait for the program.
    pub fn rxbuf(&self) -> u32 {
        self.bytes("rxbuf")
    }

    /// Bytes of frames of the program that may wait to be sent.
    pub fn txbuf(&self) -> u32 {
        self.bytes("txbuf")
    }
}

/// Longest frame of a VNIC with this MTU, in bytes, with a tag.
pub fn maxtu(mtu: u32) -> u32 {
    mtu.saturating_add(HEADER_BYTES)
}

/// Slots of the ring for a buffer of so many bytes: the power of two with room for the buffer's bytes in frames of 64 bytes, from
/// 32 to 16,384.
pub fn slots(bytes: u32) -> u32 {
    let frames = bytes.div_ceil(FRAME_BYTES_MIN);
    frames.next_power_of_two().clamp(SLOTS.0, SLOTS.1)
}

/// What libvnd calls a failure, without its `VND_E_`.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "UPPERCASE")]
pub enum VndErrno {
    /// There is no such VNIC in the zone.
    NoDatalink,
    /// There is no such device in the zone.
    NoDev,
    /// The name is not one of a device.
    BadName,
    /// The caller may not do this.
    Perm,
    /// There is no such zone.
    NoZone,
    /// Another device of the zone has the name.
    LinkExists,
    /// A buffer is to be larger than `maxsize`.
    BufTooBig,
    /// A buffer is to be smaller than `maxtu`.
    BufTooSmall,
    /// The VNIC has an active consumer: an attachment, or another device.
    DlExcl,
    /// The value is not a number of bytes.
    BadPropSize,
    /// There is no such property.
    BadProp,
    /// The property cannot be set.
    PropRdOnly,
}

impl VndErrno {
    /// The code of an error with it.
    pub fn code(self) -> ErrorCode {
        match self {
            Self::NoDatalink | Self::NoDev | Self::NoZone => ErrorCode::NotFound,
            Self::LinkExists => ErrorCode::Exists,
            Self::DlExcl => ErrorCode::InUse,
            Self::Perm => ErrorCode::Forbidden,
            Self::BadName
            | Self::BufTooBig
            | Self::BufTooSmall
            | Self::BadPropSize
            | Self::BadProp
            | Self::PropRdOnly => ErrorCode::Invalid,
        }
    }
}

/// Why a device cannot be what it is to be.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum VndError {
    /// [`VndErrno::NoDatalink`]
    #[error("there is no VNIC \"{vnic}\" in zone \"{zone}\"")]
    NoDatalink {
        /// The VNIC.
        vnic: String,
        /// The zone.
        zone: String,
    },
    /// [`VndErrno::NoDev`]
    #[error("there is no vnd device \"{name}\" in zone \"{zone}\"")]
    NoDev {
        /// The device.
        name: String,
        /// The zone.
        zone: String,
    },
    /// [`VndErrno::BadName`]
    #[error(
        "\"{0}\" cannot name a vnd device (1 to 31 letters, digits, _ : -; not \"ctl\" or \"zone\")"
    )]
    BadName(String),
    /// [`VndErrno::NoZone`]
    #[error("there is no zone \"{0}\"")]
    NoZone(String),
    /// [`VndErrno::LinkExists`]
    #[error("vnd device \"{name}\" of zone \"{zone}\" exists already")]
    LinkExists {
        /// The device.
        name: VndName,
        /// The zone.
        zone: ZoneRef,
    },
    /// [`VndErrno::BufTooBig`]
    #[error("{property} is at most {MAXSIZE} bytes (maxsize), not {bytes}")]
    BufTooBig {
        /// The property.
        property: &'static str,
        /// What it was to be.
        bytes: u64,
    },
    /// [`VndErrno::BufTooSmall`]
    #[error("{property} is at least {maxtu} bytes (maxtu), not {bytes}")]
    BufTooSmall {
        /// The property.
        property: &'static str,
        /// What it was to be.
        bytes: u64,
        /// The longest frame, in bytes.
        maxtu: u32,
    },
    /// [`VndErrno::DlExcl`]
    #[error("VNIC \"{vnic}\" {consumer}: a vnd device is the one active consumer of its VNIC")]
    DlExcl {
        /// The VNIC.
        vnic: Name,
        /// What it has.
        consumer: String,
    },
    /// [`VndErrno::BadPropSize`]
    #[error("{property} is a number of bytes, not {value}")]
    BadPropSize {
        /// The property.
        property: &'static str,
        /// What it was to be, as JSON.
        value: String,
    },
    /// [`VndErrno::BadProp`]
    #[error("a vnd device has no property \"{0}\" (it has: rxbuf, txbuf, maxsize, mintu, maxtu)")]
    BadProp(String),
    /// [`VndErrno::PropRdOnly`]
    #[error("{0} cannot be set")]
    PropRdOnly(&'static str),
}

impl VndError {
    /// Its name in libvnd.
    pub fn errno(&self) -> VndErrno {
        match self {
            Self::NoDatalink { .. } => VndErrno::NoDatalink,
            Self::NoDev { .. } => VndErrno::NoDev,
            Self::BadName(_) => VndErrno::BadName,
            Self::NoZone(_) => VndErrno::NoZone,
            Self::LinkExists { .. } => VndErrno::LinkExists,
            Self::BufTooBig { .. } => VndErrno::BufTooBig,
            Self::BufTooSmall { .. } => VndErrno::BufTooSmall,
            Self::DlExcl { .. } => VndErrno::DlExcl,
            Self::BadPropSize { .. } => VndErrno::BadPropSize,
            Self::BadProp(_) => VndErrno::BadProp,
            Self::PropRdOnly(_) => VndErrno::PropRdOnly,
        }
    }

    /// The key of a device that it is about, and what is wrong with it.
    pub fn detail(&self, device: &str) -> Detail {
        let key = match self {
            Self::NoDatalink { .. } | Self::DlExcl { .. } => ".vnic",
            Self::BadName(_) => ".name",
            Self::NoZone(_) => ".zone",
            Self::BufTooBig { .. }
            | Self::BufTooSmall { .. }
            | Self::BadPropSize { .. }
            | Self::BadProp(_)
            | Self::PropRdOnly(_) => ".properties",
            Self::NoDev { .. } | Self::LinkExists { .. } => "",
        };
        Detail {
            path: format!("vnds.{device}{key}"),
            message: self.to_string(),
            errno: Some(self.errno()),
        }
    }

    /// What the peer is told. `device`: how messages name it.
    pub fn body(&self, device: &str) -> ErrorBody {
        ErrorBody {
            code: self.errno().code(),
            message: self.to_string(),
            details: vec![self.detail(device)],
        }
    }
}

/// Body of `POST /v1/vnds`. Names and values are text and JSON as they came, so that each mistake has its [`VndErrno`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VndCreate {
    /// Its name; without it, that of the VNIC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its zone; without it, the global one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// The VNIC.
    pub vnic: String,
    /// Properties to set.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub properties: BTreeMap<String, serde_json::Value>,
}

impl VndCreate {
    /// How messages name the device: `ZONE/NAME`.
    pub fn label(&self) -> String {
        let zone = self.zone.as_deref().unwrap_or(ZoneRef::GLOBAL);
        cut(&format!(
            "{zone}/{}",
            self.name.as_ref().unwrap_or(&self.vnic)
        ))
    }

    /// The device.
    ///
    /// # Errors
    /// What cannot be one of any VNIC.
    pub fn parsed(&self) -> Result<Vnd, VndError> {
        let zone = self.zone.as_deref().unwrap_or(ZoneRef::GLOBAL);
        let name = name(self.name.as_ref().unwrap_or(&self.vnic))?;
        let zone: ZoneRef = zone.parse().map_err(|_| VndError::NoZone(cut(zone)))?;
        let vnic = self.vnic.parse();
        let vnic = vnic.map_err(|_| VndError::NoDatalink {
            vnic: cut(&self.vnic),
            zone: zone.to_string(),
        })?;
        let mut properties = Properties::default();
        properties.patch(&patch(&self.properties)?);
        Ok(Vnd {
            name,
            zone,
            vnic,
            properties,
        })
    }
}

/// Body of `PATCH /v1/vnds/ZONE/NAME`: what is missing stays as it is. It takes effect as a whole or not at all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VndPatch {
    /// Its new name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Properties to set (a value) or to forget (`null`).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub properties: BTreeMap<String, serde_json::Value>,
}

impl VndPatch {
    /// Changes the device.
    ///
    /// # Errors
    /// What cannot be one of any VNIC.
    pub fn apply(&self, vnd: &mut Vnd) -> Result<(), VndError> {
        if let Some(text) = &self.name {
            vnd.name = name(text)?;
        }
        vnd.properties.patch(&patch(&self.properties)?);
        Ok(())
    }
}

/// Text of a stranger, cut to what a message has room for.
fn cut(text: &str) -> String {
    text.chars().take(64).collect()
}

fn name(text: &str) -> Result<VndName, VndError> {
    text.parse().map_err(|_| VndError::BadName(cut(text)))
}

fn patch(set: &BTreeMap<String, serde_json::Value>) -> Result<PropertyPatch, VndError> {
    let mut patch = PropertyPatch::default();
    for (key, value) in set {
        if let Some(read_only) = READ_ONLY.iter().find(|name| *name == key) {
            return Err(VndError::PropRdOnly(read_only));
        }
        let row = property(Scope::Vnd, key).ok_or_else(|| VndError::BadProp(cut(key)))?;
        let option = &row.option;
        let value = match value {
            serde_json::Value::Null => None,
            value => Some(
                option
                    .check(value)
                    .map_err(|_| out_of_range(option, value))?,
            ),
        };
        patch.insert(option.name, value);
    }
    Ok(patch)
}

fn out_of_range(option: &OptionSpec, value: &serde_json::Value) -> VndError {
    let property = option.name;
    match value.as_u64() {
        Some(bytes) => VndError::BufTooBig { property, bytes },
        None => VndError::BadPropSize {
            property,
            value: cut(&value.to_string()),
        },
    }
}

/// A device and its state, as `GET /v1/vnds` gives it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VndView {
    /// Its name; none if it was destroyed, and a program has it open still.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<VndName>,
    /// Its zone.
    pub zone: ZoneRef,
    /// Its VNIC.
    pub vnic: Name,
    /// The memif socket that a program opens it by: interface 0, no secret, one ring in each direction. None if it has no name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket: Option<String>,
    /// Up while a program has it open.
    #[serde(flatten)]
    pub status: Status,
    /// Bytes of frames that may wait for the program.
    pub rxbuf: u32,
    /// Bytes of frames of the program that may wait to be sent.
    pub txbuf: u32,
    /// Largest `rxbuf` and `txbuf`, in bytes.
    pub maxsize: u32,
    /// Shortest frame, in bytes.
    pub mintu: u32,
    /// Longest frame, in bytes.
    pub maxtu: u32,
    /// Slots that the program is to give the ring of frames for it: room for `rxbuf` bytes in frames of 64 bytes, from 32 to 16384.
    pub rx_slots: u32,
    /// Slots that the program is to give the ring of its frames: likewise for `txbuf`.
    pub tx_slots: u32,
}

/// Traffic of a device. rx is what its program receives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VndStats {
    /// Its name; none if it was destroyed, and a program has it open still.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<VndName>,
    /// Its zone.
    pub zone: ZoneRef,
    /// Its VNIC, whose counters these are.
    pub vnic: Name,
    /// Bytes for the program.
    pub device_rx_bytes: u64,
    /// Bytes from the program.
    pub device_tx_bytes: u64,
    /// Frames in either direction that were dropped.
    pub drops: u64,
    /// Times that the ring of the program's frames was found full, and was released.
    pub txfc: u64,
}

/// Checks the devices of a document, and tells of each defect with the name of the device.
pub(crate) fn check(document: &Document, mut defect: impl FnMut(&Vnd, VndError)) {
    let vnics: HashMap<&Name, &Vnic> = match document.vnds.is_empty() {
        true => return,
        false => document.vnics.iter().map(|v| (&v.name, v)).collect(),
    };
    let (mut names, mut taken) = (HashSet::new(), HashMap::new());
    for vnd in &document.vnds {
        if !names.insert((&vnd.zone, &vnd.name)) {
            let (name, zone) = (vnd.name.clone(), vnd.zone.clone());
            defect(vnd, VndError::LinkExists { name, zone });
        }
        let zone = vnd.zone.name();
        if let Some(zone) = zone.filter(|zone| document.zone(zone.as_str()).is_none()) {
            defect(vnd, VndError::NoZone(zone.to_string()));
            continue;
        }
        let vnic = vnics.get(&vnd.vnic).filter(|vnic| vnic.zone == vnd.zone);
        let Some(vnic) = vnic else {
            let (vnic, zone) = (vnd.vnic.to_string(), vnd.zone.to_string());
            defect(vnd, VndError::NoDatalink { vnic, zone });
            continue;
        };
        let consumer = match taken.insert(&vnd.vnic, &vnd.name) {
            Some(other) => Some(format!("has vnd device \"{other}\"")),
            None if vnic.attach.queues() != 0 => {
                Some(format!("is attached by {}", vnic.attach.kind()))
            }
            None => None,
        };
        if let Some(consumer) = consumer {
            let vnic = vnd.vnic.clone();
            defect(vnd, VndError::DlExcl { vnic, consumer });
        }
        check_buffers(vnd, vnic, &mut defect);
    }
}

fn check_buffers(vnd: &Vnd, vnic: &Vnic, defect: &mut impl FnMut(&Vnd, VndError)) {
    for (key, _) in vnd.properties.iter() {
        if property(Scope::Vnd, key).is_none() {
            defect(vnd, VndError::BadProp(key.to_owned()));
        }
    }
    let maxtu = maxtu(vnic.mtu());
    for (property, bytes) in [("rxbuf", vnd.rxbuf()), ("txbuf", vnd.txbuf())] {
        let bytes = u64::from(bytes);
        if bytes > u64::from(MAXSIZE) {
            defect(vnd, VndError::BufTooBig { property, bytes });
        }
        if bytes < u64::from(maxtu) {
            defect(
                vnd,
                VndError::BufTooSmall {
                    property,
                    bytes,
                    maxtu,
                },
            );
        }
    }
}
