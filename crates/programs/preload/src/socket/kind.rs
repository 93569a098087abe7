//! What differs between the kinds of sockets: one row for each.

use crate::fd::record::{Kind, Record};
use crate::options;

pub struct Traits {
    is_stream: bool,
    /// It has addresses, and the kernel counts what it carries (`TCP_INFO`). Where it does not, a sender counts from its offer on,
    /// and inodes say which connection it is.
    pub is_counted: bool,
    /// The kernel may hold bytes back for more (RFC 896, `MSG_MORE`, `TCP_CORK`).
    pub is_delayed: bool,
    /// A reset that follows a FIN is noted as `EPIPE` by the kernel. Where it is not, no reset follows: it is noted here.
    pub is_reset_late: bool,
    /// A receiver may ask for names and credentials of senders.
    pub has_senders: bool,
}

const NONE: Traits = Traits {
    is_stream: false,
    is_counted: false,
    is_delayed: false,
    is_reset_late: false,
    has_senders: false,
};
static TCP: Traits = Traits {
    is_stream: true,
    is_counted: true,
    is_delayed: true,
    is_reset_late: true,
    ..NONE
};
static UNIX: Traits = Traits {
    is_stream: true,
    has_senders: true,
    ..NONE
};

#[inline(always)]
pub fn of(record: &Record) -> &'static Traits {
    match record.kind() {
        Some(Kind::Tcp) => &TCP,
        Some(Kind::UnixStream) => &UNIX,
        _ => &NONE,
    }
}

/// Whether the ring serves sockets of this kind, as the user wants it.
#[inline(always)]
pub fn is_served(record: &Record) -> bool {
    let traits = of(record);
    traits.is_stream && (traits.is_counted || options::unix() != 0)
}

/// Whether a send asks the kernel to keep its bytes until more come: then nothing after them may overtake them by the ring.
#[inline(always)]
pub fn is_held_back(record: &Record, flags: i32) -> bool {
    flags & libc::MSG_MORE != 0 && of(record).is_delayed
}
