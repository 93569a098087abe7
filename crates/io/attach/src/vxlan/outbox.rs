//! A worker's datagrams on their way out: gathered, planned into runs, sent.
//!
//! # Model
//! Each frame becomes one datagram, or several if it is a large segment. A datagram is a list of memory: the VXLAN header, the
//! private bytes, or headers that were made here, and pieces of borrowed memory. The kernel's copy is the only one of the
//! payload; where a checksum is to be completed the payload is read once more for its sum, so that a sender that writes in
//! between spoils its own checksum and nothing else.

use std::cell::RefCell;
use std::ops::Range;

use libc::iovec;
use windlass_frame::{Gso, Heads, Offload, Pick};
use windlass_overlay::runs::{BYTES_MAX, Datagram, first_run};
use windlass_overlay::{ecn, header};
use windlass_shm::{Foreign, Tails};
use windlass_stats::Drop;
use windlass_sys::udp::messages::{Address, Message, SENT_MAX};
use windlass_wire::segment::{self, HEADERS_MAX, Plan};
use windlass_wire::{Sum, parse};

use super::Tos;
use crate::soft::{SEGMENTS_MAX, tci};

/// Bytes of headers that are made here between two sends: at least those of one frame cut into [`SEGMENTS_MAX`].
const HEADER_BYTES: usize = SEGMENTS_MAX as usize * (HEADERS_MAX + TAG) + 4096;
/// Bytes of a tag.
const TAG: usize = 4;
/// Bytes of the two addresses, behind which a tag stands.
const ADDRESSES: usize = 12;
/// Bytes that are summed at a time.
const CHUNK: usize = 2048;

thread_local! {
    static OUTBOX: RefCell<Outbox> = RefCell::new(Outbox::new());
}

/// Runs `work` with the calling thread's lists.
pub(super) fn with<T>(work: impl FnOnce(&mut Outbox) -> T) -> T {
    OUTBOX.with_borrow_mut(work)
}

/// Datagrams that were gathered.
pub(super) struct Outbox {
    ranges: Vec<iovec>,
    datagrams: Vec<Datagram>,
    /// By datagram: which of the burst's picks it is of.
    picks: Vec<u8>,
    headers: Box<[u8]>,
    used: usize,
    messages: Vec<Message>,
}

impl Outbox {
    fn new() -> Outbox {
        Outbox {
            ranges: Vec::new(),
            datagrams: Vec::new(),
            picks: Vec::new(),
            headers: vec![0; HEADER_BYTES].into_boxed_slice(),
            used: 0,
            messages: Vec::new(),
        }
    }

    /// Forgets all.
    pub(super) fn clear(&mut self) {
        self.ranges.clear();
        self.datagrams.clear();
        self.picks.clear();
        self.used = 0;
    }

    /// Whether nothing was gathered.
    pub(super) fn is_empty(&self) -> bool {
        self.datagrams.is_empty()
    }

    /// The pick that a datagram is of.
    pub(super) fn pick(&self, datagram: usize) -> u8 {
        self.picks.get(datagram).copied().unwrap_or(u8::MAX)
    }

    /// How many datagrams were gathered.
    pub(super) fn len(&self) -> usize {
        self.datagrams.len()
    }

    /// Pieces of memory of all datagrams.
    pub(super) fn ranges(&self) -> &[iovec] {
        &self.ranges
    }

    /// Plans the datagrams from one on into messages, each of at most `most` datagrams, as many as one call sends.
    pub(super) fn plan(&mut self, from: usize, to: Address, most: usize) {
        self.messages.clear();
        let mut at = self.piece(from);
        let mut rest = self.datagrams.get(from..).unwrap_or(&[]);
        while self.messages.len() < SENT_MAX {
            let (run, later) = rest.split_at(first_run(rest, most));
            let Some(first) = run.first() else {
                return;
            };
            let pieces: usize = run.iter().map(|d| usize::from(d.pieces)).sum();
            self.messages.push(Message {
                to,
                ranges: at..at + pieces,
                segment: if run.len() > 1 { first.len } else { 0 },
                tos: first.tos,
                hops: None,
            });
            (at, rest) = (at + pieces, later);
        }
    }

    /// What was planned.
    pub(super) fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// Datagrams of the run that begins with one.
    pub(super) fn run(&self, from: usize, most: usize) -> usize {
        first_run(self.datagrams.get(from..).unwrap_or(&[]), most)
    }

    /// The first piece of a datagram.
    fn piece(&self, datagram: usize) -> usize {
        let before = self.datagrams.get(..datagram).unwrap_or(&[]);
        before.iter().map(|d| usize::from(d.pieces)).sum()
    }

    /// How many datagrams from one on are in so many messages.
    pub(super) fn sent(&self, from: usize, messages: usize, most: usize) -> usize {
        let mut at = from;
        for _ in 0..messages {
            at += self.run(at, most);
        }
        at - from
    }

