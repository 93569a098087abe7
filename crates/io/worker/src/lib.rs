//! The poll loop: rings, budgets, modes, and bursts through the engines.
//!
//! # Purpose
//! Moves frames. A worker is one thread that owns receive rings and takes bursts from them through
//! the NIC and bridge engines to their destinations, and sleeps when there is nothing to do.
//!
//! # Where it sits
//! ```text
//! control thread: DataPlane --- Topo (published), commands (mailbox) ---> Worker
//!                                                                       |  RxPort, TxPort
//!                                                                  io/attach
//! ```
//!
//! # Model
//! [`dataplane::DataPlane`] is what a daemon holds; it waits for its workers by `wait`. A `worker` does a round at a time, with the time and
//! the ready descriptors passed in; `run` is the loop around it. A `visit` is one burst. `ring` has the
//! modes of a ring, `group` sorts a burst by destination, `egress` sends (to members with several rings by `spread`), `ingress` takes bursts through their member's stages, `hold` keeps what has to wait, `queue` what waits for its time, `cork` gathers small frames for tunnels, `flood` makes
//! large floods, a part in each round; `local` hands to the daemon what ends at a bridge; `timers` tells what is due, `bell` wakes a worker; [`Placement`] says which
//! worker serves what; `capture` writes what readers of captures see; `courtesy` lets receivers on the same core run; `meter` charges
//! members for the time that their memory takes.
//!
//! # Synchronization
//! Workers share nothing that they write, but for transmit rings where there are fewer rings than workers (their ports
//! take leases). The topology is replaced as a whole (QSBR). Counters have one writer each.
//!
//! # What can be lost and what cannot
//! A frame in a peer's ring is not lost when the daemon is killed. What a worker holds privately (a
//! burst of a copying port, spilled and gathered frames, unfinished floods, queues on the way from and to members, frames for the daemon) is bounded and lost.
//!
//! # Limits
//! See the constants of [`hold`], [`cork`], [`group`], [`visit`], [`flood`], [`queue`], [`questions`] and [`local`].
#![forbid(unsafe_code)]

mod bell;
mod capture;
mod command;
mod context;
pub mod cork;
mod counters;
mod courtesy;
pub mod dataplane;
mod egress;
pub mod flood;
mod grace;
pub mod group;
pub mod hold;
mod ingress;
pub mod local;
mod meter;
mod placement;
pub mod questions;
pub mod queue;
mod ring;
mod run;
#[cfg(test)]
mod simulation;
pub mod spread;
mod timers;
mod topo;
pub mod visit;
mod wait;
mod worker;

pub use capture::{Capture, Points, WATCHES, Watch};
pub use command::{Condemned, Relayed};
pub use counters::WorkerTotals;
pub use dataplane::{DataPlane, DataPlaneError, DataPlaneOptions, FirewallTuning, MemberTuning};
pub use grace::QsbrGrace;
pub use local::LocalFrame;
pub use placement::Placement;
pub use ring::Spin;
pub use windlass_nic::{Lease, Method};
