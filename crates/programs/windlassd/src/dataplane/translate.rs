//! From the objects of the API to what the data path is configured with.

use std::collections::BTreeMap;
use std::net::IpAddr;

use windlass_api::{
    Attachment, Bridge, ClientIds, Counters, FdbEntry, FdbKind, Ifname, MacAddr, MemberSettings,
    Memif, Name, Priority, Role, Tap, Vnic,
};
use windlass_attach::endpoint::{Endpoint, InterfaceConf};
use windlass_attach::memif::msg::Secret;
use windlass_attach::memif::{ClientConfig, MemifClient, MemifServer, Offloads, ServerConfig};
use windlass_attach::tap::{TapConf, TapEndpoint};
use windlass_bridge::fdb::{Entry, EntryFlags, Limits};
use windlass_bridge::member::MemberConf;
use windlass_bridge::vlan::VlanMap;
use windlass_frame::{FRAME_MAX, TxId};
use windlass_nic::{DhcpNospoof, IpNospoof, Methods, Protection};
use windlass_shm::{HugePages, Quota};
use windlass_stats::{Drop, MemberTotals};
use windlass_sys::shortcut::Passed;
use windlass_worker::dataplane::BridgeTuning;
use windlass_worker::spread::{RINGS_MAX, Weights};
use windlass_worker::{MemberTuning, Spin};

use super::firewalls::Firewalls;
use super::guest::{self, RingProgress};
use super::host::Device;
use super::ports::Holder;
use super::veth::Shortcuts;
use crate::backend::{BackendError, Place};

/// Polling before sleep where the property says `auto`: a wake-up costs 35 us and more, which a memory ring's spin of
/// that order pays back; on a TAP, each poll is a system call.
const SPIN: Spin = Spin::Adaptive {
    memory: 50_000,
    other: 20_000,
};
/// Permission bits of a socket that windlass makes.
const SOCKET_MODE: u32 = 0o600;

/// An address as the data path holds it: the first byte lowest.
pub fn mac_word(mac: MacAddr) -> u64 {
    let m = mac.0;
    u64::from_le_bytes([m[0], m[1], m[2], m[3], m[4], m[5], 0, 0])
}

/// A bridge's table.
///
/// # Errors
/// No randomness for its seeds.
pub fn limits(bridge: &Bridge) -> Result<Limits, BackendError> {
    let settings = bridge.settings();
    let mut limits = Limits::new(settings.addresses_max, seeds("the table's")?);
    limits.ageing_ms = settings.ageing_s.saturating_mul(1000);
    Ok(limits)
}

/// A bridge besides its table.
pub fn bridge_tuning(bridge: &Bridge) -> BridgeTuning {
    BridgeTuning {
        filtering: bridge.settings().vlan_filtering,
        mac: 0,
    }
}

/// A member's place on its bridge. `mtu` is what holds where the property says `auto`.
pub fn member_conf(settings: &MemberSettings, mac: u64, mtu: u32) -> MemberConf {
    let mtu = settings.mtu.unwrap_or(mtu);
    MemberConf {
        id: TxId(0),
        mac,
        macs: settings.macs.iter().map(mac_word).collect(),
        pvid: settings.vlan,
        tagged: VlanMap::of(settings.tagged.iter()),
        mtu,
        frame_max: FRAME_MAX as u32,
        state: Default::default(),
        stp: settings.stp.member,
        learn: settings.learn,
        discover: settings.discover,
        groups: true,
        sticky: settings.sticky,
        locked: settings.locked,
        mab: settings.mab,
        private: settings.private,
        host: settings.host,
        horizon: 0,
        span: settings.span,
        nospoof: settings.mac_nospoof,
        standby: settings.standby,
        storm_limit: settings.storm_limit,
        paces: std::sync::Arc::default(),
    }
}

