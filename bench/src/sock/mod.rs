//! # Purpose
//! Ordinary programs on ordinary sockets, to be measured with and without acceleration: they know nothing of windlass,
//! and call libc's functions by their names, as most programs do.
//!
//! # Where it sits
//! ```text
//! sock-ping serve <── TCP or Unix stream ──> sock-ping ask
//! sock-stream take <───────────────────────  sock-stream give
//! memcached <──────────────────────────────  sock-memcached
//! ```
//!
//! # What it shows
//! Each end prints one line of JSON when it has ended.

pub mod line;
pub mod memcached;
pub mod ping;
pub mod place;
pub mod stream;
