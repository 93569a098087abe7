//! The decision about each frame of a burst.
//!
//! # Purpose
//! [`Bridge::forward`] gives every frame of a burst a [`Verdict`]: one member, a set of members, or a drop with its reason.
//!
//! # Life of a burst
//! ```text
//!   first pass, each frame:    length, VLAN, source and reserved addresses checked;
//!                              buckets of destination (and source) hashed and prefetched
//!   second pass, each frame:   source known?  destination -> member, or flood set
//! ```
//! Most bursts are plain: untagged unicast from the one address that the member may use. They are told by one look at
//! all frames together, and then only the destinations are left to be decided: one look-up where all frames have the same,
//! else one for each, after all their buckets have been prefetched. Where all go to one member ([`Tally::uniform`]) nobody
//! looks at the frames' verdicts again.
//!
//! In a burst that is not plain, a frame with the source or destination of the frame before it takes over that one's
//! answer, within the burst only: so an answer is never older than the burst, and a move is noticed by the next one.
//!
//! Frames that were given a verdict before (a port's or the NIC's drop) keep it.
//!
//! No bridge forwards frames to 01-80-C2-00-00-00 to 0F (IEEE 802.1Q 8.6.3): spanning tree, LACP, 802.1X, LLDP. They are the
//! daemon's ([`Verdict::LOCAL`]), at most [`LOCAL_A_SECOND`] of each member; BPDUs of a member that takes part in spanning tree have [`BPDUS_A_SECOND`] of their own ([`Verdict::BPDU`]). PAUSE (01) ends at the link: it is dropped.
//!
//! A member that spanning tree keeps from forwarding is not found by number ([`Bridge::member`]), neither as source nor as destination, and is in no
//! flood set: forwarding members pay nothing for it. What it sends ends in the daemon or as [`Drop::Blocked`]; while it is learning, its sources are
//! noted.
//!
//! # Ownership and lifetime
//! A [`Bridge`] is a part of the immutable topology. What a member has used of its limits ([`crate::pace`]) outlives it.
//!
//! # What it shows
//! A [`Tally`] for each burst; the reasons of drops stand in the verdicts.

use std::sync::Arc;

use windlass_frame::{BURST, FloodId, Gso, Heads, Tick, TxId, Verdict};
use windlass_stats::Drop;

use crate::fdb::{Fdb, Key, NOWHERE, Place, Reader, Sighting, Sightings};
use crate::flood::{FloodFrom, FloodKind, FloodSet, FloodSets};
use crate::groups::{self, Groups, GroupsConf};
use crate::member::{GROUP_BIT, MemberConf, PortState};
use crate::vlan::{Tag, classify, is_tag, link_header, read_tag};

/// 01-80-C2-00-00-00 to 0F as the low 48 bits of a little-endian load, and the bits that count.
const RESERVED: u64 = 0x00c2_8001;
const RESERVED_MASK: u64 = 0xf0ff_ffff_ffff;
/// 01-80-C2-00-00-00: spanning tree.
const BPDU: u64 = 0x00c2_8001;
/// 01-80-C2-00-00-01.
const PAUSE: u64 = 0x0100_00c2_8001;
const HEADER: u32 = 14;
const ABSENT: u16 = u16::MAX;

/// How a bridge is configured. Fixed for the life of a topology.
#[derive(Debug)]
pub struct BridgeConf {
    /// Its forwarding table.
    pub fdb: Arc<Fdb>,
    /// Members are confined to their VLANs; else tags are bytes like any others.
    pub filtering: bool,
    /// The bridge's own address, which only the member that has it may use as source; 0: none.
    pub mac: u64,
    /// Its members.
    pub members: Vec<MemberConf>,
    /// What snooping found, if it snoops.
    pub groups: Option<Arc<GroupsConf>>,
}

/// One bridge, as a topology holds it.
#[derive(Clone, Debug)]
pub struct Bridge {
    fdb: Arc<Fdb>,
    filtering: bool,
    mac: u64,
    members: Box<[MemberConf]>,
    /// By member number: the index in `members` of one that forwards.
    index: Box<[u16]>,
    spans: Box<[TxId]>,
    /// Some of its members have a horizon: they are the targets of overlays.
    has_targets: bool,
    floods: FloodSets,
    groups: Option<Box<Groups>>,
}

/// Addresses that one member can have learned a second, once the first thousand ([`crate::pace`]) are. Each is work of the
/// table's writer, who may be the worker that serves other members, too; a frame whose source has to wait passes.
pub const LEARNED_A_SECOND: u32 = 20_000;

