//! Frames from one veth to another in the kernel, where both may simply exchange them.
//!
//! # Purpose
//! A container's veth has its host end here, and beside that a TAP that the daemon reads and writes. The programs of this module pass
//! frames between the two, and past the daemon where [`Shortcut`] says so.
//!
//! # Where it sits
//! ```text
//!   container A          the daemon's namespace            container B
//!     veth ------> host end A                                veth
//!                     | leave: plain? ------------------------> ^     the shortcut
//!                     | else                                    |
//!                     v                                         |
//!                   TAP A --> worker --> TAP B -- arrive -------+
//! ```
//!
//! # Model
//! All members have the same programs, which find whose interface they are at by its index. One without a member passes nothing. Each member has a *slot*. While it is open ([`Slot::open`]) it has a *place*, a number: two open members of one place exchange
//! frames directly. A frame leaves by the shortcut if
//! - it is untagged IPv4, IPv6 or ARP, and its source is the member's own address;
//! - it passes the member's [`Checks`];
//! - its destination is the address of an open member of the same place, and it fits that one's MTU, cut into segments if it is to be;
//! - no frame of the pair is still on the other way.
//!
//! Everything else goes to the TAP. So the program drops nothing of a member's, and judges nothing that a worker judges differently.
//!
//! # Order
//! The program counts what it gives to the TAP from one member to another, and what the worker has written to the other's TAP. While
//! the two numbers differ the pair's frames go to the TAP. What a worker has dropped is never written: after [`QUIET_NS`] without a
//! frame on that way the pair is taken for empty.
//!
//! # Synchronization
//! A program that runs sees a former state of a map for as long as it runs: [`settle`] returns when none does.
//!
//! # Ownership and lifetime
//! Programs belong to their interfaces, and maps to their programs: both outlive the daemon, and go with the interfaces. A
//! slot is free once its [`Slot`] is dropped.
//!
//! # What it shows
//! Frames and bytes that a slot's member has sent and got by the shortcut ([`Slot::passed`]).

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::io::Errno;

use crate::bpf::{Instruction as I, LoadError, Map, MapKind, Program, ProgramKind};
use crate::netlink::Mac;

/// Members at most.
pub const SLOTS: u32 = 4096;
/// Addresses that members may send from, where that is checked, at most.
const ALLOWED_MAX: u32 = 65_536;
/// Interfaces of members: two each.
const INTERFACES: u32 = 2 * SLOTS;
/// Pairs of members with frames on the slow way, at most: those seen last.
const PAIRS: u32 = 65_536;
/// A pair without a frame on the slow way for this long has none there: 1 s.
pub const QUIET_NS: i32 = 1_000_000_000;

/// Wait for programs to end where the kernel does not tell.
const SETTLE_WAIT: Duration = Duration::from_millis(50);
/// `MEMBARRIER_CMD_GLOBAL` of `<linux/membarrier.h>`.
const MEMBARRIER_GLOBAL: libc::c_int = 1;

// Numbers of helper functions (`<linux/bpf.h>`).
const LOOKUP: i32 = 1;
const UPDATE: i32 = 2;
const DELETE: i32 = 3;
const KTIME_NS: i32 = 5;
const REDIRECT: i32 = 23;
const CHANGE_TYPE: i32 = 32;
const REDIRECT_PEER: i32 = 155;
/// `BPF_NOEXIST`.
const ONLY_IF_NEW: i32 = 1;

// `struct __sk_buff` of <linux/bpf.h>.
const LEN: i16 = 0;
const VLAN_PRESENT: i16 = 20;
const INGRESS_INDEX: i16 = 36;
const INDEX: i16 = 40;
const DATA: i16 = 76;
const DATA_END: i16 = 80;
const GSO_SIZE: i16 = 176;

/// `TC_ACT_OK`, `TC_ACT_SHOT`.
const PASS: i32 = 0;
const DROP: i32 = 2;

