//! A reader of the pcapng files that tests have made.

use std::path::Path;
use std::time::{Duration, SystemTime};

/// A packet of a file.
#[derive(Debug, Clone)]
pub struct Packet {
    /// The name of its interface.
    pub interface: String,
    pub time: SystemTime,
    pub is_inbound: bool,
    /// Bytes of the whole.
    pub len: u32,
    pub bytes: Vec<u8>,
    pub comment: Option<String>,
}

/// A file.
#[derive(Debug, Default)]
pub struct Capture {
    /// Their names, in order.
    pub interfaces: Vec<String>,
    pub packets: Vec<Packet>,
    /// Interface, received, dropped.
    pub statistics: Vec<(u32, Option<u64>, Option<u64>)>,
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("a word"))
}

fn options(mut bytes: &[u8]) -> Vec<(u16, &[u8])> {
    let mut all = Vec::new();
    while bytes.len() >= 4 {
        let half = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        let (code, len) = (half(0), usize::from(half(2)));
        if code == 0 {
            break;
        }
        all.push((code, &bytes[4..4 + len]));
        bytes = &bytes[4 + len.next_multiple_of(4)..];
    }
    all
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("text")
}

impl Capture {
    /// Reads a file, whose last block may be cut.
    pub fn read(path: &Path) -> Capture {
        let bytes = std::fs::read(path).unwrap_or_default();
        let mut capture = Capture::default();
        let mut rest = bytes.as_slice();
        while rest.len() >= 12 {
            let (kind, len) = (word(rest, 0), word(rest, 4) as usize);
            let Some(block) = rest.get(..len) else { break };
            assert_eq!(
                word(block, len - 4) as usize,
                len,
                "a block is told twice how long it is"
            );
            capture.take(kind, &block[8..len - 4]);
            rest = &rest[len..];
        }
        capture
    }

    fn take(&mut self, kind: u32, body: &[u8]) {
        match kind {
            0x0a0d_0d0a => assert_eq!(word(body, 0), 0x1a2b_3c4d),
            1 => {
                let all = options(&body[8..]);
                let find = |wanted| {
                    all.iter()
                        .find(|(code, _)| *code == wanted)
                        .map(|(_, v)| *v)
                };
                assert_eq!(find(9), Some([9].as_slice()), "nanoseconds");
                self.interfaces.push(text(find(2).expect("a name")));
            }
            6 => {
                let captured = word(body, 12) as usize;
                let all = options(&body[20 + captured.next_multiple_of(4)..]);
                let find = |wanted| {
                    all.iter()
                        .find(|(code, _)| *code == wanted)
                        .map(|(_, v)| *v)
                };
                let since = u64::from(word(body, 4)) << 32 | u64::from(word(body, 8));
                self.packets.push(Packet {
                    interface: self.interfaces[word(body, 0) as usize].clone(),
                    time: SystemTime::UNIX_EPOCH + Duration::from_nanos(since),
                    is_inbound: word(find(2).expect("flags"), 0) & 3 == 1,
                    len: word(body, 16),
                    bytes: body[20..20 + captured].to_vec(),
                    comment: find(1).map(text),
                });
            }
            5 => {
                let all = options(&body[12..]);
                let find = |wanted| {
                    let found = all.iter().find(|(code, _)| *code == wanted);
                    found.map(|(_, v)| u64::from_ne_bytes((*v).try_into().expect("eight bytes")))
                };
                self.statistics.push((word(body, 0), find(4), find(5)));
            }
            other => panic!("a block of kind {other:#x}"),
        }
    }
}