/// Frames for the daemon that one member can have a second, once the first 51 ([`crate::pace`]) have come.
pub const LOCAL_A_SECOND: u32 = 1000;

/// BPDUs that one member which takes part in spanning tree can have a second, once the first 11 ([`crate::pace`]) have come. A
/// neighbour sends at most 10 at once (Transmit Hold Count), then one a second.
pub const BPDUS_A_SECOND: u32 = 200;

/// How often a second a member is told that a packet is too long for a tunnel, once the first (those of 50 ms) has been.
pub const TOLD_A_SECOND: u32 = 10;

/// Unknown addresses that a search is asked for a second because of one member, once the first 26 ([`crate::pace`]) are.
pub const LOOKUPS_A_SECOND: u32 = 500;

/// What became of the frames of a burst that [`Bridge::forward`] decided on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// To one member.
    pub unicast: u32,
    /// Flooded.
    pub flooded: u32,
    /// Dropped; the reasons stand in the verdicts.
    pub dropped: u32,
    /// For the daemon.
    pub local: u32,
    /// Bytes of all frames of the burst, without the tags that were taken out.
    pub bytes: u64,
    /// All frames go to one member, in the same way: the first verdict is that of all.
    pub uniform: bool,
}

/// A burst of plain frames.
struct Plain {
    vid: u16,
    /// The destination, if all frames have the same.
    one: Option<u64>,
    /// Length of the longest frame.
    longest: u32,
    /// Bytes of all frames.
    bytes: u64,
}

/// Where frames to one address go.
#[derive(Clone, Copy)]
enum Target {
    To(Verdict, u32),
    Flood(FloodKind),
    Group(groups::Way),
    Drop(Drop),
}

/// Members of one burst to which the way is remembered.
const WAYS: usize = 16;

/// How plain frames get to one member, if they simply can.
#[derive(Clone, Copy)]
struct Way {
    member: u32,
    /// The longest frame that takes it; 0: none does.
    len_max: u32,
    verdict: Verdict,
}

impl Way {
    const NONE: Way = Way {
        member: NOWHERE,
        len_max: 0,
        verdict: Verdict::NONE,
    };

    fn new(member: u32, target: Target) -> Way {
        match target {
            Target::To(verdict, mtu) => Way {
                member,
                len_max: mtu.saturating_add(HEADER),
                verdict,
            },
            _ => Way {
                member,
                ..Way::NONE
            },
        }
    }
}

/// One member's view of a burst while it is being decided.
struct Pass<'a> {
    bridge: &'a Bridge,
    from: &'a MemberConf,
    reader: Reader<'a>,
    sightings: &'a mut Sightings,
    now: Tick,
    /// Frames that snooping has for the daemon.
    snooped: u32,
}

impl Bridge {
    /// Builds the bridge.
    pub fn new(conf: BridgeConf) -> Bridge {
        let top = conf.members.iter().map(|m| m.id.0 as usize).max();
        let mut index = vec![ABSENT; top.map_or(0, |t| t.saturating_add(1))];
        let members = conf.members.iter().enumerate();
        for (i, m) in members.filter(|(_, m)| m.state == PortState::Forwarding) {
            if let Some(slot) = index.get_mut(m.id.0 as usize) {
                *slot = i as u16;
            }
        }
        Bridge {
            floods: FloodSets::new(&conf.members, conf.filtering),
            groups: conf
                .groups
                .map(|groups| Groups::new(&conf.members, conf.filtering, &groups).into()),
            spans: conf
                .members
                .iter()
                .filter(|m| m.span)
                .map(|m| m.id)
                .collect(),
            has_targets: conf.members.iter().any(|m| m.horizon != 0),
            fdb: conf.fdb,
            filtering: conf.filtering,
            mac: conf.mac,
            members: conf.members.into_boxed_slice(),
            index: index.into_boxed_slice(),
        }
    }

    /// The same with other groups.
    pub fn with_groups(&self, groups: &GroupsConf) -> Bridge {
        let groups = Groups::new(&self.members, self.filtering, groups);
        Bridge {
            groups: Some(groups.into()),
            ..self.clone()
        }
    }

    /// The forwarding table.
    pub fn fdb(&self) -> &Arc<Fdb> {
        &self.fdb
    }

    /// How a member that forwards is configured.
    #[inline(always)]
    pub fn member(&self, id: u16) -> Option<&MemberConf> {
        self.members.get(*self.index.get(id as usize)? as usize)
    }

    /// All members.
    pub fn members(&self) -> &[MemberConf] {
        &self.members
    }

