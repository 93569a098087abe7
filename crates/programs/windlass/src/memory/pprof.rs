//! A profile in pprof's format: profile.proto, in a gzip of stored blocks.

use std::collections::HashMap;

use super::profile::Profile;

/// A message of protocol buffers.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn number(&mut self, field: u64, value: u64) {
        self.varint(field << 3);
        self.varint(value);
    }

    fn bytes(&mut self, field: u64, bytes: &[u8]) {
        self.varint(field << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn message(&mut self, field: u64, fill: impl FnOnce(&mut Self)) {
        let mut inner = Self::default();
        fill(&mut inner);
        self.bytes(field, &inner.0);
    }

    fn packed(&mut self, field: u64, values: impl Iterator<Item = u64>) {
        self.message(field, |inner| values.for_each(|value| inner.varint(value)));
    }
}

/// The table of texts: each has a number.
struct Texts {
    numbers: HashMap<String, u64>,
    all: Vec<String>,
}

impl Texts {
    fn number(&mut self, text: &str) -> u64 {
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        let number = self.all.len() as u64;
        self.numbers.insert(text.to_owned(), number);
        self.all.push(text.to_owned());
        number
    }
}

/// Writes the locations and functions. The number of each address's location.
fn locations(profile: &Profile, texts: &mut Texts, message: &mut Message) -> HashMap<u64, u64> {
    // A location for each address, a function for each name; both are numbered from 1.
    let (mut locations, mut functions) = (HashMap::new(), HashMap::new());
    for site in &profile.sites {
        for pc in &site.frames {
            let next = locations.len() as u64 + 1;
            if locations.contains_key(pc) {
                continue;
            }
            locations.insert(*pc, next);
            let symbol = profile.modules.symbol(pc.saturating_sub(1));
            let name = symbol
                .and_then(|symbol| symbol.function)
                .unwrap_or_else(|| format!("{pc:#x}"));
            let name = texts.number(&name);
            let known = functions.len() as u64 + 1;
            let function = *functions.entry(name).or_insert(known);
            message.message(4, |location| {
                location.number(1, next);
                location.number(3, *pc);
                location.message(4, |line| line.number(1, function));
            });
        }
    }
    for (name, number) in functions {
        message.message(5, |function| {
            function.number(1, number);
            function.number(2, name);
            function.number(3, name);
        });
    }
    locations
}

/// The file. Values of a sample are objects and bytes in use; `mean` is the bytes between two samples.
pub(crate) fn encode(profile: &Profile, mean: u64) -> Vec<u8> {
    let mut texts = Texts {
        numbers: HashMap::from([(String::new(), 0)]),
        all: vec![String::new()],
    };
    let mut message = Message::default();
    for (kind, unit) in [("inuse_objects", "count"), ("inuse_space", "bytes")] {
        let (kind, unit) = (texts.number(kind), texts.number(unit));
        message.message(1, |value_type| {
            value_type.number(1, kind);
            value_type.number(2, unit);
        });
    }
    let locations = locations(profile, &mut texts, &mut message);
    for site in &profile.sites {
        let places = site
            .frames
            .iter()
            .filter_map(|pc| locations.get(pc).copied());
        message.message(2, |sample| {
            sample.packed(1, places);
            sample.packed(
                2,
                [site.objects, site.bytes]
                    .into_iter()
                    .map(|value| value.round() as u64),
            );
        });
    }
    let (kind, unit) = (texts.number("space"), texts.number("bytes"));
    message.message(11, |value_type| {
        value_type.number(1, kind);
        value_type.number(2, unit);
    });
    message.number(12, mean);
    texts
        .all
        .iter()
        .for_each(|text| message.bytes(6, text.as_bytes()));
    gzip(&message.0)
}

/// A gzip file (RFC 1952) of these bytes as they are.
fn gzip(bytes: &[u8]) -> Vec<u8> {
    const BLOCK: usize = 0xffff;
    let mut file = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff];
    let last = bytes.len().saturating_sub(1) / BLOCK;
    for (at, block) in bytes.chunks(BLOCK).enumerate() {
        let len = block.len() as u16;
        file.push(u8::from(at == last));
        file.extend_from_slice(&len.to_le_bytes());
        file.extend_from_slice(&(!len).to_le_bytes());
        file.extend_from_slice(block);
    }
    file.extend_from_slice(&crc32(bytes).to_le_bytes());
    file.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    file
}

fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32, byte: &u8| {
        let mut crc = crc ^ u32::from(*byte);
        for _ in 0..8 {
            let mask = (crc & 1).wrapping_neg();
            crc = crc >> 1 ^ 0xedb8_8320 & mask;
        }
        crc
    };
    !bytes.iter().fold(u32::MAX, step)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The check sum is that of RFC 1952, and blocks are as long as they may be.
    #[test]
    fn files_are_framed() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
        for len in [1, 0xffff, 0x1_0000, 200_000] {
            let bytes = vec![7; len];
            let file = gzip(&bytes);
            assert_eq!(file.len(), 10 + len + 5 * len.div_ceil(0xffff) + 8);
        }
    }

    /// Numbers are in groups of seven bits, the lowest first.
    #[test]
    fn numbers_are_varints() {
        let mut message = Message::default();
        message.number(1, 300);
        assert_eq!(message.0, [8, 0xac, 2]);
    }
}
