//! eBPF: instructions, programs, what programs and we share, and how many of others' are attached somewhere.
//!
//! # Purpose
//! The programs that windlass needs in the kernel, loaded without a compiler. Fixed ones are assembled here: one that drops every
//! frame at tc ingress, one that names a TAP's queue; [`crate::xdp`] has another. Those of probes are made at run time, above this crate, and put at
//! places of files ([`Link::uprobes`]). [`Map`] and [`RecordRing`] are what programs and we share.
//! [`attached`] counts programs that somebody else has attached where packets pass.
//!
//! # Model
//! [`Instruction`] is one 8-byte instruction of the eBPF instruction set (RFC 9669);
//! [`Program::load`] hands a list of them to the kernel, whose verifier has the last word and whose
//! log is in the error.
//!
//! # Ownership and lifetime
//! A [`Program`] is a descriptor. Where it is attached (a tc filter, a TAP) the kernel holds it
//! too, so it may be dropped after that. A [`Link`] is the attachment itself: it ends with its descriptor.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;

use crate::vectored::last_errno;

mod map;
mod operation;
mod ring;
mod sample;
mod tcx;
mod uprobe;

pub use map::{Link, Map, MapKind, processors};
pub use operation::{Alu, Condition, Width};
pub use ring::RecordRing;
pub(crate) use tcx::keep_first;
pub use tcx::{Side, has_places, put_at};
pub use uprobe::UprobePlace;

const BPF_PROG_LOAD: libc::c_int = 5;
const BPF_PROG_QUERY: libc::c_int = 16;
/// `BPF_F_QUERY_EFFECTIVE`: what is attached further up counts.
const QUERY_EFFECTIVE: u32 = 1;
const LOG_BYTES: usize = 64 * 1024;
/// `BPF_F_SLEEPABLE`: a program that may wait for memory that is not there yet.
const MAY_SLEEP: u32 = 1 << 4;

/// `TC_ACT_SHOT` of `<linux/pkt_cls.h>`: drop the frame.
const TC_ACT_SHOT: i32 = 2;

/// What a program may be attached to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ProgramKind {
    /// `BPF_PROG_TYPE_PERF_EVENT`: at ticks of a processor's clock ([`Link::samples`]).
    Sample = 7,
    /// `BPF_PROG_TYPE_RAW_TRACEPOINT`: at events of the kernel ([`Link::event`]).
    Event = 17,
    /// `BPF_PROG_TYPE_SYSCALL`: when it is called ([`Program::run`]).
    Call = 31,
    /// `BPF_PROG_TYPE_SOCKET_FILTER`: also a TAP's steering.
    SocketFilter = 1,
    /// `BPF_PROG_TYPE_KPROBE`: at instructions of programs ([`Link::uprobes`]), and may wait for their memory.
    Uprobe = 2,
    /// `BPF_PROG_TYPE_SCHED_CLS`: a tc filter.
    Classifier = 3,
    /// `BPF_PROG_TYPE_XDP`: runs in the driver, for each frame received.
    Xdp = 6,
    /// `BPF_PROG_TYPE_SK_MSG`: runs at each send of a socket in a map ([`crate::sockmap`]).
    SocketMessage = 16,
}

/// Offset of `hash` in `struct __sk_buff` of `<linux/bpf.h>`.
const SK_BUFF_HASH: i16 = 68;

/// One instruction, in the kernel's layout (`struct bpf_insn`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Instruction {
    opcode: u8,
    registers: u8,
    offset: i16,
    immediate: i32,
}

impl Instruction {
    /// `r{register} = value`, 64 bits, sign-extended. Registers are 0 to 9.
    #[must_use]
    pub const fn move_immediate(register: u8, value: i32) -> Self {
        // ALU64 | MOV | K
        Self {
            opcode: 0xb7,
            registers: register & 0xf,
            offset: 0,
            immediate: value,
        }
    }

    /// `r{to} = r{from}`.
    #[must_use]
    pub const fn move_register(to: u8, from: u8) -> Self {
        Self::registers(0xbf, to, from, 0)
    }

