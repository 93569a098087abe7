//! What the simulation knows of owners and frames, and what must never happen.

use std::collections::BTreeMap;
use std::sync::Arc;

use windlass_bridge::fdb::Entry;

use super::port::{Pipe, Sink};

/// The first number of the daemon's own frames.
const OWN: u64 = 1 << 48;
/// A type of frames that is not IP's, and IP's.
pub(super) const OTHER: u16 = 0x88b5;
pub(super) const IP: u16 = 0x0800;
/// An address that ends at the bridge.
pub(super) const RESERVED: u64 = 0x00c2_8001;
/// The time within which a worker does not report an address again.
pub(super) const REPEAT_NS: u64 = 1_000_000;

/// Where an owner is between its making and its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
pub(super) enum Stage {
    /// Made; its address is not in the table yet.
    Made,
    /// Nobody is connected.
    Down,
    /// Its rings are with the workers.
    Up,
    /// Its rings were asked back, and not every worker has answered.
    Leaving,
    /// It is being taken away.
    Going,
    /// Its number may be another's.
    Gone,
}

/// How a frame came to its receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Way {
    /// To it alone.
    Direct,
    /// As one of several.
    Flooded,
    /// Either: it had to wait for the ring.
    Held,
}

/// One owner of a member number.
pub(super) struct Owner {
    pub(super) number: u16,
    /// Which bridge of all that ever were.
    pub(super) bridge: usize,
    pub(super) mac: u64,
    pub(super) may_use_others: bool,
    /// It may send no frames but of IP and ARP.
    pub(super) is_restricted: bool,
    pub(super) stage: Stage,
    pub(super) pipes: Vec<Arc<Pipe>>,
    pub(super) sink: Option<Arc<Sink>>,
    /// Sources of its frames that were fetched, with the time of the last one.
    pub(super) used: BTreeMap<u64, u64>,
    /// When the table last forgot what was learned behind it.
    pub(super) flushed: u64,
    /// When its own address was entered; the event.
    pub(super) entered: Option<u64>,
    /// Frames that workers fetched from it, and that its former sinks were given.
    pub(super) fetched: u64,
    pub(super) given: u64,
    /// Frames from it that bridges had for the daemon, once it is gone.
    pub(super) local: u64,
    /// Frames that the daemon sent out of it.
    pub(super) own: u64,
}

/// One frame.
pub(super) struct Frame {
    from: usize,
    pipe: u64,
    dst: u64,
    src: u64,
    /// Its sender may not send it.
    is_forbidden: bool,
    /// The event at which a worker fetched it.
    fetched: Option<u64>,
    to: Vec<usize>,
}

/// All owners and frames that ever were.
#[derive(Default)]
pub(super) struct Model {
    pub(super) owners: Vec<Owner>,
    frames: Vec<Frame>,
    /// Last frame of a flow, or of its floods, that a sink was given.
    order: BTreeMap<(u64, u64, u64, usize, Option<Way>), usize>,
    /// By pipe and source: the last frame that the daemon got. Others may pass it where they wait for a rate.
    heard_last: BTreeMap<(u64, u64), u64>,
    /// Frames of the daemon: for which owner.
    own: Vec<usize>,
    /// By owner: the last of them that it was given.
    own_last: BTreeMap<usize, u64>,
    /// Frames that the daemon got.
    pub(super) heard: u64,
    /// Things that happened so far.
    pub(super) events: u64,
}

impl Owner {
    /// One that was just made on a bridge, the `at`th of all.
    pub(super) fn new(at: usize, bridge: usize, now: u64) -> Owner {
        Owner {
            number: 0,
            bridge,
            mac: u64::from_le_bytes([0x02, 0, 0, bridge as u8, (at >> 8) as u8, at as u8, 0, 0]),
            may_use_others: false,
            is_restricted: false,
            stage: Stage::Made,
            pipes: Vec::new(),
            sink: None,
            used: BTreeMap::new(),
            flushed: now,
            entered: None,
            fetched: 0,
            given: 0,
            local: 0,
            own: 0,
        }
    }
}

impl Model {
    pub(super) fn event(&mut self) -> u64 {
        self.events += 1;
        self.events
    }

    /// A frame that a peer is about to put into a ring.
    pub(super) fn make(&mut self, from: usize, pipe: u64, dst: u64, src: u64, kind: u16) -> u64 {
        let is_forbidden = self.owners[from].is_restricted && kind == OTHER;
        self.frames.push(Frame {
            is_forbidden,
            from,
            pipe,
            dst,
            src,
            fetched: None,
            to: Vec::new(),
        });
        self.frames.len() as u64 - 1
    }

    /// A frame that the daemon is about to send.
    pub(super) fn make_own(&mut self, to: usize) -> u64 {
        self.own.push(to);
        OWN + self.own.len() as u64 - 1
    }

    fn deliver_own(&mut self, to: usize, number: u64) {
        let meant = self.own[(number - OWN) as usize];
        assert_eq!(to, meant, "frame {number} of the daemon");
        let last = self.own_last.insert(to, number);
        assert!(last.is_none_or(|last| last < number), "{last:?}, {number}");
    }

