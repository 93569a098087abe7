//! A switch that moves descriptors only: what a generator reaches with it is the generator's own limit.
//!
//! Two clients. A frame is taken from one and completed on the other with its length; no byte of it is read or
//! written. A full receiver is waited for, so nothing is lost.

use anyhow::{Result, bail};
use windlass_attach::memif::layout::Desc;

use crate::memif::{Listener, Peer, Ring};

/// Frames moved at once.
const BURST: u16 = 64;

/// Whether a client is gone is asked once in so many rounds.
const ROUNDS_BETWEEN_CHORES: u32 = 1 << 16;

/// Takes two clients and moves descriptors between them until one goes away.
///
/// # Errors
/// If a client breaks the protocol, or both ask for the same interface.
pub fn serve(listener: &Listener) -> Result<()> {
    let first = listener.accept()?;
    let second = listener.accept()?;
    if first.id == second.id {
        bail!("both clients asked for interface {}", first.id);
    }
    let mut lanes = [Lane::new(&first, &second), Lane::new(&second, &first)];
    loop {
        for _ in 0..ROUNDS_BETWEEN_CHORES {
            let moved = lanes.each_mut().map(Lane::shift);
            if moved == [0, 0] {
                std::hint::spin_loop();
            }
        }
        if first.is_gone() || second.is_gone() {
            return Ok(());
        }
    }
}

/// One direction.
struct Lane<'p> {
    from: Ring<'p>,
    to: Ring<'p>,
    from_tail: u16,
    to_tail: u16,
    to_head_seen: u16,
}

impl<'p> Lane<'p> {
    fn new(from: &'p Peer, to: &'p Peer) -> Lane<'p> {
        let (from, to) = (from.from_client(), to.from_server());
        Lane {
            from,
            to,
            from_tail: from.tail(),
            to_tail: to.tail(),
            to_head_seen: to.head(),
        }
    }

    /// Moves what is there and fits, up to a burst.
    fn shift(&mut self) -> u16 {
        let waiting = self.from.head().wrapping_sub(self.from_tail).min(BURST);
        if waiting == 0 {
            return 0;
        }
        if self.to_head_seen.wrapping_sub(self.to_tail) < waiting {
            self.to_head_seen = self.to.head();
        }
        let count = waiting.min(self.to_head_seen.wrapping_sub(self.to_tail));
        for i in 0..count {
            let desc = self.from.desc_start(self.from_tail.wrapping_add(i));
            let length = desc.length;
            let done = Desc {
                length,
                ..Desc::default()
            };
            self.to.set_desc_start(self.to_tail.wrapping_add(i), done);
        }
        self.to_tail = self.to_tail.wrapping_add(count);
        self.from_tail = self.from_tail.wrapping_add(count);
        self.to.set_tail(self.to_tail);
        self.from.set_tail(self.from_tail);
        count
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::generator::{Plan, Sink, announce, run_latency, run_rate};
    use crate::memif::{Port, PortOptions};

    /// The generator speaks to a server over a real socket and real shared memory: every frame that was sent is
    /// counted, with both sinks, and single frames come back.
    #[test]
    fn generator_counts_what_it_sends() {
        let name = format!("windlass-null-{}.sock", std::process::id());
        let path = std::env::temp_dir().join(name);
        let listener = Listener::bind(&path).unwrap();
        let switch = std::thread::spawn(move || serve(&listener).map_err(|e| format!("{e:#}")));
        let port = |id| {
            let options = PortOptions {
                id,
                log2_ring: 8,
                from_server: 0,
            };
            Port::connect(&path, &options).unwrap()
        };
        let (sender, sink) = (port(0), port(1));
        let (mut sending, mut sinking) = (sender.ends(), sink.ends());
        announce(&mut sending, &mut sinking, 100).unwrap();
        let mut plan = Plan {
            size: 200,
            flows: 1,
            addresses: 100,
            sink: Sink::Count,
            warm: Duration::from_millis(10),
            time: Duration::from_millis(50),
        };
        for kind in [Sink::Count, Sink::Check] {
            plan.sink = kind;
            let report = run_rate(&mut sending, &mut sinking, &plan).unwrap();
            assert!(report.sent > 0);
            assert_eq!(
                (report.lost, report.wrong_length, report.wrong_bytes),
                (0, 0, 0),
                "{report:?}"
            );
        }
        let report = run_latency(&mut sending, &mut sinking, &plan).unwrap();
        assert!(
            report.lost == 0 && report.p50_ns <= report.p99_ns,
            "{report:?}"
        );
        drop((sender, sink));
        assert_eq!(switch.join().unwrap(), Ok(()));
    }
}
