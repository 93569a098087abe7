//! Netlink messages: writing requests, and reading answers with bounds checks.
//!
//! Layouts are those of `<linux/netlink.h>`: a 16-byte header, a fixed body, then attributes
//! of a 4-byte header and a value each, all aligned to four bytes, in the machine's byte order.

#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::arithmetic_side_effects,
    clippy::panic
)]

use rustix::io::Errno;

pub(super) const HEADER_BYTES: usize = 16;
const ATTRIBUTE_BYTES: usize = 4;

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;

const NLM_F_REQUEST: u16 = 0x1;
const NLM_F_ACK: u16 = 0x4;
const NLM_F_DUMP_INTR: u16 = 0x10;
const NLM_F_CAPPED: u16 = 0x100;
const NLM_F_ACK_TLVS: u16 = 0x200;
/// Flags that say how: list everything.
pub(super) const DUMP: u16 = 0x300;
/// Flags that say how: create.
pub(super) const CREATE: u16 = 0x400;
/// Flags that say how: fail if it exists.
pub(super) const EXCLUSIVE: u16 = 0x200;

const NLMSGERR_ATTR_MSG: u16 = 1;
const NLA_F_NESTED: u16 = 0x8000;
const NLA_TYPE_MASK: u16 = 0x3fff;

/// Bytes that do not hold what the format says they hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

fn aligned(len: usize) -> usize {
    len.saturating_add(3) & !3
}

/// Writes one request.
pub(super) struct Request {
    bytes: Vec<u8>,
}

/// An attribute that is being filled with others.
#[must_use]
pub(super) struct Nest(usize);

impl Request {
    /// A request of type `kind`; `how` is added to REQUEST and ACK.
    pub(super) fn start(kind: u16, how: u16, body: &[u8]) -> Self {
        let mut bytes = Vec::with_capacity(256);
        bytes.extend_from_slice(&0u32.to_ne_bytes());
        bytes.extend_from_slice(&kind.to_ne_bytes());
        bytes.extend_from_slice(&(NLM_F_REQUEST | NLM_F_ACK | how).to_ne_bytes());
        bytes.extend_from_slice(&[0; 8]);
        let mut request = Self { bytes };
        request.raw(body);
        request
    }

    /// Appends bytes that are no attribute, and aligns.
    pub(super) fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        self.bytes.resize(aligned(self.bytes.len()), 0);
    }

    /// Appends an attribute. Values here are names, numbers and addresses of a few bytes.
    pub(super) fn attribute(&mut self, kind: u16, value: &[u8]) {
        let nest = self.begin(kind);
        self.bytes.extend_from_slice(value);
        self.end_with(nest, kind);
    }

    pub(super) fn u32(&mut self, kind: u16, value: u32) {
        self.attribute(kind, &value.to_ne_bytes());
    }

    /// Appends a string with the zero byte that the kernel wants.
    pub(super) fn string(&mut self, kind: u16, value: &str) {
        let mut bytes = value.as_bytes().to_vec();
        bytes.push(0);
        self.attribute(kind, &bytes);
    }

    fn begin(&mut self, kind: u16) -> Nest {
        let at = self.bytes.len();
        self.bytes.extend_from_slice(&0u16.to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        Nest(at)
    }

    fn end_with(&mut self, nest: Nest, kind: u16) {
        let len = self.bytes.len().saturating_sub(nest.0);
        // Requests are built here from validated names and numbers, far below 64 KiB.
        let len = u16::try_from(len).unwrap_or(u16::MAX);
        let header = [len.to_ne_bytes(), kind.to_ne_bytes()].concat();
        if let Some(to) = self
            .bytes
            .get_mut(nest.0..nest.0.saturating_add(ATTRIBUTE_BYTES))
        {
            to.copy_from_slice(&header);
        }
        self.bytes.resize(aligned(self.bytes.len()), 0);
    }

    /// Appends an attribute that holds what `fill` appends.
    pub(super) fn nested(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) {
        let nest = self.begin(kind | NLA_F_NESTED);
        fill(self);
        self.end_with(nest, kind | NLA_F_NESTED);
    }

    /// The finished message.
    pub(super) fn finish(mut self, sequence: u32) -> Vec<u8> {
        let len = u32::try_from(self.bytes.len()).unwrap_or(u32::MAX);
        if let Some(to) = self.bytes.get_mut(0..4) {
            to.copy_from_slice(&len.to_ne_bytes());
        }
        if let Some(to) = self.bytes.get_mut(8..12) {
            to.copy_from_slice(&sequence.to_ne_bytes());
        }
        self.bytes
    }
}

