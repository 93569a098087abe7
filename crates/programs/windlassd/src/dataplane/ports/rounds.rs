//! What the ports thread does round after round.
//!
//! # Model
//! A round waits until there is a request, an endpoint has something, its deadline has passed, or a worker says
//! something; then it serves all requests, and drives the endpoints that have to be driven, no others. Within an edit, and in a daemon
//! that waits for its turn, only requests are served.
//!
//! # What can be lost and what cannot
//! What wakes a round is reported until somebody has looked after it, so that a round that ends early loses nothing. A deadline
//! is taken from [`Watch`](super::watch::Watch) when its endpoint is driven, and entered anew after that.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use windlass_api::{EventKind, MacAddr, MemberSettings, Name};
use windlass_attach::endpoint::Event;
use windlass_bridge::fdb::Fdb;
use windlass_sys::epoll::Events;
use windlass_sys::netns::NetnsRef;
use windlass_worker::DataPlane;

use super::watch::Sources;
use super::{Ports, Request};
use crate::dataplane::host::{Device, Host};
use crate::dataplane::translate;

/// Time between two looks at what a late worker has let go.
const DRAIN_LOOK: Duration = Duration::from_millis(10);
/// Time from one clash of addresses that is told to the next one of the same bridge.
const CLASH_GAP: Duration = Duration::from_secs(10);

impl Ports {
    /// Serves requests and drives endpoints until [`Ports::stop`].
    pub fn run(mut self, inbox: &Receiver<Request>) {
        let mut events = Events::default();
        while !self.stopping {
            // Within an edit the engine has more to ask, and endpoints wait for its end.
            if !self.is_quiet() {
                match inbox.recv() {
                    Ok(request) => request(&mut self),
                    Err(_) => return,
                }
                continue;
            }
            let woken = self.wait(&mut events);
            if woken.requests {
                let _ = windlass_sys::eventfd::drain(self.wake.as_fd());
            }
            while self.is_quiet()
                && let Ok(request) = inbox.try_recv()
            {
                request(&mut self);
            }
            if self.is_quiet() {
                self.go_round(woken);
            }
        }
    }

    /// Whether there is nothing that endpoints have to wait for.
    fn is_quiet(&self) -> bool {
        !self.edit.is_open && self.held.is_none()
    }

    fn go_round(&mut self, woken: Sources) {
        if self.watch.take_namespaces()
            && let Some(namespaces) = &self.namespaces
        {
            // The wake-up has the kernel forget a mount already, so that the answer may be that nothing has changed.
            let _ = namespaces.take_changes();
            self.look_for_namespaces();
        }
        self.hear_searches();
        if woken.condemned {
            self.take_condemned();
        }
        self.take_detached();
        if woken.local {
            self.hear();
        }
        if woken.learned {
            self.plane.hear_learned();
            self.leases_changed();
        }
        self.run_leases();
        if self.is_leaving() && !self.plane.is_draining() {
            self.remove_leaving();
            self.renew_uncovered();
        }
        self.tell_clashes();
        for token in self.watch.take_due(Instant::now()) {
            if let Some(name) = self.members.name_at(token).cloned() {
                self.drive(&name);
            }
        }
        self.run_trees();
        self.run_neighbours();
        self.run_advertisements();
        self.run_snoops();
        self.run_overlays();
    }

    /// Looks once for each namespace, not for each endpoint that is to be in it.
    fn look_for_namespaces(&mut self) {
        let mut found = BTreeMap::new();
        for endpoint in self.members.endpoints_mut() {
            let Some((name, is_in)) = endpoint.namespace() else {
                continue;
            };
            let now = match found.get(name) {
                Some(now) => *now,
                None => {
                    let now = NetnsRef::open(name).ok().map(|namespace| namespace.id());
                    found.insert(name.to_owned(), now);
                    now
                }
            };
            if now != is_in {
                self.watch.make_due(endpoint);
            }
        }
    }

    /// Tells endpoints of rings that workers have found dead.
    fn take_condemned(&mut self) {
        for dead in self.plane.take_condemned() {
            if let Some(endpoint) = self.members.endpoint_of(dead.member) {
                endpoint.condemn(dead.reason);
                self.watch.make_due(endpoint);
            }
        }
    }

    /// Tells endpoints of rings that a late worker has let go.
    fn take_detached(&mut self) {
        for id in self.plane.take_detached() {
            if let Some(endpoint) = self.members.endpoint_of(id) {
                endpoint.detached();
                endpoint.listen(true);
                self.watch.make_due(endpoint);
            }
        }
    }

    /// When the next clash is to be told, if there is one.
    fn clash_at(&self) -> Option<Instant> {
        let clashing = self.bridges.values().filter(|bridge| {
            let table = self.plane.fdb_table(bridge.id);
            table.is_ok_and(Fdb::has_clash)
        });
        clashing.map(|bridge| bridge.clash_at).min()
    }