    /// `r{register} += value`.
    #[must_use]
    pub const fn add_immediate(register: u8, value: i32) -> Self {
        // ALU64 | ADD | K
        Self {
            opcode: 0x07,
            registers: register & 0xf,
            offset: 0,
            immediate: value,
        }
    }

    /// `r{to} = *(u16 *)(r{from} + offset)`.
    #[must_use]
    pub const fn load_half(to: u8, from: u8, offset: i16) -> Self {
        Self::registers(0x69, to, from, offset)
    }

    /// `*(u32 *)(r{to} + offset) = r{from}`.
    #[must_use]
    pub const fn store_word(to: u8, offset: i16, from: u8) -> Self {
        Self::registers(0x63, to, from, offset)
    }

    /// Skips `count` instructions if `r{left} > r{right}`, unsigned.
    #[must_use]
    pub const fn skip_if_greater(left: u8, right: u8, count: i16) -> Self {
        Self::registers(0x2d, left, right, count)
    }

    /// Skips `count` instructions if `r{register} == 0`.
    #[must_use]
    pub const fn skip_if_zero(register: u8, count: i16) -> Self {
        // JMP | JEQ | K
        Self::registers(0x15, register, 0, count)
    }

    /// Skips `count` instructions if `r{register} == value`, sign-extended.
    #[must_use]
    pub const fn skip_if_is(register: u8, value: i32, count: i16) -> Self {
        Self {
            immediate: value,
            ..Self::skip_if_zero(register, count)
        }
    }

    /// Skips `count` instructions if `r{register} != value`, sign-extended.
    #[must_use]
    pub const fn skip_if_is_not(register: u8, value: i32, count: i16) -> Self {
        // JMP | JNE | K
        Self {
            opcode: 0x55,
            ..Self::skip_if_is(register, value, count)
        }
    }

    /// Skips `count` instructions if `r{left} == r{right}`.
    #[must_use]
    pub const fn skip_if_equal(left: u8, right: u8, count: i16) -> Self {
        Self::registers(0x1d, left, right, count)
    }

    /// Skips `count` instructions if `r{left} != r{right}`.
    #[must_use]
    pub const fn skip_if_differ(left: u8, right: u8, count: i16) -> Self {
        Self::registers(0x5d, left, right, count)
    }

    /// Skips `count` instructions.
    #[must_use]
    pub const fn skip(count: i16) -> Self {
        Self::registers(0x05, 0, 0, count)
    }

    /// The same jump with another number of instructions to skip.
    #[must_use]
    pub const fn skipping(self, count: i16) -> Self {
        Self {
            offset: count,
            ..self
        }
    }

    /// `r{register} = value`, 32 bits, the upper ones zero.
    #[must_use]
    pub const fn move_word(register: u8, value: u32) -> Self {
        // ALU | MOV | K
        Self {
            opcode: 0xb4,
            registers: register & 0xf,
            offset: 0,
            immediate: value.cast_signed(),
        }
    }

    /// `r{register} &= value`, sign-extended.
    #[must_use]
    pub const fn and_immediate(register: u8, value: i32) -> Self {
        // ALU64 | AND | K
        Self {
            opcode: 0x57,
            ..Self::add_immediate(register, value)
        }
    }

    /// `r{register} >>= bits`.
    #[must_use]
    pub const fn shift_right(register: u8, bits: i32) -> Self {
        // ALU64 | RSH | K
        Self {
            opcode: 0x77,
            ..Self::add_immediate(register, bits)
        }
    }

    /// `r{register} =` its lower 16 bits, from network order to the host's, the upper ones zero.
    #[must_use]
    pub const fn from_be_half(register: u8) -> Self {
        // ALU | END | TO_BE
        Self {
            opcode: 0xdc,
            ..Self::add_immediate(register, 16)
        }
    }

    /// `r{to} += r{from}`.
    #[must_use]
    pub const fn add_register(to: u8, from: u8) -> Self {
        Self::registers(0x0f, to, from, 0)
    }