// Bytes of a frame, and what stands there, as a load finds it.
const SOURCE: i16 = 6;
const KIND: i16 = 12;
const IPV4: i32 = 0x0008;
const IPV6: i32 = 0xdd86;
const ARP: i32 = 0x0608;
const V4_START: i16 = 14;
/// Version 4, 20 bytes of header.
const V4_PLAIN: i32 = 0x45;
const V4_LENGTH: i16 = 16;
const V4_FRAGMENT: i16 = 20;
/// All but "don't fragment" and the bit beside it.
const FRAGMENT: i32 = 0xff3f;
const V4_PROTOCOL: i16 = 23;
const V4_SOURCE: i16 = 26;
const V4_END: i16 = 34;
const V6_VERSION: i32 = 0x60;
const V6_LENGTH: i16 = 18;
const V6_NEXT: i16 = 20;
const V6_SOURCE: i16 = 22;
const V6_END: i16 = 54;
// Of a transport header.
const TO_PORT: i16 = 2;
const UDP_LENGTH: i16 = 4;
const UDP_HEADER: i32 = 8;
const TCP_LENGTH: i32 = 12;
const TCP_HEADER: i32 = 20;
/// To servers and clients, of IPv4 and of IPv6.
const DHCP_PORTS: [i32; 4] = [67, 68, 546, 547];
const TCP: i32 = 6;
const UDP: i32 = 17;
/// Where the length of a TCP header stands.
const V4_OFFSET: i16 = 46;
const V6_OFFSET: i16 = 66;
const HEADER: i32 = 14;

// [`Checks`] as `places` has them; 0: the member has just left its place.
const CHECK_TRANSPORT: i32 = 1;
const CHECK_SOURCE: i32 = 2;
const CHECK_NONE: i32 = 3;

// A value of [`Maps::interfaces`]: two bytes of the address, the other four, then these.
const OWN_TAIL: i16 = 4;
const OWN_SLOT: i16 = 8;
const OWN_WHOSE: i16 = 12;
const OWN_OTHER: i16 = 16;

// The stack of `leave`, from its end.
/// The pair: destination, source, four bytes of zeros.
const PAIR: i16 = -16;
/// The destination's address as eight bytes, its place as eight.
const TARGET: i16 = -32;
const TARGET_PLACE: i16 = -24;
/// A slot; first the interface's index.
const SLOT: i16 = -36;
/// The interface to send to.
const TO: i16 = -48;
/// A new pair: sent, written, when last.
const NEW_PAIR: i16 = -72;
/// The time.
const NOW: i16 = -80;
/// The member's checks.
const CHECKS: i16 = -84;
/// The frame's source as a key of `allowed`.
const ALLOWED: i16 = -112;
/// Whose slot it is.
const WHOSE: i16 = -116;
/// The member's other interface.
const OTHER: i16 = -120;

/// What went by the shortcut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Passed {
    /// Frames that the member sent.
    pub rx_frames: u64,
    /// Their bytes.
    pub rx_bytes: u64,
    /// Frames that it got.
    pub tx_frames: u64,
    /// Their bytes.
    pub tx_bytes: u64,
}

/// Why there is no shortcut.
#[derive(Debug, thiserror::Error)]
pub enum ShortcutError {
    /// The kernel refused a map; `EPERM` means that `CAP_BPF` is missing.
    #[error("make a map: {0}")]
    Map(Errno),
    /// It refused a program.
    #[error(transparent)]
    Program(#[from] LoadError),
    /// There are [`SLOTS`] members.
    #[error("{SLOTS} members have a shortcut")]
    Full,
}

/// A member as the programs see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// Its address.
    pub mac: Mac,
    /// The host's end of its veth, by index.
    pub host: u32,
    /// Its TAP, by index.
    pub tap: u32,
}

/// What a member's frames have to be, beside plain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Checks {
    /// Nothing.
    #[default]
    None,
    /// A whole TCP segment, or a UDP datagram to no port of DHCP; over IPv4 without options, no fragment, or over IPv6 without extension
    /// headers.
    Transport,
    /// That, from one of these addresses.
    Sources(Arc<[IpAddr]>),
}

impl Checks {
    fn number(&self) -> i32 {
        match self {
            Self::None => CHECK_NONE,
            Self::Transport => CHECK_TRANSPORT,
            Self::Sources(_) => CHECK_SOURCE,
        }
    }

    fn sources(&self) -> &[IpAddr] {
        match self {
            Self::Sources(sources) => sources,
            _ => &[],
        }
    }
}

/// Where a member may exchange frames directly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Members of the same number do; from 1.
    pub number: u32,
    /// Largest packet that it takes, in bytes.
    pub mtu: u32,
    /// What it may send there.
    pub checks: Checks,
}

