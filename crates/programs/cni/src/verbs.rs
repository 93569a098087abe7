//! The six commands.

use serde_json::{Value, json};
use windlass_api::{Name, State, Vnic};

use crate::call::{Call, Verb};
use crate::config::{Config, Ipam, VERSIONS, Wanted, object, version_of};
use crate::daemon::Daemon;
use crate::delegate;
use crate::failure::{Code, Failure, is_unreachable};
use crate::interface::Container;
use crate::ledger::{self, Entry, Ledger};
use crate::naming::vnic_name;
use crate::outcome::{Given, Interface, Ip, Previous};
use crate::ranges::Net;
use crate::shared::Pool;

/// Does what the environment says, for the network of this configuration; what is to be printed.
///
/// # Errors
/// See [`Code`].
pub fn run(text: &[u8]) -> Result<Option<Value>, Failure> {
    let verb = Verb::of_environment()?;
    if verb == Verb::Version {
        // People ask without a configuration.
        if !text.trim_ascii().is_empty() {
            object(text)?;
        }
        let versions = json!({"cniVersion": version_of(text), "supportedVersions": VERSIONS});
        return Ok(Some(versions));
    }
    let config = Config::read(text, verb)?;
    let network = Network {
        config: &config,
        text,
    };
    match verb {
        Verb::Add => network.add(&Call::of_environment(verb)?).map(Some),
        Verb::Del => network.del(&Call::of_environment(verb)?).map(|()| None),
        Verb::Check => network.check(&Call::of_environment(verb)?).map(|()| None),
        Verb::Gc => network.gc().map(|()| None),
        Verb::Status | Verb::Version => network.status().map(|()| None),
    }
}

/// A network, and its configuration as it came.
struct Network<'a> {
    config: &'a Config,
    text: &'a [u8],
}

/// Whether the daemon has deleted a VNIC; false: it cannot be asked.
fn is_deleted(daemon: Option<&Daemon>, vnic: &Name) -> Result<bool, Failure> {
    match daemon.map(|daemon| daemon.delete(vnic)) {
        Some(Ok(())) => Ok(true),
        None => Ok(false),
        Some(Err(error)) if is_unreachable(&error) => Ok(false),
        Some(Err(error)) => Err(error.into()),
    }
}

