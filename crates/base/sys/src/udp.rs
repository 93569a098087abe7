//! UDP sockets that send and receive several datagrams in one piece.
//!
//! # Model
//! With [`set_segment_bytes`] what is sent in one call leaves as datagrams of that many bytes, the last with what is left
//! (`UDP_SEGMENT`, Linux 4.18). With [`set_merged`] a read may return several datagrams of one size behind each other
//! (`UDP_GRO`, Linux 5.0).

use std::os::fd::AsFd;

use rustix::io::Errno;

use crate::sockopt;

/// Sets how many bytes of what is sent make one datagram; 0: all.
///
/// # Errors
/// `ENOPROTOOPT` before Linux 4.18, and what setsockopt(2) says of a descriptor that is no UDP socket.
pub fn set_segment_bytes(socket: impl AsFd, bytes: u16) -> Result<(), Errno> {
    let bytes = i32::from(bytes);
    sockopt::set_int(socket, libc::SOL_UDP, libc::UDP_SEGMENT, bytes)
}

/// Sets whether a read may return several datagrams.
///
/// # Errors
/// `ENOPROTOOPT` before Linux 5.0, and what setsockopt(2) says of a descriptor that is no UDP socket.
pub fn set_merged(socket: impl AsFd, merged: bool) -> Result<(), Errno> {
    let merged = i32::from(merged);
    sockopt::set_int(socket, libc::SOL_UDP, libc::UDP_GRO, merged)
}
