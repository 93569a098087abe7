//! Neighbours whose link-layer address is asked for: `struct ndmsg` of `<linux/neighbour.h>`.

#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::arithmetic_side_effects,
    clippy::panic
)]

use std::net::IpAddr;

use rustix::io::Errno;

use super::address::{family, octets, parse_ip};
use super::message::{self, DUMP, Malformed, Reader, Received, Request};
use super::{Netlink, NetlinkError};

const RTM_NEWNEIGH: u16 = 28;
const RTM_DELNEIGH: u16 = 29;
const RTM_GETNEIGH: u16 = 30;

const NDA_DST: u16 = 1;
const NUD_INCOMPLETE: u16 = 1;

/// Family, three bytes of padding, link, state, flags, type.
fn body(family: u8, index: u32) -> [u8; 12] {
    let [a, b, c, d] = index.to_ne_bytes();
    [family, 0, 0, 0, a, b, c, d, 0, 0, 0, 0]
}

/// The link and address of one that has not answered.
fn parse(received: &Received<'_>) -> Result<Option<(u32, IpAddr)>, Malformed> {
    if received.kind != RTM_NEWNEIGH {
        return Ok(None);
    }
    let mut reader = Reader(received.payload);
    reader.u32()?;
    let (index, state) = (reader.u32()?, reader.u16()?);
    reader.u16()?;
    if state != NUD_INCOMPLETE {
        return Ok(None);
    }
    for attribute in message::attributes(reader.0) {
        if let (NDA_DST, value) = attribute? {
            return Ok(Some((index, parse_ip(value)?)));
        }
    }
    Ok(None)
}

impl Netlink {
    /// Has the kernel ask anew, at the next packet, for each neighbour of a link that has not answered so far. What waits for
    /// their answers is dropped.
    pub fn forget_unresolved(&mut self, index: u32) -> Result<(), NetlinkError> {
        let request = || Request::start(RTM_GETNEIGH, DUMP, &body(0, 0));
        let unresolved = self.dump(request, "list neighbours", parse)?;
        for (_, ip) in unresolved.into_iter().filter(|found| found.0 == index) {
            let mut request = Request::start(RTM_DELNEIGH, 0, &body(family(ip), index));
            request.attribute(NDA_DST, &octets(ip));
            match self.change(request, "delete neighbour") {
                // It has answered, or was given up.
                Err(error) if error.errno() == Some(Errno::NOENT) => {}
                done => done?,
            }
        }
        Ok(())
    }
}
