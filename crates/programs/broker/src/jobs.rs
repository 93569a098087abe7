//! What the broker has done by its [helpers](crate::helper), and what they answer.
//!
//! # Model
//! Messages of a fixed length over a `SOCK_SEQPACKET` pair. A helper is of the asking user, so its answers are believed
//! for that user's sockets, and lengths and numbers are checked.
//!
//! With a job come descriptors: of each process that may have the socket a pidfd, or alone the end of a pair through which the
//! [getter](crate::getter) hands the socket over; for a [`Task::Reclaim`] the slab and the table of processes besides.

use windlass_channel::Reason;

use crate::facts::{Facts, WORDS as FACT_WORDS};
use crate::helpers::Key;

/// Processes that one job names, at most.
pub(crate) const SOURCES_MAX: usize = 8;
/// Bytes of a job.
pub(crate) const JOB_BYTES: usize = JOB_WORDS * 8;
/// Bytes of an answer.
pub(crate) const SAID_BYTES: usize = SAID_WORDS * 8;

const JOB_WORDS: usize = 9 + SOURCES_MAX;
const SAID_WORDS: usize = 3 + FACT_WORDS;

/// Where the socket comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// It is taken from one of the processes.
    Process,
    /// It comes over a socket.
    Courier,
}

/// What is to be done with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Task {
    /// Tell what the kernel says of it.
    Look,
    /// Take it from a process and hand it over: the getter's only task.
    Fetch {
        /// User and group that every id of the process must be, and its user namespace.
        key: Key,
    },
    /// Move the unread bytes of one direction of a channel into it.
    Reclaim {
        slab: u32,
        chan: u16,
        side: u8,
        connected: bool,
        /// The slot that takes the lock.
        slot: u16,
    },
}

/// A job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Job {
    pub(crate) id: u64,
    pub(crate) source: Source,
    /// Number under which the processes may have the socket.
    pub(crate) fd: i32,
    pub(crate) cookie: u64,
    /// Descriptors that may be looked at if it is not there.
    pub(crate) looks: u32,
    /// Ids of the processes, 0 where there is none.
    pub(crate) pids: [u32; SOURCES_MAX],
    pub(crate) task: Task,
}

/// What came of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Said {
    Facts(Facts),
    /// So many bytes are in the kernel now.
    Moved(u64),
    /// The kernel did not take all, or a reader was in the middle of taking them.
    Partly,
    /// The socket is there, but may not be taken.
    OutOfReach,
    /// The getter has not handed it over in time.
    Late,
    Refused(Reason),
}

impl Job {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let (kind, a, b, c) = match self.task {
            Task::Look => (0, 0, 0, 0),
            Task::Fetch { key } => {
                let (device, inode) = key.userns;
                (
                    1,
                    u64::from(key.uid) | u64::from(key.gid) << 32,
                    device,
                    inode,
                )
            }
            Task::Reclaim {
                slab,
                chan,
                side,
                connected,
                slot,
            } => {
                let place = u64::from(slab) | u64::from(chan) << 32 | u64::from(slot) << 48;
                (2, place, u64::from(side) | u64::from(connected) << 1, 0)
            }
        };
        let courier = u64::from(self.source == Source::Courier);
        let fd = u64::from(self.fd.cast_unsigned());
        let head = [
            self.id,
            courier,
            fd,
            self.cookie,
            self.looks.into(),
            kind,
            a,
            b,
            c,
        ];
        let pids = self.pids.map(u64::from);
        head.into_iter()
            .chain(pids)
            .flat_map(u64::to_le_bytes)
            .collect()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let words: [u64; JOB_WORDS] = words(bytes)?;
        let [id, courier, fd, cookie, looks, kind, a, b, c, pids @ ..] = words;
        let task = match kind {
            0 => Task::Look,
            1 => Task::Fetch {
                key: Key {
                    uid: a as u32,
                    gid: (a >> 32) as u32,
                    userns: (b, c),
                },
            },
            2 => Task::Reclaim {
                slab: a as u32,
                chan: (a >> 32) as u16,
                side: (b & 1) as u8,
                connected: b & 2 != 0,
                slot: (a >> 48) as u16,
            },
            _ => return None,
        };
        let source = if courier == 1 {
            Source::Courier
        } else {
            Source::Process
        };
        Some(Self {
            id,
            source,
            fd: u32::try_from(fd).ok()?.cast_signed(),
            cookie,
            looks: looks as u32,
            pids: pids.map(|pid| pid as u32),
            task,
        })
    }
}

impl Said {
    pub(crate) fn encode(&self, id: u64) -> Vec<u8> {
        let (kind, word) = match self {
            Self::Facts(_) => (0, 0),
            Self::Moved(bytes) => (1, *bytes),
            Self::Partly => (2, 0),
            Self::OutOfReach => (3, 0),
            Self::Refused(reason) => (4, *reason as u64),
            Self::Late => (5, 0),
        };
        let facts = match self {
            Self::Facts(facts) => facts.encode(),
            _ => [0; FACT_WORDS],
        };
        [id, kind, word]
            .into_iter()
            .chain(facts)
            .flat_map(u64::to_le_bytes)
            .collect()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<(u64, Self)> {
        let words: [u64; SAID_WORDS] = words(bytes)?;
        let [id, kind, word, facts @ ..] = words;
        let said = match kind {
            0 => Self::Facts(Facts::decode(&facts)),
            1 => Self::Moved(word),
            2 => Self::Partly,
            3 => Self::OutOfReach,
            5 => Self::Late,
            4 => Self::Refused(Reason::from_u8(u8::try_from(word).ok()?)),
            _ => return None,
        };
        Some((id, said))
    }
}

fn words<const N: usize>(bytes: &[u8]) -> Option<[u64; N]> {
    let (chunks, rest) = bytes.as_chunks::<8>();
    let words: Vec<u64> = chunks
        .iter()
        .map(|chunk| u64::from_le_bytes(*chunk))
        .collect();
    rest.is_empty().then_some(words)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Jobs and answers are read as they were written, and nothing of another length is.
    #[test]
    fn messages_come_back() {
        let reclaim = Task::Reclaim {
            slab: u32::MAX,
            chan: 1023,
            side: 1,
            connected: true,
            slot: 65_534,
        };
        let key = Key {
            uid: 7,
            gid: u32::MAX,
            userns: (u64::MAX, 4_026_531_837),
        };
        let fetch = Task::Fetch { key };
        for task in [Task::Look, reclaim, fetch] {
            for source in [Source::Process, Source::Courier] {
                let job = Job {
                    id: u64::MAX,
                    source,
                    fd: -1,
                    cookie: 1 << 63,
                    looks: 9,
                    pids: [4_194_304; SOURCES_MAX],
                    task,
                };
                assert_eq!(Job::decode(&job.encode()), Some(job));
                assert_eq!(job.encode().len(), JOB_BYTES);
                assert_eq!(Job::decode(&job.encode()[..JOB_BYTES - 8]), None);
            }
        }
        for said in [
            Said::Moved(1 << 40),
            Said::Partly,
            Said::OutOfReach,
            Said::Late,
            Said::Refused(Reason::Mismatch),
        ] {
            assert_eq!(Said::decode(&said.encode(3)), Some((3, said)));
            assert_eq!(said.encode(3).len(), SAID_BYTES);
        }
        assert_eq!(Said::decode(&[9; SAID_BYTES]), None);
    }
}