/// The maps that all programs of one daemon share.
#[derive(Debug)]
struct Maps {
    /// By index of an interface: its member's address, slot, whose slot that is, and the member's other interface.
    interfaces: Map,
    /// By slot: the place, if it is open, else 0; whose slot it is; what is checked.
    places: Map,
    /// By slot, whose it is, kind of packet, and address: that packets may come from it.
    allowed: Map,
    /// By address and place: what there is to know of an open member.
    targets: Map,
    /// Addresses of all members, open or not.
    known: Map,
    /// By destination and source: frames on the slow way.
    pairs: Map,
    /// By slot: what went by.
    passed: Map,
}

/// The maps and programs of one daemon.
#[derive(Debug)]
pub struct Shortcut {
    maps: Maps,
    /// See [`Slot::quiet`].
    quiet: Program,
    /// See [`Slot::leave`].
    leave: Program,
    /// See [`Slot::arrive`].
    arrive: Program,
    used: Mutex<Used>,
}

#[derive(Debug, Default)]
struct Used {
    slots: Vec<bool>,
    /// Slots made so far: tells members apart that had the same number one after the other.
    made: u32,
    /// How many members have an address, on whatever bridges.
    addresses: HashMap<Mac, u32>,
    /// Whose each interface is that is in the map.
    interfaces: HashMap<u32, u32>,
}

/// A member's place in the maps.
#[derive(Debug)]
pub struct Slot {
    of: Arc<Shortcut>,
    number: u32,
    /// A program of a former member of this number may still be at its interface: it is told by this.
    whose: u32,
    /// What had been counted when it was made.
    before: [u64; 4],
    state: Mutex<SlotState>,
}

#[derive(Debug, Default)]
struct SlotState {
    /// The address that it is known by.
    mac: Option<Mac>,
    ends: Option<Ends>,
    place: Option<Place>,
    is_up: bool,
}

impl SlotState {
    /// Where it is in the maps.
    fn entered(&self) -> Option<(Ends, Place)> {
        Some((self.ends?, self.place.clone()?)).filter(|_| self.is_up)
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An address as a load of eight bytes finds it, with zeros behind.
fn address(mac: Mac) -> [u8; 8] {
    let [a, b, c, d, e, f] = mac;
    [a, b, c, d, e, f, 0, 0]
}

fn target((ends, place): &(Ends, Place)) -> [u8; 16] {
    let mut key = [0; 16];
    let (head, tail) = key.split_at_mut(8);
    head.copy_from_slice(&address(ends.mac));
    tail.copy_from_slice(&u64::from(place.number).to_ne_bytes());
    key
}

impl Shortcut {
    /// With no members. Needs `CAP_BPF`.
    ///
    /// # Errors
    /// [`ShortcutError::Map`], [`ShortcutError::Program`].
    pub fn new() -> Result<Shortcut, ShortcutError> {
        let made =
            |kind, sizes, entries| Map::sized(kind, sizes, entries).map_err(ShortcutError::Map);
        let maps = Maps {
            interfaces: made(MapKind::Hash, (4, 24), INTERFACES)?,
            places: made(MapKind::Array, (4, 16), SLOTS)?,
            allowed: made(MapKind::Hash, (28, 4), ALLOWED_MAX)?,
            targets: made(MapKind::Hash, (16, 16), SLOTS)?,
            // One that gets another address has both for a moment.
            known: made(MapKind::Hash, (8, 4), 2 * SLOTS)?,
            pairs: made(MapKind::RecentHash, (16, 24), PAIRS)?,
            passed: made(MapKind::PerProcessor, (4, 32), SLOTS)?,
        };
        Ok(Shortcut {
            quiet: load("windlass_quiet", programs::only_redirected())?,
            leave: load("windlass_leave", programs::leave(&maps))?,
            arrive: load("windlass_arrive", programs::arrive(&maps))?,
            maps,
            used: Mutex::default(),
        })
    }

    /// A slot that nobody has, closed.
    ///
    /// # Errors
    /// [`ShortcutError::Full`].
    pub fn slot(self: &Arc<Self>) -> Result<Slot, ShortcutError> {
        let mut used = lock(&self.used);
        let number = match used.slots.iter().position(|used| !used) {
            Some(number) => number,
            None if used.slots.len() < SLOTS as usize => {
                used.slots.push(false);
                used.slots.len() - 1
            }
            None => return Err(ShortcutError::Full),
        };
        used.slots[number] = true;
        used.made = used.made.wrapping_add(1);
        Ok(Slot {
            of: self.clone(),
            number: number as u32,
            whose: used.made,
            before: self.sums(number as u32),
            state: Mutex::default(),
        })
    }
}

impl Slot {
    /// Says what its member is, before the programs are at its interfaces. Programs that run may not have seen it yet: see [`settle`].
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn set_ends(&self, ends: Ends) -> Result<(), Errno> {
        let known = self.change(|state| state.ends.replace(ends))?;
        // First: the map has room for two of each member, and what is not let go here stays in it.
        if let Some(known) = known {
            let former = [known.host, known.tap].into_iter();
            let gone = former.filter(|index| ![ends.host, ends.tap].contains(index));
            gone.for_each(|index| self.of.disclaim(index, self.whose));
        }
        for (index, other) in [(ends.host, ends.tap), (ends.tap, ends.host)] {
            self.of
                .claim(index, self.whose, &self.interface(ends.mac, other))?;
        }
        self.set_address(ends.mac)
    }

    /// Says what address its member has. From then on frames to it that take the slow way are counted, so that none overtakes them: before
    /// programs of a daemon are at any interface, where frames may already be on their way.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn set_address(&self, mac: Mac) -> Result<(), Errno> {
        let mut state = lock(&self.state);
        if state.mac != Some(mac) {
            self.of.know(mac)?;
            if let Some(former) = state.mac.replace(mac) {
                self.of.forget(former);
            }
        }
        Ok(())
    }

    /// Opens it at a place, or closes it. Programs that run may not have seen it yet: see [`settle`].
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn open(&self, place: Option<Place>) -> Result<(), Errno> {
        self.change(|state| state.place = place)
    }

    /// Says whether its interface is up: while that is down it is closed, since the kernel would lose what is sent there and count it
    /// nowhere.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn set_up(&self, is_up: bool) -> Result<(), Errno> {
        self.change(|state| state.is_up = is_up)
    }

