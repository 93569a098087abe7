//! A worker's datagrams on their way out: gathered, planned into runs, sent.
//!
//! # Model
//! Each frame becomes one datagram, or several if it is a large segment. The VXLAN header, the frame's headers and each byte that
//! is summed are written behind each other into memory of the worker, so that a run of them is one piece of memory to the kernel.
//! A byte that is summed is read once: a sender that writes meanwhile sends what it wrote, with the right checksum. What needs
//! no sum behind the private bytes is not copied here.

use std::cell::RefCell;
use std::ops::Range;

use libc::iovec;
use windlass_frame::{FRAME_MAX, Gso, Heads, Pick};
use windlass_overlay::runs::{BYTES_MAX, Datagram, first_run};
use windlass_overlay::{ecn, header};
use windlass_shm::{Foreign, Tails};
use windlass_stats::Drop;
use windlass_sys::udp::messages::{Address, Message, SENT_MAX};
use windlass_wire::segment::{HEADERS_MAX, Plan};
use windlass_wire::{Tci, checksum, ether, parse, tag};

use super::Tos;
use crate::soft::{self, SEGMENTS_MAX, Source, tci};

/// Bytes that are written here between two sends: at least those of one frame cut into [`SEGMENTS_MAX`].
const BUFFER_BYTES: usize =
    SEGMENTS_MAX as usize * (header::BYTES + ether::TAG + HEADERS_MAX) + FRAME_MAX;

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
    bytes: Box<[u8]>,
    used: usize,
    messages: Vec<Message>,
    /// Pieces of memory of the messages.
    lists: Vec<iovec>,
}

impl Outbox {
    fn new() -> Outbox {
        Outbox {
            ranges: Vec::new(),
            datagrams: Vec::new(),
            picks: Vec::new(),
            bytes: vec![0; BUFFER_BYTES].into_boxed_slice(),
            used: 0,
            messages: Vec::new(),
            lists: Vec::new(),
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

    /// Pieces of memory of the messages that were planned.
    pub(super) fn lists(&self) -> &[iovec] {
        &self.lists
    }

    /// Plans the datagrams from one on into messages, each of at most `most` datagrams, as many as one call sends.
    pub(super) fn plan(&mut self, from: usize, to: Address, most: usize) {
        self.messages.clear();
        self.lists.clear();
        let mut at = self.piece(from);
        let mut rest = self.datagrams.get(from..).unwrap_or(&[]);
        while self.messages.len() < SENT_MAX {
            let (run, later) = rest.split_at(first_run(rest, most));
            let Some(first) = run.first() else {
                return;
            };
            let pieces: usize = run.iter().map(|d| usize::from(d.pieces)).sum();
            let begin = self.lists.len();
            join(
                &mut self.lists,
                self.ranges.get(at..at + pieces).unwrap_or(&[]),
            );
            self.messages.push(Message {
                to,
                ranges: begin..self.lists.len(),
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
            tag: pick.tagged().then(|| tci(meta)),
        };
        let mut source = soft::source(heads, tails, pick);
        if meta.off.gso != Gso::None {
            let plan = soft::plan(heads, pick, &meta.off).ok_or(Drop::SegmentLimit)?;
            return Ok(self.cut(&frame, &plan, source));
        }
        let (len, lead) = (meta.len as usize, frame.lead());
        if lead + len > BYTES_MAX {
            return Err(Drop::TooBig);
        }
        let is_summed = meta.off.needs_csum();
        let here = if is_summed { len } else { private.len() };
        let Some(space) = self.reserve(lead + here) else {
            return Ok(false);
        };
        let first = self.ranges.len();
        let room = self.bytes.get_mut(space.clone()).unwrap_or_default();
        let inner = room.get_mut(lead..).unwrap_or_default();
        source.read(inner);
        if is_summed {
            // Padding behind an IP packet is not summed.
            let packet = match parse(private, meta.len).end as usize {
                0 => inner,
                end => inner.get_mut(..end).unwrap_or_default(),
            };
            checksum::finish_in_place(packet, meta.off.start.into(), meta.off.offset.into());
        }
        frame.head(room);
        self.push(space);
        self.ranges.extend(source.rest().map(|piece| iovec {
            iov_base: piece.as_ptr().cast_mut().cast(),
            iov_len: piece.len(),
        }));
        self.end(&frame, first, lead + len);
        Ok(true)
    }

    /// A large segment.
    fn cut<'q>(
        &mut self,
        frame: &Frame<'_>,
        plan: &Plan<'_>,
        mut source: Source<'_, impl Iterator<Item = Foreign<'q>>>,
    ) -> bool {
        let (lead, headers) = (frame.lead(), plan.headers());
        let all = (lead + headers) * plan.count() as usize + plan.payload() as usize;
        let Some(mut space) = self.reserve(all) else {
            return false;
        };
        source.skip(headers);
        for k in 0..plan.count() {
            let room = self.bytes.get_mut(space.clone()).unwrap_or_default();
            let inner = room.get_mut(lead..).unwrap_or_default();
            let Some(part) = plan.header(k, inner) else {
                break;
            };
            let end = headers + usize::from(part.len);
            let payload = inner.get_mut(headers..end).unwrap_or_default();
            source.read(payload);
            let mut sum = part.seed;
            sum.add_bytes(payload);
            part.seal(inner, sum);
            frame.head(room);
            let first = self.ranges.len();
            let next = space.start + lead + end;
            self.push(space.start..next);
            self.end(frame, first, lead + end);
            space.start = next;
        }
        true
    }

    fn reserve(&mut self, bytes: usize) -> Option<Range<usize>> {
        let end = self.used.checked_add(bytes)?;
        let space = self.used..end;
        (end <= self.bytes.len()).then(|| {
            self.used = end;
            space
        })
    }

    fn push(&mut self, at: Range<usize>) {
        let piece = range(self.bytes.get(at).unwrap_or(&[]));
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
    tag: Option<Tci>,
}

impl Frame<'_> {
    /// Where the frame without its tag begins in a datagram.
    fn lead(&self) -> usize {
        header::BYTES + if self.tag.is_some() { ether::TAG } else { 0 }
    }

    /// Writes what belongs before a datagram's frame, and the frame's tag.
    fn head(&self, datagram: &mut [u8]) {
        if let Some(tci) = self.tag {
            tag::push(datagram, self.lead(), ether::VLAN, tci);
        }
        if let Some(vxlan) = datagram.first_chunk_mut() {
            *vxlan = *self.vxlan;
        }
    }
}

/// A range that is only read.
pub(super) fn range(bytes: &[u8]) -> iovec {
    iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    }
}

/// Appends pieces of memory; those that lie behind each other are one.
fn join(list: &mut Vec<iovec>, pieces: &[iovec]) {
    let begin = list.len();
    for piece in pieces {
        match list.get_mut(begin..).and_then(|list| list.last_mut()) {
            Some(last) if last.iov_base.wrapping_byte_add(last.iov_len) == piece.iov_base => {
                last.iov_len += piece.iov_len;
            }
            _ => list.push(*piece),
        }
    }
}
