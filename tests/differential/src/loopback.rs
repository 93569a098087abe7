//! [`Loopback`]: waits until the kernel has delivered what was sent over the loopback interface.
//!
//! # Model
//! The kernel queues a loopback packet on the processor that sends it, and delivers each queue in order, in a softirq. Where that
//! is left to a thread (ksoftirqd), a busy machine delivers an end of stream or a reset after the `close` that sent it has returned,
//! and after the peer's next call. A datagram that is sent and received on each processor arrives behind all of them.

use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::time::Duration;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// A segment may be answered, by a reset, behind the first datagram.
const ROUNDS: usize = 2;

/// A datagram that has not arrived by then is lost.
const PATIENCE: Duration = Duration::from_secs(5);

/// A socket that sends to itself.
pub(crate) struct Loopback {
    socket: UdpSocket,
}

impl Loopback {
    pub(crate) fn new() -> io::Result<Self> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        socket.connect(socket.local_addr()?)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        Ok(Self { socket })
    }

    /// Returns when all that was sent before has been delivered, and what was answered to it.
    ///
    /// # Errors
    /// A datagram was lost, or the thread may not run on a processor any more.
    pub(crate) fn drain(&self) -> io::Result<()> {
        let all = sched_getaffinity(None)?;
        for _ in 0..ROUNDS {
            for cpu in (0..CpuSet::MAX_CPU).filter(|cpu| all.is_set(*cpu)) {
                let mut one = CpuSet::new();
                one.set(cpu);
                sched_setaffinity(None, &one)?;
                self.socket.send(&[0])?;
                self.socket.recv(&mut [0])?;
            }
        }
        Ok(sched_setaffinity(None, &all)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The thread keeps its processors, and any number of rounds is made.
    #[test]
    fn drains() -> io::Result<()> {
        let before = sched_getaffinity(None)?;
        let loopback = Loopback::new()?;
        (0..100).try_for_each(|_| loopback.drain())?;
        assert_eq!(sched_getaffinity(None)?, before);
        Ok(())
    }
}
