//! Endpoints that have moved to another host: what still comes for them here goes on there, for a while.
//!
//! # Model
//! A datagram whose network and inner destination are in [`Relays`] is sent on as it came: the same bytes, the same TOS, a TTL one less.
//! It never goes back to the address that it came from, and one whose TTL is used up goes nowhere: tables that are stale on several hosts
//! cannot make a loop. The kernel tells the TTL only while there are relays.
//!
//! What is not sent on is a frame like any other: the bridge drops it where its destination is behind the same overlay.
//!
//! # Limits
//! Large segments that a kernel has not cut are not relayed. All datagrams leave from one port.
#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::arithmetic_side_effects,
    clippy::panic
)]

use std::collections::HashMap;
use std::net::SocketAddr;
use std::slice;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use windlass_frame::Tick;
use windlass_overlay::Vni;
use windlass_sys::udp::messages::{Address, Message, Received, send};
use windlass_sys::{Errno, udp};
use windlass_wire::MacAddr;

use super::{Vtep, outbox};

/// Where an endpoint has moved to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Relay {
    /// The tunnel endpoint of its host.
    pub to: SocketAddr,
    /// Until when its datagrams are sent on.
    pub until: Tick,
}

/// Endpoints that have moved, by network and address.
pub type Relays = HashMap<(Vni, MacAddr), Relay>;

impl Vtep {
    /// Which datagrams are sent on, from the next burst of each lane on.
    ///
    /// # Errors
    /// What setsockopt(2) says: those before hold.
    pub fn set_relays(&self, relays: Relays) -> Result<(), Errno> {
        let mut known = self.relays.lock().unwrap_or_else(PoisonError::into_inner);
        if **known == relays {
            return Ok(());
        }
        let (is_v6, is_told) = (self.conf.local.is_ipv6(), !relays.is_empty());
        for lane in self.lanes.iter() {
            udp::set_hops_told(&lane.rx, is_v6, is_told)?;
        }
        *known = Arc::new(relays);
        self.version.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// Whether any are.
    pub fn is_relaying(&self) -> bool {
        let relays = self.relays.lock().unwrap_or_else(PoisonError::into_inner);
        !relays.is_empty()
    }

    /// Datagrams that were sent on.
    pub fn relayed(&self) -> u64 {
        self.relayed.load(Ordering::Relaxed)
    }

    /// Sends a datagram with a network's frame on, if its destination has moved. Whether it was.
    #[cold]
    pub(super) fn relay(
        &self,
        relays: &Relays,
        datagram: &[u8],
        (vni, frame): (Vni, &[u8]),
        message: &Received,
        now: Tick,
    ) -> bool {
        let destination = frame.first_chunk().map(|mac| (vni, MacAddr(*mac)));
        let Some(relay) = destination.and_then(|destination| relays.get(&destination)) else {
            return false;
        };
        let is_back = relay.to.ip() == message.from.ip();
        if is_back || now.0 >= relay.until.0 {
            return false;
        }
        let hops = message.hops.and_then(|hops| hops.checked_sub(1));
        let hops = hops.filter(|hops| *hops > 0);
        let socket = self.lanes.first().and_then(|lane| lane.tx.first());
        let (Some(hops), Some(socket)) = (hops, socket) else {
            return false;
        };
        let ranges = [outbox::range(datagram)];
        let message = Message {
            to: Address::new(relay.to),
            ranges: 0..1,
            segment: 0,
            tos: message.tos,
            hops: Some(hops),
        };
        // The first try may fail with what is said of a former datagram.
        let is_sent = (0..2).any(|_| {
            // SAFETY: a frame's bytes are there for its receiver.
            let sent = unsafe { send(socket, &ranges, slice::from_ref(&message)) };
            sent == Ok(1)
        });
        if is_sent {
            self.relayed.fetch_add(1, Ordering::Relaxed);
        }
        is_sent
    }
}