/// What a member is besides its place on its bridge.
///
/// # Errors
/// What [`Firewalls::get`] says.
pub fn tuning(
    settings: &MemberSettings,
    firewalls: &mut Firewalls,
) -> Result<MemberTuning, BackendError> {
    let spin = match settings.spin_us {
        Some(us) => Spin::Always(u64::from(us) * 1000),
        None => SPIN,
    };
    let gap = match settings.intr_rate {
        0 => 0,
        rate => 1_000_000_000 / u64::from(rate),
    };
    Ok(MemberTuning {
        protection: protection(settings).into(),
        trusted: settings.trusted,
        firewall: firewalls.get(&settings.firewall)?,
        maxbw: u64::from(settings.maxbw) * 1_000_000,
        flows: Vec::new(),
        priority: priority(settings.priority),
        weights: Weights::new(settings.rss_weights.as_slice()),
        kick_gap_ns: gap,
        spin,
    })
}

/// How workers share what they send a member among its rings, for people: entries of a table by ring.
pub fn shares(workers: &[[usize; RINGS_MAX]]) -> String {
    let of_one = |shares: &[usize; RINGS_MAX]| {
        let last = shares.iter().rposition(|entries| *entries > 0);
        let shown = shares.iter().take(last.map_or(0, |last| last + 1));
        let shown: Vec<_> = shown.map(usize::to_string).collect();
        shown.join(",")
    };
    match workers {
        [one, others @ ..] if others.iter().all(|other| other == one) => of_one(one),
        _ => {
            let all = workers.iter().zip(0..);
            let all = all.map(|(one, worker)| format!("worker {worker}: {}", of_one(one)));
            all.collect::<Vec<_>>().join("; ")
        }
    }
}

/// As the data path has it.
pub fn priority(priority: Priority) -> windlass_shaper::Priority {
    match priority {
        Priority::Low => windlass_shaper::Priority::Low,
        Priority::Medium => windlass_shaper::Priority::Medium,
        Priority::High => windlass_shaper::Priority::High,
    }
}

/// Numbers that nobody knows.
pub fn seeds(whose: &str) -> Result<[u64; 2], BackendError> {
    let mut seed = [0u8; 16];
    rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty())
        .map_err(|e| BackendError::Host(format!("no randomness for {whose} hash: {e}")))?;
    let (low, high) = seed.split_at(8);
    let word = |b: &[u8]| b.iter().fold(0u64, |w, b| w << 8 | u64::from(*b));
    Ok([word(low), word(high)])
}

/// What a member may send, beside what its bridge checks.
fn protection(settings: &MemberSettings) -> Protection {
    let guard = &settings.guard;
    let clients = guard.client_ids.as_ref().map(|ids| match ids {
        ClientIds::Any => DhcpNospoof {
            any_id: true,
            ..DhcpNospoof::default()
        },
        ClientIds::These(ids) => DhcpNospoof {
            ids: ids.iter().map(|id| id.as_slice().into()).collect(),
            any_id: false,
        },
    });
    Protection {
        restricted: settings.restricted,
        addresses: guard.ips.as_ref().map(|ips| IpNospoof::new(ips.iter())),
        methods: Methods {
            dhcpv4: guard.methods.dhcpv4,
            dhcpv6: guard.methods.dhcpv6,
            slaac: guard.methods.slaac,
        },
        clients,
        router_guard: guard.router_guard,
        dhcp_guard: guard.dhcp_guard,
    }
}

/// The control half of a VNIC's attachment; none for a VNIC that nobody is attached to.
///
/// # Errors
/// What the host refuses at once.
pub fn endpoint(
    vnic: &Vnic,
    place: &Place,
    workers: u16,
    state_id: &str,
    progress: &RingProgress,
    shortcuts: &mut Shortcuts,
    quota: Quota,
) -> Result<Option<Box<dyn Endpoint>>, BackendError> {
    match &vnic.attach {
        Attachment::Tap(tap) => Ok(Some(Box::new(tap_endpoint(vnic, tap, workers, state_id)?))),
        Attachment::Veth(veth) => super::veth::endpoint(vnic, veth, shortcuts, state_id).map(Some),
        Attachment::Memif(memif) => memif_endpoint(&vnic.name, memif, place, quota).map(Some),
        Attachment::None(_) => Ok(None),
        Attachment::VhostUser(vhost) => {
            guest::endpoint(vnic, vhost, vnic.mtu(), place, progress, quota).map(Some)
        }
        Attachment::Packet(_) | Attachment::Xdp(_) => Err(BackendError::Unsupported(format!(
            "{} joins an interface of the host: make an uplink instead of a VNIC",
            vnic.attach.kind()
        ))),
    }
}

