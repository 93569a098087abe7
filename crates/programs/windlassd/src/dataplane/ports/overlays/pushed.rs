//! What a search told of one address.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use windlass_lookup::table::Record;

use super::TargetKey;
use super::questions::Life;

/// What the search told of an address.
pub(in crate::dataplane::ports) struct Pushed {
    pub(super) vni: u32,
    pub(super) behind: Behind,
}

/// Behind which remote host an address is, the IP addresses that it has, and its DHCP server.
#[derive(Clone)]
pub(in crate::dataplane::ports) struct Behind {
    /// The look-up thread has it, too.
    pub(super) record: Arc<Record>,
    /// For how long, if it was asked for.
    pub(super) life: Option<Box<Life>>,
}

impl Pushed {
    pub(super) fn target(&self) -> TargetKey {
        (self.vni, self.behind.record.target)
    }
}

impl Behind {
    /// What a search answered that was asked.
    pub(super) fn asked(to: SocketAddr, ips: Box<[IpAddr]>, life: Life) -> Behind {
        let record = Record {
            target: to,
            ips,
            dhcp: None,
            host: None,
            generation: 0,
        };
        Behind {
            record: Arc::new(record),
            life: Some(Box::new(life)),
        }
    }

    pub(super) fn life(&self) -> Option<Life> {
        self.life.as_deref().copied()
    }
}
