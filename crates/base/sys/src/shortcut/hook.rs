//! Where the kernel has the programs of a link.

use std::fmt;

use rustix::io::Errno;

use crate::bpf::{self, Program, Side};
use crate::hooks::LOOPBACK_INDEX;
use crate::netlink::{Netlink, NetlinkError};
use crate::netns;

/// What `tc filter show` calls programs of ours.
const NAME: &str = "windlass_veth";

/// A kind of place for the programs of a link. One that is put at a link takes the place of what was put there before, by either kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// tcx (Linux 6.6).
    Tcx,
    /// The `clsact` queueing discipline with cls_bpf (Linux 4.5).
    Clsact,
}

impl fmt::Display for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcx => "tcx (Linux 6.6)",
            Self::Clsact => "clsact with cls_bpf",
        })
    }
}

impl Hook {
    /// Whether the kernel has it, and lets this process use it. What cannot be asked is tried in a namespace that is made for it.
    #[must_use]
    pub fn is_there(self) -> bool {
        match self {
            Self::Tcx => bpf::has_places(),
            Self::Clsact => netns::within_new("clsact", try_clsact).is_ok(),
        }
    }

    /// Puts a program at a side of a link of the calling thread's namespace, by the link's index. Each frame meets the programs before or
    /// this one. Needs `CAP_NET_ADMIN`.
    ///
    /// # Errors
    /// The kernel's answer; `ENODEV` if there is no such link.
    pub fn put(
        self,
        netlink: &mut Netlink,
        program: &Program,
        index: u32,
        side: Side,
    ) -> Result<(), NetlinkError> {
        let at_tcx = |done: Result<(), Errno>| {
            done.map_err(|errno| NetlinkError::Kernel {
                operation: "attach program",
                errno,
                message: None,
            })
        };
        match self {
            Self::Tcx => {
                at_tcx(bpf::put_at(program, index, side))?;
                // The kernel asks that one no more, if it is there.
                let _ = netlink.delete_clsact(index);
                Ok(())
            }
            Self::Clsact => {
                netlink.put_classifier(index, side, NAME, program)?;
                // The kernel asks these first.
                at_tcx(bpf::keep_first(index, side, 0))
            }
        }
    }
}

fn try_clsact() -> Result<(), Errno> {
    let refused = |error: NetlinkError| error.errno().unwrap_or(Errno::IO);
    let program = Program::drop_all_ingress().map_err(|error| error.errno)?;
    let mut netlink = Netlink::open().map_err(refused)?;
    netlink
        .put_classifier(LOOPBACK_INDEX, Side::Egress, NAME, &program)
        .map_err(refused)
}