/// The mark that a VNIC's TAP bears; `state_id`: which daemon this is.
pub fn tap_mark(state_id: &str, name: &Name) -> String {
    tap_marks(state_id) + name.as_str()
}

/// What all its marks begin with.
pub(super) fn tap_marks(state_id: &str) -> String {
    format!("windlass:{state_id}/")
}

/// Whether the daemon may make interfaces in namespaces.
///
/// # Errors
/// [`BackendError::Unsupported`].
pub(super) fn may_make_interfaces() -> Result<(), BackendError> {
    use windlass_sys::caps::{Capability, holds};
    match holds(Capability::NetAdmin) {
        true => Ok(()),
        false => Err(BackendError::Unsupported(
            "an interface needs CAP_NET_ADMIN: start windlassd with it, or attach the VNIC by memif"
                .into(),
        )),
    }
}

/// The name of a VNIC's interface, if it has one.
///
/// # Errors
/// [`BackendError::Unsupported`].
pub(super) fn interface_name(vnic: &Vnic, name: Option<Ifname>) -> Result<String, BackendError> {
    let name = name.ok_or_else(|| {
        BackendError::Unsupported(format!(
            "`{}` cannot name an interface: say name= in the attachment",
            vnic.name
        ))
    })?;
    Ok(name.as_str().to_owned())
}

fn tap_endpoint(
    vnic: &Vnic,
    tap: &Tap,
    workers: u16,
    state_id: &str,
) -> Result<TapEndpoint, BackendError> {
    may_make_interfaces()?;
    let name = interface_name(vnic, tap.ifname(&vnic.name))?;
    let conf = TapConf {
        name,
        netns: tap.netns.as_ref().map(|n| n.as_str().to_owned()),
        queues: tap.queues.min(workers).max(1),
        multi_queue: tap.queues > 1,
        mark: tap_mark(state_id, &vnic.name),
        interface: interface(vnic),
    };
    TapEndpoint::new(conf)
        .map_err(|errno| BackendError::Host(format!("TAP of `{}`: {errno}", vnic.name)))
}

/// What is named of the kernel interface of a VNIC, if it has one.
pub fn interface(vnic: &Vnic) -> InterfaceConf {
    let mac = own_mac(vnic);
    let (addresses, host_mac) = match &vnic.attach {
        Attachment::Tap(tap) => (tap.address.as_slice(), tap.host_mac),
        Attachment::Veth(veth) => (veth.address.as_slice(), None),
        _ => Default::default(),
    };
    InterfaceConf {
        addresses: addresses
            .iter()
            .map(|a| (a.address, a.prefix_bits))
            .collect(),
        mac: host_mac.unwrap_or(mac).0,
        mtu: vnic.mtu(),
    }
}

/// The IP addresses that the interface of a VNIC is given.
pub fn addresses(vnic: &Vnic) -> Vec<IpAddr> {
    let addresses = interface(vnic).addresses;
    addresses.into_iter().map(|(ip, _)| ip).collect()
}

/// A VNIC's own address, which the engine has filled in.
pub fn own_mac(vnic: &Vnic) -> MacAddr {
    vnic.mac.unwrap_or(MacAddr([0; 6]))
}

/// Whether a VNIC's peer may have memory in pages of 1 GiB; `is_owned`: its zone has an owner.
pub fn gigantic_pages(settings: &MemberSettings, is_owned: bool) -> bool {
    settings.huge_1g.unwrap_or(!is_owned)
}

