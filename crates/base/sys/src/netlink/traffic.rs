//! The one use of traffic control: eBPF programs at a link's ingress and egress; and which queues a link has.
//!
//! A `clsact` qdisc has no queue; it is only the place to which programs are attached
//! (`tc-bpf(8)`). A program in direct-action mode returns the verdict itself, so no `gact` module
//! is needed.

#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::arithmetic_side_effects,
    clippy::panic
)]

use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;

use super::message::{self, CREATE, DUMP, EXCLUSIVE, Malformed, Reader, Received, Request};
use super::{Netlink, NetlinkError};
use crate::bpf::{Program, Side};

const RTM_NEWQDISC: u16 = 36;
const RTM_DELQDISC: u16 = 37;
const RTM_GETQDISC: u16 = 38;
const RTM_NEWTFILTER: u16 = 44;
const RTM_DELTFILTER: u16 = 45;
const RTM_GETTFILTER: u16 = 46;

const TC_H_CLSACT: u32 = 0xffff_fff1;
const CLSACT_HANDLE: u32 = 0xffff_0000;
/// `TC_H_MAKE(TC_H_CLSACT, TC_H_MIN_INGRESS)`.
const CLSACT_INGRESS: u32 = 0xffff_fff2;
/// `TC_H_MAKE(TC_H_CLSACT, TC_H_MIN_EGRESS)`.
const CLSACT_EGRESS: u32 = 0xffff_fff3;
/// Where [`Netlink::put_classifier`] puts its program: before all others.
const FIRST: u16 = 1;
/// `htons(ETH_P_ALL)`.
const ETH_P_ALL: u32 = 0x0300;

const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const TCA_BPF_FD: u16 = 6;
const TCA_BPF_NAME: u16 = 7;
const TCA_BPF_FLAGS: u16 = 8;
const TCA_BPF_ID: u16 = 11;
const TCA_BPF_FLAG_ACT_DIRECT: u32 = 1;

/// One eBPF filter at a link's ingress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    /// Its place among the link's filters: lower runs first.
    pub priority: u16,
    /// Its handle within the priority.
    pub handle: u32,
    /// The name that it was attached with.
    pub name: String,
    /// The program's id in the kernel.
    pub program_id: u32,
}

/// `struct tcmsg`: family, padding, index, handle, parent, info.
fn body(index: u32, handle: u32, parent: u32, info: u32) -> Vec<u8> {
    [
        [0; 4],
        index.to_ne_bytes(),
        handle.to_ne_bytes(),
        parent.to_ne_bytes(),
        info.to_ne_bytes(),
    ]
    .concat()
}

/// The one filter of a priority.
fn filter_body(index: u32, side: Side, priority: u16) -> Vec<u8> {
    let parent = match side {
        Side::Ingress => CLSACT_INGRESS,
        Side::Egress => CLSACT_EGRESS,
    };
    body(index, 1, parent, (u32::from(priority) << 16) | ETH_P_ALL)
}

/// Has a program run there in direct-action mode.
fn filter(how: u16, body: &[u8], name: &str, program: &Program) -> Request {
    let mut request = Request::start(RTM_NEWTFILTER, CREATE | how, body);
    request.string(TCA_KIND, "bpf");
    request.nested(TCA_OPTIONS, |options| {
        options.u32(TCA_BPF_FD, program.as_fd().as_raw_fd().cast_unsigned());
        options.string(TCA_BPF_NAME, name);
        options.u32(TCA_BPF_FLAGS, TCA_BPF_FLAG_ACT_DIRECT);
    });
    request
}

/// Fields of `struct tcmsg` that are looked at, and the attributes after it.
struct Header<'a> {
    index: u32,
    handle: u32,
    info: u32,
    rest: &'a [u8],
}

fn parse_header<'a>(received: &Received<'a>) -> Result<Header<'a>, Malformed> {
    let mut reader = Reader(received.payload);
    reader.u32()?;
    let (index, handle) = (reader.u32()?, reader.u32()?);
    let (_parent, info) = (reader.u32()?, reader.u32()?);
    Ok(Header {
        index,
        handle,
        info,
        rest: reader.0,
    })
}

fn parse_filter(received: &Received<'_>) -> Result<Option<Filter>, Malformed> {
    if received.kind != RTM_NEWTFILTER {
        return Ok(None);
    }
    let header = parse_header(received)?;
    let priority = u16::try_from(header.info >> 16).map_err(|_| Malformed)?;
    let mut filter = Filter {
        priority,
        handle: header.handle,
        name: String::new(),
        program_id: 0,
    };
    let mut is_bpf = false;
    for attribute in message::attributes(header.rest) {
        match attribute? {
            (TCA_KIND, value) => is_bpf = message::text(value) == "bpf",
            (TCA_OPTIONS, value) => parse_options(value, &mut filter)?,
            _ => {}
        }
    }
    // A priority is reported once by itself, with handle 0, before its filters.
    Ok(Some(filter).filter(|filter| is_bpf && filter.handle != 0))
}

