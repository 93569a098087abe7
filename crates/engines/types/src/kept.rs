//! The index of names as bytes, so that it need not be made again.
//!
//! ```text
//!   "wlindex1"  checksum of all that follows, eight bytes  key (its length, two bytes, and 62 bytes)
//!   N names, M scopes, bytes of texts: four bytes each, and four unused
//!   N names, 20 bytes each: text, scope, unit, offset; kind, whether it is inlined, two unused
//!   M scopes, 8 bytes each: text, scope · texts, each ends at a zero
//! ```
//! The key says of what the index is. One that is not whole, or of something else, is not taken. Nothing in it is believed beyond that:
//! a place that is none is an entry that is not found.

use std::collections::HashMap;

use crate::bytes::{byte, part, word};
use crate::dwarf::At;
use crate::graph::Types;
use crate::index::{Index, Kind, Name};

const MAGIC: &[u8; 8] = b"wlindex1";
const KEY_MAX: usize = 62;
const HEAD: usize = 96;
const NAME_LEN: usize = 20;
const KINDS: [Kind; 8] = [
    Kind::Struct,
    Kind::Union,
    Kind::Enum,
    Kind::Typedef,
    Kind::Base,
    Kind::Function,
    Kind::Variable,
    Kind::Namespace,
];

/// Keeps the bytes of an index that was made.
pub type Keep<'a> = Box<dyn Fn(&[u8]) + 'a>;

/// A checksum over words of eight bytes. It is there for files that were cut or written in part, not for those that somebody forged.
fn checksum(bytes: &[u8]) -> u64 {
    let mut lanes = [0x9e37_79b9_7f4a_7c15_u64, 1, 2, 3];
    for block in bytes.chunks(32) {
        for (lane, word) in lanes.iter_mut().zip(block.chunks(8)) {
            let mut whole = [0; 8];
            for (into, from) in whole.iter_mut().zip(word) {
                *into = *from;
            }
            let mixed = (*lane ^ u64::from_le_bytes(whole)).wrapping_mul(0xff51_afd7_ed55_8ccd);
            *lane = mixed.rotate_left(29);
        }
    }
    let len = bytes.len() as u64;
    lanes.into_iter().fold(len, |sum, lane| {
        (sum ^ lane)
            .wrapping_mul(0xc4ce_b9fe_1a85_ec53)
            .rotate_left(31)
    })
}

/// Texts, each once.
#[derive(Default)]
struct Texts<'a> {
    bytes: Vec<u8>,
    known: HashMap<&'a str, u32>,
}

impl<'a> Texts<'a> {
    fn put(&mut self, text: &'a str) -> u32 {
        let next = u32::try_from(self.bytes.len()).unwrap_or(u32::MAX);
        *self.known.entry(text).or_insert_with(|| {
            self.bytes.extend(text.as_bytes());
            self.bytes.push(0);
            next
        })
    }
}

/// An index as bytes.
pub(crate) fn to_bytes(index: &Index<'_>, key: &[u8]) -> Vec<u8> {
    let mut texts = Texts::default();
    let mut tables = Vec::new();
    for name in &index.names {
        let kind = KINDS.iter().position(|kind| *kind == name.kind);
        let kind = kind.and_then(|kind| u8::try_from(kind).ok()).unwrap_or(0);
        for word in [
            texts.put(name.name),
            name.scope,
            name.at.unit,
            name.at.offset,
        ] {
            tables.extend(word.to_le_bytes());
        }
        tables.extend([kind, u8::from(name.is_inline), 0, 0]);
    }
    for (name, outer) in &index.scopes {
        tables.extend(texts.put(name).to_le_bytes());
        tables.extend(outer.to_le_bytes());
    }
    let mut body = Vec::new();
    let key = key.get(..key.len().min(KEY_MAX)).unwrap_or_default();
    body.extend(u16::try_from(key.len()).unwrap_or(0).to_le_bytes());
    body.extend(key);
    body.resize(64, 0);
    for len in [index.names.len(), index.scopes.len(), texts.bytes.len(), 0] {
        body.extend(u32::try_from(len).unwrap_or(u32::MAX).to_le_bytes());
    }
    body.extend(tables);
    body.extend(texts.bytes);
    let mut out = MAGIC.to_vec();
    out.extend(checksum(&body).to_le_bytes());
    out.extend(body);
    out
}

