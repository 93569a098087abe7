//! Every limit of the broker, each with its unit and its reason.

use std::time::Duration;

/// Helpers at one time, each with a getter: two processes of about 3 MB.
pub const HELPERS_MAX: usize = 64;
/// Helpers of one user at one time, one for each of its groups and user namespaces.
pub const HELPERS_PER_USER_MAX: usize = 8;
/// Helpers of one user that were killed and have not ended: a last close waits in them.
pub const HUNG_PER_USER_MAX: usize = 4;
/// Jobs that one helper has at one time.
pub const JOBS_PER_HELPER_MAX: usize = 128;
/// Those of them that no request asked for: the watch of a broken slab refuses its user nothing.
pub const WATCH_JOBS_PER_HELPER_MAX: usize = 64;
/// A helper that has not done a job for so long is killed: nothing that it does waits, but a close may.
pub const HANG_AFTER: Duration = Duration::from_secs(1);
/// Processes of one user: each costs three descriptors and two pages.
pub const PROCESSES_PER_USER_MAX: usize = 4_096;
/// Processes in all: half of the slots, so that one is not given again soon after its process died.
pub const PROCESSES_MAX: usize = 32_000;
/// Slabs of one user: each is a mapping of 258 MiB of addresses, of which only what is used costs memory.
pub const SLABS_PER_USER_MAX: usize = 4_096;
/// Slabs of one pair of processes, of 1,024 connections each.
pub const SLABS_PER_PAIR_MAX: usize = 16;
/// Memory of all slabs of one user, in bytes, looked at before a further one is made.
pub const BYTES_PER_USER_MAX: u64 = 4 << 30;
/// Requests of one user in a second, all at once if he has made none before; each costs about 20 us.
pub const REQUESTS_PER_USER_PER_S: u32 = 2_000;
/// Requests that one counts for which a helper is asked and processes are looked at: about 160 us.
pub const HELPED_REQUESTS: usize = 8;
/// Requests that one counts for which starts a helper and its getter: 4 starts in a second. Each takes the broker about 1 ms, in
/// which nobody is served.
pub const START_REQUESTS: usize = 500;
/// Rows of a listing that count as one request: a longest listing takes all of a second.
pub const ROWS_PER_REQUEST: usize = 2;
/// Slabs of a user that count as one request when their memory is measured, before a further one is made; 0.5 us each.
pub const MEASURES_PER_REQUEST: usize = 50;
/// Channels in use after which the watch lets others have their turn: those of a slab, about 0.3 ms.
pub const CHANNELS_PER_LOOK: usize = 1_024;
/// The watch rests so many times as long as it looked: what users have it look at takes a fifth of the thread.
pub const LOOK_REST_TIMES: u32 = 4;
/// Rescues that the watch begins in an interval: the rest waits for the next one.
pub const RESCUES_PER_LOOK_MAX: usize = 64;
/// Connections in all at one time: each carries one request and is closed. The oldest of the user with most of them makes
/// place for one more.
pub const CONNECTIONS_MAX: usize = 256;
/// How long nothing is taken from a socket at which a user came who has asked too much.
pub const REST: Duration = Duration::from_millis(10);
/// The same where no descriptor is left, and no connection can make place.
pub const REST_WITHOUT_DESCRIPTORS: Duration = Duration::from_millis(100);
/// Users who have a socket of their own, each of one descriptor.
pub const OWN_SOCKETS_MAX: usize = 1_024;
/// How often flagged slabs are looked at.
pub const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// Bytes that nobody has touched for so long are rescued.
pub const STUCK_AFTER: Duration = Duration::from_millis(200);
/// A slab is looked at for so long after it was flagged: a process flags it once a second at most.
pub const WATCH_FOR: Duration = Duration::from_millis(1_500);
/// How often rings are looked for that nothing was pushed to.
pub const TEND_INTERVAL: Duration = Duration::from_millis(1_200);
/// How often a slab is looked at whose bytes a rescue could not move.
pub const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Descriptors of one user that are looked at in a second, for sockets that have other numbers by now than their ends said; a few
/// microseconds each, of a helper's time. All at once if none were before.
pub const LOOKS_PER_USER_PER_S: u32 = 2_000;
/// A socket that is not among so many descriptors is not looked for further; where its user had fewer looks left, it is asked for again.
pub const LOOKS_SURE: u32 = LOOKS_PER_USER_PER_S / 4;
/// Descriptors that one round of the watch looks at.
pub const NUMBERS_MAX: usize = 4_096;
/// Rows of a listing for root, of 512 bytes each.
pub const ROWS_MAX: usize = 200_000;
/// Rows of a listing for another user: about 2 MB and 4 ms, in which nobody else is served.
pub const ROWS_PER_USER_MAX: usize = 4_096;
