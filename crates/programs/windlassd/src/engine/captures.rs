//! Who may capture what.
//!
//! # Model
//! An operator may capture every link. Others may capture VNICs in zones that they own: a zone's group sees its VNICs, but not what they send.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use windlass_api::{
    CaptureKind, CaptureRequest, Document, ErrorBody, ErrorCode, Member, TENANT_INSTRUCTIONS_MAX,
};
use windlass_capture::ring::{Memory, Shape};
use windlass_capture::{Instruction, Program};
use windlass_worker::Capture;

use super::{Engine, no_such};
use crate::authority::Peer;
use crate::backend::{CaptureMade, CaptureWanted};

/// Bytes of one worker's ring at most, for who is no operator.
const TENANT_RING_BYTES_MAX: u32 = 8 << 20;
/// The zone of VNICs that are in none.
const GLOBAL: &str = "global";

impl Engine {
    /// Begins a capture for the peer, whose reader has the other end of `reader`.
    ///
    /// # Errors
    /// No such link, as far as the peer may know; it may not be captured; the filter is none; a limit.
    pub fn start_capture(
        &mut self,
        peer: &Peer,
        request: CaptureRequest,
        (memory, reader): (Arc<Memory>, OwnedFd),
    ) -> Result<CaptureMade, ErrorBody> {
        let (kind, filter) = self.check_capture(peer, &request)?;
        let made = self.backend.start_capture(CaptureWanted {
            link: request.link,
            kind,
            tenant: (!peer.operator).then_some(peer.uid),
            direction: request.direction,
            drops: request.drops,
            filter,
            snap: request.snap,
            memory,
            reader,
        });
        made.map_err(ErrorBody::from)
    }

    /// How the memory of a capture is to be divided that may begin.
    ///
    /// # Errors
    /// As [`Engine::start_capture`].
    pub fn offer_capture(
        &mut self,
        peer: &Peer,
        request: &CaptureRequest,
    ) -> Result<Shape, ErrorBody> {
        self.check_capture(peer, request)?;
        let shape = self.backend.capture_shape(request.ring_bytes);
        shape.map_err(ErrorBody::from)
    }

    /// What a capture is of, and its filter, if it may begin.
    fn check_capture(
        &self,
        peer: &Peer,
        request: &CaptureRequest,
    ) -> Result<(CaptureKind, Option<Program>), ErrorBody> {
        let kind = captured(peer, request, &self.document)?;
        let invalid = |message| Err(ErrorBody::plain(ErrorCode::Invalid, message));
        let instructions = request.filter.len();
        if !peer.operator && instructions > TENANT_INSTRUCTIONS_MAX {
            return invalid(format!(
                "the filter has {instructions} instructions; a user who is no operator may have {TENANT_INSTRUCTIONS_MAX}"
            ));
        }
        if !peer.operator && request.ring_bytes > TENANT_RING_BYTES_MAX {
            return invalid(format!(
                "a buffer of {} bytes; a user who is no operator may have {TENANT_RING_BYTES_MAX}",
                request.ring_bytes
            ));
        }
        let filter = match instructions {
            0 => None,
            _ => {
                let instructions = request.filter.iter();
                let instructions =
                    instructions.map(|&(code, jt, jf, k)| Instruction { code, jt, jf, k });
                let checked = Program::check(instructions.collect());
                let refused =
                    |error| ErrorBody::plain(ErrorCode::Invalid, format!("the filter: {error}"));
                Some(checked.map_err(refused)?)
            }
        };
        Ok((kind, filter))
    }

    /// Ends a capture; nothing if it has ended.
    pub fn end_capture(&mut self, capture: &Arc<Capture>) {
        self.backend.end_capture(capture);
    }
}

/// What is captured.
fn captured(
    peer: &Peer,
    request: &CaptureRequest,
    document: &Document,
) -> Result<CaptureKind, ErrorBody> {
    let name = request.link.as_str();
    let missing = || no_such("VNIC, uplink, overlay or bridge", name);
    match document.member(name) {
        Some(Member::Vnic(vnic)) => {
            if !peer.sees_vnic(vnic, document) {
                return Err(missing());
            }
            if !peer.owns_vnic(vnic, document) {
                let message = format!(
                    "user {} may not capture \"{name}\": the owner of its zone and operators may",
                    peer.uid
                );
                return Err(ErrorBody::plain(ErrorCode::Forbidden, message));
            }
            let zone = vnic.zone.name().map_or(GLOBAL, |zone| zone.as_str());
            match request.zone.as_deref() {
                Some(wanted) if wanted != zone => {
                    let why = format!("there is no VNIC \"{name}\" in zone \"{wanted}\"");
                    Err(ErrorBody::plain(ErrorCode::NotFound, why))
                }
                _ => Ok(CaptureKind::Member),
            }
        }
        Some(Member::Uplink(_) | Member::Overlay(_))
            if peer.sees_host() && request.zone.is_none() =>
        {
            Ok(CaptureKind::Member)
        }
        _ => {
            let bridge = document.bridge(name).filter(|_| request.zone.is_none());
            let bridge = bridge.filter(|bridge| peer.sees_bridge(&bridge.name, document));
            bridge.ok_or_else(missing)?;
            peer.must_operate("capture a bridge, which carries others' frames")?;
            Ok(CaptureKind::Bridge)
        }
    }
}
