//! Feature bits (VIRTIO 1.2, 5.1.3 and 6; linux/virtio_net.h), and what follows from them for a ring.

use windlass_frame::Claim;

use crate::port::TxCaps;

/// `VIRTIO_NET_F_CSUM`: the guest may leave checksums to us.
pub const CSUM: u64 = 1 << 0;
/// `VIRTIO_NET_F_GUEST_CSUM`: the guest takes frames with incomplete checksums.
pub const GUEST_CSUM: u64 = 1 << 1;
/// `VIRTIO_NET_F_GUEST_TSO4`.
pub const GUEST_TSO4: u64 = 1 << 7;
/// `VIRTIO_NET_F_GUEST_TSO6`.
pub const GUEST_TSO6: u64 = 1 << 8;
/// `VIRTIO_NET_F_GUEST_ECN`.
pub const GUEST_ECN: u64 = 1 << 9;
/// `VIRTIO_NET_F_HOST_TSO4`.
pub const HOST_TSO4: u64 = 1 << 11;
/// `VIRTIO_NET_F_HOST_TSO6`.
pub const HOST_TSO6: u64 = 1 << 12;
/// `VIRTIO_NET_F_HOST_ECN`.
pub const HOST_ECN: u64 = 1 << 13;
/// `VIRTIO_NET_F_MRG_RXBUF`: a frame may lie in several of the guest's buffers.
pub const MRG_RXBUF: u64 = 1 << 15;
/// `VIRTIO_NET_F_MTU`: the front end may tell the guest an MTU.
pub const MTU: u64 = 1 << 3;
/// `VIRTIO_NET_F_CTRL_VQ`: a control queue, which the front end serves.
pub const CTRL_VQ: u64 = 1 << 17;
/// `VIRTIO_NET_F_CTRL_RX`: likewise.
pub const CTRL_RX: u64 = 1 << 18;
/// `VIRTIO_NET_F_GUEST_ANNOUNCE`: the guest announces itself after it moved.
pub const GUEST_ANNOUNCE: u64 = 1 << 21;
/// `VIRTIO_NET_F_MQ`: several queue pairs.
pub const MQ: u64 = 1 << 22;
/// `VHOST_USER_F_PROTOCOL_FEATURES`: there is more to negotiate; not a feature of the device.
pub const PROTOCOL_FEATURES: u64 = 1 << 30;
/// `VHOST_F_LOG_ALL`: writes are to be logged.
pub const LOG_ALL: u64 = 1 << 26;
/// `VIRTIO_F_INDIRECT_DESC`.
pub const INDIRECT_DESC: u64 = 1 << 28;
/// `VIRTIO_F_EVENT_IDX`.
pub const EVENT_IDX: u64 = 1 << 29;
/// `VIRTIO_F_VERSION_1`. Required.
pub const VERSION_1: u64 = 1 << 32;
/// `VIRTIO_F_ACCESS_PLATFORM`: addresses go through an IOMMU. QEMU accepts it only for a machine that has one.
pub const ACCESS_PLATFORM: u64 = 1 << 33;
/// `VIRTIO_F_RING_PACKED`.
pub const RING_PACKED: u64 = 1 << 34;
/// `VIRTIO_F_IN_ORDER`: kept in any case.
pub const IN_ORDER: u64 = 1 << 35;
/// `VIRTIO_NET_F_GUEST_USO4`.
pub const GUEST_USO4: u64 = 1 << 54;
/// `VIRTIO_NET_F_GUEST_USO6`.
pub const GUEST_USO6: u64 = 1 << 55;
/// `VIRTIO_NET_F_HOST_USO`.
pub const HOST_USO: u64 = 1 << 56;

/// Features that a queue can be made with; [`VERSION_1`] must be among them.
pub const SUPPORTED: u64 = CSUM
    | GUEST_CSUM
    | GUEST_TSO4
    | GUEST_TSO6
    | GUEST_ECN
    | HOST_TSO4
    | HOST_TSO6
    | HOST_ECN
    | MRG_RXBUF
    | INDIRECT_DESC
    | EVENT_IDX
    | VERSION_1
    | IN_ORDER
    | GUEST_USO4
    | GUEST_USO6
    | HOST_USO;

/// What is offered to a front end: what the queues do, and what concerns the connection or the front end alone.
pub const OFFERED: u64 = SUPPORTED
    | RING_PACKED
    | LOG_ALL
    | ACCESS_PLATFORM
    | MTU
    | CTRL_VQ
    | CTRL_RX
    | GUEST_ANNOUNCE
    | MQ
    | PROTOCOL_FEATURES;

