//! The daemon: configuration in, a working network out.
//!
//! # Purpose
//! `windlassd` owns the data plane of a host. It keeps the configuration, decides who may change it,
//! makes it so, and shows what is.
//!
//! # Where it sits
//! ```text
//! windlass, scripts --HTTP over a Unix socket--> http, routes --calls--> engine --> store (disk)
//!                                                  (API thread)         (its thread) \-> backend (workers)
//! ```
//!
//! # Model
//! - [`options`], [`paths`] and [`log`]: how it is started.
//! - [`http`] and [`routes`]: requests become calls. One thread, tokio.
//! - [`authority`]: who may do what, from the peer's credentials.
//! - [`engine`]: the one owner of the document; validate, prepare, make, commit, publish.
//! - [`store`]: the document on disk, replaced atomically and durably.
//! - [`backend`]: the boundary to the data plane; [`dataplane`] is the real one, [`memory`] one for tests.
//! - [`captures`]: the socket of captures.
//! - [`lookup`]: where the endpoints of overlays are.
//! - [`metrics`]: the counters as text for Prometheus.
//! - [`notify`]: the service manager and signals; [`handover`]: an upgrade under traffic.
//!
//! # Synchronization
//! The API thread and the engine share nothing but two channels. Workers never wait for either.
//!
//! # Failure modes
//! Requests are bounded in size, time and number, in all and per user. A change that fails anywhere is
//! undone. A stored document that cannot be read stops the start: an empty network would be worse.
#![forbid(unsafe_code)]

pub mod authority;
pub mod backend;
pub mod captures;
pub mod dataplane;
pub mod engine;
pub mod handover;
pub mod http;
pub mod log;
pub mod lookup;
pub mod memory;
pub mod metrics;
pub mod notify;
pub mod options;
pub mod paths;
pub mod routes;
pub mod shares;
pub mod store;
