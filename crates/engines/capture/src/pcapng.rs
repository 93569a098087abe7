//! The file format pcapng (draft-ietf-opsawg-pcapng): what a capture writes of it.
//!
//! # Model
//! One section: a section header, then an interface block for each port before its first packet, packets with times in nanoseconds,
//! direction and the reason of a drop as comment, and at the end statistics of each interface. Blocks are in the machine's own
//! byte order.

use std::io::{self, Write};

/// Ethernet (`LINKTYPE_ETHERNET`).
const ETHERNET: u16 = 1;

const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const STATISTICS: u32 = 5;
const PACKET: u32 = 6;

const COMMENT: u16 = 1;
const IF_NAME: u16 = 2;
const IF_DESCRIPTION: u16 = 3;
const IF_TSRESOL: u16 = 9;
const EPB_FLAGS: u16 = 2;
const ISB_IFRECV: u16 = 4;
const ISB_IFDROP: u16 = 5;
const SHB_USERAPPL: u16 = 4;

/// Which way a packet went at its interface (epb_flags).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Direction {
    /// Towards the interface's user.
    Inbound = 1,
    /// From it.
    Outbound = 2,
}

/// A packet.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// Its interface, by the order of [`Blocks::interface`].
    pub interface: u32,
    /// Nanoseconds since 1970.
    pub time_ns: u64,
    /// Which way it went.
    pub direction: Direction,
    /// Bytes of the whole.
    pub len: u32,
    /// The first of them.
    pub bytes: &'a [u8],
    /// What is to be said of it.
    pub comment: Option<&'a str>,
}

/// Makes blocks and writes each in one piece.
#[derive(Debug, Default)]
pub struct Blocks {
    block: Vec<u8>,
    /// Interfaces of the section.
    interfaces: u32,
}

impl Blocks {
    fn begin(&mut self, kind: u32) {
        self.block.clear();
        self.word(kind);
        self.word(0);
    }

    fn word(&mut self, word: u32) {
        self.block.extend(word.to_ne_bytes());
    }

    fn pad(&mut self) {
        self.block.resize(self.block.len().next_multiple_of(4), 0);
    }

    fn option(&mut self, code: u16, value: &[u8]) {
        let value = value.get(..0xffff).unwrap_or(value);
        self.block.extend(code.to_ne_bytes());
        self.block.extend((value.len() as u16).to_ne_bytes());
        self.block.extend(value);
        self.pad();
    }

    fn time(&mut self, time_ns: u64) {
        self.word((time_ns >> 32) as u32);
        self.word(time_ns as u32);
    }

    /// Ends the block; returns its bytes.
    fn end(&mut self, to: &mut dyn Write) -> io::Result<u64> {
        let bytes = self.block.len() as u32 + 4;
        self.word(bytes);
        if let Some(place) = self.block.get_mut(4..8) {
            place.copy_from_slice(&bytes.to_ne_bytes());
        }
        to.write_all(&self.block)?;
        Ok(bytes.into())
    }

    /// Begins a section; interfaces count from 0 again.
    ///
    /// # Errors
    /// What the writer says.
    pub fn section(&mut self, program: &str, to: &mut dyn Write) -> io::Result<u64> {
        self.interfaces = 0;
        self.begin(SECTION);
        self.word(0x1a2b_3c4d);
        self.block.extend(1u16.to_ne_bytes());
        self.block.extend(0u16.to_ne_bytes());
        // Its length is not known.
        self.block.extend(u64::MAX.to_ne_bytes());
        self.option(SHB_USERAPPL, program.as_bytes());
        self.option(0, &[]);
        self.end(to)
    }

    /// An interface, whose number is returned, whose packets have at most `snap` bytes.
    ///
    /// # Errors
    /// What the writer says.
    pub fn interface(
        &mut self,
        (name, description): (&str, &str),
        snap: u32,
        to: &mut dyn Write,
    ) -> io::Result<(u32, u64)> {
        self.begin(INTERFACE);
        self.block.extend(ETHERNET.to_ne_bytes());
        self.block.extend(0u16.to_ne_bytes());
        self.word(snap);
        self.option(IF_NAME, name.as_bytes());
        if !description.is_empty() {
            self.option(IF_DESCRIPTION, description.as_bytes());
        }
        self.option(IF_TSRESOL, &[9]);
        self.option(0, &[]);
        let number = self.interfaces;
        self.interfaces += 1;
        Ok((number, self.end(to)?))
    }

    /// A packet.
    ///
    /// # Errors
    /// What the writer says.
    pub fn packet(&mut self, packet: &Packet<'_>, to: &mut dyn Write) -> io::Result<u64> {
        self.begin(PACKET);
        self.word(packet.interface);
        self.time(packet.time_ns);
        self.word(packet.bytes.len() as u32);
        self.word(packet.len);
        self.block.extend(packet.bytes);
        self.pad();
        if let Some(comment) = packet.comment {
            self.option(COMMENT, comment.as_bytes());
        }
        self.option(EPB_FLAGS, &(packet.direction as u32).to_ne_bytes());
        self.option(0, &[]);
        self.end(to)
    }

    /// What was received at an interface and matched the filter, and, if that is known, what of it was lost.
    ///
    /// # Errors
    /// What the writer says.
    pub fn statistics(
        &mut self,
        interface: u32,
        time_ns: u64,
        (received, dropped): (u64, Option<u64>),
        to: &mut dyn Write,
    ) -> io::Result<u64> {
        self.begin(STATISTICS);
        self.word(interface);
        self.time(time_ns);
        self.option(ISB_IFRECV, &received.to_ne_bytes());
        if let Some(dropped) = dropped {
            self.option(ISB_IFDROP, &dropped.to_ne_bytes());
        }
        self.option(0, &[]);
        self.end(to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A section, an interface, a packet and statistics, byte for byte.
    #[test]
    fn blocks_are_as_the_format_says() {
        let (mut blocks, mut file) = (Blocks::default(), Vec::new());
        blocks.section("w", &mut file).expect("memory");
        let (number, _) = blocks.interface(("v0", ""), 96, &mut file).expect("memory");
        let packet = Packet {
            interface: number,
            time_ns: 0x1_0000_0002,
            direction: Direction::Outbound,
            len: 60,
            bytes: &[1, 2, 3, 4, 5],
            comment: Some("drop"),
        };
        blocks.packet(&packet, &mut file).expect("memory");
        blocks
            .statistics(0, 3, (4, Some(5)), &mut file)
            .expect("memory");
        let words: Vec<u32> = file
            .as_chunks::<4>()
            .0
            .iter()
            .map(|word| u32::from_le_bytes(*word))
            .collect();
        let text = |bytes: [u8; 4]| u32::from_le_bytes(bytes);
        let expected = [
            // Section.
            SECTION,
            40,
            0x1a2b_3c4d,
            1,
            !0,
            !0,
            0x1_0004,
            text(*b"w\0\0\0"),
            0,
            40,
            // Interface.
            1,
            40,
            1,
            96,
            0x2_0002,
            text(*b"v0\0\0"),
            0x1_0009,
            9,
            0,
            40,
            // Packet.
            6,
            60,
            0,
            1,
            2,
            5,
            60,
            0x0403_0201,
            5,
            0x4_0001,
            text(*b"drop"),
            0x4_0002,
            2,
            0,
            60,
        ];
        assert_eq!(words[..35], expected);
        assert_eq!(words[35..40], [5, 52, 0, 0, 3]);
        assert_eq!(words.len(), 35 + 13);
    }
}