    /// Members that get a copy of every frame that was not dropped here.
    #[inline(always)]
    pub fn spans(&self) -> &[TxId] {
        &self.spans
    }

    /// Whether some of its members are targets of overlays.
    #[inline(always)]
    pub fn has_targets(&self) -> bool {
        self.has_targets
    }

    /// The MTU of the target behind which the destination of frame `i` is, where the frame was dropped because it is longer, and its
    /// sender may be told so now: [`TOLD_A_SECOND`] times a second.
    #[cold]
    pub fn tells_mtu(&self, h: &Heads, i: usize) -> Option<u16> {
        if h.verdict.get(i)?.as_drop() != Some(Drop::Mtu) {
            return None;
        }
        let key = self.destination(h, i)?;
        let to = self.member(self.fdb.lookup(key, self.fdb.at(h.now))?.member)?;
        let from = self.member(h.from.0).filter(|from| from.horizon == 0)?;
        let is_told = to.horizon != 0 && from.paces.too_long.admit(TOLD_A_SECOND, h.now);
        is_told.then_some(to.mtu.min(u16::MAX.into()) as u16)
    }

    /// What the table is searched for to send frame `i`, which was admitted to a VLAN.
    pub fn destination(&self, h: &Heads, i: usize) -> Option<Key> {
        let vid = if self.filtering {
            h.meta.get(i)?.vid
        } else {
            0
        };
        Some(Key::new(vid, *h.dst.get(i)?))
    }

    /// Whether a search may be asked for one more address because of a member now: [`LOOKUPS_A_SECOND`] times a second.
    pub fn may_ask(&self, from: u16, now: Tick) -> bool {
        let from = self.member(from);
        from.is_some_and(|from| from.paces.lookups.admit(LOOKUPS_A_SECOND, now))
    }

    /// Whether frames of a VLAN go to a target of an overlay with a tag; `None` if that is not there, or not in this VLAN.
    pub fn leads(&self, overlay: u16, target: u16, vid: u16) -> Option<bool> {
        let (overlay, target) = (self.member(overlay)?, self.member(target)?);
        let is_its = overlay.horizon != 0 && target.horizon == overlay.horizon;
        let is_open = is_its && (!self.filtering || target.takes(vid));
        is_open.then(|| self.filtering && target.wants_tag(vid))
    }

    /// Whether a frame of a VLAN goes to a member with a tag.
    pub fn is_tagged_at(&self, id: u16, vid: u16) -> bool {
        self.filtering && self.member(id).is_some_and(|m| m.wants_tag(vid))
    }

    /// The set that a verdict names.
    #[inline]
    pub fn flood(&self, id: FloodId) -> Option<&FloodSet> {
        if let Some(set) = self.floods.get(id) {
            return Some(set);
        }
        self.group_set(id)
    }

    #[cold]
    fn group_set(&self, id: FloodId) -> Option<&FloodSet> {
        self.groups.as_ref()?.set(id)
    }

    /// The verdict of frame `i`, which was for the daemon, while the daemon has no room for it: a question for a neighbour goes to
    /// everybody.
    #[cold]
    pub fn without_daemon(&self, h: &Heads, i: usize) -> Verdict {
        let groups = self.groups.as_ref();
        let groups = groups.filter(|_| h.verdict.get(i) == Some(&Verdict::SNOOPED));
        let way = groups.and_then(|groups| groups.without_daemon(h, i));
        way.map_or(Verdict::drop(Drop::LocalFull), Verdict::flood)
    }

    /// Whether the bridge simply passes on what a member sends from its own address, and what is for that: untagged unicast frames of a
    /// length that the receiver takes. Two members with the same answer, a VLAN (0 where the bridge does not filter), get each
    /// other's, and nobody else has to see them.
    pub fn plain_vlan(&self, id: u16, now: Tick) -> Option<u16> {
        let member = self.member(id)?;
        let is_plain = !member.is_learning()
            && member.owns(member.mac)
            && !(member.private || member.span || member.locked || member.standby);
        if !is_plain || !self.spans.is_empty() {
            return None;
        }
        let vid = if self.filtering { member.pvid? } else { 0 };
        let key = Key::new(vid, member.mac);
        let reader = self.fdb.reader(self.fdb.at(now));
        (reader.member(reader.place(key), key) == u32::from(id)).then_some(vid)
    }

    /// A member as the source of flooded frames.
    pub fn flood_from(&self, id: u16) -> FloodFrom {
        let member = self.member(id);
        FloodFrom {
            id: TxId(id),
            private: member.is_some_and(|m| m.private),
            horizon: member.map_or(0, |m| m.horizon),
        }
    }

