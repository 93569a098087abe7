//! Adding and removing a VLAN tag in a header buffer with headroom.
//!
//! The twelve address bytes move, the rest of the frame stays where it is: so both are a few bytes
//! of work whatever the frame's length, and offsets that count from the buffer stay good. Offsets
//! that count from the frame (checksum start, link header length) move by [`ether::TAG`].

use crate::ether::{self, Tci};

/// Adds a tag after the addresses of the frame that begins at `at` in `room`. Returns where the
/// frame begins now (`at - 4`), or `None`, and changes nothing, without four bytes of headroom or
/// without twelve bytes of frame.
#[inline]
pub fn push(room: &mut [u8], at: usize, tpid: u16, tci: Tci) -> Option<usize> {
    let start = at.checked_sub(ether::TAG)?;
    let head: &mut [u8; 16] = room.get_mut(start..)?.first_chunk_mut()?;
    let [t0, t1] = tpid.to_be_bytes();
    let [c0, c1] = tci.0.to_be_bytes();
    head.copy_within(4..16, 0);
    let (_, tag) = head.split_at_mut(12);
    tag.copy_from_slice(&[t0, t1, c0, c1]);
    Some(start)
}

/// Removes the outer tag of the frame that begins at `at` in `room`. Returns where the frame begins
/// now (`at + 4`), the TPID and the control word; or `None`, and changes nothing, if the type field
/// is not a tag's or the tag is not whole with the type after it.
#[inline]
pub fn pop(room: &mut [u8], at: usize) -> Option<(usize, u16, Tci)> {
    let head: &mut [u8; 18] = room.get_mut(at..)?.first_chunk_mut()?;
    let tpid = u16::from_be_bytes([head[12], head[13]]);
    if !ether::is_tag(tpid) {
        return None;
    }
    let tci = Tci(u16::from_be_bytes([head[14], head[15]]));
    head.copy_within(0..12, 4);
    Some((at.checked_add(ether::TAG)?, tpid, tci))
}

/// Replaces the control word of the outer tag; returns the old one, or `None` if there is no tag.
#[inline]
pub fn retag(room: &mut [u8], at: usize, tci: Tci) -> Option<Tci> {
    let head: &mut [u8; 16] = room.get_mut(at..)?.first_chunk_mut()?;
    if !ether::is_tag(u16::from_be_bytes([head[12], head[13]])) {
        return None;
    }
    let old = Tci(u16::from_be_bytes([head[14], head[15]]));
    [head[14], head[15]] = tci.0.to_be_bytes();
    Some(old)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::VlanId;
    use std::vec::Vec;

    fn room(headroom: usize) -> Vec<u8> {
        let mut room = std::vec![0xee; headroom];
        room.extend(1..=12);
        room.extend([0x08, 0x00, 0x45, 0x00, 0x77]);
        room
    }

    /// A pushed tag stands where the standard says, and popping gives the frame back.
    #[test]
    fn push_then_pop_is_nothing() {
        let mut buf = room(4);
        let before = buf.clone();
        let tci = Tci::new(3, false, VlanId::new(42).unwrap());
        assert_eq!(push(&mut buf, 4, ether::VLAN, tci), Some(0));
        assert_eq!(buf[..12], before[4..16]);
        assert_eq!(buf[12..16], [0x81, 0x00, 0x60, 42]);
        assert_eq!(buf[16..], before[16..]);
        assert_eq!(retag(&mut buf, 0, Tci(7)), Some(tci));
        assert_eq!(pop(&mut buf, 0), Some((4, ether::VLAN, Tci(7))));
        assert_eq!(buf[4..], before[4..]);
    }

    /// No headroom, no tag, a frame that is too short: refused, and nothing is changed.
    #[test]
    fn refusals_change_nothing() {
        for headroom in 0..4 {
            let mut buf = room(headroom);
            let before = buf.clone();
            assert_eq!(push(&mut buf, headroom, ether::VLAN, Tci(1)), None);
            assert_eq!(pop(&mut buf, headroom), None);
            assert_eq!(retag(&mut buf, headroom, Tci(1)), None);
            assert_eq!(buf, before);
        }
        let mut tagged = room(4);
        push(&mut tagged, 4, ether::QINQ, Tci(1)).unwrap();
        for len in 0..18 {
            let mut buf = tagged[..len].to_vec();
            assert_eq!(pop(&mut buf, 0), None, "{len}");
            assert_eq!(buf, tagged[..len]);
        }
        assert_eq!(pop(&mut tagged, usize::MAX), None);
        assert_eq!(push(&mut tagged, usize::MAX, ether::VLAN, Tci(1)), None);
    }
}
