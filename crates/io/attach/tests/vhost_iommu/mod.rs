//! A guest behind an IOMMU with its front end, which answers for addresses only when a test says so.
//!
//! Pages lie in the order of the device's addresses the other way round than in memory: what is in one piece for the
//! device never is for us.
#![allow(dead_code, missing_docs)]

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use windlass_attach::vhost_user::features::{ACCESS_PLATFORM, RING_PACKED};
use windlass_attach::vhost_user::message::{
    BACKEND_IOTLB_MSG, Code, HEADER_BYTES, Iotlb, protocol, queue_state,
};
use windlass_sys::eventfd;
use windlass_sys::unix::{self, SocketKind};

use crate::vhost_drive::{Guest, HIGH_BYTES, LOW_BYTES, Layout};
use crate::vhost_front::*;

pub const PAGE: u64 = 4096;
pub const READ: u8 = 1;
pub const WRITE: u8 = 2;
pub const BOTH: u8 = 3;
const MISS: u8 = 1;
const UPDATE: u8 = 2;
const INVALIDATE: u8 = 3;
/// The device's address of the last page in memory.
pub const IOVA: u64 = 0x5000_0000_0000;
pub const PAGES: u64 = (LOW_BYTES + HIGH_BYTES) / PAGE;
pub const BUFFER: u32 = 2048;

/// The device's address of a place in memory, as the guest has mapped it to begin with.
pub fn iova_of(offset: u64) -> u64 {
    IOVA + (PAGES - 1 - offset / PAGE) * PAGE + offset % PAGE
}

/// Where buffer `id` of queue `queue` is for the device: across the border of two pages.
pub fn buffer(queue: usize, id: u16) -> u64 {
    let number = queue as u64 * u64::from(RING) + u64::from(id);
    IOVA + number * 2 * PAGE + PAGE - 600
}

pub struct Machine {
    pub guest: Arc<Guest>,
    pub front: Front,
    pub queues: Vec<Queue>,
    /// Our end of the back end's own socket.
    pub channel: OwnedFd,
    /// Where a page of the device is in memory, if not where [`iova_of`] says.
    pub moved: HashMap<u64, u64>,
}

pub fn payload(kind: u8, iova: u64, len: u64, user: u64, perm: u8) -> Vec<u8> {
    Iotlb {
        iova,
        len,
        user,
        perm,
        kind,
    }
    .encode()
}

/// Everything up to the rings, and the socket.
pub fn negotiate(host: &mut Host, front: &Front, features: u64) -> OwnedFd {
    let offered = front.ask_word(host, Code::GET_FEATURES);
    assert_ne!(offered & ACCESS_PLATFORM, 0);
    let offered = front.ask_word(host, Code::GET_PROTOCOL_FEATURES);
    assert_ne!(offered & protocol::BACKEND_REQ, 0);
    let wanted = PROTOCOL | protocol::BACKEND_REQ;
    front.say_word(Code::SET_PROTOCOL_FEATURES, wanted);
    let (ours, theirs) = unix::pair(SocketKind::Stream).expect("a pair");
    let said = front.acknowledged(host, Code::SET_BACKEND_REQ_FD, &[], &[theirs.as_fd()]);
    assert_eq!(said, 0);
    front.say(Code::SET_OWNER, &[], &[]);
    front.say_word(Code::SET_FEATURES, features | ACCESS_PLATFORM);
    ours
}

/// Connects, and tells everything about a guest whose memory says where its rings stand in `kept`, if it does; returns our
/// ends.
fn introduce(
    host: &mut Host,
    path: &Path,
    (guest, queues): (&Arc<Guest>, &[Queue]),
    features: u64,
    kept: Option<&(Vec<u8>, OwnedFd)>,
) -> (Front, OwnedFd) {
    let front = Front::connect(host, path);
    let (packed, base) = match queues[0].ring.setup(0).is_packed() {
        false => (0, 0),
        true => (RING_PACKED, 0x8000_8000),
    };
    let channel = negotiate(host, &front, features | packed);
    let fds = [guest.file.as_fd(), guest.file.as_fd()];
    front.say(Code::SET_MEM_TABLE, &table_payload(&table()), &fds);
    if let Some((payload, file)) = kept {
        front.say(Code::SET_INFLIGHT_FD, payload, &[file.as_fd()]);
    }
    for queue in queues {
        let setup = queue.ring.setup(0);
        let mut address = queue_state(queue.number, 0).to_vec();
        for gpa in [setup.desc, setup.used, setup.avail] {
            let iova = iova_of(Guest::offset(gpa) as u64);
            address.extend(iova.to_ne_bytes());
        }
        address.extend(0u64.to_ne_bytes());
        for (code, payload, fd) in queue.words(base) {
            let payload = match code {
                Code::SET_VRING_ADDR => address.clone(),
                _ => payload,
            };
            front.say(code, &payload, fd.as_slice());
        }
    }
    (front, channel)
}

impl Machine {
    pub fn start(host: &mut Host, path: &Path, layout: Layout, features: u64) -> Machine {
        let guest = Guest::new();
        let queue = |number| Queue::new(&guest, layout, number);
        let queues = (0..2).map(queue).collect();
        Machine::of(host, path, (guest, queues), features)
    }

    /// The same with rings that somebody else has made.
    pub fn of(
        host: &mut Host,
        path: &Path,
        (guest, queues): (Arc<Guest>, Vec<Queue>),
        features: u64,
    ) -> Machine {
        let (front, channel) = introduce(host, path, (&guest, &queues), features, None);
        host.until_up();
        Machine {
            guest,
            front,
            queues,
            channel,
            moved: HashMap::new(),
        }
    }