    /// `r{to} -= r{from}`.
    #[must_use]
    pub const fn subtract_register(to: u8, from: u8) -> Self {
        Self::registers(0x1f, to, from, 0)
    }

    /// `r{to} = *(u8 *)(r{from} + offset)`.
    #[must_use]
    pub const fn load_byte(to: u8, from: u8, offset: i16) -> Self {
        Self::registers(0x71, to, from, offset)
    }

    /// `r{to} = *(u64 *)(r{from} + offset)`.
    #[must_use]
    pub const fn load_long(to: u8, from: u8, offset: i16) -> Self {
        Self::registers(0x79, to, from, offset)
    }

    /// `*(u64 *)(r{to} + offset) = r{from}`.
    #[must_use]
    pub const fn store_long(to: u8, offset: i16, from: u8) -> Self {
        Self::registers(0x7b, to, from, offset)
    }

    /// `*(u64 *)(r{to} + offset) += r{from}`, whole for every processor.
    #[must_use]
    pub const fn add_atomically(to: u8, offset: i16, from: u8) -> Self {
        // STX | DW | ATOMIC, with BPF_ADD as its immediate
        Self::registers(0xdb, to, from, offset)
    }

    /// `*(u64 *)(r{to} + offset) += r{from}`, whole for every processor; r{from} becomes what was there.
    #[must_use]
    pub const fn fetch_and_add(to: u8, offset: i16, from: u8) -> Self {
        Self {
            // BPF_ADD | BPF_FETCH
            immediate: 1,
            ..Self::registers(0xdb, to, from, offset)
        }
    }

    const fn registers(opcode: u8, to: u8, from: u8, offset: i16) -> Self {
        Self {
            opcode,
            registers: (to & 0xf) | (from & 0xf) << 4,
            offset,
            immediate: 0,
        }
    }

    /// `r{to} = *(u32 *)(r{from} + offset)`.
    #[must_use]
    pub const fn load_word(to: u8, from: u8, offset: i16) -> Self {
        Self::registers(0x61, to, from, offset)
    }

    /// `r{register} =` the map behind a descriptor: two instructions, one value of 64 bits.
    #[must_use]
    pub fn load_map(register: u8, map: BorrowedFd<'_>) -> [Self; 2] {
        // LD | IMM | DW, with BPF_PSEUDO_MAP_FD as its source
        let first = Self {
            opcode: 0x18,
            registers: (register & 0xf) | 1 << 4,
            offset: 0,
            immediate: map.as_raw_fd(),
        };
        let second = Self {
            opcode: 0,
            registers: 0,
            offset: 0,
            immediate: 0,
        };
        [first, second]
    }

    /// `r0 = helper(r1, r2, r3, r4, r5)`, by the kernel's number of the helper function.
    #[must_use]
    pub const fn call(helper: i32) -> Self {
        // JMP | CALL
        Self {
            opcode: 0x85,
            registers: 0,
            offset: 0,
            immediate: helper,
        }
    }

    /// `return r0`.
    #[must_use]
    pub const fn exit() -> Self {
        // JMP | EXIT
        Self {
            opcode: 0x95,
            registers: 0,
            offset: 0,
            immediate: 0,
        }
    }
}

/// The kernel refused a program; `EPERM` means that `CAP_BPF` or `CAP_NET_ADMIN` is missing.
#[derive(Debug, thiserror::Error)]
#[error("load eBPF program `{name}`: {errno}{}{log}", if .log.is_empty() { "" } else { "\n" })]
pub struct LoadError {
    /// The program's name.
    pub name: String,
    /// The kernel's answer.
    pub errno: Errno,
    /// What the verifier said; empty if it did not get that far.
    pub log: String,
}