    /// Whether it is open.
    #[must_use]
    pub fn is_open(&self) -> bool {
        lock(&self.state).entered().is_some()
    }

    /// Changes what it is; what depends on that in the maps follows.
    fn change<T>(&self, change: impl FnOnce(&mut SlotState) -> T) -> Result<T, Errno> {
        let mut state = lock(&self.state);
        let before = state.entered();
        let answer = change(&mut state);
        let after = state.entered();
        if before == after {
            return Ok(answer);
        }
        if let Some(before) = before {
            self.leave_place(&before)?;
        }
        if let Some(after) = after
            && let Err(errno) = self.enter_place(&after)
        {
            state.place = None;
            let _ = self.leave_place(&after);
            return Err(errno);
        }
        Ok(answer)
    }

    fn enter_place(&self, of: &(Ends, Place)) -> Result<(), Errno> {
        let (ends, place) = of;
        for source in place.checks.sources() {
            let allowed = self.source(*source);
            self.of.maps.allowed.put(&allowed, &1_u32.to_ne_bytes())?;
        }
        let value = [ends.host, self.number, place.mtu, 0].map(u32::to_ne_bytes);
        self.of
            .maps
            .targets
            .put(&target(of), value.as_flattened())?;
        let checks = place.checks.number().cast_unsigned();
        let value = [place.number, self.whose, checks, 0].map(u32::to_ne_bytes);
        let number = self.number.to_ne_bytes();
        self.of.maps.places.put(&number, value.as_flattened())
    }

    fn leave_place(&self, of: &(Ends, Place)) -> Result<(), Errno> {
        let number = self.number.to_ne_bytes();
        self.of.maps.places.put(&number, &[0; 16])?;
        self.of.maps.targets.take(&target(of))?;
        for source in of.1.checks.sources() {
            self.of.maps.allowed.take(&self.source(*source))?;
        }
        Ok(())
    }

    /// What programs at one of its member's interfaces find.
    fn interface(&self, mac: Mac, other: u32) -> [u8; 24] {
        let [a, b, c, d, e, f] = mac;
        let head = [a, b, 0, 0, c, d, e, f].into_iter();
        let words = [self.number, self.whose, other, 0].map(u32::to_ne_bytes);
        let mut value = [0; 24];
        let bytes = head.chain(words.into_iter().flatten());
        value
            .iter_mut()
            .zip(bytes)
            .for_each(|(to, from)| *to = from);
        value
    }

