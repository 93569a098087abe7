//! Addresses out of a pool that the hosts of an overlay share: its registry gives them.

use windlass_api::{AddressClaim, AddressRelease, ErrorCode, MacAddr, Name};
use windlass_client::Error;

use crate::call::Call;
use crate::config::{Config, Ipam, Place, Wanted};
use crate::daemon::Daemon;
use crate::failure::{Code, Failure};
use crate::outcome::Ip;
use crate::ranges::RangeSet;

/// A network's pool.
pub struct Pool<'a> {
    overlay: &'a Name,
    name: &'a str,
    sets: &'a [RangeSet],
    config: &'a Config,
}

/// The registry has no address now, or does not answer: that passes.
fn refused(error: Error) -> Failure {
    let is_host = error.code() == ErrorCode::Host;
    let failure = Failure::from(error);
    if is_host {
        failure.with(Code::Again)
    } else {
        failure
    }
}

fn owner(call: &Call) -> String {
    format!("cni:{}/{}", call.container, call.interface)
}

impl<'a> Pool<'a> {
    /// The one that a network has, if it has one.
    pub fn of(config: &'a Config) -> Option<Self> {
        match (&config.ipam, &config.place) {
            (
                Ipam::Own {
                    sets,
                    pool: Some(name),
                    ..
                },
                Place::Overlay(overlay),
            ) => Some(Self {
                overlay,
                name,
                sets,
                config,
            }),
            _ => None,
        }
    }

    fn vlan(&self, daemon: &Daemon) -> Result<u16, Error> {
        let own = self.config.vlan.and_then(|vlan| vlan.try_into().ok());
        own.map_or_else(|| daemon.vlan_of(&self.config.place), Ok)
    }

    fn claim_for(&self, daemon: &Daemon, owner: String) -> Result<AddressClaim, Failure> {
        Ok(AddressClaim {
            owner,
            vlan: self.vlan(daemon)?,
            mac: None,
            pool: self.name.to_owned(),
            sets: self.sets.iter().map(RangeSet::bounds).collect(),
            ips: Vec::new(),
            dry_run: false,
        })
    }

    /// The MAC and IP addresses of an interface. A VNIC must have them within 60 s.
    ///
    /// # Errors
    /// [`Code::Again`]: there is none now, or the registry does not answer; [`Code::Refused`].
    pub fn claim(
        &self,
        daemon: &Daemon,
        call: &Call,
        wanted: &Wanted,
    ) -> Result<(MacAddr, Vec<Ip>), Failure> {
        let claim = AddressClaim {
            mac: wanted.mac,
            ips: wanted.ips.iter().map(|net| net.ip).collect(),
            ..self.claim_for(daemon, owner(call))?
        };
        let claimed = daemon.claim(self.overlay, &claim).map_err(refused)?;
        let ips = claimed.ips.into_iter().map(|ip| {
            let found = self.sets.iter().find_map(|set| set.find(ip));
            let pick = found.ok_or_else(|| {
                let why = format!("the registry gave {ip}, which is in no range");
                Failure::new(Code::Refused, why)
            })?;
            Ok(Ip {
                address: pick.net,
                gateway: pick.gateway,
            })
        });
        Ok((claimed.mac, ips.collect::<Result<_, Failure>>()?))
    }

    /// Whether it would give an address.
    ///
    /// # Errors
    /// As [`Pool::claim`].
    pub fn try_claim(&self, daemon: &Daemon) -> Result<(), Failure> {
        let claim = AddressClaim {
            dry_run: true,
            ..self.claim_for(daemon, "cni:status".into())?
        };
        let claimed = daemon.claim(self.overlay, &claim);
        claimed.map(drop).map_err(refused)
    }

    /// Gives back what no VNIC was made of. What cannot be given back now is nobody's after 60 s.
    pub fn unclaim(&self, daemon: &Daemon, call: &Call) {
        let Ok(vlan) = self.vlan(daemon) else { return };
        let release = AddressRelease {
            owner: owner(call),
            vlan,
        };
        let _ = daemon.unclaim(self.overlay, &release);
    }
}
