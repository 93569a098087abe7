//! A port's two rings as the generator uses them.

use windlass_attach::memif::layout::Desc;

use super::{Port, Ring};
use crate::generator::{Ends, Inlet, Outlet};
use crate::memory::Memory;

impl Port {
    /// Both directions, from where the rings stand.
    #[must_use]
    pub fn ends(&self) -> Ends<MemifOut<'_>, MemifIn<'_>> {
        let (tx, rx) = (self.tx(), self.rx());
        Ends {
            outlet: MemifOut {
                port: self,
                ring: tx,
            },
            inlet: MemifIn {
                port: self,
                ring: rx,
            },
        }
    }
}

/// The ring to the switch.
pub struct MemifOut<'p> {
    port: &'p Port,
    ring: Ring<'p>,
}

impl Outlet for MemifOut<'_> {
    fn memory(&self) -> &Memory {
        self.port.memory()
    }

    fn slots(&self) -> u16 {
        self.ring.size()
    }

    fn next_slot(&self) -> u16 {
        self.port.stand().head.get() & (self.ring.size() - 1)
    }

    fn buffer(&self, slot: u16) -> u32 {
        self.port.tx_buffer(slot)
    }

    #[inline]
    fn send(&mut self, count: u16, size: u32, mut prepare: impl FnMut(&Memory, u16, u32)) -> bool {
        let stand = self.port.stand();
        let head = stand.head.get();
        let free = |tail: u16| self.ring.size() - head.wrapping_sub(tail);
        if free(stand.tail_seen.get()) < count {
            stand.tail_seen.set(self.ring.tail());
            if free(stand.tail_seen.get()) < count {
                return false;
            }
        }
        let mask = self.ring.size() - 1;
        for i in 0..count {
            let index = head.wrapping_add(i);
            let offset = self.port.tx_buffer(index & mask);
            prepare(self.port.memory(), i, offset);
            let desc = Desc {
                length: size,
                offset,
                ..Desc::default()
            };
            self.ring.set_desc(index, desc);
        }
        let head = head.wrapping_add(count);
        stand.head.set(head);
        self.ring.set_head(head);
        // The index before the flags: without it both sides can miss each other.
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        if self.ring.wants_interrupt() {
            self.port.kick();
        }
        true
    }

    fn is_drained(&mut self) -> bool {
        self.ring.tail() == self.port.stand().head.get()
    }
}

/// The ring from the switch.
pub struct MemifIn<'p> {
    port: &'p Port,
    ring: Ring<'p>,
}

impl Inlet for MemifIn<'_> {
    fn memory(&self) -> &Memory {
        self.port.memory()
    }

    fn slots(&self) -> u16 {
        self.ring.size()
    }

    fn buffer(&self, slot: u16) -> u32 {
        self.port.rx_buffer(slot)
    }

    #[inline]
    fn take(&mut self, most: u16, mut look: impl FnMut(&Memory, u32, Option<u32>)) -> u16 {
        let stand = self.port.stand();
        let next = stand.next.get();
        let count = self.ring.tail().wrapping_sub(next).min(most);
        if count == 0 {
            return 0;
        }
        let mask = self.ring.size() - 1;
        for i in 0..count {
            let index = next.wrapping_add(i);
            let slot = index & mask;
            let desc = self.ring.desc_start(index);
            let length = (!desc.goes_on()).then_some(desc.length);
            look(self.port.memory(), self.port.rx_buffer(slot), length);
            self.ring.set_desc_start(index, self.port.empty(slot));
        }
        let next = next.wrapping_add(count);
        stand.next.set(next);
        self.ring.set_head(next.wrapping_add(self.ring.size()));
        count
    }
}
