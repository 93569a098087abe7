//! What the engine answers to questions: only what the peer may see.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use rustix::time::{ClockId, clock_gettime};
use windlass_api::{
    AddressClaim, AddressRelease, BridgeStats, BridgeView, Counters, DaemonView, Document,
    ErrorBody, ErrorCode, FdbPage, FdbQuery, Flow, FlowView, Flushed, HostView, MacAddr, Member,
    MemberStats, MigrationCheck, MigrationChecked, Moved, Name, Overlay, OverlayView, RuleView,
    State, Stats, Status, TargetQuery, TargetView, Uplink, UplinkView, Vnic, VnicView, WorkerMove,
    WorkerStats, Zone, ZoneView,
};

use super::Engine;
use super::owners::vnics_in;
use crate::authority::Peer;
use crate::backend::{OverlayCounts, Place, Region};
use crate::log::{self, Source};
use crate::lookup::Answered;
use crate::metrics::Sample;
use crate::shares::{Share, configured_in};

/// The answer for something that is not there, or that the peer may not know of.
pub fn no_such(kind: &str, name: &str) -> ErrorBody {
    let name: String = name.chars().take(64).collect();
    ErrorBody::plain(
        ErrorCode::NotFound,
        format!("there is no {kind} \"{name}\""),
    )
}

impl Engine {
    /// The document.
    pub fn document(&self) -> &Document {
        &self.document
    }

    /// Its revision.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// The live state of a member.
    pub fn status(&self, name: &Name) -> Status {
        let mut statuses = self.statuses(std::slice::from_ref(name));
        statuses.pop().unwrap_or_default()
    }

    /// The live states of members, in their order: one question, however many they are.
    pub(super) fn statuses(&self, names: &[Name]) -> Vec<Status> {
        let live = self.backend.statuses(names);
        let status = |(name, live)| match self.failed.get(name) {
            Some(reason) => Status {
                state: State::Down,
                reason: Some(reason.clone()),
                ..Status::default()
            },
            None => live,
        };
        names.iter().zip(live).map(status).collect()
    }

