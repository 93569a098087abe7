//! From what two sides agreed on to the halves that workers use.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::layout::RingPlace;
use super::offload::Offloads;
use super::rx::MemifRx;
use super::tx::{MemifTx, TxRing};
use super::view::{Buffers, Ring, Role, View};
use crate::endpoint::Rings;

/// One ring as the two sides agreed on it.
#[derive(Debug)]
pub struct RingSpec {
    /// Region that it lies in.
    pub region: u16,
    /// Where in that region.
    pub place: RingPlace,
    /// Notifies its consumer.
    pub event: Option<OwnedFd>,
    /// Where its buffers lie, if the memory is ours.
    pub buffers: Option<Buffers>,
}

/// The halves of a connection whose rings stand at 0. `None` if a ring does not lie in its region, or a direction has
/// no ring.
pub fn assemble(
    view: &Arc<View>,
    role: Role,
    from_client: Vec<RingSpec>,
    from_server: Vec<RingSpec>,
) -> Option<Rings> {
    if from_client.is_empty() || from_server.is_empty() {
        return None;
    }
    let (towards_us, towards_peer) = match role {
        Role::Server => (from_client, from_server),
        Role::Client => (from_server, from_client),
    };
    let mut rings = Vec::with_capacity(towards_peer.len());
    for spec in towards_peer {
        let ring = Ring::new(view, role, spec.region, spec.place)?;
        rings.push(TxRing {
            ring,
            buffers: spec.buffers,
            kick: spec.event.map(Arc::new),
        });
    }
    // A client of ours asks for nothing. What a client of another program asks for is read once: it holds for the connection.
    let offloads = match (role, rings.first()) {
        (Role::Server, Some(first)) => first.ring.offloads(),
        _ => Offloads::None,
    };
    let answers: Vec<_> = rings.iter().map(|ring| ring.kick.clone()).collect();
    let mut rx: Vec<Box<dyn crate::port::RxPort>> = Vec::with_capacity(towards_us.len());
    for (i, spec) in towards_us.into_iter().enumerate() {
        let ring = Ring::new(view, role, spec.region, spec.place)?;
        rx.push(Box::new(MemifRx::new(
            view.clone(),
            ring,
            spec.buffers,
            spec.event,
            match role {
                Role::Server => answers.get(i).or(answers.first()).cloned().flatten(),
                Role::Client => None,
            },
            offloads,
        )));
    }
    Some(Rings {
        rx,
        tx: Arc::new(MemifTx::new(view.clone(), rings, offloads)),
    })
}
