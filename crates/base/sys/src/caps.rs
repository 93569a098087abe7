//! What the calling thread is privileged to do.
//!
//! Privilege is a capability in the effective set, never user id 0: a root without capabilities
//! has none, and a service with ambient ones needs no root.

use rustix::thread::CapabilitySet;

/// A capability that windlass has a use for (`capabilities(7)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capability {
    /// `CAP_NET_ADMIN`: TAPs, links, addresses, traffic control.
    NetAdmin,
    /// `CAP_NET_RAW`: packet sockets.
    NetRaw,
    /// `CAP_SYS_ADMIN`: entering and making namespaces.
    SysAdmin,
    /// `CAP_SYS_NICE`: a higher priority.
    SysNice,
}

/// Whether the calling thread has `capability` in effect, in its own user namespace. An operation
/// on what belongs to another user namespace may still be refused.
#[must_use]
pub fn holds(capability: Capability) -> bool {
    let flag = match capability {
        Capability::NetAdmin => CapabilitySet::NET_ADMIN,
        Capability::NetRaw => CapabilitySet::NET_RAW,
        Capability::SysAdmin => CapabilitySet::SYS_ADMIN,
        Capability::SysNice => CapabilitySet::SYS_NICE,
    };
    rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(flag))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The answer is that of `/proc`, which the kernel prints from the same set.
    #[test]
    fn agrees_with_proc() -> std::io::Result<()> {
        let status = std::fs::read_to_string("/proc/thread-self/status")?;
        let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
        let bits = u64::from_str_radix(line.unwrap_or_default().trim(), 16).unwrap_or_default();
        for (capability, bit) in [
            (Capability::NetAdmin, 12),
            (Capability::NetRaw, 13),
            (Capability::SysAdmin, 21),
            (Capability::SysNice, 23),
        ] {
            assert_eq!(holds(capability), bits >> bit & 1 == 1, "{capability:?}");
        }
        Ok(())
    }
}
