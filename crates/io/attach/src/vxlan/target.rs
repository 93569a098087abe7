//! A target: one remote tunnel endpoint of one network, as a transmit half.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use windlass_frame::{Heads, Pick};
use windlass_overlay::ports::Load;
use windlass_overlay::runs::DATAGRAMS_MAX;
use windlass_overlay::{Vni, header};
use windlass_shm::{Section, Tails};
use windlass_stats::{Counter, Drop, Padded};
use windlass_sys::Errno;
use windlass_sys::udp::messages::{self, Address, SENT_MAX};

use super::outbox::{self, Outbox};
use super::{Lane, PORTS_MAX, Trouble, UNCUT_NS, Vtep};
use crate::port::{self, Sent, Stop, TxCaps, TxPort};

/// How a target is configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetConf {
    /// Its address and port.
    pub to: SocketAddr,
    /// The network.
    pub vni: Vni,
}

/// What one worker has sent to a target.
#[derive(Debug, Default)]
struct Counts {
    frames: Counter,
    bytes: Counter,
    load: Load,
}

/// A remote tunnel endpoint of one network.
#[derive(Debug)]
pub struct Target {
    vtep: Arc<Vtep>,
    conf: TargetConf,
    to: Address,
    vxlan: [u8; header::BYTES],
    counts: Arc<[Padded<Counts>]>,
}

impl Target {
    /// Reached through an endpoint.
    pub fn new(vtep: Arc<Vtep>, conf: TargetConf) -> Target {
        let counts = vtep.lanes.iter().map(|_| Padded::default()).collect();
        Target::with(vtep, conf, counts)
    }

    fn with(vtep: Arc<Vtep>, conf: TargetConf, counts: Arc<[Padded<Counts>]>) -> Target {
        Target {
            vtep,
            conf,
            to: Address::new(conf.to),
            vxlan: header::encode(conf.vni),
            counts,
        }
    }

    /// The same elsewhere: it has counted what this one has.
    pub fn moved(&self, vtep: Arc<Vtep>, conf: TargetConf) -> Target {
        Target::with(vtep, conf, self.counts.clone())
    }

    /// Frames that were sent to it, and their bytes without outer headers.
    pub fn totals(&self) -> (u64, u64) {
        let lanes = self.counts.iter();
        lanes.fold((0, 0), |(frames, bytes), lane| {
            (frames + lane.frames.get(), bytes + lane.bytes.get())
        })
    }

    /// Sends those of a burst's picks that leave from one port; how many datagrams they were.
    fn send_from<'a>(
        &self,
        (lane, port): (&Lane, usize),
        heads: &Heads,
        tails: &Tails<'_>,
        picks: impl Iterator<Item = (usize, &'a Pick)>,
        fates: &mut Fates,
    ) -> usize {
        let Some(socket) = lane.tx.get(port) else {
            return 0;
        };
        outbox::with(|outbox| {
            outbox.clear();
            let mut datagrams = 0;
            for (number, pick) in picks {
                let add = |outbox: &mut Outbox| {
                    let frame = (number, *pick);
                    outbox.add(heads, tails, frame, &self.vxlan, self.vtep.conf.tos)
                };
                let mut added = add(outbox);
                if added == Ok(false) && !outbox.is_empty() {
                    datagrams += outbox.len();
                    self.send((lane, socket), outbox, heads, fates);
                    added = add(outbox);
                }
                match added {
                    Ok(true) => {}
                    Ok(false) => fates.lose(number as u8, Drop::SegmentLimit),
                    Err(reason) => fates.lose(number as u8, reason),
                }
            }
            datagrams += outbox.len();
            self.send((lane, socket), outbox, heads, fates);
            datagrams
        })
    }

    /// Sends what was gathered: what became of each pick is told in `fates`.
    fn send(
        &self,
        (lane, socket): (&Lane, &OwnedFd),
        outbox: &mut Outbox,
        heads: &Heads,
        fates: &mut Fates,
    ) {
        // Datagrams before the second are sent one by one: one of them was refused, and took its run along.
        let (mut from, mut alone) = (0, 0);
        while from < outbox.len() {
            let most = match from < alone || lane.is_uncut(heads.now) {
                true => 1,
                false => DATAGRAMS_MAX,
            };
            outbox.plan(from, self.to, most);
            let at_once = match from < alone {
                true => (alone - from).min(SENT_MAX),
                false => SENT_MAX,
            };
            let all = outbox.messages();
            let some = all.get(..at_once).unwrap_or(all);
            // SAFETY: a frame's bytes are there for its receiver; pieces that are no longer mapped are an error.
            let sent = unsafe { messages::send(socket, outbox.lists(), some) };
            let run = outbox.run(from, most);
            match sent {
                Ok(sent) => from += outbox.sent(from, sent, most),
                Err(Errno::INTR) => {}
                Err(Errno::IO) if most > 1 => {
                    let until = heads.now.plus(UNCUT_NS).0;
                    lane.uncut.store(until, Ordering::Relaxed);
                }
                // What was said of former datagrams: these have not been sent.
                Err(errno) if self.is_of_former(socket, errno) => {}
                Err(Errno::MSGSIZE | Errno::FAULT | Errno::INVAL) if run > 1 => alone = from + run,
                Err(errno) => {
                    let reason = self.reason(errno);
                    (from..from + run).for_each(|at| fates.lose(outbox.pick(at), reason));
                    from += run;
                }
            }
        }
        outbox.clear();
    }