    /// Decides on every frame of `h` that has no verdict yet. Sightings are noted in `sightings`, which starts anew.
    pub fn forward(&self, h: &mut Heads, sightings: &mut Sightings) -> Tally {
        sightings.begin(h.now);
        let from = match self.member(h.from.0) {
            Some(m) if m.span => return refuse(h, Drop::SpanSource),
            Some(m) => m,
            None => return self.stopped(h, sightings),
        };
        let plain = self.plain(h, from);
        let mut pass = Pass {
            bridge: self,
            from,
            reader: self.fdb.reader(self.fdb.at(h.now)),
            sightings,
            now: h.now,
            snooped: 0,
        };
        if let Some(plain) = plain {
            return pass.decide_plain(h, &plain);
        }
        pass.check(h);
        pass.decide(h)
    }

    /// Why a member is not found.
    #[cold]
    fn missing(&self, id: u16) -> Drop {
        match self.members.iter().any(|m| m.id.0 == id) {
            true => Drop::Blocked,
            false => Drop::NotReady,
        }
    }

    /// A burst of a member that does not forward: frames for the daemon, sources to learn, drops.
    #[cold]
    fn stopped(&self, h: &mut Heads, sightings: &mut Sightings) -> Tally {
        let Some(from) = self.members.iter().find(|m| m.id.0 == h.from.0) else {
            return refuse(h, Drop::NotReady);
        };
        if from.span {
            return refuse(h, Drop::SpanSource);
        }
        let mut pass = Pass {
            bridge: self,
            from,
            reader: self.fdb.reader(self.fdb.at(h.now)),
            sightings,
            now: h.now,
            snooped: 0,
        };
        pass.check(h);
        if from.state == PortState::Learning && from.is_learning() {
            for i in 0..h.n.min(BURST) {
                let is_good = h.verdict.get(i) == Some(&Verdict::NONE);
                if let (true, Some(&src), Some(meta)) = (is_good, h.src.get(i), h.meta.get(i)) {
                    let vid = if self.filtering { meta.vid } else { 0 };
                    let _ = pass.source(Key::new(vid, src));
                }
            }
        }
        refuse(h, Drop::Blocked)
    }

    /// What there is to know of a burst of plain frames: no verdict yet, of a good length, untagged, unicast, from the
    /// member's own address, with nothing to learn. None if any frame is not plain. Notes the VLAN in all frames.
    #[inline(always)]
    fn plain(&self, h: &mut Heads, from: &MemberConf) -> Option<Plain> {
        if from.is_learning() || !from.owns(from.mac) {
            return None;
        }
        let vid = if self.filtering { from.pvid? } else { 0 };
        let n = h.n.min(BURST);
        let most = from.frame_max.checked_sub(HEADER)?;
        let first = *h.dst.first()?;
        let (mut strange, mut differ) = (0, 0);
        for (d, s) in h.dst.get(..n)?.iter().zip(h.src.get(..n)?) {
            strange |= (d & GROUP_BIT) | (s ^ from.mac);
            differ |= d ^ first;
        }
        let given = h.verdict.get(..n)?.iter().fold(0, |odd, v| odd | v.bits());
        let mut odd = strange != 0 || given != Verdict::NONE.bits();
        if self.filtering {
            let tags = h.kind.get(..n)?.iter();
            odd |= tags.fold(false, |odd, k| odd | is_tag(k.swap_bytes()));
        }
        let (mut longest, mut bytes) = (0, 0_u64);
        for meta in h.meta.get_mut(..n)? {
            odd |= meta.len.wrapping_sub(HEADER) > most;
            longest = longest.max(meta.len);
            bytes = bytes.wrapping_add(u64::from(meta.len));
            meta.vid = vid;
        }
        let one = (differ == 0).then_some(first);
        (!odd).then_some(Plain {
            vid,
            one,
            longest,
            bytes,
        })
    }

    /// Whether and how frames of a VLAN go from one member to another.
    #[inline(always)]
    fn route(&self, member: u16, vid: u16, from: &MemberConf) -> Target {
        if member == from.id.0 {
            return Target::Drop(Drop::SameMember);
        }
        let Some(to) = self.member(member) else {
            return Target::Drop(self.missing(member));
        };
        if to.span {
            Target::Drop(Drop::NoDestination)
        } else if to.private && from.private {
            Target::Drop(Drop::Private)
        } else if to.horizon != 0 && to.horizon == from.horizon {
            Target::Drop(Drop::SameMember)
        } else if self.filtering && !to.takes(vid) {
            Target::Drop(Drop::EgressVlan)
        } else {
            let tagged = self.filtering && to.wants_tag(vid);
            Target::To(Verdict::to(to.id, tagged), to.mtu)
        }
    }
}