fn parse_options(value: &[u8], filter: &mut Filter) -> Result<(), Malformed> {
    for attribute in message::attributes(value) {
        match attribute? {
            (TCA_BPF_NAME, value) => filter.name = message::text(value),
            (TCA_BPF_ID, value) => filter.program_id = Reader(value).u32()?,
            _ => {}
        }
    }
    Ok(())
}

impl Netlink {
    /// Adds the `clsact` qdisc to the link `index`. `EEXIST` if it, or an `ingress` one, is there.
    pub fn add_clsact(&mut self, index: u32) -> Result<(), NetlinkError> {
        let body = body(index, CLSACT_HANDLE, TC_H_CLSACT, 0);
        let mut request = Request::start(RTM_NEWQDISC, CREATE | EXCLUSIVE, &body);
        request.string(TCA_KIND, "clsact");
        self.change(request, "add clsact qdisc")
    }

    /// Removes the `clsact` qdisc with everything that is attached to it, whoever attached it.
    pub fn delete_clsact(&mut self, index: u32) -> Result<(), NetlinkError> {
        let body = body(index, CLSACT_HANDLE, TC_H_CLSACT, 0);
        self.change(
            Request::start(RTM_DELQDISC, 0, &body),
            "delete clsact qdisc",
        )
    }

    /// Whether the link `index` has a `clsact` qdisc.
    pub fn has_clsact(&mut self, index: u32) -> Result<bool, NetlinkError> {
        let found = self.qdiscs(index)?;
        Ok(found.iter().any(|kind| kind == "clsact"))
    }

    /// The kinds of the queueing disciplines of the link `index`, as `tc qdisc show` has them.
    pub fn qdiscs(&mut self, index: u32) -> Result<Vec<String>, NetlinkError> {
        let request = || Request::start(RTM_GETQDISC, DUMP, &body(index, 0, 0, 0));
        self.dump(request, "list qdiscs", |received| {
            if received.kind != RTM_NEWQDISC {
                return Ok(None);
            }
            let header = parse_header(received)?;
            // The kernel lists the qdiscs of every link.
            if header.index != index {
                return Ok(None);
            }
            for attribute in message::attributes(header.rest) {
                if let (TCA_KIND, value) = attribute? {
                    return Ok(Some(message::text(value)));
                }
            }
            Err(Malformed)
        })
    }

    /// Attaches `program` in direct-action mode to the ingress of the link `index`, which must have
    /// a `clsact` qdisc. `EEXIST` if something is attached at that priority and handle.
    ///
    /// `name` is shown by `tc filter show`, and tells a later process whose it is.
    pub fn attach_ingress(
        &mut self,
        index: u32,
        priority: u16,
        name: &str,
        program: &Program,
    ) -> Result<(), NetlinkError> {
        let body = filter_body(index, Side::Ingress, priority);
        let request = filter(EXCLUSIVE, &body, name, program);
        self.change(request, "attach program at ingress")
    }

    /// Attaches `program` in direct-action mode to a side of the link `index`, before all others and in the place of what this call had
    /// attached there. The link gets a `clsact` qdisc if it has none.
    ///
    /// # Errors
    /// `ENOENT` from a kernel without that qdisc or without cls_bpf.
    pub fn put_classifier(
        &mut self,
        index: u32,
        side: Side,
        name: &str,
        program: &Program,
    ) -> Result<(), NetlinkError> {
        match self.add_clsact(index) {
            Err(error) if error.errno() != Some(Errno::EXIST) => return Err(error),
            _ => {}
        }
        let body = filter_body(index, side, FIRST);
        self.change(filter(0, &body, name, program), "attach program")
    }

    /// Detaches what [`Netlink::attach_ingress`] attached at `priority`. `ENOENT` if nothing is.
    pub fn detach_ingress(&mut self, index: u32, priority: u16) -> Result<(), NetlinkError> {
        let mut request = Request::start(
            RTM_DELTFILTER,
            0,
            &filter_body(index, Side::Ingress, priority),
        );
        request.string(TCA_KIND, "bpf");
        self.change(request, "detach program from ingress")
    }

    /// The eBPF filters at the ingress of the link `index`; none if it has no `clsact` qdisc.
    pub fn ingress_filters(&mut self, index: u32) -> Result<Vec<Filter>, NetlinkError> {
        let request = || Request::start(RTM_GETTFILTER, DUMP, &body(index, 0, CLSACT_INGRESS, 0));
        match self.dump(request, "list filters", parse_filter) {
            Err(error) if matches!(error.errno(), Some(Errno::INVAL | Errno::NOENT)) => {
                Ok(Vec::new())
            }
            other => other,
        }
    }
}
