//! # Purpose
//! Puts windlass and named peers in turn into the same place, measures each, and prints both sides with their spread.
//!
//! # Model
//! A *subject* is what is measured, a *case* is how. Subjects take turns: in each round every subject is started alone,
//! runs all cases, and is stopped before the next one starts, since a poller that idles on a core ruins its
//! neighbour's figure. A figure is the median over the rounds, shown with the lowest and the highest.
//!
//! # Failure modes
//! Whatever was started is ended by its process id and waited for, and every setting of the host is put back, when a
//! run ends, fails, or is interrupted ([`stop`]).

pub mod alloc;
pub mod capacity;
pub mod capture;
pub mod child;
pub mod cni;
pub mod deaf;
pub mod firewall;
pub mod framed;
pub mod gap;
pub mod holes;
pub mod host;
pub mod idle;
pub mod inspect;
pub mod iperf;
pub mod neighbour;
pub mod overlay;
pub mod overload;
pub mod pages;
pub mod peers;
pub mod rate;
pub mod registry;
pub mod segments;
pub mod sockets;
pub mod spray;
pub mod stop;
pub mod table;
pub mod tap;
pub mod tcpdump;
pub mod trace;
pub mod tunnel;
pub mod uplink;
pub mod vhost;
pub mod windlass;
pub mod workers;