/// The index that bytes hold; `None` if they are not whole, or of another key.
pub(crate) fn of_bytes<'a>(bytes: &'a [u8], key: &[u8]) -> Option<Index<'a>> {
    let (sum, body) = bytes.strip_prefix(MAGIC)?.split_first_chunk()?;
    if checksum(body) != u64::from_le_bytes(*sum) {
        return None;
    }
    let len = usize::from(crate::bytes::half(body, 0)?);
    if len != key.len() || body.get(2..)?.get(..len.min(KEY_MAX))? != key {
        return None;
    }
    let (names, scopes, texts) = (word(body, 64)?, word(body, 68)?, word(body, 72)?);
    let tables = bytes.get(HEAD..)?;
    let names_len = names.checked_mul(u32::try_from(NAME_LEN).ok()?)?;
    let scopes_len = scopes.checked_mul(8)?;
    let scopes = part(tables, names_len, scopes_len)?;
    let texts = part(tables, names_len.checked_add(scopes_len)?, texts)?;
    let texts = std::str::from_utf8(texts).ok()?;
    let text = |at: u32| {
        let rest = texts.get(usize::try_from(at).ok()?..)?;
        rest.get(..rest.bytes().position(|byte| byte == 0)?)
    };
    let name = |entry: &[u8]| {
        Some(Name {
            name: text(word(entry, 0)?)?,
            kind: *KINDS.get(usize::from(byte(entry, 16)?))?,
            scope: word(entry, 4)?,
            at: At {
                unit: word(entry, 8)?,
                offset: word(entry, 12)?,
            },
            is_inline: byte(entry, 17)? != 0,
        })
    };
    let names = part(tables, 0, names_len)?.chunks_exact(NAME_LEN);
    let scope = |entry: &[u8]| Some((text(word(entry, 0)?)?, word(entry, 4)?));
    Some(Index {
        names: names.map(name).collect::<Option<_>>()?,
        scopes: scopes.chunks_exact(8).map(scope).collect::<Option<_>>()?,
    })
}

impl<'a> Types<'a> {
    /// Takes the index of names from what an earlier run kept, if it is of the same key. Returns whether it did.
    pub fn take_index(&self, kept: &'a [u8], key: &[u8]) -> bool {
        let index = of_bytes(kept, key);
        index.is_some_and(|index| self.index.set(index).is_ok())
    }

    /// Has the index of names, once it is made, kept under a key.
    #[must_use]
    pub fn keeping(mut self, key: Vec<u8>, keep: Keep<'a>) -> Self {
        self.keep = Some((key, keep));
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An index is what it was written as; one that is cut, changed anywhere, or of another key, is not taken.
    #[test]
    fn only_whole_ones_are_taken() {
        let name = |name, kind, scope| Name {
            name,
            kind,
            scope,
            at: At { unit: 7, offset: 9 },
            is_inline: scope != 0,
        };
        let index = Index {
            names: vec![name("a", Kind::Struct, 0), name("b", Kind::Function, 1)],
            scopes: vec![("", 0), ("net", 0)],
        };
        let bytes = to_bytes(&index, b"key");
        let again = of_bytes(&bytes, b"key").expect("whole");
        let words = |index: &Index<'_>| {
            let names = index.names.iter();
            let words =
                names.map(|name| (index.qualified(name), name.kind, name.at, name.is_inline));
            words.collect::<Vec<_>>()
        };
        assert_eq!(words(&again), words(&index));
        assert!(of_bytes(&bytes, b"kez").is_none() && of_bytes(&bytes, b"ke").is_none());
        for at in 0..bytes.len() {
            assert!(of_bytes(&bytes[..at], b"key").is_none());
            let mut changed = bytes.clone();
            changed[at] ^= 0x10;
            assert!(of_bytes(&changed, b"key").is_none(), "{at}");
        }
    }
}
