//! The checker and the interpreter beside the kernel's own: the filter of a socket.

use std::cell::Cell;
use std::mem::size_of_val;
use std::os::fd::{AsRawFd, OwnedFd};

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use windlass_capture::{Frames, INSTRUCTIONS_MAX, Instruction, Invalid, Program, Runs, number};

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

/// Frames as they are, and how they were read.
#[derive(Default)]
struct Whole<'a> {
    frames: &'a [Vec<u8>],
    /// How often a number was loaded for all frames at once, could not be, and was read of one frame.
    loaded: usize,
    refused: usize,
    read: usize,
}

impl Frames for Whole<'_> {
    fn len(&self, i: usize) -> u32 {
        self.frames[i].len() as u32
    }

    fn read<const N: usize>(&mut self, i: usize, offset: u32) -> Option<[u8; N]> {
        self.read += 1;
        self.frames[i]
            .get(offset as usize..)?
            .first_chunk()
            .copied()
    }

    /// Leaves in places of no frame that runs what means nothing.
    fn load<const N: usize>(&mut self, offset: u32, to: &mut [u32]) -> bool {
        to.fill(0xdead_beef);
        let frames = &self.frames[..to.len()];
        let all = frames
            .iter()
            .map(|frame| frame.get(offset as usize..)?.first_chunk());
        let Some(all) = all.collect::<Option<Vec<&[u8; N]>>>() else {
            self.refused += 1;
            return false;
        };
        for (to, bytes) in to.iter_mut().zip(all) {
            *to = number(*bytes);
        }
        self.loaded += 1;
        true
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

fn op(code: u16, k: u32) -> Instruction {
    Instruction {
        code,
        k,
        ..Instruction::default()
    }
}

/// Any instructions, few of which are a program.
fn wild() -> impl Strategy<Value = Vec<Instruction>> {
    prop::collection::vec(instruction(), 0..40)
}

/// Instructions of which each is allowed where it stands, if a return follows.
fn tame() -> impl Strategy<Value = Vec<Instruction>> {
    wild().prop_map(|mut all| {
        let is_good = |i: &Instruction| Program::check(vec![*i, op(0x06, 0)]).is_ok();
        all.iter_mut().for_each(|i| {
            let (jt, jf, k) = (i.jt, i.jf, i.k);
            (i.jt, i.jf) = (0, 0);
            i.k = if i.code & 0x07 == 0x05 { 0 } else { k };
            for k in [k % 16, 1] {
                i.k = if is_good(i) { i.k } else { k };
            }
            (i.jt, i.jf, i.k) = (jt, jf, if i.code == 0x05 { k } else { i.k });
        });
        all.retain(|i| is_good(&Instruction { jt: 0, jf: 0, ..*i }) || i.code == 0x05);
        let count = all.len();
        for (at, i) in all.iter_mut().enumerate() {
            let behind = (count - at) as u32;
            (i.jt, i.jf) = (
                (u32::from(i.jt) % behind) as u8,
                (u32::from(i.jf) % behind) as u8,
            );
            i.k = if i.code == 0x05 { i.k % behind } else { i.k };
        }
        all
    })
}

/// As filters are: numbers of headers are compared, and jumps go far, many to the same returns.
fn filter() -> impl Strategy<Value = Vec<Instruction>> {
    let load = (
        prop::sample::select(vec![0x20u16, 0x28, 0x30, 0xb1, 0x50]),
        0..24u32,
    );
    let jump = (
        prop::sample::select(vec![0x15u16, 0x25, 0x35, 0x45]),
        0..4u32,
    );
    let part = prop_oneof![
        load.prop_map(|(code, k)| (code, k)),
        jump.prop_map(|(code, k)| (code, k)),
        (Just(0x54), 0..4u32),
    ];
    let parts = prop::collection::vec((part, 0..12u8, 0..12u8), 1..16);
    parts.prop_map(|parts| {
        let count = parts.len() + 4;
        let of = |(at, ((code, k), jt, jf)): (usize, ((u16, u32), u8, u8))| {
            let behind = (count - at - 1) as u8;
            let far = |skip: u8| {
                if skip > 5 {
                    behind - skip % 4 - 1
                } else {
                    skip % behind
                }
            };
            match code & 0x07 {
                0x05 => Instruction {
                    code,
                    jt: far(jt),
                    jf: far(jf),
                    k,
                },
                _ => op(code, k),
            }
        };
        let mut all: Vec<Instruction> = parts.into_iter().enumerate().map(of).collect();
        all.extend([op(0x16, 0), op(0x06, 9), op(0x06, 40), op(0x06, 0)]);
        all
    })
}

/// The kernel refuses a load of a word that was never stored; here it is 0, so a program stores all it has first.
fn program() -> impl Strategy<Value = Vec<Instruction>> {
    let stores = |(middle, ends): (Vec<Instruction>, bool)| {
        let mut all: Vec<Instruction> = (0..16).map(|word| op(0x02, word)).collect();
        all.extend(middle);
        all.extend(ends.then(|| op(0x16, 0)));
        all
    };
    prop_oneof![
        (wild(), any::<bool>()).prop_map(stores),
        (tame(), Just(true)).prop_map(stores),
        filter(),
    ]
}

/// Frames of many small numbers: some that are too short for much, more that are not, or all alike.
fn frames() -> impl Strategy<Value = Vec<Vec<u8>>> {
    (0..4u8, 1..40usize, any::<u64>()).prop_map(|(kind, count, mut random)| {
        let mut next = move || {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1);
            random >> 40
        };
        let mut frame = |len: usize| -> Vec<u8> {
            let byte = |bits: u64| if bits & 0x300 == 0 { bits } else { bits & 3 };
            (0..len).map(|_| byte(next()) as u8).collect()
        };
        match kind {
            0 | 1 => (0..count % 8 + 1)
                .map(|i| frame((i * 37 + count) % 99 + 1))
                .collect(),
            2 => (0..count).map(|_| frame(60)).collect(),
            _ => vec![frame(60); count],
        }
    })
}

