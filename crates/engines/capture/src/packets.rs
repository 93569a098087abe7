//! Reads packets from files: pcap (draft-ietf-opsawg-pcap) and pcapng (draft-ietf-opsawg-pcapng), in either byte order.
//!
//! # Model
//! One packet at a time. What is kept is one block, of [`BLOCK_BYTES_MAX`] at most, and the interfaces of the section, so a file of any length
//! takes the same memory. Blocks that hold no packet are skipped.

use std::io::{self, Read};

/// Longest block that is taken to memory, in bytes: a packet of 256 KiB, and its options.
pub const BLOCK_BYTES_MAX: u32 = 1 << 20;
/// Most interfaces of a section.
pub const INTERFACES_MAX: usize = 4096;

/// Ethernet (`LINKTYPE_ETHERNET`).
const ETHERNET: u16 = 1;
const SECTION: u32 = 0x0a0d_0d0a;
const BYTE_ORDER: u32 = 0x1a2b_3c4d;

/// Why a file cannot be read on. Places are bytes from its beginning, where the block or the packet begins.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// Its first bytes are those of neither format.
    #[error("it is neither a pcap nor a pcapng file")]
    Unknown,
    /// A version that is not known.
    #[error("its format has version {0}, which is not known")]
    Version(u16),
    /// It ends within a block or packet.
    #[error("it is cut: what begins at byte {0} is not whole")]
    Cut(u64),
    /// A length that cannot be.
    #[error("at byte {at} is a length of {bytes} bytes, which cannot be")]
    Length {
        /// Where.
        at: u64,
        /// Which.
        bytes: u32,
    },
    /// A packet of a link that is not Ethernet.
    #[error("at byte {at} is a packet of link type {link}, not of Ethernet (1)")]
    Link {
        /// Where.
        at: u64,
        /// Which.
        link: u16,
    },
    /// A packet of an interface that was not described before.
    #[error("at byte {at} is a packet of interface {number}, which the file does not describe")]
    Interface {
        /// Where.
        at: u64,
        /// Which.
        number: u32,
    },
    /// More than [`INTERFACES_MAX`].
    #[error("it has more than {INTERFACES_MAX} interfaces")]
    Interfaces,
    /// The reader's own.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// A packet of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Captured<'a> {
    /// Nanoseconds since 1970; none if the file has no time for it.
    pub time_ns: Option<u64>,
    /// Bytes that it had on its link.
    pub len: u32,
    /// The first of them, as many as were captured.
    pub bytes: &'a [u8],
}

/// The packets of a file, in its order.
#[derive(Debug)]
pub struct Packets<R> {
    from: Source<R>,
    format: Format,
    /// The block or packet at hand, without its head.
    block: Vec<u8>,
}

#[derive(Debug)]
enum Format {
    /// Whether fractions of a second are nanoseconds, and not microseconds.
    Pcap { is_ns: bool },
    /// The interfaces of the section.
    Pcapng(Vec<Interface>),
}

#[derive(Debug)]
struct Interface {
    link: u16,
    snap: u32,
    /// `if_tsresol`: a power of ten, or with the highest bit of two, of which a unit of time is the reciprocal.
    resolution: u8,
    /// `if_tsoffset`: seconds to be added.
    offset_s: i64,
}

/// Bytes, their place and their order.
#[derive(Debug)]
struct Source<R> {
    from: R,
    /// Where the block or packet at hand begins, and where the next byte is.
    begin: u64,
    at: u64,
    is_swapped: bool,
}

