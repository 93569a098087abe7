//! What one worker has waiting of one direction of a member: [`Backlog`].
//!
//! # Life of a frame
//! ```text
//! pass? --yes-------------------------------------------------> sent
//!   |no: flow's rate                                     ^
//!   +--> queues of the flow --its time--> member's rate? +--> ready --> sent
//!   |no: member's rate                       |no         ^
//!   +--> queues of the member <--------------+ --its time+
//! ```
//! A queue that has frames has reserved the moment of its next one ([`Bucket::reserve`]). Which frame that is, is decided when the
//! moment has come, so that one that came later and is sparse can be it.
//!
//! # What can be lost
//! Frames that the queues drop ([`Cause`]), which are told to whoever calls.

use std::collections::VecDeque;
use std::sync::Arc;

use windlass_frame::Tick;

use crate::bucket::Bucket;
use crate::codel::MTU;
use crate::fair::{Fair, Waiting};
use crate::shaper::{Cause, Flow, Place, Priority, Shaper};

/// What waits for one rate.
#[derive(Debug)]
struct Node<T> {
    /// Whose rate: 0 is the member's.
    flow: u64,
    limit: Arc<Bucket>,
    fair: Fair<T>,
    /// When the next one goes, and what was reserved for it.
    reserved: Option<(Tick, u32)>,
}

/// Told of frames that are dropped.
pub type Dropped<'a, T> = dyn FnMut(Waiting<T>, Cause) + 'a;

impl<T> Node<T> {
    fn new(flow: u64, limit: &Arc<Bucket>) -> Node<T> {
        Node {
            flow,
            limit: limit.clone(),
            fair: Fair::new(limit.takes_ns(MTU)),
            reserved: None,
        }
    }

    /// The rate is another one now.
    fn follow(&mut self, limit: &Arc<Bucket>) {
        if Arc::ptr_eq(&self.limit, limit) {
            return;
        }
        if let Some((_, bytes)) = self.reserved.take() {
            self.limit.correct(bytes, 0);
        }
        self.limit.end_wait(self.fair.bytes());
        self.limit = limit.clone();
        self.limit.wait(self.fair.bytes());
        self.fair.set_rate(limit.takes_ns(MTU));
    }

    fn push(&mut self, frame: Waiting<T>, dropped: &mut Dropped<'_, T>) {
        let now = frame.since;
        while !self.fair.is_empty() && !self.limit.has_room(frame.bytes) {
            match self.drop_longest() {
                Some(frame) => dropped(frame, Cause::Full),
                None => break,
            }
        }
        self.limit.wait(frame.bytes.into());
        self.fair.push(frame);
        self.reserve(now, false);
    }

    fn drop_longest(&mut self) -> Option<Waiting<T>> {
        let frame = self.fair.drop_longest()?;
        self.limit.end_wait(frame.bytes.into());
        if self.fair.is_empty()
            && let Some((_, bytes)) = self.reserved.take()
        {
            self.limit.correct(bytes, 0);
        }
        Some(frame)
    }

    /// Has a moment for the next frame, if there is one.
    fn reserve(&mut self, now: Tick, catches_up: bool) {
        if self.reserved.is_none() && !self.fair.is_empty() {
            let bytes = self.fair.next_bytes(now);
            let at = self.limit.reserve(now, bytes, catches_up);
            self.reserved = Some((at, bytes));
        }
    }

    /// The next frame whose time has come.
    fn next(&mut self, now: Tick, dropped: &mut Dropped<'_, T>) -> Option<Waiting<T>> {
        let (at, reserved) = self.reserved?;
        if at > now && !self.fair.is_empty() {
            return None;
        }
        let limit = &self.limit;
        let frame = self.fair.pop(now, &mut |frame| {
            limit.end_wait(frame.bytes.into());
            dropped(frame, Cause::Slow);
        });
        self.reserved = None;
        let used = frame.as_ref().map_or(0, |frame| frame.bytes);
        self.limit.end_wait(used.into());
        self.limit.correct(reserved, used);
        self.reserve(now, true);
        frame
    }

