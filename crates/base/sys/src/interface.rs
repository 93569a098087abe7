//! Names and indices of network interfaces.

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

/// Longest interface name in bytes (`IFNAMSIZ` - 1, `<linux/if.h>`).
pub const NAME_BYTES_MAX: usize = 15;

/// A name that the kernel would refuse, or would take for a template.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not an interface name: 1 to {NAME_BYTES_MAX} printable bytes without `/`, `:`, `%` and spaces"
)]
pub struct BadInterfaceName(pub String);

/// Checks `name` by the rules of the kernel's `dev_valid_name`, and refuses `%` as well, which
/// the kernel would expand (`tap%d`).
pub fn check_name(name: &str) -> Result<(), BadInterfaceName> {
    let fits = (1..=NAME_BYTES_MAX).contains(&name.len()) && name != "." && name != "..";
    let clean = name
        .bytes()
        .all(|b| b.is_ascii_graphic() && !matches!(b, b'/' | b':' | b'%'));
    if fits && clean {
        Ok(())
    } else {
        Err(BadInterfaceName(name.to_owned()))
    }
}

/// Index of the interface `name` in the calling thread's network namespace; `None` if there is
/// none.
pub fn index_of(name: &str) -> Result<Option<u32>, Errno> {
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    match rustix::net::netdevice::name_to_index(&socket, name) {
        Ok(index) => Ok(Some(index)),
        Err(Errno::NODEV) => Ok(None),
        Err(errno) => Err(errno),
    }
}

#[cfg(test)]
mod tests {
    use super::check_name;

    /// Names that would be expanded, would escape a path or would be cut are refused.
    #[test]
    fn refuses_what_the_kernel_refuses() {
        for good in ["a", "eth0", "tap-1.2", "exactly15bytes_"] {
            assert_eq!(check_name(good), Ok(()));
        }
        for bad in [
            "",
            ".",
            "..",
            "a/b",
            "a b",
            "tap%d",
            "a:1",
            "sixteen-bytes-xx",
            "é",
            "a\0b",
        ] {
            assert!(check_name(bad).is_err(), "{bad:?}");
        }
    }
}