impl<R: Read> Source<R> {
    /// Fills the room, or finds the end before its first byte.
    fn fill_or_end(&mut self, to: &mut [u8]) -> Result<bool, ReadError> {
        let mut filled = 0;
        while let Some(rest) = to.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match self.from.read(rest) {
                Ok(0) if filled == 0 => return Ok(false),
                Ok(0) => return Err(ReadError::Cut(self.begin)),
                Ok(n) => filled += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.at += filled as u64;
        Ok(true)
    }

    fn fill(&mut self, to: &mut [u8]) -> Result<(), ReadError> {
        match to.is_empty() || self.fill_or_end(to)? {
            true => Ok(()),
            false => Err(ReadError::Cut(self.begin)),
        }
    }

    fn word(&self, bytes: [u8; 4]) -> u32 {
        match self.is_swapped {
            true => u32::from_ne_bytes(bytes).swap_bytes(),
            false => u32::from_ne_bytes(bytes),
        }
    }

    fn next_word(&mut self) -> Result<u32, ReadError> {
        let mut word = [0; 4];
        self.fill(&mut word)?;
        Ok(self.word(word))
    }

    /// The words and half words of what was read; 0 behind its end.
    fn word_at(&self, bytes: &[u8], at: usize) -> u32 {
        let word = bytes.get(at..).and_then(|rest| rest.first_chunk());
        word.map_or(0, |word| self.word(*word))
    }

    fn half_at(&self, bytes: &[u8], at: usize) -> u16 {
        let half = bytes.get(at..).and_then(|rest| rest.first_chunk());
        let half = half.map_or(0, |half| u16::from_ne_bytes(*half));
        if self.is_swapped {
            half.swap_bytes()
        } else {
            half
        }
    }

    fn length(&self, bytes: u32) -> ReadError {
        let at = self.begin;
        ReadError::Length { at, bytes }
    }
}

impl<R: Read> Packets<R> {
    /// Reads the beginning of a file.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn open(from: R) -> Result<Packets<R>, ReadError> {
        let mut from = Source {
            from,
            begin: 0,
            at: 0,
            is_swapped: false,
        };
        let mut magic = [0; 4];
        if !from.fill_or_end(&mut magic)? {
            return Err(ReadError::Unknown);
        }
        let magic = u32::from_ne_bytes(magic);
        let mut packets = Packets {
            from,
            format: Format::Pcapng(Vec::new()),
            block: Vec::new(),
        };
        match (magic, magic.swap_bytes()) {
            (SECTION, _) => packets.section()?,
            (pcap @ (0xa1b2_c3d4 | 0xa1b2_3c4d), _) => packets.pcap(pcap, false)?,
            (_, pcap @ (0xa1b2_c3d4 | 0xa1b2_3c4d)) => packets.pcap(pcap, true)?,
            _ => return Err(ReadError::Unknown),
        }
        Ok(packets)
    }