impl Pass<'_> {
    /// Plain frames: destinations to verdicts.
    #[inline(always)]
    fn decide_plain(&mut self, h: &mut Heads, plain: &Plain) -> Tally {
        let n = h.n.min(BURST);
        let mut found = [NOWHERE; BURST];
        let one = match plain.one {
            Some(dst) => {
                let key = Key::new(plain.vid, dst);
                let member = self.reader.member(self.reader.place(key), key);
                Some(member)
            }
            None => find_all(
                self.reader,
                h,
                plain.vid,
                self.sightings.places(),
                &mut found,
            ),
        };
        let Some(member) = one else {
            return self.decide_each(h, plain, &found);
        };
        if let Target::To(verdict, mtu) = self.target(member, plain.vid)
            && plain.longest <= mtu.saturating_add(HEADER)
        {
            h.verdict.iter_mut().take(n).for_each(|v| *v = verdict);
            return Tally {
                unicast: n as u32,
                bytes: plain.bytes,
                uniform: true,
                ..Tally::default()
            };
        }
        found.fill(member);
        self.decide_each(h, plain, &found)
    }

    /// Plain frames to several members, or that are not simply sent.
    #[inline(never)]
    fn decide_each(&mut self, h: &mut Heads, plain: &Plain, found: &[u32; BURST]) -> Tally {
        let mut tally = Tally {
            bytes: plain.bytes,
            ..Tally::default()
        };
        // The ways to the members of this burst are worked out once: whose turn it is cannot be predicted.
        let mut ways = [Way::NONE; WAYS];
        let (mut others, mut sent) = (0_u64, 0_u32);
        let frames = h.meta.iter().zip(&mut h.verdict);
        for (&member, (meta, verdict)) in found.iter().zip(frames).take(h.n) {
            let Some(way) = ways.get_mut(member as usize % WAYS) else {
                break;
            };
            if way.member != member {
                *way = Way::new(member, self.target(member, plain.vid));
            }
            let fits = meta.len <= way.len_max;
            *verdict = if fits { way.verdict } else { Verdict::NONE };
            sent = sent.wrapping_add(u32::from(fits));
            others = others >> 1 | u64::from(!fits) << 63;
        }
        tally.unicast = sent;
        if others != 0 {
            let n = h.n.min(BURST) as u32;
            let others = others.unbounded_shr(64_u32.saturating_sub(n));
            self.decide_others(h, plain, found, others, &mut tally);
        }
        tally.uniform = is_uniform(h);
        tally
    }

    /// Plain frames, by the bits of `others`, that are flooded, dropped, or longer than usual.
    #[inline(never)]
    fn decide_others(
        &mut self,
        h: &mut Heads,
        plain: &Plain,
        found: &[u32; BURST],
        others: u64,
        tally: &mut Tally,
    ) {
        for (i, &member) in found.iter().enumerate() {
            if others.unbounded_shr(i as u32) & 1 == 0 {
                continue;
            }
            let answer = self.target(member, plain.vid);
            let verdict = self.conclude(answer, h, i, plain.vid);
            tally.note(verdict);
            if let Some(v) = h.verdict.get_mut(i) {
                *v = verdict;
            }
        }
    }

    /// Where unicast frames of a VLAN go, whose address was found behind `member`.
    #[inline(always)]
    fn target(&self, member: u32, vid: u16) -> Target {
        match member {
            NOWHERE => Target::Flood(FloodKind::Unknown),
            _ => self.bridge.route(member as u16, vid, self.from),
        }
    }

    /// The verdict of one frame whose destination has been looked up.
    #[inline]
    fn conclude(&mut self, answer: Target, h: &Heads, i: usize, vid: u16) -> Verdict {
        match answer {
            Target::To(verdict, mtu) if fits(h, i, mtu) => verdict,
            Target::To(..) => Verdict::drop(Drop::Mtu),
            Target::Flood(kind) => self.flood(kind, vid),
            Target::Group(way) => self.group(way),
            Target::Drop(reason) => Verdict::drop(reason),
        }
    }

    /// The first pass: drops what is malformed or forbidden, and starts the table's cache misses.
    #[inline]
    fn check(&mut self, h: &mut Heads) {
        let reader = self.reader;
        let learning = self.from.is_learning();
        let (mut last_dst, mut last_src, mut last) = (0, 0, Place::default());
        for i in 0..h.n.min(BURST) {
            if h.verdict.get(i).is_some_and(|v| *v != Verdict::NONE) {
                continue;
            }
            let vid = match self.admit(h, i) {
                Ok(vid) => vid,
                Err(verdict) => {
                    if let Some(v) = h.verdict.get_mut(i) {
                        *v = verdict;
                    }
                    continue;
                }
            };
            let (Some(&dst), Some(&src)) = (h.dst.get(i), h.src.get(i)) else {
                continue;
            };
            let key = Key::new(vid, dst);
            if key.0 != last_dst && dst & GROUP_BIT == 0 {
                last_dst = key.0;
                last = reader.place(key);
                reader.prefetch(last);
            }
            if let Some(place) = self.sightings.places().get_mut(i) {
                *place = last;
            }
            let key = Key::new(vid, src);
            if learning && key.0 != last_src {
                last_src = key.0;
                reader.prefetch(reader.place(key));
            }
        }
    }

    /// The checks of one frame that need no table. Its VLAN, or its verdict.
    #[inline(always)]
    fn admit(&mut self, h: &mut Heads, i: usize) -> Result<u16, Verdict> {
        let (Some(&dst), Some(&src), Some(meta)) = (h.dst.get(i), h.src.get(i), h.meta.get(i))
        else {
            return Err(Verdict::drop(Drop::NotReady));
        };
        if meta.len < HEADER {
            return Err(Verdict::drop(Drop::Runt));
        }
        if meta.len > self.from.frame_max {
            return Err(Verdict::drop(Drop::Giant));
        }
        if !self.from.owns(src) {
            self.stranger(src).map_err(Verdict::drop)?;
        }
        if dst & RESERVED_MASK == RESERVED {
            return Err(self.reserved(dst));
        }
        if self.bridge.filtering {
            self.enter_vlan(h, i).map_err(Verdict::drop)
        } else {
            Ok(0)
        }
    }

    /// What becomes of a frame to a reserved address.
    #[cold]
    fn reserved(&mut self, dst: u64) -> Verdict {
        if dst == PAUSE {
            Verdict::drop(Drop::ReservedAddress)
        } else if dst == BPDU && self.from.stp {
            match self.from.paces.bpdus.admit(BPDUS_A_SECOND, self.now) {
                true => Verdict::BPDU,
                false => Verdict::drop(Drop::LocalFull),
            }
        } else if self.from.paces.local.admit(LOCAL_A_SECOND, self.now) {
            Verdict::LOCAL
        } else {
            Verdict::drop(Drop::LocalFull)
        }
    }

    /// A source that is not the member's own.
    #[inline]
    fn stranger(&self, src: u64) -> Result<(), Drop> {
        if src & GROUP_BIT != 0 || src == 0 || src == self.bridge.mac {
            return Err(Drop::BadSource);
        }
        if self.from.nospoof {
            Err(Drop::MacSpoof)
        } else {
            Ok(())
        }
    }

    /// Finds the VLAN of a frame on a filtering bridge and takes its tag out.
    #[inline(always)]
    fn enter_vlan(&self, h: &mut Heads, i: usize) -> Result<u16, Drop> {
        let tag = read_tag(h.private(i));
        let vid = classify(tag, self.from.pvid, &self.from.tagged)?;
        if let Tag::One(tci) = tag {
            h.pop_tag(i);
            if let Some(meta) = h.meta.get_mut(i) {
                meta.tci = tci;
            }
        }
        if let Some(meta) = h.meta.get_mut(i) {
            meta.vid = vid;
        }
        Ok(vid)
    }

    /// The second pass: sources against the table, destinations to verdicts.
    #[inline]
    fn decide(&mut self, h: &mut Heads) -> Tally {
        let learning = self.from.is_learning();
        let mut tally = Tally::default();
        let (mut src_key, mut src_answer) = (0, Ok(()));
        let (mut dst_key, mut dst_answer) = (0, Target::Flood(FloodKind::Unknown));
        for i in 0..h.n.min(BURST) {
            let (Some(&dst), Some(&src), Some(meta)) = (h.dst.get(i), h.src.get(i), h.meta.get(i))
            else {
                break;
            };
            let vid = if self.bridge.filtering { meta.vid } else { 0 };
            tally.bytes = tally.bytes.wrapping_add(u64::from(meta.len));
            let Some(&given) = h.verdict.get(i) else {
                break;
            };
            if given != Verdict::NONE {
                tally.dropped = tally
                    .dropped
                    .wrapping_add(u32::from(given.as_drop().is_some()));
                tally.local = tally.local.wrapping_add(u32::from(given.is_local()));
                continue;
            }
            if learning {
                let key = Key::new(vid, src);
                if key.0 != src_key {
                    (src_key, src_answer) = (key.0, self.source(key));
                }
            }
            let key = Key::new(vid, dst);
            if dst & GROUP_BIT != 0 {
                (dst_key, dst_answer) = (key.0, Target::Flood(FloodKind::Group));
                if let Some(groups) = &self.bridge.groups {
                    dst_answer = Target::Group(groups.way(h, i, vid, self.from));
                }
            } else if key.0 != dst_key {
                let place = self.sightings.place(i);
                dst_key = key.0;
                dst_answer = self.target(self.reader.member(place, key), vid);
            }
            let verdict = match src_answer {
                Ok(()) => self.conclude(dst_answer, h, i, vid),
                Err(reason) => Verdict::drop(reason),
            };
            tally.note(verdict);
            if let Some(v) = h.verdict.get_mut(i) {
                *v = verdict;
            }
        }
        tally.local = tally.local.wrapping_add(self.snooped);
        tally.uniform = is_uniform(h);
        tally
    }

    /// Looks a source up and notes it if it is new or was elsewhere.
    #[inline]
    fn source(&mut self, key: Key) -> Result<(), Drop> {
        if self.from.locked {
            return self.locked_source(key);
        }
        let reader = self.reader;
        let me = self.from.id.0;
        match reader.lookup(reader.place(key), key) {
            Some(hit) if hit.member == me => {
                if hit.stale_age {
                    reader.touch(hit.slot);
                }
                return Ok(());
            }
            Some(hit) if hit.flags.is_fixed() => {
                self.bridge.fdb.note_clash(key, me);
                return Err(Drop::StickySource);
            }
            Some(_) => {}
            None if self.bridge.fdb.member_is_full(me) => return Err(Drop::SourceLimit),
            None => {}
        }
        self.note(key);
        Ok(())
    }

    /// Whether a source may send from a member that is locked: it has a static entry there.
    #[cold]
    fn locked_source(&mut self, key: Key) -> Result<(), Drop> {
        let (reader, me) = (self.reader, self.from.id.0);
        match reader.lookup(reader.place(key), key) {
            Some(hit) if hit.member == me && hit.flags.is_static() => return Ok(()),
            Some(hit) if hit.member == me => {
                let lives_on = self.from.mab && hit.stale_age;
                if lives_on {
                    reader.touch(hit.slot);
                }
            }
            Some(hit) if hit.flags.is_fixed() => self.bridge.fdb.note_clash(key, me),
            None if self.from.mab && !self.bridge.fdb.member_is_full(me) => self.note(key),
            _ => {}
        }
        Err(Drop::Locked)
    }

    /// Has the writer hear of a source.
    #[inline]
    fn note(&mut self, key: Key) {
        let me = self.from.id.0;
        if self.from.paces.learning.is_used_up(self.now) {
            self.sightings.lose(1);
            return;
        }
        let posted = self.sightings.note(Sighting {
            key,
            member: me,
            sticky: self.from.sticky,
        });
        if posted {
            self.from.paces.learning.admit(LEARNED_A_SECOND, self.now);
        }
    }

    /// The verdict of a frame to a group address on a bridge that snoops.
    #[cold]
    fn group(&mut self, way: groups::Way) -> Verdict {
        let paces = &self.from.paces;
        match way {
            groups::Way::Set(id) => self.spread(id, self.bridge.flood(id)),
            groups::Way::Daemon if paces.snooped.admit(groups::SNOOPED_A_SECOND, self.now) => {
                self.snooped = self.snooped.wrapping_add(1);
                Verdict::SNOOPED
            }
            groups::Way::Ask(_) if paces.asked.admit(groups::ASKED_A_SECOND, self.now) => {
                self.snooped = self.snooped.wrapping_add(1);
                Verdict::SNOOPED
            }
            groups::Way::Serve if paces.served.admit(groups::SERVED_A_SECOND, self.now) => {
                self.snooped = self.snooped.wrapping_add(1);
                Verdict::SNOOPED
            }
            groups::Way::Ask(id) => self.spread(id, self.bridge.flood(id)),
            groups::Way::Daemon | groups::Way::Serve => Verdict::drop(Drop::LocalFull),
        }
    }

    /// The verdict of a frame that goes to a set.
    #[inline(never)]
    fn flood(&mut self, kind: FloodKind, vid: u16) -> Verdict {
        let id = kind.id(vid);
        self.spread(id, self.bridge.floods.get(id))
    }

    #[inline(always)]
    fn spread(&mut self, id: FloodId, set: Option<&FloodSet>) -> Verdict {
        let from = FloodFrom {
            id: self.from.id,
            private: self.from.private,
            horizon: self.from.horizon,
        };
        if !set.is_some_and(|set| set.reaches_anyone(from)) {
            return Verdict::drop(Drop::NoDestination);
        }
        if !self.from.paces.storm.admit(self.from.storm_limit, self.now) {
            return Verdict::drop(Drop::Storm);
        }
        Verdict::flood(id)
    }
}

