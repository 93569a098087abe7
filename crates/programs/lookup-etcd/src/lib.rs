#![forbid(unsafe_code)]
//! The look-up plugin of overlays whose registry is etcd.
//!
//! # Purpose
//! Each host of a cluster writes its endpoints into etcd, and is told by etcd of the others'. The daemon starts this program and talks to
//! it in lines of JSON ([`windlass_lookup::protocol`]): TLS, gRPC and a runtime stay out of the daemon.
//!
//! # Where it sits
//! ```text
//!  windlassd --lines, descriptor 3--> session --> engine --asks--> link --gRPC--> etcd
//!                                        |         |   ^            |
//!                                      cache     mirror \---told----/
//! ```
//!
//! # Model
//! - [`engine`] decides. It does no I/O and has no clock, so a simulation runs it against a model of etcd.
//! - [`own`]: how an endpoint of this host becomes and stays the registry's, by transactions on revisions.
//! - [`mirror`]: what is known of hosts and endpoints; [`cache`]: the same on disk.
//! - [`link`]: one connection to one member, all watches on one stream.
//! - [`schema`]: keys and values.
//!
//! # What can be lost and what cannot
//! Nothing that is known goes because etcd, a lease, a watch or this program is gone. An endpoint is removed by its owner, by the host that
//! took it over, or by a person (`overlay host forget`, `overlay resync --accept`). Nothing that carries
//! traffic is on a lease. Without `alive/`, which is on one, a host is *unsure*, still sent to, and its endpoints may be taken over.
//!
//! # Failure modes
//! - *etcd down, slow, partitioned*: known traffic goes on; announcements are owed; the overlay is degraded. A start without etcd serves the copy on disk.
//! - *Compacted*: each VNI is listed again at a random time within 5 s per 100 hosts, while the old table serves; then the rest is swept.
//! - *Registry younger than what is known* (emptied, an old snapshot, another cluster): nothing is swept; every host announces its own again.
//!   It is known by a smaller revision, another cluster, this host's own record missing or older, or an empty list.
//!
//! - *Somebody writes what is no record*: it is passed over. The owner of a record that was overwritten writes it again.
//! - *Two hosts of one name*: each sees the other's sign of life, says so, and removes nothing under that name.
//!
//! # Limits
//! [`mirror::ENDPOINTS_MAX`] endpoints, [`mirror::HOSTS_MAX`] hosts, [`engine::VNIS_MAX`] VNIs; the overlay is degraded with a sentence beyond.
//! Values of 4 KiB, answers of 16 MiB, lists of 524,288 keys.
//!
//! # Not done
//! Hosts trust each other: etcd's roles cannot divide `ep/VNI` by host. A client certificate and a user per host are the set-up to use.

pub mod cache;
pub mod client;
pub mod engine;
pub mod link;
pub mod mirror;
pub mod outbox;
pub mod own;
pub mod proto;
pub mod registry;
pub mod schema;
pub mod session;
pub mod settings;