    /// The next packet; none at the end.
    ///
    /// # Errors
    /// [`ReadError`]. What follows is not read on.
    pub fn read(&mut self) -> Result<Option<Captured<'_>>, ReadError> {
        let found = match self.format {
            Format::Pcap { is_ns } => self.next_of_pcap(is_ns)?,
            Format::Pcapng(_) => self.next_of_pcapng()?,
        };
        Ok(found.map(|(time_ns, len, begin, end)| Captured {
            time_ns,
            len,
            bytes: self.block.get(begin..end).unwrap_or_default(),
        }))
    }

    /// The head of a pcap file behind its first word.
    fn pcap(&mut self, magic: u32, is_swapped: bool) -> Result<(), ReadError> {
        self.from.is_swapped = is_swapped;
        self.take(20)?;
        match self.from.half_at(&self.block, 0) {
            2 => {}
            version => return Err(ReadError::Version(version)),
        }
        // The upper half tells of a frame check sequence.
        let link = self.from.word_at(&self.block, 16) as u16;
        if link != ETHERNET {
            return Err(ReadError::Link { at: 0, link });
        }
        let is_ns = magic == 0xa1b2_3c4d;
        self.format = Format::Pcap { is_ns };
        Ok(())
    }

    fn next_of_pcap(&mut self, is_ns: bool) -> Result<Option<Found>, ReadError> {
        self.from.begin = self.from.at;
        let mut head = [0; 16];
        if !self.from.fill_or_end(&mut head)? {
            return Ok(None);
        }
        let [seconds, fraction, captured, len] =
            [0, 4, 8, 12].map(|at| self.from.word_at(&head, at));
        let bytes = self.take(captured)?;
        let fraction_ns = u64::from(fraction) * if is_ns { 1 } else { 1000 };
        let time_ns = u64::from(seconds) * 1_000_000_000 + fraction_ns;
        Ok(Some((Some(time_ns), len.max(captured), 0, bytes)))
    }

    fn next_of_pcapng(&mut self) -> Result<Option<Found>, ReadError> {
        loop {
            self.from.begin = self.from.at;
            let mut kind = [0; 4];
            if !self.from.fill_or_end(&mut kind)? {
                return Ok(None);
            }
            let kind = self.from.word(kind);
            if kind == SECTION {
                self.section()?;
                continue;
            }
            let total = self.from.next_word()?;
            match kind {
                1 => {
                    self.body(total, 12, 8)?;
                    self.interface()?;
                }
                2 | 3 | 6 => {
                    self.body(total, 12, if kind == 3 { 4 } else { 20 })?;
                    return self.packet(kind).map(Some);
                }
                _ => self.skip(total)?,
            }
        }
    }

    /// The head of a section behind its first word: the byte order stands behind the length that is in it.
    fn section(&mut self) -> Result<(), ReadError> {
        let mut words = [0; 8];
        self.from.fill(&mut words)?;
        self.from.is_swapped = false;
        self.from.is_swapped = match self.from.word_at(&words, 4) {
            BYTE_ORDER => false,
            order if order.swap_bytes() == BYTE_ORDER => true,
            _ => return Err(ReadError::Unknown),
        };
        let total = self.from.word_at(&words, 0);
        // Of it, the byte order was read.
        self.body(total, 16, 12)?;
        match self.from.half_at(&self.block, 0) {
            1 => self.format = Format::Pcapng(Vec::new()),
            version => return Err(ReadError::Version(version)),
        }
        Ok(())
    }

    /// Takes the body of a block of `total` bytes, of which so many are around it, and checks its end. It has at least `least` bytes.
    fn body(&mut self, total: u32, around: u32, least: u32) -> Result<(), ReadError> {
        let is_good = total.is_multiple_of(4) && total >= around + least;
        let bytes = total.checked_sub(around).filter(|_| is_good);
        self.take(bytes.ok_or(self.from.length(total))?)?;
        self.tail(total)
    }

    fn skip(&mut self, total: u32) -> Result<(), ReadError> {
        let bytes = total
            .checked_sub(12)
            .filter(|_| total.is_multiple_of(4))
            .ok_or(self.from.length(total))?;
        let mut body = self.from.from.by_ref().take(bytes.into());
        let skipped = io::copy(&mut body, &mut io::sink())?;
        self.from.at += skipped;
        if skipped < bytes.into() {
            return Err(ReadError::Cut(self.from.begin));
        }
        self.tail(total)
    }

    /// A block ends with its length.
    fn tail(&mut self, total: u32) -> Result<(), ReadError> {
        match self.from.next_word()? {
            again if again == total => Ok(()),
            again => Err(self.from.length(again)),
        }
    }

    /// Takes so many bytes as the block.
    fn take(&mut self, bytes: u32) -> Result<usize, ReadError> {
        if bytes > BLOCK_BYTES_MAX {
            return Err(self.from.length(bytes));
        }
        self.block.clear();
        self.block.resize(bytes as usize, 0);
        self.from.fill(&mut self.block)?;
        Ok(bytes as usize)
    }

    fn interface(&mut self) -> Result<(), ReadError> {
        let mut interface = Interface {
            link: self.from.half_at(&self.block, 0),
            snap: self.from.word_at(&self.block, 4),
            resolution: 6,
            offset_s: 0,
        };
        let mut options = self.block.get(8..).unwrap_or_default();
        while options.len() >= 4 {
            let code = self.from.half_at(options, 0);
            let len = usize::from(self.from.half_at(options, 2));
            let value = options.get(4..4 + len).unwrap_or_default();
            match (code, value) {
                (0, _) => break,
                (9, [resolution]) => interface.resolution = *resolution,
                (14, [_, _, _, _, _, _, _, _]) => {
                    let [first, second] = [0, 4].map(|at| u64::from(self.from.word_at(value, at)));
                    let offset_s = match cfg!(target_endian = "little") != self.from.is_swapped {
                        true => second << 32 | first,
                        false => first << 32 | second,
                    };
                    interface.offset_s = offset_s as i64;
                }
                _ => {}
            }
            options = options
                .get(4 + len.next_multiple_of(4)..)
                .unwrap_or_default();
        }
        match &mut self.format {
            Format::Pcapng(interfaces) if interfaces.len() < INTERFACES_MAX => {
                interfaces.push(interface);
                Ok(())
            }
            _ => Err(ReadError::Interfaces),
        }
    }

    /// The packet in the block: an enhanced one (6), a simple one (3), or an obsolete one (2).
    fn packet(&self, kind: u32) -> Result<Found, ReadError> {
        let word = |at| self.from.word_at(&self.block, at);
        let number = match kind {
            6 => word(0),
            2 => self.from.half_at(&self.block, 0).into(),
            _ => 0,
        };
        let at = self.from.begin;
        let found = match &self.format {
            Format::Pcapng(interfaces) => interfaces.get(number as usize),
            Format::Pcap { .. } => None,
        };
        let interface = found.ok_or(ReadError::Interface { at, number })?;
        let link = interface.link;
        if link != ETHERNET {
            return Err(ReadError::Link { at, link });
        }
        let room = self.block.len();
        let (time_ns, captured, len, begin) = match kind {
            3 => {
                let snap = if interface.snap == 0 {
                    u32::MAX
                } else {
                    interface.snap
                };
                (None, word(0).min(snap), word(0), 4)
            }
            _ => {
                let units = u64::from(word(4)) << 32 | u64::from(word(8));
                (Some(interface.time_ns(units)), word(12), word(16), 20)
            }
        };
        let end = begin + captured as usize;
        match end <= room {
            true => Ok((time_ns, len.max(captured), begin, end)),
            false => Err(self.from.length(captured)),
        }
    }
}