/// Where programs see packets (`enum bpf_attach_type`).
#[derive(Clone, Copy, Debug)]
pub enum Attached<'a> {
    /// What processes of a cgroup, or of one above it, receive.
    CgroupIngress(BorrowedFd<'a>),
    /// What they send.
    CgroupEgress(BorrowedFd<'a>),
    /// What comes in on a link, by its index in the calling thread's namespace.
    LinkIngress(u32),
    /// What leaves by it.
    LinkEgress(u32),
}

/// The part of `union bpf_attr` that BPF_PROG_QUERY has had since Linux 4.15.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct QueryAttributes {
    target: u32,
    attach_type: u32,
    query_flags: u32,
    attach_flags: u32,
    program_ids: u64,
    program_count: u32,
    padding: u32,
}

/// How many programs are attached. None where the kernel does not know the place (`BPF_TCX_INGRESS` before Linux 6.6).
/// Needs `CAP_NET_ADMIN`.
pub fn attached(place: Attached<'_>) -> Result<u32, Errno> {
    let (target, attach_type, query_flags) = match place {
        Attached::CgroupIngress(fd) => (fd.as_raw_fd().cast_unsigned(), 0, QUERY_EFFECTIVE),
        Attached::CgroupEgress(fd) => (fd.as_raw_fd().cast_unsigned(), 1, QUERY_EFFECTIVE),
        Attached::LinkIngress(index) => (index, 46, 0),
        Attached::LinkEgress(index) => (index, 47, 0),
    };
    let mut attributes = QueryAttributes {
        target,
        attach_type,
        query_flags,
        ..QueryAttributes::default()
    };
    // SAFETY: these are the attributes of a query; with no place for ids there are no addresses in them.
    match unsafe { bpf(BPF_PROG_QUERY, &mut attributes) } {
        // Without a place for ids some kernels say that there was none; the count is right.
        Ok(_) | Err(Errno::NOSPC) => Ok(attributes.program_count),
        Err(Errno::INVAL | Errno::NOENT) => Ok(0),
        Err(errno) => Err(errno),
    }
}

/// Attributes, and room for all that the kernel's `union bpf_attr` has behind them: where it answers (`query.revision` since Linux 6.6) it
/// does not ask how much of the union it was given.
#[repr(C)]
struct Room<T> {
    attributes: T,
    rest: [u64; 64],
}

/// Calls bpf(2).
///
/// # Safety
/// `attributes` is what `command` wants, and the addresses in it outlive the call.
pub(crate) unsafe fn bpf<T: Copy>(command: libc::c_int, attributes: &mut T) -> Result<i32, Errno> {
    let mut room = Room {
        attributes: *attributes,
        rest: [0; 64],
    };
    // SAFETY: the kernel reads as much as is said, and writes no further than its union is long; the meaning is the caller's duty.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut room, size_of::<T>()) };
    *attributes = room.attributes;
    i32::try_from(result)
        .ok()
        .filter(|&done| done >= 0)
        .ok_or_else(last_errno)
}

/// The part of `union bpf_attr` (`<linux/bpf.h>`) that BPF_PROG_LOAD has had since Linux 4.17.
#[repr(C)]
#[derive(Clone, Copy)]
struct LoadAttributes {
    kind: u32,
    count: u32,
    instructions: u64,
    licence: u64,
    log_level: u32,
    log_bytes: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    interface: u32,
    attach_type: u32,
}

/// A program that the kernel has verified and holds.
#[derive(Debug)]
pub struct Program {
    fd: OwnedFd,
}

impl Program {
    /// Loads a program. `name` is shown by `bpftool`, cut to 15 bytes of letters, digits, `_`.
    pub fn load(
        name: &str,
        kind: ProgramKind,
        instructions: &[Instruction],
    ) -> Result<Self, LoadError> {
        match load(name, kind, instructions, &mut []) {
            Ok(fd) => Ok(Self { fd }),
            Err(_) => {
                // Asked again with a log, which is too slow and too large to ask for each time.
                let mut log = vec![0; LOG_BYTES];
                match load(name, kind, instructions, &mut log) {
                    Ok(fd) => Ok(Self { fd }),
                    Err(errno) => {
                        let end = log.iter().position(|&b| b == 0).unwrap_or(log.len());
                        log.truncate(end);
                        let log = String::from_utf8_lossy(&log).trim_end().to_owned();
                        Err(LoadError {
                            name: name.to_owned(),
                            errno,
                            log,
                        })
                    }
                }
            }
        }
    }

