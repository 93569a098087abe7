//! A guest's side of a packed virtqueue.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use windlass_attach::vhost_user::features::{RING_PACKED, VERSION_1};
use windlass_attach::vhost_user::packed::{DESC_AVAIL, DESC_USED, EVENT_WRAP};
use windlass_attach::vhost_user::{Base, QueueSetup};

use super::{Driver, Guest, INDIRECT, LOW, NEXT};

/// The driver's side of one packed ring.
pub struct Packedq {
    pub guest: Arc<Guest>,
    pub desc: u64,
    pub driver_event: u64,
    pub device_event: u64,
    pub size: u16,
    /// The next descriptor to be made available, and the lap's wrap counter.
    pub next: (u16, bool),
    /// The next descriptor to be used.
    pub used: (u16, bool),
    /// Heads that were written but for their flags: descriptor, flags.
    staged: Vec<(u16, u16)>,
    /// Chains that are with the device: id, descriptors.
    pub out: VecDeque<(u16, u16)>,
}

impl Packedq {
    /// The flags that make a descriptor available in a lap.
    pub fn available(wrap: bool) -> u16 {
        if wrap { DESC_AVAIL } else { DESC_USED }
    }

    /// Ring `number` of the guest, with at most 1,024 descriptors, that stands at `base`: a descriptor, and 0x8000 for
    /// the first wrap counter.
    pub fn new(guest: &Arc<Guest>, number: u64, size: u16, base: u16) -> Packedq {
        let at = LOW + number * 0x1_0000;
        Packedq::at(guest, at, (at + 0x5000, at + 0x6000), size, base)
    }

    /// A ring at any address.
    pub fn at(guest: &Arc<Guest>, desc: u64, events: (u64, u64), size: u16, base: u16) -> Packedq {
        let start = ((base & !EVENT_WRAP) % size, base & EVENT_WRAP != 0);
        Packedq {
            guest: guest.clone(),
            desc,
            driver_event: events.0,
            device_event: events.1,
            size,
            next: start,
            used: start,
            staged: Vec::new(),
            out: VecDeque::new(),
        }
    }

    pub fn step(&self, (slot, wrap): (u16, bool), n: u16) -> (u16, bool) {
        let sum = u32::from(slot) + u32::from(n);
        match sum.checked_sub(u32::from(self.size)) {
            None => (sum as u16, wrap),
            Some(slot) => (slot as u16, !wrap),
        }
    }

    pub fn desc_bytes(addr: u64, len: u32, id: u16, flags: u16) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&addr.to_le_bytes());
        bytes[8..12].copy_from_slice(&len.to_le_bytes());
        bytes[12..14].copy_from_slice(&id.to_le_bytes());
        bytes[14..].copy_from_slice(&flags.to_le_bytes());
        bytes
    }

    fn flags_at(&self, slot: u16) -> u64 {
        self.desc + u64::from(slot) * 16 + 14
    }

    pub fn get16(&self, gpa: u64) -> u16 {
        let at = Guest::offset(gpa);
        self.guest.memory.load_u16(at, Ordering::Acquire)
    }

    pub fn set16(&self, gpa: u64, value: u16) {
        let at = Guest::offset(gpa);
        self.guest.memory.store_u16(at, value, Ordering::Release);
    }

    /// Writes one descriptor in the ring as it is, flags included.
    pub fn set(&self, slot: u16, addr: u64, len: u32, id: u16, flags: u16) {
        let bytes = Self::desc_bytes(addr, len, id, flags);
        self.guest.write(self.desc + u64::from(slot) * 16, &bytes);
    }

    /// Makes descriptors available from `next` on as one chain, whatever they say; the head's flags wait for
    /// [`Driver::publish`].
    pub fn add_raw(&mut self, id: u16, list: &[(u64, u32, u16)]) {
        let mut at = self.next;
        for (k, (addr, len, flags)) in list.iter().enumerate() {
            let goes_on = if k + 1 < list.len() { NEXT } else { 0 };
            let flags = flags | goes_on | Self::available(at.1);
            if k == 0 {
                self.staged.push((at.0, flags));
                let high = at.0;
                self.guest
                    .write(self.desc + u64::from(high) * 16, &addr.to_le_bytes());
                let at = self.desc + u64::from(high) * 16 + 8;
                self.guest.write(at, &len.to_le_bytes());
                self.guest.write(at + 4, &id.to_le_bytes());
            } else {
                self.set(at.0, *addr, *len, id, flags);
            }
            at = self.step(at, 1);
        }
        self.next = at;
        self.out.push_back((id, list.len() as u16));
    }

    /// Whether the device wants to hear of the descriptors from `old` to `new`.
    pub fn wants_kick(&self, old: (u16, bool), new: (u16, bool)) -> bool {
        let event = self.get16(self.device_event);
        match self.get16(self.device_event + 2) {
            0 => true,
            1 => false,
            _ => {
                let mut at = old;
                while at != new {
                    let wrap = if at.1 { EVENT_WRAP } else { 0 };
                    if event == at.0 | wrap {
                        return true;
                    }
                    at = self.step(at, 1);
                }
                false
            }
        }
    }
}