/// Looks up the destinations of plain frames, with all their cache misses at a time. Returns the member behind all of
/// them, if it is one.
#[inline(never)]
fn find_all(
    reader: Reader<'_>,
    h: &Heads,
    vid: u16,
    places: &mut [Place; BURST],
    found: &mut [u32; BURST],
) -> Option<u32> {
    let n = h.n.min(BURST);
    let (dst, places) = (h.dst.get(..n)?, places.get_mut(..n)?);
    for (place, &dst) in places.iter_mut().zip(dst) {
        *place = reader.place(Key::new(vid, dst));
        reader.prefetch(*place);
    }
    let found = found.get_mut(..n)?;
    let mut rest = n;
    for (i, ((member, &dst), &place)) in found.iter_mut().zip(dst).zip(&*places).enumerate() {
        match reader.member_at_once(place, Key::new(vid, dst)) {
            Some(behind) => *member = behind,
            None => {
                rest = i;
                break;
            }
        }
    }
    if rest < n {
        find_rest(reader, dst, vid, places, found, rest);
    }
    let first = *found.first()?;
    let differ = found.iter().fold(0, |all, m| all | (m ^ first));
    (differ == 0).then_some(first)
}

/// Looks up the destinations of a burst from one on that was not found at once.
#[cold]
#[inline(never)]
fn find_rest(
    reader: Reader<'_>,
    dst: &[u64],
    vid: u16,
    places: &[Place],
    found: &mut [u32],
    from: usize,
) {
    for ((member, &dst), &place) in found.iter_mut().zip(dst).zip(places).skip(from) {
        *member = reader.member(place, Key::new(vid, dst));
    }
}

