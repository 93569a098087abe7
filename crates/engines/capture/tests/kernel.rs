//! The checker and the interpreter beside the kernel's own: the filter of a socket.

use std::mem::size_of_val;
use std::os::fd::{AsRawFd, OwnedFd};

use proptest::prelude::*;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use windlass_capture::{Frames, INSTRUCTIONS_MAX, Instruction, Invalid, Program, Runs};

/// A pair of sockets of which the second filters its messages.
struct Kernel {
    sends: OwnedFd,
    receives: OwnedFd,
}

impl Kernel {
    fn new() -> Kernel {
        let flags = SocketFlags::NONBLOCK;
        let pair = rustix::net::socketpair(AddressFamily::UNIX, SocketType::DGRAM, flags, None);
        let (sends, receives) = pair.expect("sockets");
        Kernel { sends, receives }
    }

    /// Whether the kernel takes the program.
    fn takes(&self, program: &[Instruction]) -> bool {
        let of = |i: &Instruction| libc::sock_filter {
            code: i.code,
            jt: i.jt,
            jf: i.jf,
            k: i.k,
        };
        let mut filter: Vec<libc::sock_filter> = program.iter().map(of).collect();
        let wanted = libc::sock_fprog {
            len: filter.len() as u16,
            filter: filter.as_mut_ptr(),
        };
        // SAFETY: the kernel reads both structures, which live until it returns.
        let done = unsafe {
            libc::setsockopt(
                self.receives.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_ATTACH_FILTER,
                (&raw const wanted).cast(),
                size_of_val(&wanted) as u32,
            )
        };
        done == 0
    }

    /// How many bytes of a message the filter lets through; 0: it refuses it.
    fn run(&self, frame: &[u8]) -> usize {
        rustix::net::send(&self.sends, frame, SendFlags::empty()).expect("sent");
        let mut room = [0; 4096];
        let received = rustix::net::recv(&self.receives, &mut room[..], RecvFlags::empty());
        received.map_or(0, |(n, _)| n)
    }
}

/// Frames as they are.
struct Whole<'a>(&'a [Vec<u8>]);

impl Frames for Whole<'_> {
    fn len(&self, i: usize) -> u32 {
        self.0[i].len() as u32
    }

    fn read<const N: usize>(&mut self, i: usize, offset: u32) -> Option<[u8; N]> {
        self.0[i].get(offset as usize..)?.first_chunk().copied()
    }
}

/// Codes that a program may have, and some that it may not.
fn code() -> impl Strategy<Value = u16> {
    prop_oneof![
        9 => prop::sample::select(vec![
            0x20u16, 0x28, 0x30, 0x40, 0x48, 0x50, 0x00, 0x60, 0x80, 0x01, 0x61, 0x81, 0xb1, 0x02, 0x03, 0x04, 0x0c, 0x14,
            0x1c, 0x24, 0x2c, 0x34, 0x3c, 0x44, 0x4c, 0x54, 0x5c, 0x64, 0x6c, 0x74, 0x7c, 0x84, 0x94, 0x9c, 0xa4, 0xac, 0x05,
            0x15, 0x1d, 0x25, 0x2d, 0x35, 0x3d, 0x45, 0x4d, 0x06, 0x16, 0x07, 0x87,
        ]),
        1 => 0..0x200u16,
    ]
}

fn instruction() -> impl Strategy<Value = Instruction> {
    let k = prop_oneof![5 => 0..20u32, 3 => 0..100u32, 1 => 0..0x8000_0000u32];
    (code(), 0..4u8, 0..4u8, k).prop_map(|(code, jt, jf, k)| Instruction { code, jt, jf, k })
}

/// The kernel refuses a load of a word that was never stored; here it is 0, so a program stores all it has first.
fn program() -> impl Strategy<Value = Vec<Instruction>> {
    let op = |code, k| Instruction {
        code,
        k,
        ..Instruction::default()
    };
    (prop::collection::vec(instruction(), 0..40), any::<bool>()).prop_map(move |(middle, ends)| {
        let mut all: Vec<Instruction> = (0..16).map(|word| op(0x02, word)).collect();
        all.extend(middle);
        all.extend(ends.then(|| op(0x16, 0)));
        all
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3_000))]

    /// What the kernel takes is taken, and only that; and of each frame both let through as much, whether it runs alone or in a burst, and
    /// whatever ran before.
    #[test]
    fn program_and_kernel_agree(
        all in program(),
        frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..100), 8),
    ) {
        let kernel = Kernel::new();
        let checked = Program::check(all.clone());
        prop_assert_eq!(checked.is_ok(), kernel.takes(&all), "{:?} {:?}", checked, all);
        let Ok(program) = checked else { return Ok(()) };
        let (mut alone, mut burst) = (Runs::<1>::new(&program), Runs::<64>::new(&program));
        for of in [0xff, 0xa6] {
            let taken = program.run(&mut burst, &mut Whole(&frames), of);
            for (i, frame) in frames.iter().enumerate().filter(|(i, _)| of >> i & 1 != 0) {
                let theirs = kernel.run(frame);
                let is_taken = program.run(&mut alone, &mut Whole(&frames[i..=i]), 1) == 1;
                for (returned, is_taken) in [(alone.returned(0), is_taken), (burst.returned(i), taken >> i & 1 != 0)] {
                    let ours = (returned as usize).min(frame.len());
                    prop_assert_eq!(ours, theirs, "{:?} of {:?}", all, frame);
                    prop_assert_eq!(is_taken, returned != 0);
                }
            }
        }
    }
}

/// The limits of the length, and a program that reads below zero, which the kernel takes for what is no part of a frame.
#[test]
fn limits_hold() {
    let ret = Instruction {
        code: 0x06,
        k: 9,
        ..Instruction::default()
    };
    let kernel = Kernel::new();
    for count in [0, 1, INSTRUCTIONS_MAX, INSTRUCTIONS_MAX + 1] {
        let program = vec![ret; count];
        assert_eq!(
            Program::check(program.clone()).is_ok(),
            kernel.takes(&program)
        );
    }
    let below = Instruction {
        code: 0x20,
        k: 0xffff_f000,
        ..Instruction::default()
    };
    let refused = Program::check(vec![below, ret]);
    assert_eq!(refused, Err(Invalid::Constant(0, 0xffff_f000)));
}