/// Reads fixed fields from the front of a slice.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn bytes(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (head, tail) = self.0.split_at_checked(len).ok_or(Malformed)?;
        self.0 = tail;
        Ok(head)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        self.bytes(N)?.try_into().map_err(|_| Malformed)
    }

    pub(super) fn u8(&mut self) -> Result<u8, Malformed> {
        self.array().map(u8::from_ne_bytes)
    }

    pub(super) fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_ne_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_ne_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_ne_bytes)
    }
}

/// One message as received.
#[derive(Clone, Copy, Debug)]
pub(super) struct Received<'a> {
    pub(super) kind: u16,
    flags: u16,
    pub(super) sequence: u32,
    pub(super) payload: &'a [u8],
}

/// What a message means to an exchange.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Data,
    Done,
    Refused {
        errno: Errno,
        message: Option<String>,
    },
}

impl Received<'_> {
    /// Whether the listing that it belongs to changed while it was sent.
    pub(super) fn is_interrupted(&self) -> bool {
        self.flags & NLM_F_DUMP_INTR != 0
    }

    pub(super) fn answer(&self) -> Result<Answer, Malformed> {
        match self.kind {
            NLMSG_ERROR => self.verdict(true),
            NLMSG_DONE => self.verdict(false),
            _ => Ok(Answer::Data),
        }
    }

    /// Parses the errno that ends an exchange, and the sentence after it.
    fn verdict(&self, with_request: bool) -> Result<Answer, Malformed> {
        let mut reader = Reader(self.payload);
        let code = match reader.u32() {
            Ok(code) => code.cast_signed(),
            // A listing may end without a code.
            Err(Malformed) if !with_request => 0,
            Err(Malformed) => return Err(Malformed),
        };
        if code == 0 {
            return Ok(Answer::Done);
        }
        if with_request {
            let mut header = Reader(reader.bytes(HEADER_BYTES)?);
            let len = usize::try_from(header.u32()?).map_err(|_| Malformed)?;
            if self.flags & NLM_F_CAPPED == 0 {
                reader.bytes(aligned(len.saturating_sub(HEADER_BYTES)))?;
            }
        }
        let mut message = None;
        if self.flags & NLM_F_ACK_TLVS != 0 {
            for attribute in attributes(reader.0) {
                let (kind, value) = attribute?;
                if kind == NLMSGERR_ATTR_MSG {
                    message = Some(text(value));
                }
            }
        }
        Ok(Answer::Refused {
            errno: Errno::from_raw_os_error(code.saturating_neg()),
            message,
        })
    }
}

/// Takes a datagram apart into messages. Ends after the first that is malformed.
pub(super) fn split(datagram: &[u8]) -> impl Iterator<Item = Result<Received<'_>, Malformed>> {
    let mut rest = datagram;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let taken = take_message(rest);
        rest = taken.map_or(&[], |(_, tail)| tail);
        Some(taken.map(|(received, _)| received))
    })
}

fn take_message(bytes: &[u8]) -> Result<(Received<'_>, &[u8]), Malformed> {
    let mut reader = Reader(bytes);
    let len = usize::try_from(reader.u32()?).map_err(|_| Malformed)?;
    let kind = reader.u16()?;
    let flags = reader.u16()?;
    let sequence = reader.u32()?;
    reader.u32()?;
    let payload_len = len.checked_sub(HEADER_BYTES).ok_or(Malformed)?;
    let payload = reader.bytes(payload_len)?;
    let tail = bytes.get(aligned(len)..).unwrap_or_default();
    Ok((
        Received {
            kind,
            flags,
            sequence,
            payload,
        },
        tail,
    ))
}