    /// Tells of addresses that two members use.
    fn tell_clashes(&mut self) {
        let now = Instant::now();
        for (name, bridge) in &mut self.bridges {
            let Ok(table) = self.plane.fdb_table(bridge.id) else {
                continue;
            };
            if now < bridge.clash_at || !table.has_clash() {
                continue;
            }
            bridge.clash_at = now + CLASH_GAP;
            let Some(clash) = table.take_clash() else {
                continue;
            };
            let entries = self.plane.fdb_entries(bridge.id).unwrap_or_default();
            let held = entries.iter().find(|entry| {
                entry.key.octets() == clash.mac
                    && entry.flags.is_fixed()
                    && entry.member != clash.member
            });
            let named = |id| self.members.name_of(id).cloned();
            let (Some(held), Some(member)) = (held, named(clash.member)) else {
                continue;
            };
            let (Some(holder), mac) = (named(held.member), MacAddr(clash.mac)) else {
                continue;
            };
            tracing::warn!("bridge {name}: {member} sends from {mac}, the address of {holder}");
            self.sink.clashed(EventKind::Clash {
                bridge: name.clone(),
                vlan: held.key.vid(),
                mac,
                holder,
                member,
            });
        }
    }

    /// Takes what bridges have for the daemon.
    fn hear(&mut self) {
        for frame in self.plane.take_local() {
            if frame.is_snooped {
                self.members.heard(frame.member);
                if !self.hear_question(&frame) && !self.hear_host(&frame) {
                    self.hear_snooped(&frame);
                }
                continue;
            }
            if let Some(member) = self.members.of(frame.member) {
                member.heard.note(frame.bytes());
            }
            self.hear_bpdu(frame.member, frame.bytes());
        }
        self.hear_firewalls();
        self.hear_questions();
    }

    /// Sleeps until there is something to do.
    fn wait(&mut self, events: &mut Events) -> Sources {
        let draining = self.plane.is_draining() || self.is_leaving();
        let look = draining.then(|| Instant::now() + DRAIN_LOOK);
        let others = self.clash_at().into_iter().chain(self.trees_due());
        let others = others.chain(self.snoops_due()).chain(self.neighbours_due());
        let others = others.chain(self.advertisements_due());
        let others = others.chain(self.leases_due()).chain(self.overlays_due());
        let deadline = look.into_iter().chain(others).min();
        self.watch.wait(events, deadline)
    }

    /// Lets one endpoint go on, and does what its events ask for.
    pub(super) fn drive(&mut self, name: &Name) {
        let Some(member) = self.members.get_mut(name) else {
            return;
        };
        let Some(endpoint) = member.endpoint.as_mut() else {
            return;
        };
        for event in endpoint.poll(Instant::now()) {
            let done = match event {
                Event::Up(rings) => {
                    member.rings = rings.rx.len() as u16;
                    let renewed = match member.device.as_deref() {
                        None => Ok(()),
                        Some(device) => {
                            // An interface that was away may have come back as another one.
                            renew(
                                &mut *self.host,
                                &mut self.plane,
                                device,
                                member.id,
                                &member.settings,
                            )
                            .map(|mtu| member.mtu = mtu)
                        }
                    };
                    let attached = renewed.and_then(|()| {
                        self.plane
                            .attach(member.id, rings)
                            .map_err(|error| error.to_string())
                    });
                    if let Err(reason) = &attached {
                        member.rings = 0;
                        endpoint.condemn(reason);
                        self.watch.make_due(endpoint);
                    }
                    attached
                }
                Event::Down(reason) => {
                    tracing::debug!("{name}: {reason}");
                    member.rings = 0;
                    let detached = self.plane.detach(member.id);
                    match &detached {
                        Ok(()) => {
                            endpoint.detached();
                            self.watch.make_due(endpoint);
                        }
                        // It can do nothing before `take_detached` names it.
                        Err(_) => endpoint.listen(false),
                    }
                    detached.map_err(|error| error.to_string())
                }
            };
            if let Err(error) = done {
                tracing::error!("{name}: {error}");
            }
            self.sink.changed(name);
        }
        if let Some(notice) = endpoint.take_notice() {
            tracing::warn!("{name}: {notice}");
        }
        self.watch.put_off(endpoint);
        if endpoint.take_changed() {
            self.sink.changed(name);
        }
        if endpoint.is_over() {
            self.end_device(name);
        }
    }
}

/// Gives an uplink the address and the MTU that its interface has now; returns the MTU.
fn renew(
    host: &mut dyn Host,
    plane: &mut DataPlane,
    device: &str,
    member: u16,
    settings: &MemberSettings,
) -> Result<u32, String> {
    let known = host.device(device);
    let Device { mtu, mac } = known.ok_or_else(|| format!("interface {device} cannot be read"))?;
    let conf = translate::member_conf(settings, mac, mtu);
    let mtu = conf.mtu;
    let set = plane.set_conf(member, conf);
    set.map(|()| mtu).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests;
