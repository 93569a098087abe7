//! What the kernel was told of datagrams that a socket has sent (`IP_RECVERR`).

use std::mem::zeroed;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;

use super::messages::{Address, controls};
use crate::sockopt;
use crate::vectored::last_errno;

/// One report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// Where the datagram went.
    pub to: SocketAddr,
    /// What became of it: `EMSGSIZE`, `EHOSTUNREACH`, `ECONNREFUSED`.
    pub errno: Errno,
    /// With `EMSGSIZE`, the MTU of the path in bytes.
    pub mtu: u32,
}

/// Keeps such reports for [`take`].
///
/// # Errors
/// As setsockopt(2).
pub fn keep(socket: impl AsFd, is_v6: bool) -> Result<(), Errno> {
    let (level, option) = match is_v6 {
        false => (libc::SOL_IP, libc::IP_RECVERR),
        true => (libc::SOL_IPV6, libc::IPV6_RECVERR),
    };
    sockopt::set_int(socket, level, option, 1)
}

/// Takes the oldest report. `None` where there is none.
///
/// # Errors
/// As recvmsg(2).
pub fn take(socket: impl AsFd) -> Result<Option<Report>, Errno> {
    let mut name = [0u8; 28];
    let mut control = [0u64; 32];
    // SAFETY: all zeros is a valid `msghdr`.
    let mut header: libc::msghdr = unsafe { zeroed() };
    header.msg_name = name.as_mut_ptr().cast();
    header.msg_namelen = name.len() as _;
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = size_of_val(&control) as _;
    let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
    // SAFETY: name and control space live until the call returns and have the lengths given.
    let got = unsafe { libc::recvmsg(socket.as_fd().as_raw_fd(), &raw mut header, flags) };
    if got < 0 {
        return match last_errno() {
            Errno::AGAIN => Ok(None),
            errno => Err(errno),
        };
    }
    let bytes: Vec<u8> = control.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let used = (header.msg_controllen as usize).min(bytes.len());
    let report = controls(&bytes[..used]).find_map(|(level, kind, data)| {
        let is_report = matches!(
            (level, kind),
            (libc::SOL_IP, libc::IP_RECVERR) | (libc::SOL_IPV6, libc::IPV6_RECVERR)
        );
        // struct sock_extended_err: errno, four bytes, info, data.
        let errno = i32::from_ne_bytes(*data.first_chunk()?);
        let info = u32::from_ne_bytes(*data.get(8..)?.first_chunk()?);
        is_report.then_some((Errno::from_raw_os_error(errno), info))
    });
    let to = Address::decode(&name);
    Ok(report
        .zip(to)
        .map(|((errno, mtu), to)| Report { to, errno, mtu }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::udp;
    use rustix::net::{SendFlags, getsockname, sendto};

    /// A datagram to a port where nobody listens is reported with its destination.
    #[test]
    fn a_refusal_is_reported() -> Result<(), Errno> {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let (sender, other) = (udp::open(any, false)?, udp::open(any, false)?);
        keep(&sender, false)?;
        let to = SocketAddr::try_from(getsockname(&other)?).expect("an IP socket");
        drop(other);
        assert_eq!(take(&sender)?, None);
        sendto(&sender, b"x", SendFlags::empty(), &to)?;
        let report = take(&sender)?.expect("a report");
        assert_eq!((report.to, report.errno), (to, Errno::CONNREFUSED));
        assert_eq!(take(&sender)?, None);
        Ok(())
    }
}