/// Time, whole length, and where it is in the block.
type Found = (Option<u64>, u32, usize, usize);

impl Interface {
    /// So many units of its time, in nanoseconds since 1970; as far as that can be told in 64 bits.
    fn time_ns(&self, units: u64) -> u64 {
        let ns = u128::from(units) * 1_000_000_000;
        let power = u32::from(self.resolution & 0x7f);
        let per_second = match self.resolution & 0x80 {
            0 => 10u128.checked_pow(power),
            _ => Some(1 << power),
        };
        let ns = per_second.map_or(0, |per_second| ns / per_second);
        let ns = u64::try_from(ns).unwrap_or(u64::MAX);
        ns.saturating_add_signed(self.offset_s.saturating_mul(1_000_000_000))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pcapng::{Blocks, Direction, Packet};

    type Read = (Option<u64>, u32, Vec<u8>);

    fn read(file: &[u8]) -> Result<Vec<Read>, ReadError> {
        let mut packets = Packets::open(file)?;
        let mut all = Vec::new();
        while let Some(Captured {
            time_ns,
            len,
            bytes,
        }) = packets.read()?
        {
            all.push((time_ns, len, bytes.to_vec()));
        }
        Ok(all)
    }

    fn pcap(magic: u32, link: u32, swap: bool) -> Vec<u8> {
        let words = [magic, 2 | 4 << 16, 0, 0, 65_535, link, 5, 6, 3, 60];
        let swapped = [magic, 2 << 16 | 4, 0, 0, 65_535, link, 5, 6, 3, 60];
        let bytes = match swap {
            true => swapped.map(|word| word.to_be_bytes()),
            false => words.map(|word| word.to_le_bytes()),
        };
        let mut file = bytes.as_flattened().to_vec();
        file.extend([1, 2, 3]);
        file
    }

    fn pcapng() -> Vec<u8> {
        let (mut blocks, mut file) = (Blocks::default(), Vec::new());
        for time_ns in [7, 1 << 40] {
            blocks.section("w", &mut file).expect("memory");
            blocks.interface(("a", "b"), 96, &mut file).expect("memory");
            let packet = Packet {
                interface: 0,
                time_ns,
                direction: Direction::Outbound,
                len: 60,
                bytes: &[1, 2, 3, 4, 5],
                comment: Some("drop"),
            };
            blocks.packet(&packet, &mut file).expect("memory");
            blocks
                .statistics(0, 3, (4, None), &mut file)
                .expect("memory");
        }
        file
    }

    /// A block of pcapng in big-endian order.
    fn block(kind: u32, body: &[u8]) -> Vec<u8> {
        let total = body.len() as u32 + 12;
        let mut block = [kind.to_be_bytes(), total.to_be_bytes()].concat();
        block.extend(body);
        block.extend(total.to_be_bytes());
        block
    }

    fn section() -> Vec<u8> {
        block(
            SECTION,
            &[
                0x1a, 0x2b, 0x3c, 0x4d, 0, 1, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255,
            ],
        )
    }

    /// Both orders and both units of pcap.
    #[test]
    fn pcap_is_read() {
        for (magic, ns) in [(0xa1b2_c3d4, 5_000_006_000), (0xa1b2_3c4d, 5_000_000_006)] {
            for swap in [false, true] {
                let all = read(&pcap(magic, 1, swap)).expect("a file");
                assert_eq!(all, [(Some(ns), 60, vec![1, 2, 3])]);
            }
        }
        let link = read(&pcap(0xa1b2_c3d4, 113, false)).expect_err("Linux cooked");
        assert_eq!(
            link.to_string(),
            "at byte 0 is a packet of link type 113, not of Ethernet (1)"
        );
    }

    /// What a capture of ours wrote is read back, over two sections.
    #[test]
    fn our_own_is_read() {
        let bytes = vec![1, 2, 3, 4, 5];
        let expected = [(Some(7), 60, bytes.clone()), (Some(1 << 40), 60, bytes)];
        assert_eq!(read(&pcapng()).expect("a file"), expected);
    }

    /// Big-endian blocks: units of an interface, offsets, simple and obsolete packets, and blocks that are skipped.
    #[test]
    fn every_block_of_packets() {
        let mut file = section();
        // Milliseconds, and a second more; then 2^-10 s.
        let options = [0, 9, 0, 1, 3, 0, 0, 0, 0, 14, 0, 8, 0, 0, 0, 0, 0, 0, 0, 1];
        file.extend(block(
            1,
            &[&[0, 1, 0, 0, 0, 0, 0, 2], options.as_slice()].concat(),
        ));
        file.extend(block(
            1,
            &[0, 1, 0, 0, 0, 0, 0, 0, 0, 9, 0, 1, 0x8a, 0, 0, 0],
        ));
        file.extend(block(0x0bad, &[0; 40]));
        let head = |interface: u8| {
            [
                0, 0, 0, interface, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 1, 0, 0, 0, 9,
            ]
        };
        file.extend(block(6, &[&head(0), [7, 0, 0, 0].as_slice()].concat()));
        file.extend(block(6, &[&head(1), [8, 0, 0, 0].as_slice()].concat()));
        let mut old = head(0);
        old[..4].copy_from_slice(&[0, 1, 0, 0]);
        file.extend(block(2, &[&old, [9, 0, 0, 0].as_slice()].concat()));
        file.extend(block(3, &[0, 0, 0, 4, 1, 2, 0, 0]));
        let expected = [
            (Some(2_024_000_000), 9, vec![7]),
            (Some(1_000_000_000), 9, vec![8]),
            (Some(1_000_000_000), 9, vec![9]),
            (None, 4, vec![1, 2]),
        ];
        assert_eq!(read(&file).expect("a file"), expected);
    }

    /// Each fault has its name.
    #[test]
    fn faults_are_named() {
        let told = |file: &[u8]| read(file).expect_err("a fault").to_string();
        assert_eq!(told(b""), "it is neither a pcap nor a pcapng file");
        assert_eq!(
            told(b"#!/bin/sh\n"),
            "it is neither a pcap nor a pcapng file"
        );
        let mut file = pcap(0xa1b2_c3d4, 1, false);
        file.pop();
        assert_eq!(
            told(&file),
            "it is cut: what begins at byte 24 is not whole"
        );
        file[32..36].fill(0xff);
        assert_eq!(
            told(&file),
            "at byte 24 is a length of 4294967295 bytes, which cannot be"
        );
        file[4] = 3;
        assert_eq!(told(&file), "its format has version 3, which is not known");
        let strange = [section(), block(6, &[0; 20])].concat();
        assert_eq!(
            told(&strange),
            "at byte 28 is a packet of interface 0, which the file does not describe"
        );
        let mut ends = section();
        ends[27] = 32;
        assert_eq!(
            told(&ends),
            "at byte 0 is a length of 32 bytes, which cannot be"
        );
        let interface = block(1, &[0, 1, 0, 0, 0, 0, 0, 0]);
        let many = [section(), interface.repeat(INTERFACES_MAX + 1)].concat();
        assert_eq!(told(&many), "it has more than 4096 interfaces");
        let caplen = [
            section(),
            interface,
            block(6, &[&[0; 12], [0, 0, 0, 1, 0, 0, 0, 1].as_slice()].concat()),
        ];
        assert_eq!(
            told(&caplen.concat()),
            "at byte 48 is a length of 1 bytes, which cannot be"
        );
    }

    /// A file that is cut anywhere, or with any byte changed, ends or is refused, and no packet is longer than its block.
    #[test]
    fn nothing_malformed_does_harm() {
        for whole in [pcapng(), pcap(0xa1b2_c3d4, 1, true)] {
            for at in 0..whole.len() {
                let _ = read(&whole[..at]);
                for byte in [0, 1, 0x7f, 0x80, 0xff] {
                    let mut file = whole.clone();
                    file[at] = byte;
                    for (_, len, bytes) in read(&file).unwrap_or_default() {
                        assert!(bytes.len() <= len as usize && bytes.len() <= whole.len());
                    }
                }
            }
        }
    }
}
