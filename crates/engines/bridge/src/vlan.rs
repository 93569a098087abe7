//! VLANs of a member, and the tag of a frame.
//!
//! # Model
//! On a filtering bridge every frame is in one VLAN while it is inside, and carries no tag: [`read_tag`] says which one
//! it came with. A member has at most one untagged VLAN (its PVID) and a list of tagged ones; it is closed to all others.
//! On a bridge that does not filter, tags are bytes like any others and every frame is in VLAN 0.

use windlass_stats::Drop;

/// 802.1Q tag (IEEE 802.1Q table 9-1).
const TAG: u16 = 0x8100;
/// 802.1ad service tag.
const SERVICE_TAG: u16 = 0x88a8;
/// The service tag before 802.1ad, still in use.
const OLD_SERVICE_TAG: u16 = 0x9100;
/// The identifier that no frame may carry (IEEE 802.1Q table 9-2).
const VID_RESERVED: u16 = 4095;

/// A set of VLANs as 4,096 bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VlanMap(Box<[u64; 64]>);

impl Default for VlanMap {
    fn default() -> Self {
        VlanMap(Box::new([0; 64]))
    }
}

impl VlanMap {
    /// The set of these identifiers, of which 4095 and above do not count. 0 is the one VLAN of a bridge that does not filter.
    pub fn of(vids: impl IntoIterator<Item = u16>) -> VlanMap {
        let mut map = VlanMap::default();
        for vid in vids.into_iter().filter(|v| *v < VID_RESERVED) {
            if let Some(word) = map.0.get_mut(vid as usize / 64) {
                *word |= 1 << (vid % 64);
            }
        }
        map
    }

    /// Adds the VLANs of another set.
    pub(crate) fn add_all(&mut self, other: &VlanMap) {
        for (to, from) in self.0.iter_mut().zip(other.0.iter()) {
            *to |= from;
        }
    }

    /// Whether a VLAN is in the set.
    #[inline(always)]
    pub fn contains(&self, vid: u16) -> bool {
        self.0
            .get(vid as usize / 64)
            .is_some_and(|word| word >> (vid % 64) & 1 != 0)
    }
}

/// What stands in the place of a tag at the start of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tag {
    /// No tag.
    None,
    /// One 802.1Q tag with this control information.
    One(u16),
    /// A tag that a filtering bridge does not take.
    Bad(Drop),
}

#[inline(always)]
fn word(bytes: &[u8], at: usize) -> Option<u16> {
    let b = bytes.get(at..at.checked_add(2)?)?;
    b.first_chunk::<2>().map(|b| u16::from_be_bytes(*b))
}

/// The type field of a frame of which `private` bytes are known.
#[inline(always)]
pub fn kind(private: &[u8]) -> Option<u16> {
    word(private, 12)
}

/// Whether a type field announces a tag of any kind.
#[inline(always)]
pub const fn is_tag(kind: u16) -> bool {
    (kind == TAG) | (kind == SERVICE_TAG) | (kind == OLD_SERVICE_TAG)
}

/// Reads the tag of a frame of which `private` bytes are known. A stack of tags and a service tag are not taken; a tag
/// that is cut off is a runt.
#[inline]
pub fn read_tag(private: &[u8]) -> Tag {
    match word(private, 12) {
        Some(kind) if !is_tag(kind) => Tag::None,
        Some(TAG) => match (word(private, 14), word(private, 16)) {
            (Some(_), Some(inner)) if is_tag(inner) => Tag::Bad(Drop::VlanTag),
            (Some(tci), Some(_)) => Tag::One(tci),
            _ => Tag::Bad(Drop::Runt),
        },
        Some(_) => Tag::Bad(Drop::VlanTag),
        None => Tag::Bad(Drop::Runt),
    }
}