    /// The same guest with another back end, as QEMU does it: it says of each ring where it stood when it was started, and
    /// nothing of translations.
    pub fn reconnect(
        &mut self,
        host: &mut Host,
        path: &Path,
        features: u64,
        kept: Option<&(Vec<u8>, OwnedFd)>,
    ) {
        let known = (&self.guest, &self.queues[..]);
        (self.front, self.channel) = introduce(host, path, known, features, kept);
        host.until_up();
    }

    /// Where the device's address is in memory.
    pub fn offset(&self, iova: u64) -> u64 {
        let page = iova - iova % PAGE;
        let regular = (PAGES - 1 - (page - IOVA) / PAGE) * PAGE;
        self.moved.get(&page).copied().unwrap_or(regular) + iova % PAGE
    }

    /// The next question, if there is one: the address and the access.
    pub fn question(&self) -> Option<(u64, u8)> {
        let mut bytes = [0; HEADER_BYTES + 32];
        let came = unix::receive_with_fds(&self.channel, &mut bytes, 0).ok()?;
        assert_eq!(came.bytes, bytes.len(), "a whole question");
        let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
        assert_eq!((word(0), word(4), word(8)), (BACKEND_IOTLB_MSG.0, 1, 32));
        let iova = u64::from_ne_bytes(bytes[12..20].try_into().unwrap());
        assert_eq!(bytes[37], MISS);
        Some((iova, bytes[36]))
    }

    /// What is asked, once the endpoint has been given some time.
    pub fn questions(&self, host: &mut Host) -> Vec<(u64, u8)> {
        (0..20).for_each(|_| host.step());
        std::iter::from_fn(|| self.question()).collect()
    }

    /// Tells where the device's page is.
    pub fn tell(&self, host: &mut Host, page: u64, perm: u8) -> u64 {
        let user = USER + self.offset(page);
        let bytes = payload(UPDATE, page, PAGE, user, perm);
        self.front.acknowledged(host, Code::IOTLB_MSG, &bytes, &[])
    }

    /// Takes a range back; returns behind the acknowledgement.
    pub fn take_back(&self, host: &mut Host, iova: u64, len: u64) {
        let bytes = payload(INVALIDATE, iova, len, 0, 0);
        let said = self.front.acknowledged(host, Code::IOTLB_MSG, &bytes, &[]);
        assert_eq!(said, 0);
    }

    /// Answers what was asked, with full access; how much that was.
    pub fn answer(&self, host: &mut Host) -> usize {
        let asked = self.questions(host);
        for (iova, perm) in &asked {
            assert!((READ..=BOTH).contains(perm) && iova % PAGE == 0);
            assert_eq!(self.tell(host, *iova, BOTH), 0);
        }
        asked.len()
    }

    /// The bytes at the device's addresses, page by page.
    pub fn each_page(
        iova: u64,
        len: usize,
    ) -> impl Iterator<Item = (u64, core::ops::Range<usize>)> {
        let mut at = 0;
        core::iter::from_fn(move || {
            let from = iova + at as u64;
            let n = ((PAGE - from % PAGE) as usize).min(len - at);
            let range = at..at + n;
            at += n;
            (n != 0).then_some((from, range))
        })
    }

    pub fn write(&self, iova: u64, bytes: &[u8]) {
        for (from, range) in Self::each_page(iova, bytes.len()) {
            assert!(self.guest.memory.write(self.offset(from), &bytes[range]));
        }
    }

    pub fn read(&self, iova: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        for (from, range) in Self::each_page(iova, len) {
            assert!(self.guest.memory.read(self.offset(from), &mut bytes[range]));
        }
        bytes
    }

    /// Has the guest send a frame: header and frame as one piece, or apart, or by a table.
    pub fn send(&mut self, id: u16, frame: &[u8]) {
        let at = buffer(1, id);
        self.write(at, &[0; 12]);
        self.write(at + 12, frame);
        let len = frame.len() as u32;
        let ring = &mut self.queues[1].ring;
        match id % 3 {
            0 => ring.add(id, &[(at, len + 12)], None, 0),
            // Across the border of two pages too, of which neither is the other's neighbour.
            1 => {
                let table = iova_of(LOW_BYTES + u64::from(id) * 2 * PAGE) + PAGE - 16;
                let list = [(at, 12), (at + 12, len)];
                let bytes = table_bytes(ring.setup(0).is_packed(), &list);
                let count = bytes.len() as u32;
                let page = self.offset(table);
                assert!(self.guest.memory.write(page, &bytes[..16]));
                let next = self.offset(table + 16);
                assert!(self.guest.memory.write(next, &bytes[16..]));
                let ring = &mut self.queues[1].ring;
                ring.add(id, &[(table, count)], None, crate::vhost_drive::INDIRECT);
            }
            _ => ring.add(id, &[(at, 700), (at + 700, len + 12 - 700)], None, 0),
        }
        self.queues[1].ring.publish();
        let _ = eventfd::signal(&self.queues[1].kick);
    }

    /// Gives the guest a buffer to receive into.
    pub fn offer(&mut self, id: u16) {
        self.queues[0].ring.offer_one(id, buffer(0, id), BUFFER, 2);
    }
}

fn table_bytes(packed: bool, list: &[(u64, u32)]) -> Vec<u8> {
    let each = |(k, (addr, len)): (usize, &(u64, u32))| {
        let goes_on = u16::from(k + 1 < list.len());
        match packed {
            false => crate::vhost_drive::Virtq::desc_bytes(*addr, *len, goes_on, k as u16 + 1),
            true => crate::vhost_drive::Packedq::desc_bytes(*addr, *len, 0, 0),
        }
    };
    list.iter().enumerate().flat_map(each).collect()
}