    /// Whether an error was left for the socket by a report of former datagrams, which is taken.
    #[cold]
    fn is_of_former(&self, socket: &OwnedFd, errno: Errno) -> bool {
        if errno == Errno::AGAIN || errno == Errno::NOBUFS {
            return false;
        }
        let before = windlass_sys::udp::error::take(socket);
        let Ok(Some(report)) = before else {
            return false;
        };
        self.vtep.note(Trouble {
            to: report.to.ip(),
            errno: report.errno,
            mtu: report.mtu,
        });
        // A report of this very datagram is made when it is refused; any other came before.
        !(report.to.ip() == self.conf.to.ip() && report.errno == errno && errno == Errno::MSGSIZE)
    }

    /// Why frames are lost; what the endpoint is to tell of it, it tells.
    #[cold]
    fn reason(&self, errno: Errno) -> Drop {
        let reason = reason(errno);
        if reason == Drop::UnderlayUnreachable {
            self.vtep.note(Trouble {
                to: self.conf.to.ip(),
                errno,
                mtu: 0,
            });
        }
        reason
    }
}

/// Why the kernel did not take datagrams.
fn reason(errno: Errno) -> Drop {
    match errno {
        Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM => Drop::UnderlayFull,
        Errno::MSGSIZE => Drop::TooBig,
        Errno::FAULT => Drop::PeerFault,
        Errno::NETUNREACH
        | Errno::HOSTUNREACH
        | Errno::NETDOWN
        | Errno::CONNREFUSED
        | Errno::ADDRNOTAVAIL
        // Without the endpoint's IPv4 address, before Linux 6.
        | Errno::INVAL
        | Errno::NODEV => Drop::UnderlayUnreachable,
        _ => Drop::KernelRefused,
    }
}

/// Which of a burst's picks were lost, and why.
struct Fates {
    lost: u64,
    reasons: [Drop; windlass_frame::BURST],
}

impl Fates {
    fn lose(&mut self, pick: u8, reason: Drop) {
        if let Some(place) = self.reasons.get_mut(usize::from(pick)) {
            *place = reason;
            self.lost |= 1 << pick;
        }
    }
}

impl TxPort for Target {
    /// Nothing is left to be done in a tunnel.
    fn caps(&self) -> TxCaps {
        TxCaps::default()
    }

    fn is_foreign(&self) -> bool {
        false
    }

    fn wants_runs(&self) -> bool {
        true
    }

    /// The kernel takes a frame at once or never: its buffer is large, and what it cannot hold would wait for the link.
    fn tx_burst(
        &self,
        _section: &Section<'_>,
        lane: port::Lane,
        heads: &Heads,
        tails: &Tails<'_>,
        picks: &[Pick],
    ) -> Sent {
        let mut sent = Sent::default();
        let at = usize::from(lane.worker);
        let (Some(lane), Some(counts)) = (self.vtep.lanes.get(at), self.counts.get(at)) else {
            sent.stop = Stop::Down;
            return sent;
        };
        let mut fates = Fates {
            lost: 0,
            reasons: [Drop::KernelRefused; windlass_frame::BURST],
        };
        let load = (&counts.load, counts.bytes.get());
        let (ports, used) = self.vtep.ports(lane, load, heads, picks);
        let mut datagrams = 0;
        for port in (0..PORTS_MAX).filter(|port| used >> port & 1 != 0) {
            let here = ports.iter().zip(picks).enumerate();
            let here = here.filter(|(_, (its, _))| **its == port);
            let here = here.map(|(number, (_, pick))| (number, pick));
            datagrams += self.send_from((lane, port.into()), heads, tails, here, &mut fates);
        }
        if datagrams > picks.len() {
            sent.segments = datagrams as u64;
        }
        for (number, pick) in picks.iter().enumerate() {
            match fates.lost & 1 << number {
                0 => {
                    let tag = if pick.tagged() { 4 } else { 0 };
                    sent.frames += 1;
                    sent.bytes += u64::from(heads.meta[pick.index()].len) + tag;
                }
                _ => sent.drop_frame(fates.reasons[number]),
            }
            sent.taken += 1;
        }
        counts.frames.add(sent.frames);
        counts.bytes.add(sent.bytes);
        sent
    }

    fn kick(&self, _lane: port::Lane) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the kernel says leads to a reason; whatever else it may say is `kernel-refused`, and counted.
    #[test]
    fn every_refusal_has_a_reason() {
        let reasons = [
            (Errno::AGAIN, Drop::UnderlayFull),
            (Errno::NOBUFS, Drop::UnderlayFull),
            (Errno::MSGSIZE, Drop::TooBig),
            (Errno::FAULT, Drop::PeerFault),
            (Errno::HOSTUNREACH, Drop::UnderlayUnreachable),
            (Errno::ADDRNOTAVAIL, Drop::UnderlayUnreachable),
            (Errno::INVAL, Drop::UnderlayUnreachable),
            (Errno::PERM, Drop::KernelRefused),
        ];
        for (errno, expected) in reasons {
            assert_eq!(reason(errno), expected, "{errno}");
        }
    }
}