/// The VLAN of a frame from a member with this PVID and these tagged VLANs.
#[inline]
pub fn classify(tag: Tag, pvid: Option<u16>, tagged: &VlanMap) -> Result<u16, Drop> {
    let tci = match tag {
        Tag::None => 0,
        Tag::One(tci) => tci,
        Tag::Bad(reason) => return Err(reason),
    };
    match tci & 0xfff {
        0 => pvid.ok_or(Drop::VlanDenied),
        VID_RESERVED => Err(Drop::VlanTag),
        vid if pvid == Some(vid) => Err(Drop::VlanTag),
        vid if tagged.contains(vid) => Ok(vid),
        _ => Err(Drop::VlanDenied),
    }
}

/// Bytes of the link header of a frame whose tags were left in: 14, and 4 for each of up to two tags.
pub fn link_header(private: &[u8]) -> u32 {
    match (word(private, 12), word(private, 16)) {
        (Some(outer), Some(inner)) if is_tag(outer) && is_tag(inner) => 22,
        (Some(outer), _) if is_tag(outer) => 18,
        _ => 14,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(types: &[u16]) -> Vec<u8> {
        let mut f = vec![2; 12];
        for t in types {
            f.extend(t.to_be_bytes());
        }
        f
    }

    /// Each form of tagging is told from the others, including tags that are cut off.
    #[test]
    fn tags_are_read() {
        assert_eq!(read_tag(&frame(&[0x0800])), Tag::None);
        assert_eq!(
            read_tag(&frame(&[0x8100, 0x6005, 0x0800])),
            Tag::One(0x6005)
        );
        assert_eq!(
            read_tag(&frame(&[0x8100, 5, 0x8100, 6, 0x0800])),
            Tag::Bad(Drop::VlanTag)
        );
        assert_eq!(
            read_tag(&frame(&[0x8100, 5, 0x88a8, 6, 0x0800])),
            Tag::Bad(Drop::VlanTag)
        );
        assert_eq!(
            read_tag(&frame(&[0x88a8, 5, 0x0800])),
            Tag::Bad(Drop::VlanTag)
        );
        assert_eq!(read_tag(&frame(&[0x8100, 5])), Tag::Bad(Drop::Runt));
        assert_eq!(read_tag(&frame(&[0x8100])), Tag::Bad(Drop::Runt));
        assert_eq!(read_tag(&frame(&[])), Tag::Bad(Drop::Runt));
        assert_eq!(link_header(&frame(&[0x0800])), 14);
        assert_eq!(link_header(&frame(&[0x8100, 5, 0x0800])), 18);
        assert_eq!(link_header(&frame(&[0x88a8, 5, 0x8100, 6, 0x0800])), 22);
    }

    /// The VLAN rules, one by one.
    #[test]
    fn frames_are_classified() {
        let tagged = VlanMap::of([10, 11, 4094]);
        let with = |tag, pvid| classify(tag, pvid, &tagged);
        assert_eq!(with(Tag::None, Some(5)), Ok(5));
        assert_eq!(with(Tag::None, None), Err(Drop::VlanDenied));
        assert_eq!(with(Tag::One(0xe000), Some(5)), Ok(5), "priority only");
        assert_eq!(with(Tag::One(0), None), Err(Drop::VlanDenied));
        assert_eq!(
            with(Tag::One(5), Some(5)),
            Err(Drop::VlanTag),
            "tagged PVID"
        );
        assert_eq!(with(Tag::One(0x2000 | 10), Some(5)), Ok(10));
        assert_eq!(with(Tag::One(4094), None), Ok(4094));
        assert_eq!(with(Tag::One(12), Some(5)), Err(Drop::VlanDenied));
        assert_eq!(with(Tag::One(4095), Some(5)), Err(Drop::VlanTag));
        assert_eq!(with(Tag::Bad(Drop::Runt), Some(5)), Err(Drop::Runt));
    }

    /// A set holds what it was made of, but for 4095.
    #[test]
    fn sets() {
        let map = VlanMap::of([0, 1, 63, 64, 4094, 4095, 9999]);
        let got: Vec<u16> = (0..5000).filter(|&v| map.contains(v)).collect();
        assert_eq!(got, [0, 1, 63, 64, 4094]);
    }
}