fn memif_endpoint(
    name: &Name,
    memif: &Memif,
    place: &Place,
    quota: Quota,
) -> Result<Box<dyn Endpoint>, BackendError> {
    let path = place.socket(&memif.socket);
    let secret = match &memif.secret {
        Some(text) => Secret::new(text).ok_or_else(|| {
            BackendError::Unsupported("the secret is longer than 24 bytes".into())
        })?,
        None => Secret::NONE,
    };
    let refused = |e| BackendError::Host(format!("memif of `{name}` at {}: {e}", path.display()));
    Ok(match memif.role {
        Role::Server => Box::new(
            MemifServer::new(ServerConfig {
                path: path.clone(),
                id: memif.id,
                secret,
                name: name.as_str().to_owned(),
                rings: memif.rings,
                mode: SOCKET_MODE,
                owner: place.owner,
                quota,
            })
            .map_err(refused)?,
        ),
        Role::Client => Box::new(
            MemifClient::new(ClientConfig {
                path: path.clone(),
                owner: place.owner,
                id: memif.id,
                secret,
                name: name.as_str().to_owned(),
                rings: memif.rings,
                log2_sizes: [memif.ring_size_log2; 2],
                offloads: Offloads::None,
                huge: HugePages::Try,
            })
            .map_err(refused)?,
        ),
    })
}

/// What is known of the interface of that name, if there is one.
pub fn device(name: &str) -> Option<Device> {
    let mut netlink = windlass_sys::netlink::Netlink::open().ok()?;
    let link = netlink.link_by_name(name).ok()??;
    Some(Device {
        mtu: link.mtu,
        mac: link.mac.map_or(0, |m| mac_word(MacAddr(m))),
    })
}

/// What the kernel has counted of a member.
#[derive(Clone, Copy, Debug, Default)]
pub struct InKernel {
    /// What it dropped before or behind the rings.
    pub drops: u64,
    /// What passed without a worker.
    pub passed: Passed,
}

impl InKernel {
    /// What there is to count of an endpoint.
    pub fn of(endpoint: &mut dyn Endpoint) -> InKernel {
        InKernel {
            drops: endpoint.kernel_drops(),
            passed: endpoint.passed(),
        }
    }
}

/// A member's counters as they are shown.
pub fn counters(totals: &MemberTotals, kernel: &InKernel) -> Counters {
    let (ingress, egress, passed) = (&totals.ingress, &totals.egress, &kernel.passed);
    Counters {
        rx_frames: ingress.frames + passed.rx_frames,
        rx_bytes: ingress.bytes + passed.rx_bytes,
        rx_unicast: ingress.unicast + passed.rx_frames,
        rx_flooded: ingress.flooded,
        rx_local: ingress.local,
        rx_dropped: ingress.dropped,
        rx_held: ingress.held,
        rx_cut: ingress.cut,
        rx_marked: ingress.marked,
        rx_copies: ingress.copies,
        rx_floods_cut: ingress.floods_cut,
        tx_offered: egress.offered + passed.tx_frames,
        tx_frames: egress.frames + passed.tx_frames,
        tx_bytes: egress.bytes + passed.tx_bytes,
        tx_dropped: egress.dropped,
        tx_held: egress.held,
        tx_cut: egress.cut,
        tx_marked: egress.marked,
        tx_span: egress.span_copies,
        tx_spilled: egress.spilled,
        tx_segments: egress.segments,
        kicks: egress.kicks,
        kernel_drops: kernel.drops,
        stalled_ns: totals.stalled_ns,
        drops: drops(&totals.drops),
    }
}

/// Dropped frames by reason.
pub fn drops(totals: &[u64; Drop::COUNT]) -> BTreeMap<String, u64> {
    let drops = Drop::ALL.iter().zip(totals).filter(|(_, n)| **n != 0);
    drops.map(|(why, n)| (why.name().to_owned(), *n)).collect()
}

/// An entry of a table as it is shown.
pub fn fdb_entry(entry: &Entry, holder: &Holder<'_>) -> FdbEntry {
    let kind = match entry.flags {
        f if f == EntryFlags::LOCAL => FdbKind::Own,
        f if f.is_static() => FdbKind::Static,
        f if f.is_sticky() => FdbKind::Sticky,
        _ if holder.is_locked => FdbKind::Locked,
        _ => FdbKind::Learned,
    };
    FdbEntry {
        vlan: entry.key.vid(),
        mac: MacAddr(entry.key.octets()),
        member: holder.name.clone(),
        kind,
        target: holder.target,
        age_s: matches!(kind, FdbKind::Learned | FdbKind::Locked)
            .then_some((entry.age_ms / 1000) as u32),
    }
}