    fn drain(&mut self) -> impl Iterator<Item = Waiting<T>> + use<T> {
        if let Some((_, bytes)) = self.reserved.take() {
            self.limit.correct(bytes, 0);
        }
        self.limit.end_wait(self.fair.bytes());
        self.fair.drain()
    }
}

/// What waits.
#[derive(Debug)]
pub struct Backlog<T> {
    nodes: Vec<Node<T>>,
    /// What goes as soon as it can, in this order.
    ready: VecDeque<Waiting<T>>,
}

impl<T> Default for Backlog<T> {
    fn default() -> Self {
        Backlog {
            nodes: Vec::new(),
            ready: VecDeque::new(),
        }
    }
}

impl<T> Backlog<T> {
    /// Frames that wait.
    pub fn len(&self) -> usize {
        let nodes = self.nodes.iter().map(|node| node.fair.len());
        nodes.fold(self.ready.len(), usize::saturating_add)
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.ready.is_empty() && self.nodes.iter().all(|node| node.fair.is_empty())
    }

    /// All that waits, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &Waiting<T>> {
        let nodes = self.nodes.iter().flat_map(|node| node.fair.iter());
        self.ready.iter().chain(nodes)
    }

    /// What goes now, in this order.
    pub fn ready(&self) -> impl Iterator<Item = &Waiting<T>> {
        self.ready.iter()
    }

    /// The first that goes now has gone.
    pub fn pop_ready(&mut self) -> Option<Waiting<T>> {
        self.ready.pop_front()
    }

    fn has(&self, flow: u64) -> bool {
        let mut nodes = self.nodes.iter();
        nodes.any(|node| node.flow == flow && !node.fair.is_empty())
    }

    /// Whether a frame goes at once; if not, where it has to wait. `shaper`: what holds for the member, if anything does.
    pub fn pass(
        &self,
        shaper: Option<&Shaper>,
        flow: Option<&Flow>,
        now: Tick,
        bytes: u32,
    ) -> Result<(), Place> {
        let Some(shaper) = shaper else {
            return if self.is_empty() {
                Ok(())
            } else {
                Err(Place::Member)
            };
        };
        if flow.is_some_and(|flow| self.has(flow.id)) {
            return Err(Place::Flow);
        }
        if self.ready.is_empty() && !self.has(0) {
            return shaper.pass(flow, now, bytes);
        }
        // Behind what waits for the member's rate, once its flow's lets it.
        let limit = flow.and_then(|flow| flow.limit.as_deref());
        match limit.is_none_or(|limit| limit.pass(now, bytes)) {
            true => Err(Place::Member),
            false => Err(Place::Flow),
        }
    }

    /// A frame waits there, as [`Backlog::pass`] or [`Shaper::pass`] said. `key`: what its queue is chosen by. `takes_mark`:
    /// [`crate::ecn::is_capable`].
    pub fn push(
        &mut self,
        shaper: Option<&Shaper>,
        (flow, place): (Option<&Flow>, Place),
        (item, bytes, key, takes_mark): (T, u32, u32, bool),
        now: Tick,
        dropped: &mut Dropped<'_, T>,
    ) {
        let frame = Waiting {
            item,
            bytes,
            flow: flow.map_or(0, |flow| flow.id),
            is_marked: false,
            takes_mark,
            key,
            priority: flow.map_or(Priority::default(), |flow| flow.priority),
            since: now,
        };
        let limit = match place {
            Place::Flow => flow.and_then(|flow| flow.limit.as_ref()),
            Place::Member => shaper.and_then(|shaper| shaper.limit.as_ref()),
            Place::Ready => None,
        };
        match limit {
            Some(limit) => {
                let id = if place == Place::Flow { frame.flow } else { 0 };
                self.node(id, limit).push(frame, dropped);
            }
            None => self.ready.push_back(frame),
        }
    }

    fn node(&mut self, flow: u64, limit: &Arc<Bucket>) -> &mut Node<T> {
        let at = self.nodes.iter().position(|node| node.flow == flow);
        let at = at.unwrap_or_else(|| {
            self.nodes.push(Node::new(flow, limit));
            self.nodes.len().wrapping_sub(1)
        });
        #[allow(clippy::indexing_slicing)] // It was found there, or has just been put there.
        let node = &mut self.nodes[at];
        node.follow(limit);
        node
    }

    /// Has frames whose time has come ready, until about `most` are. Without `shaper` nothing holds them: all are.
    pub fn advance(
        &mut self,
        shaper: Option<&Shaper>,
        now: Tick,
        most: usize,
        dropped: &mut Dropped<'_, T>,
    ) {
        if shaper.is_none_or(|shaper| shaper.limit.is_none()) {
            // Before what its flows have kept behind it.
            self.advance_own(shaper, now, most, dropped);
        }
        let mut nodes = std::mem::take(&mut self.nodes);
        let rank = |node: &Node<T>| {
            let flow = shaper.and_then(|shaper| shaper.flow(node.flow));
            (
                node.flow == 0,
                flow.map(|flow| std::cmp::Reverse(flow.priority)),
            )
        };
        nodes.sort_by_key(rank);
        let own = nodes.pop_if(|node| node.flow == 0);
        self.nodes.extend(own);
        for mut node in nodes.drain(..) {
            let flow = shaper.and_then(|shaper| shaper.flow(node.flow));
            match flow.and_then(|flow| flow.limit.as_ref()) {
                None => node
                    .drain()
                    .for_each(|frame| self.go_on(shaper, frame, now, dropped)),
                Some(limit) => {
                    node.follow(limit);
                    node.reserve(now, false);
                    for _ in 0..most {
                        let Some(frame) = node.next(now, dropped) else {
                            break;
                        };
                        self.go_on(shaper, frame, now, dropped);
                    }
                }
            }
            if !node.fair.is_empty() {
                self.nodes.push(node);
            }
        }
        self.advance_own(shaper, now, most, dropped);
    }

    /// The member's own queues, which are the first node if they are there.
    fn advance_own(
        &mut self,
        shaper: Option<&Shaper>,
        now: Tick,
        most: usize,
        dropped: &mut Dropped<'_, T>,
    ) {
        let Some(node) = self.nodes.iter_mut().find(|node| node.flow == 0) else {
            return;
        };
        match shaper.and_then(|shaper| shaper.limit.as_ref()) {
            None => self.ready.extend(node.drain()),
            Some(limit) => {
                node.follow(limit);
                node.reserve(now, false);
                while self.ready.len() < most
                    && let Some(frame) = node.next(now, dropped)
                {
                    self.ready.push_back(frame);
                }
            }
        }
        self.nodes.retain(|node| !node.fair.is_empty());
    }

    /// A frame's flow lets it go.
    fn go_on(
        &mut self,
        shaper: Option<&Shaper>,
        frame: Waiting<T>,
        now: Tick,
        dropped: &mut Dropped<'_, T>,
    ) {
        let limit = shaper.and_then(|shaper| shaper.limit.as_ref());
        match limit {
            Some(limit) if self.has(0) || !limit.pass(now, frame.bytes) => {
                let frame = Waiting {
                    since: now,
                    ..frame
                };
                self.node(0, limit).push(frame, dropped);
            }
            _ => self.ready.push_back(frame),
        }
    }

    /// When there is something to do next.
    pub fn due(&self) -> Option<Tick> {
        if !self.ready.is_empty() {
            return Some(Tick(0));
        }
        let waiting = self.nodes.iter().filter(|node| !node.fair.is_empty());
        waiting
            .map(|node| node.reserved.map_or(Tick(0), |(at, _)| at))
            .min()
    }

    /// A frame of the longest queue leaves: there is no room.
    pub fn drop_longest(&mut self) -> Option<Waiting<T>> {
        let longest = self.nodes.iter_mut().max_by_key(|node| node.fair.bytes());
        longest?.drop_longest()
    }

    /// All that waits leaves.
    pub fn drain(&mut self) -> impl Iterator<Item = Waiting<T>> + use<T> {
        let ready = std::mem::take(&mut self.ready).into_iter();
        let mut nodes = std::mem::take(&mut self.nodes);
        let frames: Vec<_> = nodes.iter_mut().flat_map(Node::drain).collect();
        ready.chain(frames)
    }
}