    /// The members of bridges that the peer may see.
    pub(super) fn seen_by(&self, peer: &Peer) -> impl Iterator<Item = Member<'_>> {
        self.document.members().filter(move |member| match member {
            Member::Uplink(_) | Member::Overlay(_) => peer.sees_host(),
            Member::Vnic(vnic) => peer.sees_vnic(vnic, &self.document),
        })
    }

    /// A zone as the peer sees it.
    pub fn zone_view(&self, peer: &Peer, zone: &Zone) -> Option<ZoneView> {
        if !peer.sees_zone(zone) {
            return None;
        }
        let within = |share| configured_in(share, &zone.name, &self.document);
        let place = Place::of(&self.runtime_dir, Some(zone));
        let directory = place.directory.display().to_string();
        let used = self.backend.used(&vnics_in(&self.document, &zone.name));
        let lines = log::lines(&Source::Zone(Some(zone.name.clone())));
        Some(ZoneView {
            config: zone.clone(),
            vnics: within(Share::Vnics),
            descriptors: within(Share::Descriptors),
            mappings: used.mappings,
            addresses: used.addresses,
            log_lines: lines.map_or(0, |(used, _)| used),
            directory,
            limits: self
                .sink
                .holders()
                .view_of(zone.owner_uid, &self.document, &self.per_user),
        })
    }

    /// A bridge as the peer sees it: a tenant sees only its own members.
    pub fn bridge_view(&self, peer: &Peer, bridge: &windlass_api::Bridge) -> Option<BridgeView> {
        if !peer.sees_bridge(&bridge.name, &self.document) {
            return None;
        }
        let members = self.seen_by(peer);
        let members = members.filter(|member| *member.bridge() == bridge.name);
        let members = members.map(|member| member.name().clone()).collect();
        let (table, place, tree, multicast, neighbours) = if peer.sees_host() {
            let (backend, name) = (&self.backend, &bridge.name);
            (
                backend.table(name),
                backend.bridge_place(name),
                backend.tree(name),
                backend.multicast(name),
                backend.neighbours(name),
            )
        } else {
            Default::default()
        };
        Some(BridgeView {
            config: bridge.clone(),
            members,
            place,
            table,
            tree,
            multicast,
            neighbours,
        })
    }

    /// States and counters of members, in their order.
    fn live(&self, names: &[Name]) -> impl Iterator<Item = (Status, Counters)> {
        let statuses = self.statuses(names);
        statuses.into_iter().zip(self.backend.counters(names))
    }

    /// Uplinks, for an operator.
    pub fn uplink_views(&self, peer: &Peer, uplinks: &[Uplink]) -> Vec<UplinkView> {
        let seen = uplinks.iter().filter(|_| peer.sees_host());
        let seen: Vec<_> = seen.cloned().collect();
        let names: Vec<_> = seen.iter().map(|uplink| uplink.name.clone()).collect();
        let views = seen.into_iter().zip(self.live(&names));
        let view = |(config, (status, counters))| UplinkView {
            config,
            status,
            counters,
        };
        views.map(view).collect()
    }

    /// Overlays, for an operator.
    pub fn overlay_views(&self, peer: &Peer, overlays: &[Overlay]) -> Vec<OverlayView> {
        let seen = overlays.iter().filter(|_| peer.sees_host());
        let seen: Vec<_> = seen.cloned().collect();
        let names: Vec<_> = seen.iter().map(|overlay| overlay.name.clone()).collect();
        let counts = self.backend.overlay_counts(&names);
        let views = seen.into_iter().zip(self.live(&names)).zip(counts);
        let view =
            |((config, (status, counters)), counts): ((_, (_, _)), OverlayCounts)| OverlayView {
                config,
                status,
                targets: counts.targets,
                addresses: counts.addresses,
                counters,
            };
        views.map(view).collect()
    }

    /// The targets of an overlay, for an operator.
    ///
    /// # Errors
    /// There is no such overlay, or the peer is no operator.
    pub fn targets(
        &self,
        peer: &Peer,
        overlay: &str,
        query: &TargetQuery,
    ) -> Result<Vec<TargetView>, ErrorBody> {
        let name = self.seen_overlay(peer, overlay)?;
        Ok(self.backend.targets(&name, query))
    }

    /// Forgets what frames or a plugin's answers have told of targets; how many addresses.
    ///
    /// # Errors
    /// As [`Self::targets`].
    pub fn flush_targets(
        &mut self,
        peer: &Peer,
        overlay: &str,
        query: &TargetQuery,
    ) -> Result<u64, ErrorBody> {
        let name = self.seen_overlay(peer, overlay)?;
        Ok(self.backend.flush_targets(&name, query))
    }

    /// The hosts of an overlay's registry, for an operator.
    ///
    /// # Errors
    /// As [`Self::targets`].
    pub fn hosts(&self, peer: &Peer, overlay: &str) -> Result<Vec<HostView>, ErrorBody> {
        Ok(self.backend.hosts(&self.seen_overlay(peer, overlay)?))
    }

    /// Has the registry drop what a host has announced.
    ///
    /// # Errors
    /// As [`Self::targets`]; the registry has no such host.
    pub fn forget_host(&mut self, peer: &Peer, overlay: &str, host: &str) -> Result<(), ErrorBody> {
        let name = self.seen_overlay(peer, overlay)?;
        let hosts = self.backend.hosts(&name);
        let is_there = hosts.iter().any(|view| view.host == *host);
        is_there
            .then_some(())
            .ok_or_else(|| no_such("host", host))?;
        self.backend.forget_host(&name, host);
        Ok(())
    }

    /// Has an overlay take its registry as it is, though that is younger than what is known.
    ///
    /// # Errors
    /// As [`Self::targets`].
    pub fn resync(&mut self, peer: &Peer, overlay: &str) -> Result<(), ErrorBody> {
        let name = self.seen_overlay(peer, overlay)?;
        self.backend.resync(&name);
        Ok(())
    }

    /// Has an overlay's registry give addresses, for an operator.
    ///
    /// # Errors
    /// As [`Self::targets`]; the claim is wrong in itself, or for this overlay.
    pub fn claim_addresses(
        &mut self,
        peer: &Peer,
        overlay: &str,
        claim: AddressClaim,
        answer: Answered,
    ) -> Result<(), ErrorBody> {
        let name = self.seen_overlay(peer, overlay)?;
        claim.check()?;
        let asked = self.backend.claim_addresses(&name, claim, answer);
        asked.map_err(|why| ErrorBody::plain(ErrorCode::Invalid, why))
    }

    /// Gives addresses back for which no VNIC was made, for an operator.
    ///
    /// # Errors
    /// As [`Self::claim_addresses`].
    pub fn release_addresses(
        &mut self,
        peer: &Peer,
        overlay: &str,
        release: AddressRelease,
    ) -> Result<(), ErrorBody> {
        let name = self.seen_overlay(peer, overlay)?;
        release.check()?;
        let asked = self.backend.release_addresses(&name, release);
        asked.map_err(|why| ErrorBody::plain(ErrorCode::Invalid, why))
    }

    fn seen_overlay(&self, peer: &Peer, name: &str) -> Result<Name, ErrorBody> {
        let overlay = self.document.overlay(name).filter(|_| peer.sees_host());
        let overlay = overlay.ok_or_else(|| no_such("overlay", name))?;
        Ok(overlay.name.clone())
    }

    /// Those VNICs that the peer may see, as it sees them.
    pub fn vnic_views(&self, peer: &Peer, vnics: &[Vnic]) -> Vec<VnicView> {
        let seen = vnics.iter();
        let seen: Vec<_> = seen
            .filter(|vnic| peer.sees_vnic(vnic, &self.document))
            .collect();
        let names: Vec<_> = seen.iter().map(|vnic| vnic.name.clone()).collect();
        let views = seen.into_iter().zip(self.live(&names));
        let view = |(vnic, (status, counters)): (&Vnic, _)| VnicView {
            config: match peer.owns_vnic(vnic, &self.document) {
                true => vnic.clone(),
                false => Vnic {
                    attach: vnic.attach.clone().without_secret(),
                    ..vnic.clone()
                },
            },
            status,
            counters,
        };
        views.map(view).collect()
    }

    /// The rules that packets of a VNIC have to pass.
    ///
    /// # Errors
    /// No such VNIC, as far as the peer may know.
    pub fn rules(&self, peer: &Peer, name: &str) -> Result<Vec<RuleView>, ErrorBody> {
        let vnic = self.document.vnic(name);
        let vnic = vnic.filter(|vnic| peer.sees_vnic(vnic, &self.document));
        let vnic = vnic.ok_or_else(|| no_such("vnic", name))?;
        let counted = self.backend.counted(&vnic.name);
        let rules = self.place_of(vnic).rules;
        Ok(vnic.settings().firewall.in_zone(rules).rules(counted))
    }

    /// Those flows that the peer may see: of VNICs that it may see.
    pub fn flow_views(&self, peer: &Peer, flows: &[Flow]) -> Vec<FlowView> {
        let vnics = self.document.vnics.iter();
        let vnics = vnics.filter(|vnic| peer.sees_vnic(vnic, &self.document));
        let vnics: BTreeSet<&Name> = vnics.map(|vnic| &vnic.name).collect();
        let seen = flows.iter().filter(|flow| vnics.contains(&flow.vnic));
        let seen: Vec<Flow> = seen.cloned().collect();
        let counters = self.backend.flow_counters(&seen);
        let views = seen.into_iter().zip(counters);
        views
            .map(|(config, counters)| FlowView { config, counters })
            .collect()
    }

    fn visible_bridge(&self, peer: &Peer, name: &str) -> Result<Name, ErrorBody> {
        let bridge = self
            .document
            .bridge(name)
            .ok_or_else(|| no_such("bridge", name))?;
        if !peer.sees_bridge(&bridge.name, &self.document) {
            return Err(no_such("bridge", name));
        }
        Ok(bridge.name.clone())
    }

    /// Entries of a forwarding table. A tenant must name one of its VNICs.
    ///
    /// # Errors
    /// No such bridge; a tenant asks for more than a VNIC of its own.
    pub fn fdb_show(
        &mut self,
        peer: &Peer,
        bridge: &str,
        query: &FdbQuery,
    ) -> Result<FdbPage, ErrorBody> {
        let bridge = self.visible_bridge(peer, bridge)?;
        let own = query
            .member
            .as_ref()
            .and_then(|member| self.document.vnic(member.as_str()));
        if !own.is_some_and(|vnic| peer.sees_vnic(vnic, &self.document)) {
            peer.must_operate("read a forwarding table but for a VNIC of its own (member=)")?;
        }
        Ok(self.backend.fdb_show(&bridge, query))
    }

    /// Forgets learned entries.
    ///
    /// # Errors
    /// No such bridge; the peer is no operator.
    pub fn fdb_flush(
        &mut self,
        peer: &Peer,
        bridge: &str,
        query: &FdbQuery,
    ) -> Result<Flushed, ErrorBody> {
        let bridge = self.visible_bridge(peer, bridge)?;
        peer.must_operate("flush a forwarding table")?;
        Ok(Flushed {
            entries: self.backend.fdb_flush(&bridge, query),
        })
    }

    /// Asks neighbours of a spanning tree again whether they speak RSTP (mcheck, 802.1D-2004, 17.13.9).
    ///
    /// # Errors
    /// No such bridge; the member named takes no part; the peer is no operator.
    pub fn check_migration(
        &mut self,
        peer: &Peer,
        bridge: &str,
        check: &MigrationCheck,
    ) -> Result<MigrationChecked, ErrorBody> {
        let bridge = self.visible_bridge(peer, bridge)?;
        peer.must_operate("ask neighbours of a spanning tree")?;
        let member = check.member.as_ref();
        match (self.backend.check_migration(&bridge, member), member) {
            (0, Some(member)) => Err(no_such("member of the spanning tree", member.as_str())),
            (members, _) => Ok(MigrationChecked { members }),
        }
    }

    /// Forgets one learned entry.
    ///
    /// # Errors
    /// No such bridge or entry; the peer is no operator.
    pub fn fdb_forget(
        &mut self,
        peer: &Peer,
        bridge: &str,
        vlan: u16,
        mac: MacAddr,
    ) -> Result<(), ErrorBody> {
        let bridge = self.visible_bridge(peer, bridge)?;
        peer.must_operate("change a forwarding table")?;
        if self.backend.fdb_forget(&bridge, vlan, mac) {
            Ok(())
        } else {
            Err(no_such("entry", &format!("{bridge} vlan {vlan} {mac}")))
        }
    }

    /// All counters at this moment that the peer may see.
    pub fn stats(&self, peer: &Peer) -> Stats {
        let now = clock_gettime(ClockId::Monotonic);
        let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
        let nanoseconds = u64::try_from(now.tv_nsec).unwrap_or(0);
        let time_ns = seconds
            .saturating_mul(1_000_000_000)
            .saturating_add(nanoseconds);
        let (names, on): (Vec<Name>, Vec<Name>) = (self.seen_by(peer))
            .map(|member| (member.name().clone(), member.bridge().clone()))
            .unzip();
        let is_all = peer.sees_host();
        let bridges: Vec<Name> = (self.document.bridges.iter())
            .filter(|_| is_all)
            .map(|bridge| bridge.name.clone())
            .collect();
        let moment = self.backend.moment(&names, &bridges);
        let members: Vec<_> = (names.into_iter().zip(on).zip(moment.counters))
            .map(|((name, bridge), counters)| MemberStats {
                name,
                bridge,
                counters,
            })
            .collect();
        let (bridges, workers) = if is_all {
            let mut traffic: BTreeMap<&Name, Counters> = BTreeMap::new();
            for member in &members {
                *traffic.entry(&member.bridge).or_default() += &member.counters;
            }
            let bridges =
                (bridges.into_iter().zip(moment.tables)).map(|(name, table)| BridgeStats {
                    table,
                    traffic: traffic.remove(&name).unwrap_or_default(),
                    name,
                });
            (bridges.collect(), moment.workers)
        } else {
            Default::default()
        };
        let by_name = members.iter().map(|m| (&m.name, &m.counters)).collect();
        Stats {
            vnds: self.vnd_stats(peer, &by_name),
            time_ns,
            members,
            bridges,
            workers,
        }
    }

    /// What [`crate::metrics`] tells the peer.
    pub fn sample(&self, peer: &Peer) -> Sample {
        let stats = self.stats(peer);
        let members = stats.members.iter();
        let names: Vec<_> = members.map(|member| member.name.clone()).collect();
        let states = self.statuses(&names).into_iter();
        let overlays = self.document.overlays.iter();
        let zones = self.document.vnics.iter().map(|vnic| {
            let zone = vnic.zone.name().map(Name::to_string);
            (vnic.name.clone(), zone.unwrap_or_default())
        });
        Sample {
            daemon: self.daemon_view(peer),
            states: states.map(|status| status.state).collect(),
            zones: zones.collect(),
            overlays: overlays.map(|overlay| overlay.name.clone()).collect(),
            flows: self.flow_views(peer, &self.document.flows),
            stats,
        }
    }

    /// What the workers did, for an operator.
    ///
    /// # Errors
    /// The peer is no operator.
    pub fn workers(&self, peer: &Peer) -> Result<Vec<WorkerStats>, ErrorBody> {
        peer.must_operate("look at workers")?;
        Ok(self.backend.workers())
    }

    /// The memory of members that the peer sees, and for an operator of bridges.
    pub fn regions(&self, peer: &Peer) -> Vec<Region> {
        let members: BTreeSet<_> = self.seen_by(peer).map(|m| m.name().clone()).collect();
        let is_seen = |region: &Region| match region.kind {
            "table" => peer.sees_host(),
            _ => members.contains(&region.owner),
        };
        let mut regions = self.backend.regions();
        regions.retain(is_seen);
        regions
    }

    /// Has another worker serve rings, or write a table.
    ///
    /// # Errors
    /// No such object, ring or worker; a worker is late; the peer is no operator.
    pub fn move_to_worker(&mut self, peer: &Peer, what: &WorkerMove) -> Result<Moved, ErrorBody> {
        peer.must_operate("move rings and tables between workers")?;
        let worker = what.worker;
        let moved = match (&what.member, &what.bridge) {
            (Some(member), None) => {
                let is_there = self.document.member(member.as_str()).is_some();
                let missing = || no_such("member", member.as_str());
                is_there.then_some(()).ok_or_else(missing)?;
                self.backend.move_rings(member, what.ring, worker)?
            }
            (None, Some(bridge)) if what.ring.is_none() => {
                let bridge = self.visible_bridge(peer, bridge.as_str())?;
                self.backend.move_table(&bridge, worker)?
            }
            _ => {
                let message = "say a member, with a ring or without, or a bridge";
                return Err(ErrorBody::plain(ErrorCode::Invalid, message));
            }
        };
        Ok(Moved { moved })
    }

    /// The daemon itself.
    pub fn daemon_view(&self, peer: &Peer) -> DaemonView {
        DaemonView {
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            revision: self.revision,
            uptime_s: Instant::now().duration_since(self.started).as_secs(),
            workers: u32::try_from(self.backend.workers().len()).unwrap_or(u32::MAX),
            runtime_dir: self.runtime_dir.display().to_string(),
            limits: self
                .sink
                .holders()
                .view(peer, &self.document, &self.per_user),
            you: peer.view(&self.document),
        }
    }

    /// Whether all workers make progress.
    pub fn alive(&mut self) -> bool {
        self.backend.alive()
    }
}