    /// Adds the `number`th frame of a burst behind a VXLAN header. False if the outbox has to be emptied first.
    ///
    /// # Errors
    /// Why nothing can be made of the frame.
    pub(super) fn add(
        &mut self,
        heads: &Heads,
        tails: &Tails<'_>,
        (number, pick): (usize, Pick),
        vxlan: &[u8; header::BYTES],
        tos: Tos,
    ) -> Result<bool, Drop> {
        let i = pick.index();
        let meta = &heads.meta[i];
        let private = heads.private(i);
        let inner = ecn::tos(private).unwrap_or(0);
        let class = match tos {
            Tos::Inherit => inner,
            Tos::Fixed(tos) => tos,
        };
        let frame = Frame {
            number: number as u8,
            vxlan,
            tos: class & !ecn::MASK | ecn::enter(inner),
            tag: pick.tagged().then(|| tci(meta).0.to_be_bytes()),
            len: meta.len as usize,
        };
        let whole = header::BYTES + frame.len + if pick.tagged() { TAG } else { 0 };
        let source = Source {
            private,
            segment: Foreign::empty(),
            segments: tails.of(i),
        };
        if meta.off.gso != Gso::None {
            let plan = plan(heads, i, &meta.off).ok_or(Drop::SegmentLimit)?;
            return Ok(self.cut(&frame, &plan, source));
        }
        if whole > BYTES_MAX {
            return Err(Drop::TooBig);
        }
        Ok(if meta.off.needs_csum() {
            self.complete(&frame, meta.off, source)
        } else {
            self.plain(&frame, source)
        })
    }

    /// A frame as it is.
    fn plain<'q>(
        &mut self,
        frame: &Frame<'_>,
        mut source: Source<'_, impl Iterator<Item = Foreign<'q>>>,
    ) -> bool {
        let first = self.ranges.len();
        self.ranges.push(range(frame.vxlan));
        let mut len = header::BYTES + frame.len;
        if let Some([hi, lo]) = frame.tag
            && let Some((addresses, rest)) = source.private.split_at_checked(ADDRESSES)
        {
            let Some(at) = self.reserve(TAG) else {
                self.ranges.truncate(first);
                return false;
            };
            self.write(at.clone(), &[0x81, 0, hi, lo]);
            self.ranges.push(range(addresses));
            self.push_header(at);
            source.private = rest;
            len += TAG;
        }
        source.all(|piece| self.ranges.push(piece));
        self.end(frame, first, len);
        true
    }

    /// A frame whose checksum is to be completed.
    fn complete<'q>(
        &mut self,
        frame: &Frame<'_>,
        off: Offload,
        mut source: Source<'_, impl Iterator<Item = Foreign<'q>>>,
    ) -> bool {
        let private = source.private;
        let Some(space) = self.reserve(TAG + private.len()) else {
            return false;
        };
        let begin = space.start + TAG;
        self.write(begin..space.end, private);
        let first = self.ranges.len();
        self.ranges.push(range(frame.vxlan));
        let headers = self.ranges.len();
        self.ranges.push(NOTHING);
        source.private = &[];
        // Padding behind an IP packet is not summed.
        let end = match parse(private, frame.len as u32).end as usize {
            0 => frame.len,
            end => end,
        };
        let (start, field) = (usize::from(off.start), usize::from(off.start + off.offset));
        let mut sum = Sum::new();
        sum.add_bytes(private.get(start..private.len().min(end)).unwrap_or(&[]));
        let behind = end.saturating_sub(private.len());
        source.take(behind, |piece| self.ranges.push(piece), &mut sum);
        source.all(|piece| self.ranges.push(piece));
        if field + 2 <= private.len() {
            self.write(
                begin + field..begin + field + 2,
                &sum.finish_udp().to_be_bytes(),
            );
        }
        let (at, added) = self.tagged(begin, space.end, frame.tag);
        self.ranges[headers] = self.header_range(at..space.end);
        self.end(frame, first, header::BYTES + frame.len + added);
        true
    }

    /// A large segment.
    fn cut<'q>(
        &mut self,
        frame: &Frame<'_>,
        plan: &Plan<'_>,
        mut source: Source<'_, impl Iterator<Item = Foreign<'q>>>,
    ) -> bool {
        let each = plan.headers() + TAG;
        let Some(space) = self.reserve(each * plan.count() as usize) else {
            return false;
        };
        source.private = source.private.get(plan.headers()..).unwrap_or(&[]);
        for k in 0..plan.count() {
            let begin = space.start + each * k as usize + TAG;
            let end = begin + plan.headers();
            let Some(part) = self
                .headers
                .get_mut(begin..end)
                .and_then(|out| plan.header(k, out))
            else {
                break;
            };
            let first = self.ranges.len();
            self.ranges.push(range(frame.vxlan));
            let headers = self.ranges.len();
            self.ranges.push(NOTHING);
            let mut sum = part.seed;
            source.take(part.len.into(), |piece| self.ranges.push(piece), &mut sum);
            if let Some(out) = self.headers.get_mut(begin..end) {
                part.seal(out, sum);
            }
            let (at, added) = self.tagged(begin, end, frame.tag);
            self.ranges[headers] = self.header_range(at..end);
            let len = header::BYTES + plan.headers() + usize::from(part.len) + added;
            self.end(frame, first, len);
        }
        true
    }

    /// Puts a tag into headers that stand behind the room for it; where they begin then, and how much longer they are.
    fn tagged(&mut self, begin: usize, end: usize, tag: Option<[u8; 2]>) -> (usize, usize) {
        let Some([hi, lo]) = tag.filter(|_| end - begin >= ADDRESSES) else {
            return (begin, 0);
        };
        let at = begin - TAG;
        self.headers.copy_within(begin..begin + ADDRESSES, at);
        self.write(at + ADDRESSES..at + ADDRESSES + TAG, &[0x81, 0, hi, lo]);
        (at, TAG)
    }

    fn reserve(&mut self, bytes: usize) -> Option<Range<usize>> {
        let end = self.used.checked_add(bytes)?;
        let space = self.used..end;
        (end <= self.headers.len()).then(|| {
            self.used = end;
            space
        })
    }

    fn write(&mut self, at: Range<usize>, bytes: &[u8]) {
        if let Some(space) = self.headers.get_mut(at) {
            space.copy_from_slice(bytes);
        }
    }

    fn header_range(&self, at: Range<usize>) -> iovec {
        range(self.headers.get(at).unwrap_or(&[]))
    }

    fn push_header(&mut self, at: Range<usize>) {
        let piece = self.header_range(at);
        self.ranges.push(piece);
    }

    /// The pieces from `first` on are a datagram.
    fn end(&mut self, frame: &Frame<'_>, first: usize, len: usize) {
        self.datagrams.push(Datagram {
            len: len as u16,
            tos: frame.tos,
            pieces: (self.ranges.len() - first) as u16,
        });
        self.picks.push(frame.number);
    }
}

