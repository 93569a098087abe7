//! What a trusted member sends that may give others addresses.

use windlass_frame::Gso;
use windlass_wire::ether::{self, proto};
use windlass_wire::parse::HEADERS_MAX;

use crate::guard::nd;
use crate::stage::{IngressStage, Leaving};
use windlass_wire::dhcp::{CLIENT, CLIENT6};

/// The member is believed: whole DHCP answers and router advertisements of it are marked, all their bytes private.
#[derive(Clone, Copy, Debug)]
pub struct Trusted;

impl IngressStage for Trusted {
    fn leave(&self, frames: &mut Leaving<'_>) {
        for i in 0..frames.len() {
            let Some(meta) = frames.passing(i) else {
                continue;
            };
            let (have, len) = (usize::from(meta.have), meta.len as usize);
            if meta.off.gso != Gso::None
                || len > HEADERS_MAX
                || !gives(frames.heads().private(i))
                || (have < len && !frames.deepen(i, len))
            {
                continue;
            }
            if let Some(meta) = frames.rewrite().meta.get_mut(i) {
                meta.off = meta.off.giving();
            }
        }
    }
}

/// Whether the headers are those of an answer to a DHCP client or of a router advertisement, in their usual form: with at most one
/// tag, without options or extension headers, in one piece.
#[inline(always)]
fn gives(bytes: &[u8]) -> bool {
    let word = |at: usize| {
        let word = bytes.get(at..).and_then(|rest| rest.first_chunk());
        word.map_or(0, |word| u16::from_be_bytes(*word))
    };
    let byte = |at: usize| bytes.get(at).copied().unwrap_or(0);
    let (kind, at) = match word(12) {
        ether::VLAN => (word(16), 18_usize),
        kind => (kind, 14),
    };
    // No offset here is near an overflow: `at` is 14 or 18.
    let at = |offset: usize| at.saturating_add(offset);
    match kind {
        ether::IPV4 => {
            byte(at(9)) == proto::UDP
                && byte(at(0)) == 0x45
                && word(at(6)) & 0x3fff == 0
                && word(at(22)) == CLIENT
        }
        ether::IPV6 => match byte(at(6)) {
            proto::UDP => word(at(42)) == CLIENT6,
            proto::ICMPV6 => byte(at(40)) == nd::ROUTER_ADVERTISEMENT,
            _ => false,
        },
        _ => false,
    }
}
