//! What the control thread asks of a worker, through its mailbox.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::SyncSender;

use windlass_attach::port::RxPort;
use windlass_bridge::fdb::FdbWriter;
use windlass_frame::{FloodId, RxId, Tick};
use windlass_stats::{MemberCounters, Padded};

use crate::capture::Watch;
use crate::grace::QsbrGrace;
use crate::questions::Answer;
use crate::ring::RxRing;
use crate::worker::Handover;

/// Work on a forwarding table, done by its home worker.
pub(crate) type FdbWork = Box<dyn FnOnce(&mut FdbWriter<QsbrGrace>, Tick) + Send>;

/// A request to a worker.
pub(crate) enum Command {
    /// Take a receive ring over and poll it.
    Adopt(Box<RxRing>),
    /// Have another worker adopt a ring.
    MoveRing {
        member: u16,
        ring: u16,
        to: u16,
        handover: Arc<Handover>,
    },
    /// Give the receive halves of a member back. No topology may have it any more: `counters` and captures are its own.
    Detach {
        member: u16,
        counters: Arc<[Padded<MemberCounters>]>,
        watches: Arc<[Watch]>,
        done: SyncSender<Vec<Box<dyn RxPort>>>,
    },
    /// Become the home of a bridge's table, in the place of the one before, if there is one: so a bridge has a writer at any
    /// time.
    Home {
        bridge: u16,
        writer: Box<FdbWriter<QsbrGrace>>,
    },
    /// Have another worker become the home.
    MoveHome {
        bridge: u16,
        to: u16,
        handover: Arc<Handover>,
    },
    /// Answer.
    Ready(SyncSender<()>),
    /// Stop being its home.
    Leave { bridge: u16, done: SyncSender<()> },
    /// Work on a table.
    Fdb { bridge: u16, work: FdbWork },
    /// Send a frame out of a member.
    Send {
        member: u16,
        /// As whom.
        from: RxId,
        frame: Box<[u8]>,
        /// Frames that wait in mailboxes.
        waiting: Arc<AtomicUsize>,
    },
    /// Send a frame to the members of a set.
    Relay {
        bridge: u16,
        frame: Box<Relayed>,
        waiting: Arc<AtomicUsize>,
    },
    /// The search of an overlay has answered, or the table has what it answered.
    Answer(Answer),
    /// Leave all rings alone, send what is in private memory, and answer how many frames of it were dropped instead.
    Rest {
        patience_ns: u64,
        done: SyncSender<u64>,
    },
    /// Go on with the rings after that.
    GoOn,
    /// End.
    Stop,
}

/// A frame that the daemon has read, or has made, for the members of a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relayed {
    /// Who sent it, and does not get it; `None`: the daemon.
    pub from: Option<u16>,
    /// Its VLAN; 0 on a bridge that does not filter.
    pub vid: u16,
    /// Who gets it.
    pub set: FloodId,
    /// Without a tag.
    pub bytes: Vec<u8>,
}

/// A port that a worker found dead.
#[derive(Clone, Copy, Debug)]
pub struct Condemned {
    /// Whose it is.
    pub member: u16,
    /// What was found.
    pub reason: &'static str,
    /// Which attachment of the member it belongs to.
    pub(crate) attachment: u64,
}
