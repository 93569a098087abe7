//! Single frames at an interface: made by hand, sent and received as they are.

use std::cell::Cell;
use std::time::{Duration, Instant};

use windlass_sys::netlink::Netlink;
use windlass_sys::packet::{Membership, PacketOptions, PacketSocket};
use windlass_sys::{Errno, IoSlice, IoSliceMut};

use crate::Lab;

/// An Ethernet address.
pub type Mac = [u8; 6];

/// EtherType of the tests' frames: IEEE 802, local experimental 1.
pub const MARK: [u8; 2] = [0x88, 0xb5];

/// The address that is written like this.
pub fn mac(text: &str) -> Mac {
    let mut bytes = text
        .split(':')
        .map(|part| u8::from_str_radix(part, 16).expect("hex"));
    std::array::from_fn(|_| bytes.next().expect("six bytes"))
}

/// A tag of 802.1Q for this VID, to be put in front of the EtherType.
pub fn vlan_tag(vid: u16) -> [u8; 4] {
    let [high, low] = vid.to_be_bytes();
    [0x81, 0x00, high, low]
}

/// A frame with tags, the tests' EtherType and text, at least 60 bytes.
pub fn frame(to: Mac, from: Mac, tags: &[[u8; 4]], text: &str) -> Vec<u8> {
    let mut bytes = [to, from].concat();
    bytes.extend(tags.iter().flatten());
    bytes.extend(MARK);
    bytes.extend(text.as_bytes());
    bytes.resize(bytes.len().max(60), 0);
    bytes
}

/// A frame that came in, with the tag that the kernel took out of it put back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame(pub Vec<u8>);

impl Frame {
    /// VIDs of its tags, outermost first.
    pub fn vids(&self) -> Vec<u16> {
        let mut vids = Vec::new();
        let mut at = 12;
        while self.0[at..].starts_with(&[0x81, 0x00]) {
            vids.push(u16::from_be_bytes([self.0[at + 2], self.0[at + 3]]) & 0xfff);
            at += 4;
        }
        vids
    }

    /// Its text, if it is one of the tests'.
    pub fn text(&self) -> Option<String> {
        let at = 12 + 4 * self.vids().len();
        let rest = self.0.get(at..)?.strip_prefix(&MARK)?;
        let text = rest.split(|&byte| byte == 0).next().unwrap_or_default();
        Some(String::from_utf8_lossy(text).into_owned())
    }
}

/// A packet socket on an interface of a guest.
#[derive(Debug)]
pub struct Wire {
    socket: PacketSocket,
    sent: Cell<u64>,
}

impl Wire {
    /// Opens one on `interface` in the namespace `short`.
    pub fn open(lab: &Lab, short: &str, interface: &str) -> Wire {
        let options = PacketOptions {
            vnet_header: false,
            receive_bytes: Some(4 << 20),
            ..PacketOptions::default()
        };
        let socket = lab.within(short, || {
            let mut netlink = Netlink::open().expect("netlink");
            let link = netlink.link_by_name(interface).expect("netlink");
            let link = link.unwrap_or_else(|| panic!("no {interface} in {short}"));
            let socket = PacketSocket::open(link.index, &options).expect("a packet socket");
            let all = socket.join(Membership::Promiscuous);
            all.expect("a promiscuous interface");
            socket
        });
        Wire {
            socket,
            sent: Cell::new(0),
        }
    }

    /// Sends one frame; a full queue is waited for, and many frames are spread over time: a TAP drops what
    /// its reader has not taken yet, and says nothing.
    pub fn send(&self, frame: &[u8]) {
        self.sent.set(self.sent.get() + 1);
        if self.sent.get().is_multiple_of(64) {
            std::thread::sleep(Duration::from_millis(2));
        }
        while !self
            .try_send(frame)
            .unwrap_or_else(|error| panic!("{error}"))
        {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Sends one frame; whether there was room.
    ///
    /// # Errors
    /// What the kernel said, for example to a frame above the interface's MTU.
    pub fn try_send(&self, frame: &[u8]) -> Result<bool, Errno> {
        match self.socket.write_frame(&[IoSlice::new(frame)]) {
            Ok(_) => Ok(true),
            Err(Errno::NOBUFS | Errno::AGAIN) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The next frame that waits.
    pub fn receive(&self) -> Option<Frame> {
        let mut space = vec![0; 65_600];
        match self.socket.read_frame(&mut [IoSliceMut::new(&mut space)]) {
            Ok(received) => {
                space.truncate(received.bytes);
                if let Some(tag) = received.vlan {
                    let tag = [tag.tpid.to_be_bytes(), tag.tci.to_be_bytes()].concat();
                    space.splice(12..12, tag);
                }
                Some(Frame(space))
            }
            Err(Errno::AGAIN) => None,
            Err(error) => panic!("{error}"),
        }
    }

    /// The tests' frames that come in, until one has the text `last` (it is not among them) or five
    /// seconds have passed, which fails the test.
    pub fn frames_until(&self, last: &str) -> Vec<Frame> {
        let begun = Instant::now();
        let mut frames = Vec::new();
        loop {
            match self.receive() {
                Some(frame) => match frame.text() {
                    Some(text) if text == last => return frames,
                    Some(_) => frames.push(frame),
                    None => {}
                },
                None => std::thread::sleep(Duration::from_millis(1)),
            }
            let patience = Duration::from_secs(5);
            assert!(
                begun.elapsed() < patience,
                "\"{last}\" did not come; {frames:?} did"
            );
        }
    }

    /// The tests' frames that come in during this time.
    pub fn frames_during(&self, time: Duration) -> Vec<Frame> {
        let begun = Instant::now();
        let mut frames = Vec::new();
        while begun.elapsed() < time {
            match self.receive() {
                Some(frame) if frame.text().is_some() => frames.push(frame),
                Some(_) => {}
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        }
        frames
    }
}
