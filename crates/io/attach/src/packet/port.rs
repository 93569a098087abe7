//! The rings of a packet socket: one system call a frame each way.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use libc::iovec;
use rustix::io::Errno;
use windlass_frame::{BURST, Claim, FRAME_MAX, HEADROOM, Heads, Pick, SNAP};
use windlass_shm::{Section, Tails};
use windlass_stats::Drop;
use windlass_sys::packet::{PacketSocket, VlanTag};

use crate::gather::Gather;
use crate::port::{Armed, Kick, Lane, Limit, Loan, More, RxPort, Sent, Stop, TxCaps, TxPort};
use crate::soft;

/// What the kernel takes from us with a virtio header: it finishes for the device what the device does not do.
const CAPS: TxCaps = TxCaps {
    csum: true,
    tso4: true,
    tso6: true,
    ecn: true,
    uso: true,
};

/// The receive half of one socket.
pub struct PacketRx {
    socket: Arc<PacketSocket>,
}

impl PacketRx {
    /// Reads from `socket`.
    pub fn new(socket: Arc<PacketSocket>) -> PacketRx {
        PacketRx { socket }
    }
}

impl RxPort for PacketRx {
    fn rx_burst<'q>(
        &mut self,
        _section: &'q Section<'q>,
        heads: &mut Heads,
        tails: &mut Tails<'q>,
        limit: Limit,
    ) -> (Loan, More) {
        let mut bytes = 0;
        while heads.n < limit.frames.min(BURST) && bytes < limit.bytes {
            match read_one(&self.socket, heads, tails) {
                Ok(len) => bytes += len,
                Err(Errno::INTR) => {}
                // The interface being down is not the end of the socket: it is bound again when it comes up.
                Err(_) => return (Loan::default(), More::Drained),
            }
        }
        (Loan::default(), More::Left)
    }

    fn release(&mut self, _section: &Section<'_>, _loan: Loan) {}

    fn arm(&mut self, _section: &Section<'_>) -> Armed {
        Armed::Yes
    }

    fn disarm(&mut self, _section: &Section<'_>) {}

    fn wake(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    fn polls_memory(&self) -> bool {
        false
    }
}

/// Reads one frame behind those that the burst has; returns its length.
fn read_one(
    socket: &PacketSocket,
    heads: &mut Heads,
    tails: &mut Tails<'_>,
) -> Result<usize, Errno> {
    let i = heads.n;
    let mut header = [0u8; Claim::BYTES];
    let arena = tails.arena();
    let room = arena.len().min(FRAME_MAX - SNAP + 1);
    let snap = heads
        .snap
        .get_mut(i)
        .and_then(|s| s.0.get_mut(HEADROOM..HEADROOM + SNAP));
    let Some(snap) = snap else {
        return Err(Errno::AGAIN);
    };
    let header_bytes = socket.header_bytes().min(Claim::BYTES);
    let ranges = [
        iovec {
            iov_base: header.as_mut_ptr().cast(),
            iov_len: header_bytes,
        },
        iovec {
            iov_base: snap.as_mut_ptr().cast(),
            iov_len: SNAP,
        },
        iovec {
            iov_base: arena.as_mut_ptr().cast(),
            iov_len: room,
        },
    ];
    // SAFETY: the three ranges are exclusively ours during the call, and hold plain bytes.
    let got = unsafe { socket.receive_raw(&ranges) }?;
    let len = got.bytes.saturating_sub(header_bytes);
    let mut claim = Claim::decode(&header);
    if got.checksum_valid && claim.flags & Claim::NEEDS_CSUM == 0 {
        claim.flags |= Claim::DATA_VALID;
    }
    heads.admit(i, len as u32, claim);
    if len > SNAP {
        tails.take_arena(i, len - SNAP);
    }
    if let Some(tag) = got.vlan {
        put_back(heads, i, tag);
    }
    heads.n += 1;
    Ok(len)
}

/// Puts a tag that the kernel took out back behind the addresses.
fn put_back(heads: &mut Heads, i: usize, tag: VlanTag) {
    let meta = &mut heads.meta[i];
    if meta.have < 12 || meta.at < 4 {
        return;
    }
    meta.at -= 4;
    meta.have += 4;
    meta.len += 4;
    if meta.claim.flags & Claim::NEEDS_CSUM != 0 {
        meta.claim.csum_start = meta.claim.csum_start.saturating_add(4);
    }
    let private = heads.private_mut(i);
    private.copy_within(4..16, 0);
    let (tpid, tci) = (tag.tpid.to_be_bytes(), tag.tci.to_be_bytes());
    if let Some(place) = private.get_mut(12..16) {
        place.copy_from_slice(&[tpid[0], tpid[1], tci[0], tci[1]]);
    }
    heads.load_addresses(i);
}

/// The transmit half: all sockets.
pub struct PacketTx {
    sockets: Vec<Arc<PacketSocket>>,
}

impl PacketTx {
    /// Sends on `sockets`, of which a worker uses the one of its number modulo their count.
    pub fn new(sockets: Vec<Arc<PacketSocket>>) -> PacketTx {
        PacketTx { sockets }
    }
}

impl TxPort for PacketTx {
    fn is_foreign(&self) -> bool {
        false
    }

    fn caps(&self) -> TxCaps {
        CAPS
    }

    fn tx_burst(
        &self,
        _section: &Section<'_>,
        lane: Lane,
        heads: &Heads,
        tails: &Tails<'_>,
        picks: &[Pick],
    ) -> Sent {
        let mut sent = Sent {
            kick: Kick::Core,
            ..Sent::default()
        };
        let at = usize::from(lane.worker) % self.sockets.len().max(1);
        let Some(socket) = self.sockets.get(at) else {
            sent.stop = Stop::Down;
            return sent;
        };
        let mut gather = Gather::default();
        for pick in picks {
            let meta = &heads.meta[pick.index()];
            match send_one(socket, &mut gather, heads, tails, *pick) {
                Ok(()) => {
                    sent.frames += 1;
                    sent.bytes += u64::from(meta.len) + if pick.tagged() { 4 } else { 0 };
                }
                Err(Errno::AGAIN | Errno::NOBUFS) => {
                    sent.stop = Stop::Full;
                    return sent;
                }
                Err(Errno::NETDOWN | Errno::NXIO | Errno::NODEV) => {
                    sent.stop = Stop::Down;
                    return sent;
                }
                Err(Errno::FAULT) => sent.drop_frame(Drop::PeerFault),
                Err(Errno::MSGSIZE) => match send_cut(socket, heads, tails, *pick) {
                    Ok(frames) => {
                        sent.frames += 1;
                        sent.segments += if frames > 1 { frames } else { 0 };
                        sent.bytes += u64::from(meta.len) + if pick.tagged() { 4 } else { 0 };
                    }
                    Err(reason) => sent.drop_frame(reason),
                },
                Err(_) => sent.drop_frame(Drop::KernelRefused),
            }
            sent.taken += 1;
        }
        sent
    }

    fn kick(&self, _lane: Lane) {}
}

fn send_one(
    socket: &PacketSocket,
    gather: &mut Gather,
    heads: &Heads,
    tails: &Tails<'_>,
    pick: Pick,
) -> Result<(), Errno> {
    let ranges = gather.only(heads, tails, pick, socket.header_bytes());
    // SAFETY: the bytes are one frame for the network: its private part, and the rest where the sender keeps it.
    unsafe { socket.send_raw(ranges) }?;
    Ok(())
}

/// Cuts a segment that the device does not take.
fn send_cut(
    socket: &PacketSocket,
    heads: &Heads,
    tails: &Tails<'_>,
    pick: Pick,
) -> Result<u64, Drop> {
    if heads.meta[pick.index()].off.is_plain() {
        return Err(Drop::TooBig);
    }
    let header = [0u8; Claim::BYTES];
    let header = header.get(..socket.header_bytes()).unwrap_or(&[]);
    let mut all = true;
    let made = soft::finish(heads, tails, pick, TxCaps::default(), |frame| {
        let parts = [
            rustix::io::IoSlice::new(header),
            rustix::io::IoSlice::new(frame),
        ];
        all &= socket.write_frame(&parts).is_ok();
        all
    })?;
    if all {
        Ok(made)
    } else {
        Err(Drop::KernelRefused)
    }
}