    /// A worker fetched a frame.
    pub(super) fn fetch(&mut self, number: u64, now: u64) {
        let event = self.event();
        let frame = &mut self.frames[number as usize];
        assert!(frame.fetched.is_none(), "frame {number} is fetched twice");
        frame.fetched = Some(event);
        let owner = &mut self.owners[frame.from];
        owner.fetched += 1;
        // What ends at the bridge or before it teaches nothing.
        if frame.dst != RESERVED && !frame.is_forbidden {
            owner.used.insert(frame.src, now);
        }
    }

    /// A worker gives a frame to an owner.
    pub(super) fn deliver(&mut self, to: usize, number: u64, way: Way) {
        self.event();
        if number >= OWN {
            return self.deliver_own(to, number);
        }
        let frame = &mut self.frames[number as usize];
        let fetched = frame.fetched.expect("only frames that were fetched");
        let (receiver, sender) = (&self.owners[to], &self.owners[frame.from]);
        assert_ne!(to, frame.from, "a frame goes back to its sender");
        assert_eq!(
            receiver.bridge, sender.bridge,
            "frame {number} leaves its bridge"
        );
        assert_ne!(frame.dst, RESERVED, "frame {number} is forwarded");
        assert!(!frame.is_forbidden, "frame {number} may not be sent");
        let is_group = frame.dst & 1 == 1;
        let holder = self.owners.iter().position(|owner| {
            let is_there = owner.entered.is_some_and(|at| at < fetched);
            is_there && owner.mac == frame.dst && owner.bridge == receiver.bridge
        });
        if let Some(holder) = holder.filter(|at| self.owners[*at].stage < Stage::Going) {
            assert_eq!(to, holder, "frame {number} is for another owner");
        }
        let uses = receiver.mac == frame.dst || receiver.used.contains_key(&frame.dst);
        assert!(
            way != Way::Direct || is_group || uses,
            "frame {number} goes to owner {to}, who never used its destination {:x}",
            frame.dst
        );
        assert!(
            !frame.to.contains(&to),
            "frame {number} is given to {to} twice"
        );
        frame.to.push(to);
        // A frame to an address that has become known can overtake floods to it that wait.
        let way = (!is_group && holder.is_none()).then_some(way);
        if way == Some(Way::Held) {
            return;
        }
        let flow = (frame.pipe, frame.dst, frame.src, to, way);
        let last = self.order.insert(flow, number as usize);
        assert!(
            last.is_none_or(|last| last < number as usize),
            "frame {number} comes behind frame {last:?} of its flow"
        );
    }

    /// The daemon gets a frame, which came from a member.
    pub(super) fn hear(&mut self, number: u64, member: u16) {
        self.event();
        self.heard += 1;
        let frame = &self.frames[number as usize];
        assert!(frame.fetched.is_some(), "only frames that were fetched");
        assert_eq!(frame.dst, RESERVED, "frame {number} is not the daemon's");
        assert!(!frame.is_forbidden, "frame {number} may not be sent");
        let owner = &self.owners[frame.from];
        let is_there = owner.pipes.iter().any(|pipe| pipe.number == frame.pipe);
        assert!(
            is_there && owner.number == member,
            "frame {number} is told of member {member}, who did not send it"
        );
        let last = self.heard_last.insert((frame.pipe, frame.src), number);
        assert!(
            last.is_none_or(|last| last < number),
            "the daemon gets frame {number} behind {last:?}"
        );
    }

    /// Whether an owner was given a frame.
    pub(super) fn has(&self, owner: usize, number: u64) -> bool {
        self.frames[number as usize].to.contains(&owner)
    }

    /// Owners in these stages.
    pub(super) fn all(&self, of: impl Fn(Stage) -> bool) -> Vec<usize> {
        let owners = self.owners.iter().enumerate();
        owners
            .filter(|(_, owner)| of(owner.stage))
            .map(|(at, _)| at)
            .collect()
    }

    /// What a table may hold: only addresses of owners that are there, each behind a number whose owner has used it.
    /// Where only one owner has used an address, and nothing was lost (`is_unsure` of its number), it is there.
    pub(super) fn check_table(
        &self,
        bridge: usize,
        entries: &[Entry],
        lost: u64,
        is_unsure: impl Fn(u16) -> bool,
    ) {
        let live = self.all(|stage| stage != Stage::Gone);
        for entry in entries {
            let owner = live.iter().find(|at| {
                let owner = &self.owners[**at];
                owner.number == entry.member && owner.bridge == bridge
            });
            let owner = owner.map(|at| &self.owners[*at]);
            let mac = entry.key.mac();
            assert!(
                owner.is_some_and(|o| o.mac == mac || o.used.contains_key(&mac)),
                "address {mac:x} is behind member {}, whose owner never used it",
                entry.member
            );
        }
        if lost > 0 {
            return;
        }
        for at in live {
            let owner = &self.owners[at];
            if owner.bridge != bridge || !owner.may_use_others || is_unsure(owner.number) {
                continue;
            }
            for (mac, used) in &owner.used {
                let others = self.owners.iter().enumerate();
                let is_alone = others
                    .filter(|(other, o)| *other != at && o.bridge == bridge)
                    .all(|(_, o)| !o.used.contains_key(mac) && o.mac != *mac);
                if is_alone && used / REPEAT_NS > owner.flushed / REPEAT_NS {
                    let found = entries.iter().any(|entry| entry.key.mac() == *mac);
                    assert!(found, "address {mac:x} of owner {at} was never learned");
                }
            }
        }
    }
}