impl Network<'_> {
    fn change<T>(
        &self,
        change: impl FnOnce(&mut Ledger) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        ledger::change(&self.config.data_dir, &self.config.name, change)
    }

    /// Runs the plugin that has the addresses, if there is one.
    fn delegate(&self, verb: &str, call: Option<&Call>) -> Result<Option<Value>, Failure> {
        match &self.config.ipam {
            Ipam::Delegate(kind) => delegate::run(kind, verb, call, self.text).map(Some),
            Ipam::None | Ipam::Own { .. } => Ok(None),
        }
    }

    fn add(&self, call: &Call) -> Result<Value, Failure> {
        let config = self.config;
        let wanted = config.wanted(call)?;
        let mut container = Container::open(&call.netns)?;
        let vnic = vnic_name(&config.name, &call.container, &call.interface)?;
        let daemon = Daemon::of(config)?;
        // Nothing is written down while somebody is missing.
        daemon.connect()?;
        if let Ipam::Delegate(kind) = &config.ipam {
            delegate::find(kind)?;
        }
        let (given, is_leftover) = self.reserve(&daemon, call, &vnic, &wanted)?;
        let deleted = match is_leftover {
            // What it had from the plugin for addresses, too: that would refuse to give twice.
            true => daemon
                .delete(&vnic)
                .map_err(Failure::from)
                .and_then(|()| self.delegate("DEL", Some(call)).map(drop)),
            false => Ok(()),
        };
        let made = deleted
            .and_then(|()| self.make(call, &daemon, &mut container, (&vnic, &wanted, given)));
        made.inspect_err(|_| {
            // What cannot be undone now is owed.
            let _ = self.release(Some(&daemon), call, &vnic);
            if let Some(pool) = Pool::of(config) {
                pool.unclaim(&daemon, call);
            }
        })
    }

    /// Writes down what the interface gets, before anything is made; whether there is a leftover of one before it. Deletes what is owed
    /// first.
    fn reserve(
        &self,
        daemon: &Daemon,
        call: &Call,
        vnic: &Name,
        wanted: &Wanted,
    ) -> Result<(Given, bool), Failure> {
        self.change(|ledger| {
            self.pay(ledger, Some(daemon));
            // What was paid is written down in any case: its addresses rest from now on, not from the next call on.
            let paid = ledger.clone();
            let reserved = self.enter(ledger, call, vnic, wanted);
            Ok(reserved.inspect_err(|_| *ledger = paid))
        })?
    }

    /// Enters what the interface gets; whether there is a leftover of one before it.
    fn enter(
        &self,
        ledger: &mut Ledger,
        call: &Call,
        vnic: &Name,
        wanted: &Wanted,
    ) -> Result<(Given, bool), Failure> {
        let leftover = ledger.entries.remove(vnic);
        if let Some(other) = &leftover
            && (&other.container, &other.interface) != (&call.container, &call.interface)
        {
            let why = format!(
                "{vnic} is the VNIC of {} {}",
                other.container, other.interface
            );
            return Err(Failure::new(Code::Refused, why));
        }
        let mut given = Given {
            dns: self.config.dns.clone(),
            ..Given::default()
        };
        match &self.config.ipam {
            Ipam::Own { sets, routes, pool } => {
                let picks = match pool {
                    None => ledger.pick(sets, &wanted.ips)?,
                    Some(_) => Vec::new(),
                };
                let ips = picks.into_iter().map(|pick| Ip {
                    address: pick.net,
                    gateway: pick.gateway,
                });
                given.ips = ips.collect();
                given.routes.clone_from(routes);
                given.fill_gateways();
            }
            Ipam::None => {
                let ips = wanted.ips.iter().map(|net| Ip {
                    address: *net,
                    gateway: None,
                });
                given.ips = ips.collect();
            }
            Ipam::Delegate(_) => {}
        }
        let is_own = matches!(self.config.ipam, Ipam::Own { .. });
        let addresses = given.ips.iter().filter(|_| is_own);
        let entry = Entry {
            container: call.container.clone(),
            interface: call.interface.clone(),
            netns: call.netns.clone(),
            boot: ledger.boot().into(),
            addresses: addresses.map(|ip| ip.address.ip).collect(),
            is_owed: false,
        };
        let is_left = leftover.is_some();
        let former = leftover.into_iter().flat_map(|other| other.addresses);
        ledger.rest(former.filter(|ip| !entry.addresses.contains(ip)));
        ledger.entries.insert(vnic.clone(), entry);
        Ok((given, is_left))
    }

    fn make(
        &self,
        call: &Call,
        daemon: &Daemon,
        container: &mut Container,
        (name, wanted, mut given): (&Name, &Wanted, Given),
    ) -> Result<Value, Failure> {
        if let Some(value) = self.delegate("ADD", Some(call))? {
            let dns = given.dns.take();
            given = Given::read("the plugin for addresses", value)?;
            given.dns = given.dns.or(dns);
        }
        if container.link(&call.interface)?.is_some() {
            let why = format!("there is an interface {} in the container", call.interface);
            return Err(Failure::new(Code::Environment, why));
        }
        let bridge = daemon.bridge_of(&self.config.place)?;
        let mut wanted = wanted.clone();
        if let Some(pool) = Pool::of(self.config) {
            let (mac, ips) = pool.claim(daemon, call, &wanted)?;
            wanted.mac = Some(mac);
            given.ips = ips;
            given.fill_gateways();
        }
        let vnic = self.vnic(call, (name, &bridge), &wanted, &given)?;
        let mac = daemon.make(&vnic)?;
        let link = container.link(&call.interface)?.filter(|link| {
            let own = mac.map(|mac| mac.0);
            own.is_some() && link.mac == own
        });
        let Some(link) = link else {
            return Err(why_not(daemon, name));
        };
        container.add_routes(link.index, &given.routes)?;
        let interface = Interface {
            name: call.interface.clone(),
            mac: mac.map(|mac| mac.to_string()).unwrap_or_default(),
            mtu: Some(link.mtu),
            sandbox: call.netns.clone(),
        };
        Ok(given.result(self.config.version, &interface))
    }

    fn vnic(
        &self,
        call: &Call,
        (name, bridge): (&Name, &Name),
        wanted: &Wanted,
        given: &Given,
    ) -> Result<Vnic, Failure> {
        let config = self.config;
        let addresses: Vec<Net> = given.ips.iter().map(|ip| ip.address).collect();
        let mut properties = json!({});
        let numbers = [
            ("vlan", config.vlan),
            ("mtu", config.mtu.map(u64::from)),
            ("maxbw", wanted.maxbw),
        ];
        for (key, value) in numbers {
            if let (Some(object), Some(value)) = (properties.as_object_mut(), value) {
                object.insert(key.into(), json!(value));
            }
        }
        let vnic = json!({
            "name": name,
            "zone": config.zone,
            "bridge": bridge,
            "mac": wanted.mac,
            "attach": {
                "kind": config.attach,
                "name": call.interface,
                "netns": call.netns,
                "address": addresses,
            },
            "properties": properties,
        });
        let read = serde_json::from_value(vnic);
        read.map_err(|error| Failure::new(Code::Config, format!("the VNIC: {error}")))
    }

    fn del(&self, call: &Call) -> Result<(), Failure> {
        let vnic = vnic_name(&self.config.name, &call.container, &call.interface)?;
        let daemon = Daemon::of(self.config).ok();
        self.release(daemon.as_ref(), call, &vnic)
    }

    /// Takes back all that an interface has, and deletes what is owed; what the daemon cannot be asked for is owed.
    fn release(&self, daemon: Option<&Daemon>, call: &Call, vnic: &Name) -> Result<(), Failure> {
        let is_deleted = is_deleted(daemon, vnic);
        self.delegate("DEL", Some(call))?;
        let is_deleted = is_deleted?;
        self.change(|ledger| {
            if is_deleted {
                ledger.strike(vnic);
                self.pay(ledger, daemon);
                return Ok(());
            }
            let boot = ledger.boot().into();
            let entry = ledger.entries.entry(vnic.clone());
            let entry = entry.or_insert_with(|| Entry {
                container: call.container.clone(),
                interface: call.interface.clone(),
                netns: call.netns.clone(),
                boot,
                ..Entry::default()
            });
            entry.is_owed = true;
            Ok(())
        })
    }

    /// Deletes what is owed, and what an earlier boot has left, if the daemon answers. Nobody makes one of them anew meanwhile.
    fn pay(&self, ledger: &mut Ledger, daemon: Option<&Daemon>) {
        for vnic in ledger.stale() {
            match is_deleted(daemon, &vnic) {
                Ok(true) => {}
                // The others could not be asked for either.
                Ok(false) => break,
                Err(_) => continue,
            }
            if let Some(entry) = ledger.entries.get(&vnic) {
                // The plugin for addresses says it again if the runtime asks.
                let _ = self.delegate("DEL", Some(&call_of(entry)));
            }
            ledger.strike(&vnic);
        }
    }

    fn check(&self, call: &Call) -> Result<(), Failure> {
        let Some(previous) = self.config.previous.clone() else {
            return Err(Failure::new(Code::Config, "prevResult: is missing"));
        };
        let read = serde_json::from_value(previous);
        let previous: Previous =
            read.map_err(|error| Failure::new(Code::Config, format!("prevResult: {error}")))?;
        self.delegate("CHECK", Some(call))?;
        let vnic = vnic_name(&self.config.name, &call.container, &call.interface)?;
        let differs = |why: String| Err(Failure::new(Code::Differs, why));
        let view = Daemon::of(self.config)?.vnic(&vnic)?;
        if view.status.state != State::Up {
            let reason = view.status.reason.unwrap_or_default();
            return differs(format!("VNIC {vnic} is not up: {reason}"));
        }
        let mut container = Container::open(&call.netns)?;
        let Some(link) = container.link(&call.interface)? else {
            return differs(format!("there is no interface {}", call.interface));
        };
        let mac = link.mac.map(|mac| windlass_api::MacAddr(mac).to_string());
        let is_it = |interface: &&Interface| {
            interface.name == call.interface && !interface.sandbox.is_empty()
        };
        match previous.interfaces.iter().find(is_it) {
            None => {
                return Err(Failure::new(
                    Code::Config,
                    "prevResult: has no such interface",
                ));
            }
            Some(interface) if Some(&interface.mac) != mac.as_ref() => {
                return differs(format!("{} has another address", call.interface));
            }
            Some(_) => {}
        }
        let nets: Vec<Net> = previous.given.ips.iter().map(|ip| ip.address).collect();
        if let Some(net) = container.missing_address(link.index, &nets)? {
            return differs(format!("{} has no address {net}", call.interface));
        }
        match container.missing_route(link.index, &previous.given.routes)? {
            Some(route) => differs(format!("there is no route to {}", route.dst)),
            None => Ok(()),
        }
    }

    /// Goes on after errors; the first of them.
    fn gc(&self) -> Result<(), Failure> {
        let (valid, entries) = match &self.config.valid {
            Some(valid) => (
                valid.as_slice(),
                self.change(|ledger| Ok(ledger.entries.clone()))?,
            ),
            // Who does not say which interfaces there are takes none away.
            None => Default::default(),
        };
        let daemon = Daemon::of(self.config).ok();
        let mut done = self.change(|ledger| {
            self.pay(ledger, daemon.as_ref());
            Ok(())
        });
        for (vnic, entry) in entries {
            let is_it = |valid: &crate::config::Attachment| {
                (&valid.container, &valid.interface) == (&entry.container, &entry.interface)
            };
            if !valid.iter().any(is_it) {
                done = done.and(self.release(daemon.as_ref(), &call_of(&entry), &vnic));
            }
        }
        done.and(self.delegate("GC", None).map(drop))
    }

    fn status(&self) -> Result<(), Failure> {
        let unavailable = |failure: Failure| failure.with(Code::Unavailable);
        let daemon = Daemon::of(self.config).map_err(|error| unavailable(error.into()))?;
        let status = daemon.state_of(&self.config.place);
        let status = status.map_err(|error| unavailable(error.into()))?;
        if status.state != State::Up {
            let reason = status.reason.unwrap_or_default();
            let why = format!("the overlay is degraded: {reason}");
            return Err(Failure::new(Code::Limited, why));
        }
        if let Some(pool) = Pool::of(self.config) {
            pool.try_claim(&daemon).map_err(unavailable)?;
        } else if let Ipam::Own { sets, .. } = &self.config.ipam {
            let picked = self.change(|ledger| ledger.clone().pick(sets, &[]));
            picked.map_err(unavailable)?;
        }
        self.delegate("STATUS", None).map(drop)
    }
}

/// Why there is no interface although there is a VNIC.
fn why_not(daemon: &Daemon, vnic: &Name) -> Failure {
    match daemon.vnic(vnic) {
        Ok(view) => {
            let reason = view.status.reason.unwrap_or_default();
            let why = format!("VNIC {vnic} is {}: {reason}", view.status.state.as_str());
            Failure::new(Code::Again, why)
        }
        Err(error) => error.into(),
    }
}

/// The DEL of an entry.
fn call_of(entry: &Entry) -> Call {
    Call {
        container: entry.container.clone(),
        interface: entry.interface.clone(),
        netns: entry.netns.clone(),
        args: Default::default(),
    }
}