/// One frame on its way.
struct Frame<'a> {
    number: u8,
    vxlan: &'a [u8; header::BYTES],
    tos: u8,
    tag: Option<[u8; 2]>,
    len: usize,
}

/// How a large segment is cut; `None` if it cannot be, or into too many.
fn plan<'a>(heads: &'a Heads, i: usize, off: &Offload) -> Option<Plan<'a>> {
    let kind = match off.gso {
        Gso::None => return None,
        Gso::Tcp4 => segment::Gso::Tcp4,
        Gso::Tcp6 => segment::Gso::Tcp6,
        Gso::UdpL4 => segment::Gso::UdpL4,
    };
    let private = heads.private(i);
    let layers = parse(private, heads.meta.get(i)?.len);
    let plan = Plan::new(private, &layers, kind, off.gso_size).ok()?;
    (plan.count() <= SEGMENTS_MAX).then_some(plan)
}

const NOTHING: iovec = iovec {
    iov_base: core::ptr::null_mut(),
    iov_len: 0,
};

/// A range that is only read.
pub(super) fn range(bytes: &[u8]) -> iovec {
    iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    }
}

/// What is left of a frame: private bytes, then borrowed ones.
struct Source<'a, I: Iterator> {
    private: &'a [u8],
    segment: I::Item,
    segments: I,
}

impl<'q, I: Iterator<Item = Foreign<'q>>> Source<'_, I> {
    /// Gives the pieces of the next `n` bytes, and adds the bytes to `sum`.
    fn take(&mut self, mut n: usize, mut give: impl FnMut(iovec), sum: &mut Sum) {
        if !self.private.is_empty() {
            let (now, later) = self.private.split_at(self.private.len().min(n));
            give(range(now));
            sum.add_bytes(now);
            (self.private, n) = (later, n - now.len());
        }
        while n > 0 {
            if self.segment.is_empty() {
                match self.segments.next() {
                    Some(segment) => self.segment = segment,
                    None => return,
                }
            }
            let (now, later) = self.segment.split_at(n);
            give(piece(&now));
            add(sum, now);
            (self.segment, n) = (later, n - now.len());
        }
    }

    /// Gives the pieces of all that is left.
    fn all(self, mut give: impl FnMut(iovec)) {
        if !self.private.is_empty() {
            give(range(self.private));
        }
        let rest = (!self.segment.is_empty()).then_some(self.segment);
        rest.into_iter()
            .chain(self.segments)
            .for_each(|s| give(piece(&s)));
    }
}

fn piece(segment: &Foreign<'_>) -> iovec {
    iovec {
        iov_base: segment.as_ptr().cast_mut().cast(),
        iov_len: segment.len(),
    }
}

/// Adds foreign bytes to a sum.
fn add(sum: &mut Sum, mut from: Foreign<'_>) {
    let mut chunk = [0; CHUNK];
    while !from.is_empty() {
        let n = from.read(&mut chunk);
        sum.add_bytes(chunk.get(..n).unwrap_or(&[]));
        from = from.split_at(n).1;
    }
}