impl Driver for Packedq {
    fn guest(&self) -> &Arc<Guest> {
        &self.guest
    }

    fn setup(&self, features: u64) -> QueueSetup {
        QueueSetup {
            map: self.guest.map.clone(),
            desc: self.desc,
            avail: self.driver_event,
            used: self.device_event,
            size: self.size,
            base: Base::packed(self.used.0, self.used.1),
            features: features | VERSION_1 | RING_PACKED,
            kick: None,
            call: None,
            log: None,
        }
    }

    fn add(&mut self, id: u16, list: &[(u64, u32)], table: Option<u64>, flags: u16) {
        let Some(gpa) = table else {
            let list: Vec<_> = list.iter().map(|(a, n)| (*a, *n, flags)).collect();
            return self.add_raw(id, &list);
        };
        for (k, (addr, len)) in list.iter().enumerate() {
            // As DPDK's driver leaves it: some number, and whatever kind the first has where we only read.
            let kind = if k == 0 { 2 } else { flags };
            let bytes = Self::desc_bytes(*addr, *len, 77, kind);
            self.guest.write(gpa + k as u64 * 16, &bytes);
        }
        self.add_raw(id, &[(gpa, list.len() as u32 * 16, INDIRECT)]);
    }

    fn publish(&mut self) {
        for (slot, flags) in std::mem::take(&mut self.staged) {
            self.set16(self.flags_at(slot), flags);
        }
        fence(Ordering::SeqCst);
    }

    /// A used descriptor with the id of a later chain stands for all up to that one.
    fn reap(&mut self) -> Vec<(u16, u32)> {
        let mut got = Vec::new();
        while !self.out.is_empty() {
            let (slot, wrap) = self.used;
            let flags = self.get16(self.flags_at(slot));
            if (flags & DESC_AVAIL != 0) != wrap || (flags & DESC_USED != 0) != wrap {
                break;
            }
            let at = Guest::offset(self.desc + u64::from(slot) * 16);
            let len = self.guest.memory.load_u32(at + 8, Ordering::Relaxed);
            let id = self.get16(self.desc + u64::from(slot) * 16 + 12);
            let batch = 1 + self.out.iter().position(|c| c.0 == id).expect("a known id");
            for (k, (id, count)) in self
                .out
                .drain(..batch)
                .collect::<Vec<_>>()
                .into_iter()
                .enumerate()
            {
                self.used = self.step(self.used, count);
                got.push((id, if k + 1 == batch { len } else { 0 }));
            }
        }
        got
    }

    fn base(&self) -> Base {
        Base::packed(self.used.0, self.used.1)
    }
}