impl Tally {
    #[inline(always)]
    fn note(&mut self, v: Verdict) {
        let is = |yes: bool| u32::from(yes);
        self.unicast = self.unicast.wrapping_add(is(v.as_to().is_some()));
        self.flooded = self.flooded.wrapping_add(is(v.as_flood().is_some()));
        self.dropped = self.dropped.wrapping_add(is(v.as_drop().is_some()));
    }
}

/// Whether all frames go to one member, in the same way.
fn is_uniform(h: &Heads) -> bool {
    let [first, ..] = h.verdict;
    first.as_to().is_some() && h.verdict.iter().take(h.n).all(|v| *v == first)
}

/// Drops every frame that has no verdict yet.
fn refuse(h: &mut Heads, reason: Drop) -> Tally {
    let mut tally = Tally::default();
    for (v, meta) in h.verdict.iter_mut().zip(&h.meta).take(h.n) {
        tally.bytes = tally.bytes.wrapping_add(u64::from(meta.len));
        if *v == Verdict::NONE {
            *v = Verdict::drop(reason);
        }
        tally.note(*v);
        tally.local = tally.local.wrapping_add(u32::from(v.is_local()));
    }
    tally
}

/// Whether frame `i` fits a member with this MTU: by its length behind the link header, or, if it
/// is to be segmented, by the length of its segments.
#[inline(always)]
pub(crate) fn fits(h: &Heads, i: usize, mtu: u32) -> bool {
    let Some(meta) = h.meta.get(i) else {
        return false;
    };
    meta.len <= mtu.saturating_add(HEADER) || fits_exactly(h, i, mtu)
}

#[cold]
fn fits_exactly(h: &Heads, i: usize, mtu: u32) -> bool {
    let Some(meta) = h.meta.get(i) else {
        return false;
    };
    if meta.off.gso != Gso::None {
        let headers = u32::from(meta.l3).saturating_add(u32::from(meta.l4));
        return headers.saturating_add(u32::from(meta.off.gso_size)) <= mtu;
    }
    meta.len.saturating_sub(link_header(h.private(i))) <= mtu
}
