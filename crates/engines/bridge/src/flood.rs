//! Who gets a frame that goes to more than one member.
//!
//! # Model
//! For each VLAN there are two sets: one for broadcast and multicast, one for unicast to unknown addresses (members
//! with `discover`). They are made when the topology is made. The source, the other private
//! members if the source is private, and the members of its horizon are left out when a set is walked, in one comparison each.
//! VLANs with the same members share a set.

use windlass_frame::{FloodId, Heads, TxId};

use crate::forward::fits;
use crate::member::{MemberConf, PortState};
use crate::vlan::VlanMap;

/// Why a frame is flooded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FloodKind {
    /// Its destination is a group.
    Group,
    /// Its destination is not known.
    Unknown,
}

impl FloodKind {
    /// The set of this kind in a VLAN.
    #[inline(always)]
    pub const fn id(self, vid: u16) -> FloodId {
        FloodId((vid & 0xfff) << 1 | self as u16)
    }
}

/// One destination of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FloodTo {
    /// The member.
    pub id: TxId,
    /// Whether the frame gets a tag there.
    pub tagged: bool,
    private: bool,
    horizon: u16,
    mtu: u32,
}

impl FloodTo {
    /// Whether it gets what `from` floods.
    #[inline(always)]
    pub fn takes(&self, from: FloodFrom) -> bool {
        let is_beside = self.horizon != 0 && self.horizon == from.horizon;
        self.id != from.id && !(self.private && from.private) && !is_beside
    }

    /// Whether frame `i` of `h` is short enough for it.
    #[inline]
    pub fn fits(&self, h: &Heads, i: usize) -> bool {
        fits(h, i, self.mtu)
    }
}

/// The destinations of one kind of flooded frame in one VLAN, in the order of their numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FloodSet {
    to: Box<[FloodTo]>,
    private: usize,
}

/// A member as a source of flooded frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FloodFrom {
    /// The member.
    pub id: TxId,
    /// Whether it is private.
    pub private: bool,
    /// Its horizon; 0: it has none.
    pub horizon: u16,
}

impl FloodSet {
    /// The members among `members` that get such frames in VLAN `vid` (0 on a bridge that does not filter).
    pub(crate) fn of<'a>(
        members: impl Iterator<Item = &'a MemberConf>,
        kind: FloodKind,
        filtering: bool,
        vid: u16,
    ) -> FloodSet {
        let gets = |m: &&MemberConf| {
            let is_open = !m.span && m.state == PortState::Forwarding;
            let is_asked = match kind {
                FloodKind::Group => m.groups,
                FloodKind::Unknown => m.discover,
            };
            is_open && is_asked && (!filtering || m.takes(vid))
        };
        let mut to: Box<[FloodTo]> = members
            .filter(gets)
            .map(|m| FloodTo {
                id: m.id,
                tagged: filtering && m.wants_tag(vid),
                private: m.private,
                horizon: m.horizon,
                mtu: m.mtu,
            })
            .collect();
        to.sort_unstable_by_key(|to| to.id);
        let private = to.iter().filter(|t| t.private).count();
        FloodSet { to, private }
    }

    /// Members in the set, the source included.
    pub fn len(&self) -> usize {
        self.to.len()
    }

    /// Whether nobody is in the set.
    pub fn is_empty(&self) -> bool {
        self.to.is_empty()
    }

    /// Where the member of number `id` stands, or the next one behind it: where to go on with a flood that is done in parts,
    /// though members have come and gone.
    pub fn position(&self, id: TxId) -> usize {
        self.to.partition_point(|to| to.id < id)
    }

    /// The member at a position.
    #[inline]
    pub fn get(&self, position: usize) -> Option<FloodTo> {
        self.to.get(position).copied()
    }

    /// The destinations of a frame from `from`.
    #[inline]
    pub fn each(&self, from: FloodFrom) -> impl Iterator<Item = FloodTo> + '_ {
        self.to.iter().copied().filter(move |to| to.takes(from))
    }

    /// The destinations that take frame `i` of `h`, as to its length.
    #[inline]
    pub fn each_fitting<'a>(
        &'a self,
        from: FloodFrom,
        h: &'a Heads,
        i: usize,
    ) -> impl Iterator<Item = FloodTo> + 'a {
        self.each(from).filter(move |to| fits(h, i, to.mtu))
    }

    /// Whether anybody but the source gets frames from `from`.
    #[inline]
    pub fn reaches_anyone(&self, from: FloodFrom) -> bool {
        if from.horizon != 0 {
            return self.each(from).next().is_some();
        }
        let candidates = self
            .to
            .len()
            .saturating_sub(if from.private { self.private } else { 0 });
        candidates > 1 || self.each(from).next().is_some()
    }
}

/// All sets of one bridge.
#[derive(Clone, Debug, Default)]
pub(crate) struct FloodSets {
    sets: Vec<FloodSet>,
    /// By [`FloodId`]: the index of its set.
    of: Box<[u16]>,
}

impl FloodSets {
    pub(crate) fn new(members: &[MemberConf], filtering: bool) -> FloodSets {
        let mut sets: Vec<FloodSet> = Vec::new();
        let vids = if filtering { 0..4096 } else { 0..1 };
        // Most of the 4,096 VLANs have no member: their sets are empty without a look at each member.
        let mut used = VlanMap::of(members.iter().filter_map(|m| m.pvid));
        for m in members {
            used.add_all(&m.tagged);
        }
        let mut last = [None::<usize>; 2];
        let mut of = Vec::with_capacity(vids.len().saturating_mul(2));
        for vid in vids {
            for (kind, last) in [FloodKind::Group, FloodKind::Unknown]
                .into_iter()
                .zip(&mut last)
            {
                let set = if filtering && !used.contains(vid) {
                    FloodSet::default()
                } else {
                    FloodSet::of(members.iter(), kind, filtering, vid)
                };
                let same = last.filter(|&l| sets.get(l) == Some(&set));
                let index = same.unwrap_or_else(|| {
                    sets.push(set);
                    sets.len().saturating_sub(1)
                });
                *last = Some(index);
                of.push(index as u16);
            }
        }
        FloodSets {
            sets,
            of: of.into_boxed_slice(),
        }
    }

    #[inline]
    pub(crate) fn get(&self, id: FloodId) -> Option<&FloodSet> {
        self.sets.get(*self.of.get(id.0 as usize)? as usize)
    }
}
