//! vnd devices by name: what the daemon's control socket has of them.
//!
//! # Model
//! Each call asks the daemon once, and waits for its answer for [`TIMEOUT`] at most. The socket is that of `WINDLASS_SOCKET`, else the first
//! of the usual ones, as for the command `windlass`. A program with more rights than its caller (set-user-ID, file capabilities) has the
//! caller's environment: it goes to the system's daemon.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use windlass_api::{ErrorCode, VndCreate, VndErrno, VndName, VndPatch, VndView, ZoneRef};
use windlass_client::{Client, Error as Refusal, socket};
use windlass_sys::Errno;

use crate::device::{Device, Options};
use crate::error::{Code, Error};

/// How long the daemon has for an answer.
pub const TIMEOUT: Duration = Duration::from_secs(30);

/// Properties of a device, and whether they can be set. Each is a number of bytes.
pub const PROPERTIES: [(&core::ffi::CStr, bool); 5] = [
    (c"rxbuf", true),
    (c"txbuf", true),
    (c"maxsize", false),
    (c"mintu", false),
    (c"maxtu", false),
];

fn client() -> Result<Client, Error> {
    // SAFETY: reads what the kernel gave the process at its start.
    let path = match unsafe { libc::getauxval(libc::AT_SECURE) } {
        0 => {
            socket::find(std::env::var_os("WINDLASS_SOCKET").map(PathBuf::from)).map_err(refused)?
        }
        _ => Path::new(socket::SYSTEM_DIR).join(socket::FILE),
    };
    Ok(Client::new(path, Some(TIMEOUT)))
}

fn refused(refusal: Refusal) -> Error {
    let errno = match &refusal {
        Refusal::Refused(body) => body.details.iter().find_map(|detail| detail.errno),
        _ => None,
    };
    let code = match (errno, refusal.code()) {
        (Some(VndErrno::NoDatalink), _) => Code::NoDatalink,
        (Some(VndErrno::NoDev), _) => Code::NoDevice,
        (Some(VndErrno::BadName), _) => Code::BadName,
        (Some(VndErrno::Perm), _) | (None, ErrorCode::Forbidden) => Code::Permission,
        (Some(VndErrno::NoZone), _) => Code::NoZone,
        (Some(VndErrno::LinkExists), _) => Code::LinkExists,
        (Some(VndErrno::BufTooBig), _) => Code::BufTooBig,
        (Some(VndErrno::BufTooSmall), _) => Code::BufTooSmall,
        (Some(VndErrno::DlExcl), _) => Code::Busy,
        (Some(VndErrno::BadProp | VndErrno::BadPropSize), _) => Code::BadProperty,
        (Some(VndErrno::PropRdOnly), _) => Code::ReadOnly,
        (None, ErrorCode::Timeout) => return Error::System(Errno::TIMEDOUT),
        (None, ErrorCode::Unreachable) => return Error::System(Errno::CONNREFUSED),
        (None, _) => return Error::System(Errno::PROTO),
    };
    let message = refusal.to_string();
    Error::Refused { code, message }
}

fn bad(code: Code, text: &str) -> Error {
    let message = format!("{text:?}: {}", Code::text(code as i32).to_string_lossy());
    Error::Refused { code, message }
}

fn names(zone: &str, name: &str) -> Result<(ZoneRef, VndName), Error> {
    let zone = zone.parse().map_err(|_| bad(Code::NoZone, zone))?;
    let name = name.parse().map_err(|_| bad(Code::BadName, name))?;
    Ok((zone, name))
}

/// Makes a device of this name over a VNIC, in the VNIC's zone.
///
/// # Errors
/// [`Error`].
pub fn create(zone: &str, vnic: &str, name: &str) -> Result<(), Error> {
    let vnd = VndCreate {
        name: Some(name.to_owned()),
        zone: Some(zone.to_owned()),
        vnic: vnic.to_owned(),
        properties: BTreeMap::new(),
    };
    client()?.create_vnd(&vnd).map(|_| ()).map_err(refused)
}

/// Takes a device's name away. A program that has it open keeps it.
///
/// # Errors
/// [`Error`].
pub fn unlink(zone: &str, name: &str) -> Result<(), Error> {
    let (zone, name) = names(zone, name)?;
    let done = client()?.destroy_vnd(&zone, &name);
    done.map(|_| ()).map_err(refused)
}

/// Every device that the caller may see. One without a name was unlinked, and is open.
///
/// # Errors
/// [`Error`].
pub fn list() -> Result<Vec<VndView>, Error> {
    client()?.vnds().map_err(refused)
}

/// A property of a device, in bytes: one of [`PROPERTIES`].
///
/// # Errors
/// [`Error`].
pub fn property(zone: &str, name: &str, property: &str) -> Result<u64, Error> {
    let (zone, name) = names(zone, name)?;
    let view = client()?.vnd(&zone, &name).map_err(refused)?;
    let bytes = match property {
        "rxbuf" => view.rxbuf,
        "txbuf" => view.txbuf,
        "maxsize" => view.maxsize,
        "mintu" => view.mintu,
        "maxtu" => view.maxtu,
        _ => return Err(bad(Code::BadProperty, property)),
    };
    Ok(bytes.into())
}

/// Sets a property of a device. A program that has it open sees the change at its next open.
///
/// # Errors
/// [`Error`].
pub fn set_property(zone: &str, name: &str, property: &str, bytes: u64) -> Result<(), Error> {
    let (zone, name) = names(zone, name)?;
    let patch = VndPatch {
        name: None,
        properties: BTreeMap::from([(property.to_owned(), bytes.into())]),
    };
    let done = client()?.change_vnd(&zone, &name, &patch);
    done.map(|_| ()).map_err(refused)
}

impl Device {
    /// Opens the device of this name in this zone, with rings for its `rxbuf` and its `txbuf`, unless the options say otherwise.
    ///
    /// # Errors
    /// [`Error`].
    pub fn open(zone: &str, name: &str, mut options: Options) -> Result<Device, Error> {
        let (zone, name) = names(zone, name)?;
        let view = client()?.vnd(&zone, &name).map_err(refused)?;
        let socket = view
            .socket
            .ok_or_else(|| bad(Code::NoDevice, name.as_str()))?;
        let sizes = [
            (&mut options.log2_rx, view.rx_slots),
            (&mut options.log2_tx, view.tx_slots),
        ];
        for (size, slots) in sizes.into_iter().filter(|(size, _)| **size == 0) {
            *size = u8::try_from(slots.max(1).ilog2()).unwrap_or(0);
        }
        Device::open_path(Path::new(&socket), options)
    }
}
