//! Which device a name means, and opening it.

use std::path::Path;

use windlass_api::{Attachment, ErrorCode, MacAddr, Name, Role, Vnic, ZoneRef};
use windlass_framed::{Code, Device, Error, Options};

use super::Station;
use crate::Session;
use crate::failure::Failure;
use crate::options::At;
use crate::suggest::nearest;
use crate::vnd;

/// An open device.
#[derive(Debug)]
pub(crate) struct Open {
    pub(crate) device: Device,
    /// The address of its VNIC, if that is known.
    pub(crate) mac: Option<MacAddr>,
    /// Its longest frame, if that is known.
    pub(crate) frame_max: Option<u32>,
}

/// Where a device is.
struct Found {
    socket: String,
    log2_rx: u8,
    log2_tx: u8,
    mac: Option<MacAddr>,
    frame_max: Option<u32>,
}

/// Opens what the arguments name: a path, a vnd device, a VNIC that has one, or one that is attached by memif.
pub(crate) fn open(session: &mut Session<'_>, what: &str, at: &At) -> Result<Open, Failure> {
    let found = match at.device.contains('/') {
        true => Found {
            socket: at.device.clone(),
            log2_rx: 0,
            log2_tx: 0,
            mac: None,
            frame_max: None,
        },
        false => find(session, what, at)?,
    };
    let options = Options {
        log2_rx: found.log2_rx,
        log2_tx: found.log2_tx,
        nonblocking: true,
        ..Options::default()
    };
    let device = Device::open_path(Path::new(&found.socket), options);
    Ok(Open {
        device: device.map_err(|error| refused(what, &error))?,
        mac: found.mac,
        frame_max: found.frame_max,
    })
}

fn find(session: &mut Session<'_>, what: &str, at: &At) -> Result<Found, Failure> {
    let zone = vnd::zone(session, what, &at.within)?;
    let views = session.client(what)?.vnds();
    let mut views = views.map_err(|error| Failure::of(what, error))?;
    views.retain(|view| view.zone == zone && view.socket.is_some());
    let is_named = |name: Option<&str>| name == Some(at.device.as_str());
    let by_name = views
        .iter()
        .find(|view| is_named(view.name.as_ref().map(|name| name.as_str())));
    let view = by_name.or_else(|| views.iter().find(|view| is_named(Some(view.vnic.as_str()))));
    if let Some((view, socket)) = view.and_then(|view| Some((view, view.socket.clone()?))) {
        let log2 = |slots: u32| slots.max(1).ilog2() as u8;
        return Ok(Found {
            socket,
            log2_rx: log2(view.rx_slots),
            log2_tx: log2(view.tx_slots),
            mac: mac(session, what, &view.vnic)?,
            frame_max: Some(view.maxtu),
        });
    }
    let vnics = session.client(what)?.list::<Vnic>();
    let vnics = vnics.map_err(|error| Failure::of(what, error))?;
    let here = vnics.iter().filter(|view| view.config.zone == zone);
    let view = here
        .clone()
        .find(|view| view.config.name.as_str() == at.device);
    match view.map(|view| (&view.config, &view.config.attach)) {
        Some((vnic, Attachment::Memif(memif)))
            if memif.role == Role::Server && memif.id == 0 && memif.secret.is_none() =>
        {
            // A relative name is one in the zone's directory, which the daemon knows.
            let told = view.and_then(|view| view.status.details.get("socket"));
            let socket = told.filter(|path| path.starts_with('/'));
            Ok(Found {
                socket: socket.cloned().ok_or_else(|| {
                    let why = format!("VNIC \"{}\" has no socket", vnic.name);
                    let todo = format!("\"windlass vnic show {}\" says why", vnic.name);
                    Failure::new(ErrorCode::NotFound, what, why, todo)
                })?,
                log2_rx: 0,
                log2_tx: 0,
                mac: vnic.mac,
                // An Ethernet header and a tag.
                frame_max: Some(vnic.mtu() + 18),
            })
        }
        Some((vnic, Attachment::None(_))) => {
            let why = format!("VNIC \"{}\" has no vnd device", vnic.name);
            let todo = format!("\"windlass vnd create {} -z {zone}\" makes one", vnic.name);
            Err(Failure::new(ErrorCode::NotFound, what, why, todo))
        }
        Some((vnic, attach)) => {
            let why = format!("VNIC \"{}\" is attached by {}", vnic.name, attach.kind());
            let todo = "a program opens vnd devices, and VNICs attached by memif,role=server without id and secret";
            Err(Failure::new(ErrorCode::InUse, what, why, todo))
        }
        None => {
            vnd::exists(session, what, &zone)?;
            let devices = views
                .iter()
                .filter_map(|view| view.name.as_ref())
                .map(|name| name.as_str());
            let known = devices.chain(here.map(|view| view.config.name.as_str()));
            Err(absent(what, at, &zone, known))
        }
    }
}

fn absent<'a>(
    what: &str,
    at: &At,
    zone: &ZoneRef,
    known: impl Iterator<Item = &'a str>,
) -> Failure {
    let todo = match nearest(&at.device, known) {
        Some(near) => format!("did you mean \"{near}\"? \"windlass vnd list\" lists devices"),
        None => "\"windlass vnd list\" lists devices".into(),
    };
    let why = format!(
        "there is no vnd device or VNIC \"{}\" in zone {zone}",
        at.device
    );
    Failure::new(ErrorCode::NotFound, what, why, todo)
}

/// The address of a VNIC.
fn mac(session: &mut Session<'_>, what: &str, vnic: &Name) -> Result<Option<MacAddr>, Failure> {
    let view = session.client(what)?.get::<Vnic>(vnic);
    Ok(view.map_err(|error| Failure::of(what, error))?.config.mac)
}

impl Station {
    /// Its address.
    pub(crate) fn mac(&self, session: &mut Session<'_>, what: &str) -> Result<MacAddr, Failure> {
        let vnic = match self {
            Station::Mac(mac) => return Ok(*mac),
            Station::Vnic(vnic) => vnic,
        };
        mac(session, what, vnic)?.ok_or_else(|| {
            let why = format!("VNIC \"{vnic}\" has no address");
            Failure::new(ErrorCode::NotFound, what, why, "name an address")
        })
    }
}

/// Why a device could not be opened.
fn refused(what: &str, error: &Error) -> Failure {
    let (code, todo) = match error.code() {
        Code::NoDevice | Code::BadName => (
            ErrorCode::NotFound,
            "\"windlass vnd list -o all\" has the devices and their sockets",
        ),
        Code::Permission => (ErrorCode::Forbidden, "act as the owner of its zone"),
        Code::Busy => (
            ErrorCode::InUse,
            "\"windlass vnd list -o all\" shows by whom",
        ),
        _ => (ErrorCode::Host, "see the daemon's log"),
    };
    Failure::new(code, what, error.to_string(), todo)
}
