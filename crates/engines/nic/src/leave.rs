//! From claims to offloads.

use windlass_frame::{BURST, Claim, Deepen, Gso, Heads, Offload, Verdict};
use windlass_stats::Drop;
use windlass_wire::checksum::{self, pseudo_v4, pseudo_v6};
use windlass_wire::segment::{self, Plan};
use windlass_wire::{Fault, Kind, Layers, parse};

/// Offset of the checksum field in a TCP header (RFC 9293, section 3.1).
const TCP_CHECK: u16 = 16;
/// Offset of the checksum field in a UDP header (RFC 768).
const UDP_CHECK: u16 = 6;
/// Offset of the flags in a TCP header, and CWR among them (RFC 3168, section 6.1.2).
const TCP_FLAGS: usize = 13;
const CWR: u8 = 0x80;

/// Turns the claims of a burst into offloads that hold: sets `off`, and with a checksum or a
/// segmentation to be done `l2`, `l3`, `l4` and `proto`, of each frame that claims something; or its
/// verdict to a drop as [`Drop::BadOffload`]. Claims are gone afterwards. Frames that have a verdict
/// already keep it.
#[inline]
pub fn leave<D: Deepen + ?Sized>(heads: &mut Heads, tails: &mut D) {
    if heads.claimed {
        resolve_all(heads, tails, heads.n.min(BURST));
    }
}

#[inline(never)]
fn resolve_all<D: Deepen + ?Sized>(heads: &mut Heads, tails: &mut D, n: usize) {
    for i in 0..n {
        let Some(meta) = heads.meta.get_mut(i) else {
            return;
        };
        let claim = core::mem::replace(&mut meta.claim, Claim::NONE);
        meta.off = Offload::NONE;
        if claim.is_none() || heads.verdict.get(i) != Some(&Verdict::NONE) {
            continue;
        }
        if resolve(heads, tails, i, claim).is_none()
            && let Some(verdict) = heads.verdict.get_mut(i)
        {
            *verdict = Verdict::drop(Drop::BadOffload);
        }
    }
}

/// What one claim comes to; `None` if it does not hold.
fn resolve<D: Deepen + ?Sized>(
    heads: &mut Heads,
    tails: &mut D,
    i: usize,
    claim: Claim,
) -> Option<()> {
    let needs_csum = claim.flags & Claim::NEEDS_CSUM != 0;
    let data_valid = claim.flags & Claim::DATA_VALID != 0;
    let kind = claimed_kind(claim.gso_type)?;
    if !needs_csum {
        match kind {
            None if data_valid => heads.meta.get_mut(i)?.off = Offload::NONE.with_data_valid(),
            None => {}
            Some(_) if !data_valid => return None,
            Some(_) => {}
        }
        if kind.is_none() {
            return Some(());
        }
    }
    let layers = parsed(heads, tails, i)?;
    if layers.fault != Fault::None || !layers.is_whole() || layers.kind == Kind::Arp {
        return None;
    }
    let off = match kind {
        None => checksum_only(heads, tails, i, claim, &layers)?,
        Some(kind) => segmented(heads, i, claim, kind, &layers)?,
    };
    let meta = heads.meta.get_mut(i)?;
    meta.off = off;
    meta.l2 = layers.l2;
    meta.l3 = layers.l3;
    meta.l4 = layers.l4;
    meta.proto = layers.proto;
    Some(())
}

/// The kind of segmentation asked for; the outer `None` for one that nobody was offered.
fn claimed_kind(gso_type: u8) -> Option<Option<segment::Gso>> {
    let ecn = gso_type & Claim::GSO_ECN != 0;
    match gso_type & !Claim::GSO_ECN {
        0 if !ecn => Some(None),
        Claim::GSO_TCPV4 => Some(Some(segment::Gso::Tcp4)),
        Claim::GSO_TCPV6 => Some(Some(segment::Gso::Tcp6)),
        Claim::GSO_UDP_L4 if !ecn => Some(Some(segment::Gso::UdpL4)),
        _ => None,
    }
}

/// Our own parse, with as many bytes made private as it needs.
fn parsed<D: Deepen + ?Sized>(heads: &mut Heads, tails: &mut D, i: usize) -> Option<Layers> {
    loop {
        let layers = parse(heads.private(i), heads.meta.get(i)?.len);
        let need = usize::from(layers.need);
        if need == 0 {
            return Some(layers);
        }
        if !tails.deepen(heads, i, need) || usize::from(heads.meta.get(i)?.have) < need {
            return None;
        }
    }
}

