//! What the driver of an interface has been told: its queues and what it does to frames (`SIOCETHTOOL`).

use std::os::fd::AsRawFd;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::vectored::last_errno;

// <linux/ethtool.h>
const ETHTOOL_GFLAGS: u32 = 0x25;
const ETHTOOL_GCHANNELS: u32 = 0x3c;
const ETH_FLAG_RXVLAN: u32 = 1 << 8;
const ETH_FLAG_LRO: u32 = 1 << 15;
/// <linux/sockios.h>
const SIOCETHTOOL: u64 = 0x8946;

/// Queues in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queues {
    /// That receive.
    pub receive: u32,
    /// That transmit.
    pub transmit: u32,
}

/// What the driver changes in received frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offloads {
    /// It takes VLAN tags out of them.
    pub strips_vlan: bool,
    /// It merges them (large receive offload).
    pub merges: bool,
}

/// `struct ifreq` with a pointer. The kernel writes all of it back.
#[repr(C)]
struct Request {
    name: [u8; 16],
    data: *mut u32,
    padding: [u64; 2],
}

const _: () = assert!(size_of::<Request>() == size_of::<libc::ifreq>());

fn ask<const N: usize>(name: &str, words: &mut [u32; N]) -> Result<(), Errno> {
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None)?;
    let mut request = Request {
        name: [0; 16],
        data: words.as_mut_ptr(),
        padding: [0; 2],
    };
    for (to, from) in request.name.iter_mut().take(15).zip(name.bytes()) {
        *to = from;
    }
    // SAFETY: the request has a name and an address, behind which there are as many words as the command in the first of
    // them has.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &raw mut request) };
    if done < 0 { Err(last_errno()) } else { Ok(()) }
}

/// The queues of an interface of the calling thread's namespace; one each way where the driver does not tell.
///
/// # Errors
/// `ENODEV` without the interface.
pub fn queues(name: &str) -> Result<Queues, Errno> {
    // struct ethtool_channels: command, the most of each kind, how many of each are in use.
    let mut words = [0; 9];
    words[0] = ETHTOOL_GCHANNELS;
    match ask(name, &mut words) {
        Ok(()) => {
            let [_, _, _, _, _, receive, transmit, _, combined] = words;
            Ok(Queues {
                receive: receive.saturating_add(combined).max(1),
                transmit: transmit.saturating_add(combined).max(1),
            })
        }
        Err(Errno::OPNOTSUPP) => Ok(Queues {
            receive: 1,
            transmit: 1,
        }),
        Err(errno) => Err(errno),
    }
}

/// What the driver changes in received frames.
///
/// # Errors
/// `ENODEV` without the interface.
pub fn offloads(name: &str) -> Result<Offloads, Errno> {
    let mut words = [ETHTOOL_GFLAGS, 0];
    match ask(name, &mut words) {
        Ok(()) => Ok(Offloads {
            strips_vlan: words[1] & ETH_FLAG_RXVLAN != 0,
            merges: words[1] & ETH_FLAG_LRO != 0,
        }),
        Err(Errno::OPNOTSUPP) => Ok(Offloads::default()),
        Err(errno) => Err(errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The loopback interface has a queue each way; an interface that is not there has an error.
    #[test]
    fn the_loopback_interface_answers() {
        let one = Queues {
            receive: 1,
            transmit: 1,
        };
        assert_eq!(queues("lo"), Ok(one));
        assert_eq!(offloads("lo").map(|o| o.strips_vlan), Ok(false));
        assert_eq!(queues("windlass-none"), Err(Errno::NODEV));
    }
}