/// Takes a run of attributes apart into type and value. Ends after the first that is malformed.
pub(super) fn attributes(bytes: &[u8]) -> impl Iterator<Item = Result<(u16, &[u8]), Malformed>> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        if rest.len() < ATTRIBUTE_BYTES {
            return None;
        }
        let taken = take_attribute(rest);
        rest = taken.map_or(&[], |(_, tail)| tail);
        Some(taken.map(|(attribute, _)| attribute))
    })
}

type Attribute<'a> = (u16, &'a [u8]);

fn take_attribute(bytes: &[u8]) -> Result<(Attribute<'_>, &[u8]), Malformed> {
    let mut reader = Reader(bytes);
    let len = usize::from(reader.u16()?);
    let kind = reader.u16()? & NLA_TYPE_MASK;
    let value = reader.bytes(len.checked_sub(ATTRIBUTE_BYTES).ok_or(Malformed)?)?;
    Ok(((kind, value), bytes.get(aligned(len)..).unwrap_or_default()))
}

/// A string attribute, up to its zero byte.
pub(super) fn text(value: &[u8]) -> String {
    let end = value.iter().position(|&b| b == 0).unwrap_or(value.len());
    String::from_utf8_lossy(value.get(..end).unwrap_or_default()).into_owned()
}

#[cfg(test)]
#[allow(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::arithmetic_side_effects
)]
mod tests {
    use super::*;

    fn sample() -> Vec<u8> {
        let mut request = Request::start(16, DUMP, &[0; 16]);
        request.string(3, "veth0");
        request.nested(18, |inner| inner.string(1, "veth"));
        request.u32(4, 1500);
        request.finish(7)
    }

    /// What is written is what is read: lengths, padding and nesting.
    #[test]
    fn reads_what_it_writes() {
        let bytes = sample();
        let messages: Vec<_> = split(&bytes).map(Result::unwrap).collect();
        assert_eq!(messages.len(), 1);
        assert_eq!((messages[0].kind, messages[0].sequence), (16, 7));
        let list: Vec<_> = attributes(&messages[0].payload[16..])
            .map(Result::unwrap)
            .collect();
        assert_eq!(
            list.iter().map(|(kind, _)| *kind).collect::<Vec<_>>(),
            [3, 18, 4]
        );
        assert_eq!(text(list[0].1), "veth0");
        let inner: Vec<_> = attributes(list[1].1).map(Result::unwrap).collect();
        assert_eq!((inner[0].0, text(inner[0].1)), (1, "veth".to_owned()));
        assert_eq!(Reader(list[2].1).u32(), Ok(1500));
    }

    /// No prefix, and no single changed byte, of a message makes the parsers panic or loop.
    #[test]
    fn survives_damage() {
        let good = sample();
        for len in 0..=good.len() {
            visit(&good[..len]);
        }
        for at in 0..good.len() {
            for value in [0, 1, 3, 0x7f, 0xff] {
                let mut bad = good.clone();
                bad[at] = value;
                visit(&bad);
            }
        }
    }

    fn visit(bytes: &[u8]) {
        let mut messages = 0;
        for received in split(bytes).flatten() {
            messages += 1;
            let _ = received.answer();
            let body = received.payload.get(16..).unwrap_or_default();
            assert!(attributes(body).count() <= bytes.len());
        }
        assert!(messages <= bytes.len());
    }

    /// A refusal carries its errno and its sentence, whether or not the request is repeated.
    #[test]
    fn reads_a_refusal() {
        for capped in [true, false] {
            let mut payload = (-17i32).to_ne_bytes().to_vec();
            let request = sample();
            payload.extend_from_slice(if capped {
                &request[..HEADER_BYTES]
            } else {
                &request
            });
            payload.extend_from_slice(&[9, 0, 1, 0, b't', b'e', b'x', b't', 0]);
            let flags = NLM_F_ACK_TLVS | if capped { NLM_F_CAPPED } else { 0 };
            let received = Received {
                kind: NLMSG_ERROR,
                flags,
                sequence: 1,
                payload: &payload,
            };
            let expected = Answer::Refused {
                errno: Errno::EXIST,
                message: Some("text".to_owned()),
            };
            assert_eq!(received.answer(), Ok(expected));
        }
    }
}