/// What the kernel takes is taken, and only that; and of each frame both let through as much, whether it runs alone or in a burst, and
/// whatever ran before.
#[test]
fn program_and_kernel_agree() {
    let mut runner = TestRunner::new(ProptestConfig::with_cases(3_000));
    let cases = (program(), frames(), any::<u64>());
    let tried = Cell::new([0; 4]);
    let agreed = runner.run(&cases, |(all, frames, some)| {
        let kernel = Kernel::new();
        let checked = Program::check(all.clone());
        prop_assert_eq!(
            checked.is_ok(),
            kernel.takes(&all),
            "{:?} {:?}",
            checked,
            all
        );
        let Ok(program) = checked else { return Ok(()) };
        let mut runs = Runs::new(&program);
        let theirs: Vec<usize> = frames.iter().map(|frame| kernel.run(frame)).collect();
        let whole = u64::MAX >> (64 - frames.len());
        let agree = |frame: usize, is_taken, returned: u32| {
            let ours = if is_taken { returned as usize } else { 0 };
            let bytes = &frames[frame];
            prop_assert_eq!(
                ours.min(bytes.len()),
                theirs[frame],
                "{:?} of {:?}",
                all,
                bytes
            );
            Ok(())
        };
        for of in [whole, some & whole] {
            let mut burst = Whole {
                frames: &frames,
                ..Whole::default()
            };
            let taken = program.run(&mut runs, &mut burst, of);
            prop_assert_eq!(taken & !of, 0);
            let [count, loaded, refused, read] = tried.get();
            tried.set([
                count + 1,
                loaded + burst.loaded,
                refused + burst.refused,
                read + burst.read,
            ]);
            for i in (0..frames.len()).filter(|i| of >> i & 1 != 0) {
                agree(i, taken >> i & 1 != 0, runs.returned(i))?;
            }
        }
        for i in (0..frames.len()).step_by(5) {
            let mut alone = Whole {
                frames: &frames[i..=i],
                ..Whole::default()
            };
            let is_taken = program.run(&mut runs, &mut alone, 1) == 1;
            agree(i, is_taken, runs.returned(0))?;
        }
        Ok(())
    });
    agreed.expect("they agree");
    let [programs, loaded, refused, read] = tried.get();
    println!("{programs} runs; {loaded} loads at once, {refused} that were not; {read} reads");
    assert!(programs > 3_000 && loaded > 1_000 && refused > 300 && read > 5_000);
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
