//! Attachments: who is on the other side of a VNIC's rings.
//!
//! # Purpose
//! Each module joins one kind of peer to the workers: [`port`] is what a worker asks of any of them,
//! [`endpoint`] what the control thread asks.
//!
//! # Where it sits
//! ```text
//!  control thread --> Endpoint (connects, notices the end)        io/worker
//!                        | Event::Up(Rings)                          |
//!                        +-------> RxPort, TxPort -------------------+--> peer's memory, kernel
//! ```
//!
//! | module | peer |
//! | --- | --- |
//! | [`tap`] | an interface of the host or of a namespace |
//! | [`veth`] | an interface of a namespace, with a shortcut in the kernel to others of its kind |
//! | [`packet`] | an existing interface of the host: the uplink |
//! | [`xdp`] | the same interface by AF_XDP: a mode of the uplink |
//! | [`memif`] | another process with memif rings (DPDK, VPP) |
//! | [`vhost_user`] | a virtual machine, or a process with virtio-user: rings only |
//! | [`vxlan`] | other hosts, by tunnels over UDP |
//!
//! [`soft`] finishes checksums and cuts segments for a side that did not negotiate them.

pub mod endpoint;
mod gather;
pub mod kick;
pub mod memif;
pub mod packet;
mod peer_fds;
pub mod port;
pub mod soft;
pub mod tap;
pub mod veth;
pub mod vhost_user;
pub mod vxlan;
pub mod xdp;
