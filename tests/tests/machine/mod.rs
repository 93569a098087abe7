//! A virtual machine that a test plays: its front end at a socket of the daemon, its memory, its pairs of queues.
#![allow(dead_code)]

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;

use windlass_attach::vhost_user::features::{MRG_RXBUF, RING_PACKED};
use windlass_attach::vhost_user::message::Code;
use windlass_sys::unix::{SocketKind, connect};
use windlass_tests::{until, until_some};

use crate::vhost_drive::{Guest, HEADER, HIGH, Layout, WRITE};
use crate::vhost_front::{FEATURES, Front, PROTOCOL, Queue, RING, table, table_payload};

/// The header of a frame (`struct virtio_net_hdr_v1`).
#[derive(Debug, PartialEq)]
pub struct Header {
    pub flags: u8,
    pub gso_type: u8,
    pub gso_size: u16,
    pub csum_start: u16,
    pub csum_offset: u16,
}

/// A virtual machine. It receives on its queues with even numbers, and transmits on the others.
pub struct Machine {
    pub front: Front,
    pub guest: Arc<Guest>,
    pub queues: Vec<Queue>,
    layout: Layout,
    /// It drops buffers that come back empty, as a device leaves them that was killed while it gave them back.
    pub takes_empty: bool,
    /// Bytes of a receive buffer of queue 0.
    buffer: u64,
}

impl Machine {
    /// Connects, and says nothing yet. `features`: besides those that every one of these machines has.
    pub fn connect(socket: &Path, layout: Layout, features: u64, pairs: u32) -> Machine {
        let socket = until_some("the socket is there", || {
            connect(socket, SocketKind::Stream).ok()
        });
        let guest = Guest::new();
        let queues = (0..pairs * 2).map(|number| Queue::new(&guest, layout, number));
        let queues = queues.collect();
        Machine {
            front: Front(socket),
            guest,
            queues,
            layout,
            takes_empty: false,
            buffer: if features & MRG_RXBUF != 0 {
                4096
            } else {
                0x1_1000
            },
        }
    }

    /// Says what was negotiated, and where the memory is.
    pub fn negotiate(&self, features: u64) {
        let packed = match self.layout {
            Layout::Split => 0,
            Layout::Packed => RING_PACKED,
        };
        self.front.say_word(Code::SET_PROTOCOL_FEATURES, PROTOCOL);
        self.front
            .say_word(Code::SET_FEATURES, FEATURES | packed | features);
        let fds = [self.guest.file.as_fd(), self.guest.file.as_fd()];
        self.front
            .say(Code::SET_MEM_TABLE, &table_payload(&table()), &fds);
    }

    /// Starts all queues, with buffers on the first.
    pub fn begin(&mut self) {
        let base = match self.layout {
            Layout::Split => 0,
            Layout::Packed => 0x8000_8000,
        };
        for id in 0..RING {
            self.offer(id);
        }
        for queue in &self.queues {
            queue.start(&self.front, base);
        }
    }

    /// All of this with one pair of queues.
    pub fn start(socket: &Path, layout: Layout, features: u64) -> Machine {
        let mut machine = Machine::connect(socket, layout, features, 1);
        machine.negotiate(features);
        machine.begin();
        machine
    }

    fn offer(&mut self, id: u16) {
        let at = HIGH + u64::from(id) * self.buffer;
        self.queues[0]
            .ring
            .offer_one(id, at, self.buffer as u32, WRITE);
    }

    /// Frames that came, with their headers; the buffers are offered again.
    pub fn received(&mut self) -> Vec<(Header, Vec<u8>)> {
        let came = self.queues[0].ring.reap();
        let mut frames = Vec::new();
        let full = came.iter().filter(|(_, len)| !self.takes_empty || *len > 0);
        let full: Vec<_> = full.copied().collect();
        let mut left = full.as_slice();
        while let Some((first, _)) = left.first() {
            let header = self
                .guest
                .read(HIGH + u64::from(*first) * self.buffer, HEADER);
            let half = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
            let (of, rest) = left.split_at(half(10).into());
            left = rest;
            let mut bytes = Vec::new();
            for (id, len) in of {
                let at = HIGH + u64::from(*id) * self.buffer;
                bytes.extend(self.guest.read(at, *len as usize));
            }
            let header = Header {
                flags: header[0],
                gso_type: header[1],
                gso_size: half(4),
                csum_start: half(6),
                csum_offset: half(8),
            };
            frames.push((header, bytes.split_off(HEADER)));
        }
        for (id, _) in came {
            self.offer(id);
        }
        frames
    }

    /// Sends a frame with this header.
    pub fn send(&mut self, header: &Header, frame: &[u8]) {
        let at = HIGH + 0x80_0000;
        let mut bytes = vec![header.flags, header.gso_type, 0, 0];
        for half in [header.gso_size, header.csum_start, header.csum_offset, 0] {
            bytes.extend(half.to_le_bytes());
        }
        bytes.extend(frame);
        self.guest.write(at, &bytes);
        let queue = &mut self.queues[1];
        queue.ring.offer_one(0, at, bytes.len() as u32, 0);
        windlass_sys::eventfd::signal(&queue.kick).expect("kicked");
        until("the frame is taken", || !queue.ring.reap().is_empty());
    }
}