    /// A source of its member's packets as a key.
    fn source(&self, address: IpAddr) -> [u8; 28] {
        let mut key = [0; 28];
        let (kind, address) = match address {
            IpAddr::V4(v4) => (IPV4, v4.octets().to_vec()),
            IpAddr::V6(v6) => (IPV6, v6.octets().to_vec()),
        };
        let head = [self.number, self.whose, kind.cast_unsigned()].map(u32::to_ne_bytes);
        let parts = head.as_flattened().iter().chain(&address);
        key.iter_mut().zip(parts).for_each(|(to, from)| *to = *from);
        key
    }

    /// What went by since the slot was made.
    #[must_use]
    pub fn passed(&self) -> Passed {
        let now = self.of.sums(self.number);
        let mut since = now.into_iter().zip(self.before);
        let [rx_frames, rx_bytes, tx_frames, tx_bytes] = std::array::from_fn(|_| {
            since
                .next()
                .map_or(0, |(now, before)| u64::wrapping_sub(now, before))
        });
        Passed {
            rx_frames,
            rx_bytes,
            tx_frames,
            tx_bytes,
        }
    }

    /// The program for the egress of the host's end and of the TAP: what the host's own stack or a program of the host sends there is
    /// dropped, so that no frame passes for one of the member or of the bridge.
    #[must_use]
    pub fn quiet(&self) -> &Program {
        &self.of.quiet
    }

    /// The program for the ingress of the host's end.
    #[must_use]
    pub fn leave(&self) -> &Program {
        &self.of.leave
    }

    /// The program for the ingress of the TAP.
    #[must_use]
    pub fn arrive(&self) -> &Program {
        &self.of.arrive
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let _ = self.open(None);
        let state = lock(&self.state);
        if let Some(ends) = state.ends {
            self.of.disclaim(ends.host, self.whose);
            self.of.disclaim(ends.tap, self.whose);
        }
        if let Some(mac) = state.mac {
            self.of.forget(mac);
        }
        if let Some(used) = lock(&self.of.used).slots.get_mut(self.number as usize) {
            *used = false;
        }
    }
}

impl Shortcut {
    fn sums(&self, slot: u32) -> [u64; 4] {
        self.maps.passed.sum(slot).unwrap_or_default()
    }

    /// Has programs at an interface find this value.
    fn claim(&self, index: u32, whose: u32, value: &[u8; 24]) -> Result<(), Errno> {
        let mut used = lock(&self.used);
        self.maps.interfaces.put(&index.to_ne_bytes(), value)?;
        used.interfaces.insert(index, whose);
        Ok(())
    }

    /// Has programs at an interface find none, unless it is another member's by now.
    fn disclaim(&self, index: u32, whose: u32) {
        let mut used = lock(&self.used);
        if used.interfaces.get(&index) == Some(&whose) {
            used.interfaces.remove(&index);
            let _ = self.maps.interfaces.take(&index.to_ne_bytes());
        }
    }

    fn know(&self, mac: Mac) -> Result<(), Errno> {
        let mut used = lock(&self.used);
        self.maps.known.put(&address(mac), &1_u32.to_ne_bytes())?;
        *used.addresses.entry(mac).or_default() += 1;
        Ok(())
    }

    fn forget(&self, mac: Mac) {
        let mut used = lock(&self.used);
        let count = used.addresses.entry(mac).or_default();
        *count = count.saturating_sub(1);
        if *count == 0 {
            used.addresses.remove(&mac);
            let _ = self.maps.known.take(&address(mac));
        }
    }
}

fn load(name: &str, code: Vec<I>) -> Result<Program, LoadError> {
    Program::load(name, ProgramKind::Classifier, &code)
}

/// Returns when no program runs that has seen a map as it was at the call (membarrier(2), one grace period of the kernel's).
pub fn settle() {
    // SAFETY: this call takes no addresses.
    let done = unsafe { libc::syscall(libc::SYS_membarrier, MEMBARRIER_GLOBAL, 0, 0) };
    if done != 0 {
        // A kernel with `nohz_full` processors has no such call. A program runs for microseconds.
        std::thread::sleep(SETTLE_WAIT);
    }
}

mod hook;
mod programs;

pub use hook::Hook;

#[cfg(test)]
mod tests;
