//! What is asked of windlassd.

use std::time::{Duration, Instant, SystemTime};

use windlass_api::{
    AddressClaim, AddressRelease, Bridge, Change, ClaimedAddresses, ErrorCode, MacAddr, Name,
    Object, Overlay, State, Status, Vnic, VnicView,
};
use windlass_client::{Client, Error, socket};

use crate::config::{Config, Place};
use crate::failure::is_busy;

/// How long one request may take.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(30);
/// How long a daemon that has too much to do is asked again.
const BUSY_TIME_MAX: Duration = Duration::from_secs(20);
/// Shortest time between two questions.
const BUSY_PAUSE: Duration = Duration::from_millis(20);

/// A way to the daemon.
pub struct Daemon(Client);

impl Daemon {
    /// The one that the configuration, the environment or the usual places name.
    ///
    /// # Errors
    /// There is no socket.
    pub fn of(config: &Config) -> Result<Self, Error> {
        let environment = || std::env::var_os("WINDLASS_SOCKET").map(Into::into);
        let path = socket::find(config.socket.clone().or_else(environment))?;
        Ok(Self(Client::new(path, Some(REQUEST_TIME_MAX))))
    }

    /// Asks, and asks again while the daemon has too much to do.
    fn ask<T>(&self, question: impl Fn(&Client) -> Result<T, Error>) -> Result<T, Error> {
        let until = Instant::now() + BUSY_TIME_MAX;
        loop {
            let answer = question(&self.0);
            match &answer {
                Err(error) if is_busy(error) && Instant::now() < until => pause(),
                _ => return answer,
            }
        }
    }

    /// Connects to it for the next question.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn connect(&self) -> Result<(), Error> {
        self.ask(Client::connect)
    }

    /// The bridge of VNICs there, as it is named.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn bridge_of(&self, place: &Place) -> Result<Name, Error> {
        match place {
            Place::Bridge(bridge) => Ok(bridge.clone()),
            Place::Overlay(name) => {
                let overlay = self.ask(|client| client.get::<Overlay>(name))?;
                Ok(overlay.config.bridge().clone())
            }
        }
    }

    /// Whether VNICs there have a bridge, and reach other hosts if they are to.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn state_of(&self, place: &Place) -> Result<Status, Error> {
        match place {
            Place::Bridge(name) => {
                self.ask(|client| client.get::<Bridge>(name))?;
                Ok(Status {
                    state: State::Up,
                    ..Status::default()
                })
            }
            Place::Overlay(name) => {
                let overlay = self.ask(|client| client.get::<Overlay>(name))?;
                Ok(overlay.status)
            }
        }
    }

    /// A VNIC.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn vnic(&self, name: &Name) -> Result<VnicView, Error> {
        self.ask(|client| client.get::<Vnic>(name))
    }

    /// The VLAN of a VNIC there that has none of its own; 0 where the bridge does not filter.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn vlan_of(&self, place: &Place) -> Result<u16, Error> {
        let name = self.bridge_of(place)?;
        let bridge = self.ask(|client| client.get::<Bridge>(&name))?;
        Ok(u16::from(bridge.config.settings().vlan_filtering))
    }

    /// Has the registry of an overlay give addresses.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn claim(&self, overlay: &Name, claim: &AddressClaim) -> Result<ClaimedAddresses, Error> {
        self.ask(|client| client.claim_addresses(overlay, claim))
    }

    /// Gives back what no VNIC has.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn unclaim(&self, overlay: &Name, release: &AddressRelease) -> Result<(), Error> {
        self.ask(|client| client.release_addresses(overlay, release))
            .map(drop)
    }

    /// Makes a VNIC, in the place of a leftover of that name; its address.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn make(&self, vnic: &Vnic) -> Result<Option<MacAddr>, Error> {
        let made = match self.ask(|client| client.create(vnic)) {
            Err(Error::Refused(body)) if body.code == ErrorCode::Exists => {
                self.delete(&vnic.name)?;
                self.ask(|client| client.create(vnic))?
            }
            other => other?,
        };
        Ok(made.changes.iter().find_map(|change| match change {
            Change::Create {
                to: Object::Vnic(made),
            } => made.mac,
            _ => None,
        }))
    }

    /// Deletes a VNIC; one that is not there is deleted.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn delete(&self, name: &Name) -> Result<(), Error> {
        match self.ask(|client| client.delete::<Vnic>(name)) {
            Err(Error::Refused(body)) if body.code == ErrorCode::NotFound => Ok(()),
            other => other.map(drop),
        }
    }
}

/// Waits for 20 to 147 ms: those who were refused together do not come back together.
fn pause() {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let nanos = now.map_or(0, |now| now.subsec_nanos());
    let jitter = (nanos ^ std::process::id()) % 128;
    std::thread::sleep(BUSY_PAUSE + Duration::from_millis(jitter.into()));
}