    /// A tc classifier that drops every frame. Packet sockets see a frame before it.
    pub fn drop_all_ingress() -> Result<Self, LoadError> {
        let program = [
            Instruction::move_immediate(0, TC_ACT_SHOT),
            Instruction::exit(),
        ];
        Self::load("windlass_drop", ProgramKind::Classifier, &program)
    }

    /// A steering program that sends every frame of a TAP to `queue` (modulo their number).
    pub fn steer_to_queue(queue: u16) -> Result<Self, LoadError> {
        let program = [
            Instruction::move_immediate(0, queue.into()),
            Instruction::exit(),
        ];
        Self::load("windlass_steer", ProgramKind::SocketFilter, &program)
    }

    /// A steering program that chooses the queue by `skb->hash` (modulo the number of queues), so
    /// that a flow stays on one queue. A frame that the sender gave no hash goes to queue 0; TCP may
    /// give a connection another hash after a time-out.
    pub fn steer_by_hash() -> Result<Self, LoadError> {
        let program = [
            Instruction::load_word(0, 1, SK_BUFF_HASH),
            Instruction::exit(),
        ];
        Self::load("windlass_steer", ProgramKind::SocketFilter, &program)
    }
}

impl AsFd for Program {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn load(
    name: &str,
    kind: ProgramKind,
    instructions: &[Instruction],
    log: &mut [u8],
) -> Result<OwnedFd, Errno> {
    // What reads a program's memory is kept for licences that the kernel calls compatible; ours may be had under either.
    let (licence, flags, attach_type) = match kind {
        ProgramKind::Uprobe => (c"Dual MIT/GPL", MAY_SLEEP, uprobe::ATTACH_UPROBES),
        ProgramKind::Call => (c"Dual MIT/GPL", MAY_SLEEP, 0),
        ProgramKind::Sample | ProgramKind::Event => (c"Dual MIT/GPL", 0, 0),
        _ => (c"Apache-2.0 OR MIT", 0, 0),
    };
    let mut attributes = LoadAttributes {
        kind: kind as u32,
        count: u32::try_from(instructions.len()).map_err(|_| Errno::TOOBIG)?,
        instructions: instructions.as_ptr().expose_provenance() as u64,
        licence: licence.as_ptr().expose_provenance() as u64,
        log_level: u32::from(!log.is_empty()),
        log_bytes: u32::try_from(log.len()).map_err(|_| Errno::TOOBIG)?,
        log: if log.is_empty() {
            0
        } else {
            log.as_mut_ptr().expose_provenance() as u64
        },
        kernel_version: 0,
        flags,
        name: [0; 16],
        interface: 0,
        attach_type,
    };
    for (to, from) in attributes.name.iter_mut().take(15).zip(name.bytes()) {
        *to = from;
    }
    // SAFETY: the addresses in the structure are those of slices of the lengths beside them, which outlive the call; the
    // kernel writes to the log only.
    let fd = unsafe { bpf(BPF_PROG_LOAD, &mut attributes) }?;
    // SAFETY: bpf(2) just returned this descriptor, which nobody else knows.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel's answer to a query is longer than the attributes that we know of; what lies behind them stays as it is.
    #[test]
    fn an_answer_stays_in_its_place() {
        #[repr(C)]
        struct Place {
            attributes: QueryAttributes,
            behind: [u64; 16],
        }
        let mut place = Place {
            attributes: QueryAttributes {
                target: 1,
                attach_type: 46,
                ..QueryAttributes::default()
            },
            behind: [0x5a; 16],
        };
        // SAFETY: a query about the loopback interface, without addresses.
        let asked = unsafe { bpf(BPF_PROG_QUERY, &mut place.attributes) };
        if let Err(Errno::PERM | Errno::INVAL | Errno::NOSYS) = asked {
            println!("skipped: an_answer_stays_in_its_place: bpf(2): {asked:?}");
            return;
        }
        assert_eq!(place.behind, [0x5a; 16]);
    }
}