/// Offset of the checksum field in the transport header that was parsed.
fn check_offset(layers: &Layers) -> Option<u16> {
    if layers.is_tcp() {
        Some(TCP_CHECK)
    } else if layers.is_udp() {
        Some(UDP_CHECK)
    } else {
        None
    }
}

/// Where the claim's checksum starts and lies, if those are the transport header that was parsed
/// and its checksum field.
fn own_field(claim: &Claim, layers: &Layers) -> Option<Offload> {
    let own = usize::from(claim.csum_start) == layers.l4_at()
        && Some(claim.csum_offset) == check_offset(layers);
    own.then(|| Offload::needing_csum(claim.csum_start, claim.csum_offset))
}

/// A checksum without segmentation: passed on, or completed here.
fn checksum_only<D: Deepen + ?Sized>(
    heads: &mut Heads,
    tails: &mut D,
    i: usize,
    claim: Claim,
    layers: &Layers,
) -> Option<Offload> {
    if let Some(off) = own_field(&claim, layers) {
        return Some(off);
    }
    let start = usize::from(claim.csum_start);
    let field = start.checked_add(usize::from(claim.csum_offset))?;
    // Padding behind an IP packet is not summed.
    let end = if layers.end != 0 {
        layers.end
    } else {
        heads.meta.get(i)?.len
    } as usize;
    if field < layers.headers() || field.checked_add(2)? > end {
        return None;
    }
    if usize::from(heads.meta.get(i)?.have) < end && !tails.deepen(heads, i, end) {
        return None;
    }
    let packet = heads.private_mut(i).get_mut(..end)?;
    checksum::finish_in_place(packet, start, claim.csum_offset.into()).then_some(Offload::NONE)
}

/// A segment to be cut. All that [`Plan`] asks for holds, so that whoever cuts it cannot fail.
fn segmented(
    heads: &mut Heads,
    i: usize,
    claim: Claim,
    kind: segment::Gso,
    layers: &Layers,
) -> Option<Offload> {
    let needs_csum = claim.flags & Claim::NEEDS_CSUM != 0;
    let meta = heads.meta.get(i)?;
    if layers.end != meta.len {
        return None;
    }
    let plan = Plan::new(heads.private(i), layers, kind, claim.gso_size).ok()?;
    let start = u16::try_from(layers.l4_at()).ok()?;
    let off = if needs_csum {
        own_field(&claim, layers)?
    } else {
        Offload::needing_csum(start, check_offset(layers)?)
    };
    if plan.count() == 1 {
        return Some(if needs_csum {
            off
        } else {
            Offload::NONE.with_data_valid()
        });
    }
    if !needs_csum {
        seed(heads, i, layers, off)?;
    }
    let (gso, tcp) = match kind {
        segment::Gso::Tcp4 => (Gso::Tcp4, true),
        segment::Gso::Tcp6 => (Gso::Tcp6, true),
        segment::Gso::UdpL4 => (Gso::UdpL4, false),
    };
    let flags = heads.private(i).get(layers.l4_at().checked_add(TCP_FLAGS)?);
    let ecn = tcp && flags.is_some_and(|f| f & CWR != 0);
    Some(off.with_gso(gso, claim.gso_size, ecn))
}

/// Replaces a whole checksum by the pseudo header's sum, which the next one to compute it expects.
fn seed(heads: &mut Heads, i: usize, layers: &Layers, off: Offload) -> Option<()> {
    let packet = heads.private_mut(i);
    let transport = (layers.end as usize).checked_sub(layers.l4_at())?;
    let ip = packet.get(layers.l3_at()..)?;
    let sum = if layers.kind == Kind::Ipv4 {
        let (src, dst) = (ip.get(12..)?.first_chunk()?, ip.get(16..)?.first_chunk()?);
        pseudo_v4(src, dst, layers.proto, u16::try_from(transport).ok()?)
    } else {
        let (src, dst) = (ip.get(8..)?.first_chunk()?, ip.get(24..)?.first_chunk()?);
        pseudo_v6(src, dst, layers.proto, u32::try_from(transport).ok()?)
    };
    let at = usize::from(off.start).checked_add(off.offset.into())?;
    *packet.get_mut(at..)?.first_chunk_mut()? = sum.partial().to_be_bytes();
    Some(())
}