/// The names of the features, for people.
pub const NAMES: &[(u64, &str)] = &[
    (CSUM, "csum"),
    (GUEST_CSUM, "guest-csum"),
    (MTU, "mtu"),
    (GUEST_TSO4, "guest-tso4"),
    (GUEST_TSO6, "guest-tso6"),
    (GUEST_ECN, "guest-ecn"),
    (HOST_TSO4, "host-tso4"),
    (HOST_TSO6, "host-tso6"),
    (HOST_ECN, "host-ecn"),
    (MRG_RXBUF, "mrg-rxbuf"),
    (CTRL_VQ, "ctrl-vq"),
    (CTRL_RX, "ctrl-rx"),
    (GUEST_ANNOUNCE, "guest-announce"),
    (MQ, "mq"),
    (LOG_ALL, "log-all"),
    (INDIRECT_DESC, "indirect-desc"),
    (EVENT_IDX, "event-idx"),
    (PROTOCOL_FEATURES, "protocol-features"),
    (VERSION_1, "version-1"),
    (ACCESS_PLATFORM, "access-platform"),
    (RING_PACKED, "ring-packed"),
    (IN_ORDER, "in-order"),
    (GUEST_USO4, "guest-uso4"),
    (GUEST_USO6, "guest-uso6"),
    (HOST_USO, "host-uso"),
];

/// The names of the bits of `features`, with spaces between; those without a name as a number.
pub fn describe(features: u64, names: &[(u64, &str)]) -> String {
    let known = names.iter().filter(|(bit, _)| features & bit != 0);
    let mut words: Vec<String> = known.map(|(_, name)| (*name).to_owned()).collect();
    let rest = names.iter().fold(features, |rest, (bit, _)| rest & !bit);
    if rest != 0 {
        words.push(format!("{rest:#x}"));
    }
    words.join(" ")
}

/// What a guest with these features takes as it is. Segmentation rests on incomplete checksums (VIRTIO 1.2, 5.1.3.1).
pub fn tx_caps(features: u64) -> TxCaps {
    let has = |bit| features & bit != 0;
    let csum = has(GUEST_CSUM);
    TxCaps {
        csum,
        tso4: csum && has(GUEST_TSO4),
        tso6: csum && has(GUEST_TSO6),
        ecn: csum && has(GUEST_ECN),
        uso: csum && has(GUEST_USO4) && has(GUEST_USO6),
    }
}

/// Which claims in a guest's headers count: those that it negotiated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claims {
    csum: bool,
    tso4: bool,
    tso6: bool,
    ecn: bool,
    uso: bool,
}

impl Claims {
    /// Those of a guest with these features.
    pub fn of(features: u64) -> Claims {
        let has = |bit| features & bit != 0;
        let csum = has(CSUM);
        Claims {
            csum,
            tso4: csum && has(HOST_TSO4),
            tso6: csum && has(HOST_TSO6),
            ecn: csum && has(HOST_ECN),
            uso: csum && has(HOST_USO),
        }
    }

    /// Whether headers need to be read at all. Every other claim rests on the checksum's.
    #[inline(always)]
    pub const fn any(&self) -> bool {
        self.csum
    }

    /// The claim without what was not negotiated. A guest may not say that a checksum is right.
    #[inline]
    pub const fn filter(&self, mut claim: Claim) -> Claim {
        claim.flags &= if self.csum { Claim::NEEDS_CSUM } else { 0 };
        let counts = match claim.gso_type & !Claim::GSO_ECN {
            Claim::GSO_TCPV4 => self.tso4,
            Claim::GSO_TCPV6 => self.tso6,
            Claim::GSO_UDP_L4 => self.uso,
            _ => false,
        };
        if !counts {
            claim.gso_type = 0;
        } else if !self.ecn {
            claim.gso_type &= !Claim::GSO_ECN;
        }
        claim
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Claims and capabilities follow from the negotiated bits, and from no others.
    #[test]
    fn only_what_was_negotiated() {
        let all = Claim {
            flags: 0xff,
            gso_type: Claim::GSO_TCPV4 | Claim::GSO_ECN,
            gso_size: 1448,
            csum_start: 34,
            csum_offset: 16,
        };
        let none = Claims::of(VERSION_1 | HOST_TSO4);
        assert!(!none.any() && none.filter(all).is_none());
        let csum = Claims::of(CSUM | HOST_TSO6).filter(all);
        assert_eq!((csum.flags, csum.gso_type), (Claim::NEEDS_CSUM, 0));
        let tso = Claims::of(CSUM | HOST_TSO4).filter(all);
        assert_eq!(tso.gso_type, Claim::GSO_TCPV4);
        assert_eq!(
            Claims::of(CSUM | HOST_TSO4 | HOST_ECN).filter(all).gso_type,
            all.gso_type
        );
        let ufo = Claim {
            gso_type: Claim::GSO_UFO,
            ..all
        };
        assert_eq!(Claims::of(!0).filter(ufo).gso_type, 0);
        assert_eq!(tx_caps(VERSION_1 | GUEST_TSO4), TxCaps::default());
        let caps = tx_caps(GUEST_CSUM | GUEST_TSO4 | GUEST_USO4);
        assert!(caps.csum && caps.tso4 && !caps.tso6 && !caps.uso);
    }
}
