//! Classic BPF: the check of a program, and its interpreter.
//!
//! # Model
//! A program is a list of [`Instruction`]s over an accumulator, an index register and 16 words of memory, as `bpf(4)` of BSD and
//! `socket(7)` of Linux have them. [`Program::check`] accepts what the kernel's checker accepts (net/core/filter.c,
//! `bpf_check_classic`), but for two things: offsets below zero, by which the kernel gives what is no part of a frame, are refused, and a word of memory
//! that was never stored is 0.
//!
//! # Model of a run
//! One pass over the instructions runs a whole burst: each instruction is done for all frames that are there, in lanes. Jumps go forward only, so
//! a frame that jumps waits at the target until the pass comes there. What an instruction costs besides its work is paid once for all
//! frames, and no branch depends on one frame.
//!
//! Most bursts are alike, and most frames are refused early:
//! - Frames that jump to a return end at the jump.
//! - If all frames that have not ended jump to one place, the pass continues there.
//! - While all frames that have not ended are at one instruction, it writes whole vectors. What it writes to other lanes means nothing.
//!
//! # Limits
//! Jumps go forward only, so a run takes at most as many steps as there are instructions: [`INSTRUCTIONS_MAX`].
//!
//! # Not done
//! No machine code is made of a program: that needs memory which is written and then executed, in a privileged process, by what a user chose.

#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic
)]

use thiserror::Error;

/// Instructions of a program at most (`BPF_MAXINSNS`).
pub const INSTRUCTIONS_MAX: usize = 4096;
/// Words of memory (`BPF_MEMWORDS`).
const WORDS: u32 = 16;

// linux/bpf_common.h
const LD: u16 = 0x00;
const LDX: u16 = 0x01;
const ST: u16 = 0x02;
const STX: u16 = 0x03;
const ALU: u16 = 0x04;
const JMP: u16 = 0x05;
const RET: u16 = 0x06;
const MISC: u16 = 0x07;
const W: u16 = 0x00;
const H: u16 = 0x08;
const B: u16 = 0x10;
const IMM: u16 = 0x00;
const ABS: u16 = 0x20;
const IND: u16 = 0x40;
const MEM: u16 = 0x60;
const LEN: u16 = 0x80;
const MSH: u16 = 0xa0;
const X: u16 = 0x08;
const A: u16 = 0x10;
const TXA: u16 = 0x80;
const ADD: u16 = 0x00;
const SUB: u16 = 0x10;
const MUL: u16 = 0x20;
const DIV: u16 = 0x30;
const OR: u16 = 0x40;
const AND: u16 = 0x50;
const LSH: u16 = 0x60;
const RSH: u16 = 0x70;
const NEG: u16 = 0x80;
const MOD: u16 = 0x90;
const XOR: u16 = 0xa0;
const JA: u16 = 0x00;
const JEQ: u16 = 0x10;
const JGT: u16 = 0x20;
const JGE: u16 = 0x30;
const JSET: u16 = 0x40;

/// One instruction (`struct sock_filter`, linux/filter.h).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Instruction {
    /// What is done.
    pub code: u16,
    /// Instructions that are left out if a jump's condition holds.
    pub jt: u8,
    /// The same if it does not.
    pub jf: u8,
    /// A number: an offset, a word's place, a constant.
    pub k: u32,
}

/// Why a list of instructions is no program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Invalid {
    /// None, or more than [`INSTRUCTIONS_MAX`].
    #[error("a program has 1 to {INSTRUCTIONS_MAX} instructions, not {0}")]
    Length(usize),
    /// An instruction that there is none of.
    #[error("instruction {0}: there is no code {1:#x}")]
    Code(usize, u16),
    /// A constant that the instruction may not have.
    #[error("instruction {0}: {1:#x} is out of range")]
    Constant(usize, u32),
    /// A jump behind the end.
    #[error("instruction {0}: it jumps behind the end")]
    Jump(usize),
    /// The last instruction is no return.
    #[error("the last instruction is no return")]
    NoReturn,
}

/// Frames that one run takes at most.
pub const LANES: usize = 64;
/// Lanes that are done together: a vector.
const GROUP: usize = 4;
/// Lanes that have a bit each in a word.
const HALF: usize = 32;

/// What a program reads: frames by their numbers, below [`LANES`].
pub trait Frames {
    /// Bytes of a whole frame.
    fn len(&self, i: usize) -> u32;

    /// `N` bytes at an offset of a frame. None if the frame ends before.
    fn read<const N: usize>(&mut self, i: usize, offset: u32) -> Option<[u8; N]>;

    /// Loads the number at an offset of each of the first frames into as many places. False: they are to be read one by one.
    #[inline(always)]
    fn load<const N: usize>(&mut self, _offset: u32, _to: &mut [u32]) -> bool {
        false
    }
}

/// The number that bytes of a frame are.
#[inline(always)]
pub fn number<const N: usize>(bytes: [u8; N]) -> u32 {
    bytes
        .iter()
        .fold(0, |number, byte| number << 8 | u32::from(*byte))
}

/// A number for each frame.
type Lanes = [u32; LANES];
/// The bit of each lane of a half.
type Bits = [[u32; GROUP]; HALF / GROUP];
/// For what needs no second register.
static NONE: Lanes = [0; LANES];

/// The registers of one program.
#[derive(Debug)]
pub struct Runs {
    a: Lanes,
    x: Lanes,
    memory: [Lanes; WORDS as usize],
    returned: Lanes,
    /// By instruction: frames that a jump has sent there.
    sent: Box<[u64]>,
    /// Here, where it is no constant: else the compiler takes apart the vectors that it is combined with.
    bits: Bits,
}

impl Runs {
    /// For runs of this program.
    pub fn new(program: &Program) -> Box<Runs> {
        Box::new(Runs {
            a: [0; LANES],
            x: [0; LANES],
            memory: [[0; LANES]; WORDS as usize],
            returned: [0; LANES],
            sent: vec![0; program.len()].into(),
            bits: core::array::from_fn(|group| core::array::from_fn(|i| 1 << (group * GROUP + i))),
        })
    }

    /// What the last run has returned for a frame that it took.
    #[inline(always)]
    pub fn returned(&self, i: usize) -> u32 {
        self.returned.get(i).copied().unwrap_or(0)
    }

    fn begin(&mut self, program: &Program) {
        if program.reads_before {
            (self.a, self.x) = ([0; LANES], [0; LANES]);
        }
        if program.has_memory {
            self.memory = [[0; LANES]; WORDS as usize];
        }
    }

    fn send(&mut self, to: usize, frames: u64) {
        if let Some(sent) = self.sent.get_mut(to) {
            *sent |= frames;
        }
    }
}

/// Frames that do an instruction together.
#[derive(Clone, Copy)]
struct Set {
    of: u64,
    /// All other frames have ended, so what their lanes hold means nothing and may be overwritten.
    is_alone: bool,
    /// Lanes before the end of the last frame's.
    lanes: usize,
}

impl Set {
    /// Does something with each frame.
    #[inline(always)]
    fn each(self, mut work: impl FnMut(usize)) {
        let mut rest = self.of;
        while rest != 0 {
            work(rest.trailing_zeros() as usize);
            rest &= rest - 1;
        }
    }

    /// Changes a register by another.
    #[inline(always)]
    fn update(self, to: &mut Lanes, other: &Lanes, value: impl Fn(u32, u32) -> u32) {
        if self.is_alone {
            let (to, _) = to.as_chunks_mut::<HALF>();
            let (other, _) = other.as_chunks::<HALF>();
            for (to, other) in to.iter_mut().zip(other).take(self.lanes.div_ceil(HALF)) {
                for (to, other) in to.iter_mut().zip(other) {
                    *to = value(*to, *other);
                }
            }
            return;
        }
        self.each(|i| {
            if let (Some(to), Some(other)) = (to.get_mut(i), other.get(i)) {
                *to = value(*to, *other);
            }
        });
    }

    /// The frames for which something holds.
    #[inline(always)]
    fn which(self, a: &Lanes, other: &Lanes, bits: &Bits, holds: impl Fn(u32, u32) -> bool) -> u64 {
        let (halves, _) = a.as_chunks::<HALF>();
        let (others, _) = other.as_chunks::<HALF>();
        let halves = halves.iter().zip(others).take(self.lanes.div_ceil(HALF));
        let words = halves.map(|(a, other)| {
            let (a, _) = a.as_chunks::<GROUP>();
            let (other, _) = other.as_chunks::<GROUP>();
            let mut found = [0; GROUP];
            for ((a, other), bits) in a.iter().zip(other).zip(bits) {
                let lanes = found.iter_mut().zip(bits).zip(a.iter().zip(other));
                for ((found, bit), (a, other)) in lanes {
                    *found |= if holds(*a, *other) { *bit } else { 0 };
                }
            }
            found.iter().fold(0u32, |all, found| all | found)
        });
        let all = words
            .rev()
            .fold(0, |all, word| all << HALF | u64::from(word));
        all & self.of
    }

    /// They return a number; those that it takes, if it has taken `taken` before.
    #[inline(always)]
    fn end(self, taken: u64, value: u32, runs: &mut Runs) -> u64 {
        if value == 0 {
            return 0;
        }
        let is_alone = taken == 0;
        Set { is_alone, ..self }.update(&mut runs.returned, &NONE, |_, _| value);
        self.of
    }

    /// The same with what each has in the accumulator.
    #[inline(always)]
    fn end_with_a(self, taken: u64, runs: &mut Runs) -> u64 {
        let Runs {
            a, returned, bits, ..
        } = runs;
        let is_alone = taken == 0;
        Set { is_alone, ..self }.update(returned, a, |_, a| a);
        self.which(a, &NONE, bits, |a, _| a != 0)
    }
}

/// A program that was checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    instructions: Box<[Instruction]>,
    /// It stores something.
    has_memory: bool,
    /// It may read a register before it has loaded it.
    reads_before: bool,
}

impl Program {
    /// Takes a list of instructions.
    ///
    /// # Errors
    /// [`Invalid`] says what the kernel's checker would refuse.
    pub fn check(instructions: Vec<Instruction>) -> Result<Program, Invalid> {
        let count = instructions.len();
        if count == 0 || count > INSTRUCTIONS_MAX {
            return Err(Invalid::Length(count));
        }
        for (at, instruction) in instructions.iter().enumerate() {
            check_one(at, instruction, count - at - 1)?;
        }
        let last = instructions.last().map(|last| last.code);
        if last.is_none_or(|code| code & 0x07 != RET) {
            return Err(Invalid::NoReturn);
        }
        let stores = |i: &Instruction| matches!(i.code & 0x07, ST | STX);
        let loads = |i: &Instruction| i.code & 0x07 == LD;
        let reads_x = |i: &Instruction| match i.code & 0x07 {
            LD => i.code & 0xe0 == IND,
            STX | MISC => true,
            ALU | JMP => i.code & X != 0,
            _ => false,
        };
        Ok(Program {
            has_memory: instructions.iter().any(stores),
            reads_before: !instructions.first().is_some_and(loads)
                || instructions.iter().any(reads_x),
            instructions: instructions.into(),
        })
    }

    /// Instructions that it has.
    pub fn len(&self) -> usize {
        self.instructions.len()
    }

    /// Never: a program returns at least.
    pub fn is_empty(&self) -> bool {
        self.instructions.is_empty()
    }

    /// Runs over a set of frames; those that it does not refuse. What it returns for each of them is in `runs`: 0 refuses a frame, as does a
    /// read behind its end and a division by 0.
    pub fn run(&self, runs: &mut Runs, frames: &mut impl Frames, of: u64) -> u64 {
        runs.begin(self);
        let lanes = (u64::BITS - of.leading_zeros()) as usize;
        let mut set = Set {
            of,
            is_alone: true,
            lanes,
        };
        let mut pass = Pass {
            at: 0,
            next: of,
            running: of,
            taken: 0,
        };
        while pass.running != 0
            && let Some(i) = self.instructions.get(pass.at)
        {
            let of = match pass.next == pass.running {
                true => pass.next,
                false => pass.next | runs.sent.get_mut(pass.at).map_or(0, core::mem::take),
            };
            (pass.at, pass.next) = (pass.at + 1, of);
            if of == 0 {
                continue;
            }
            (set.of, set.is_alone) = (of, of == pass.running);
            match i.code & 0x07 {
                LD | LDX => pass.keep(of, load(i, set, runs, frames)),
                ST | STX => store(i, set, runs),
                ALU => pass.keep(of, alu(i, set, runs)),
                JMP if i.code & 0xf0 == JA => {
                    pass.next = 0;
                    let to = pass.at + i.k as usize;
                    self.jump(&mut pass, to, set, runs);
                }
                JMP => {
                    let holds = condition(i, set, runs);
                    pass.next = 0;
                    let behind = pass.at;
                    for (skip, of) in [(i.jt, holds), (i.jf, of & !holds)] {
                        self.jump(
                            &mut pass,
                            behind + usize::from(skip),
                            Set { of, ..set },
                            runs,
                        );
                    }
                }
                RET => {
                    pass.taken |= match i.code & 0x18 {
                        A => set.end_with_a(pass.taken, runs),
                        _ => set.end(pass.taken, i.k, runs),
                    };
                    pass.keep(of, 0);
                }
                _ => {
                    let Runs { a, x, .. } = &mut *runs;
                    match i.code & 0xf8 {
                        TXA => set.update(a, x, |_, x| x),
                        _ => set.update(x, a, |_, a| a),
                    }
                }
            }
        }
        pass.taken
    }

    /// Frames go on at an instruction; where that returns a number, at once.
    #[inline(never)]
    fn jump(&self, pass: &mut Pass, to: usize, set: Set, runs: &mut Runs) {
        if set.of == 0 {
            return;
        }
        match self.instructions.get(to) {
            Some(end) if end.code == RET => {
                pass.taken |= set.end(pass.taken, end.k, runs);
                pass.running &= !set.of;
            }
            // Nobody waits elsewhere: what lies between is left out.
            _ if set.of == pass.running => (pass.at, pass.next) = (to, set.of),
            _ => runs.send(to, set.of),
        }
    }
}

/// How far a run is.
struct Pass {
    /// The next instruction.
    at: usize,
    /// Frames that come to it from the one before.
    next: u64,
    /// Frames that have not ended.
    running: u64,
    /// Those that were taken.
    taken: u64,
}

impl Pass {
    /// Of these frames only some go on.
    #[inline(always)]
    fn keep(&mut self, of: u64, some: u64) {
        self.next = some;
        self.running &= !of | some;
    }
}

/// Loads numbers for frames; those that have them.
#[inline(always)]
fn load(i: &Instruction, set: Set, runs: &mut Runs, frames: &mut impl Frames) -> u64 {
    let Runs { a, x, memory, .. } = runs;
    if i.code & 0xe0 == IND {
        return match i.code & 0x18 {
            W => load_behind::<4>(i.k, set, (a, x), frames),
            H => load_behind::<2>(i.k, set, (a, x), frames),
            _ => load_behind::<1>(i.k, set, (a, x), frames),
        };
    }
    let to = if i.code & 0x07 == LD { a } else { x };
    match (i.code & 0xe0, i.code & 0x18) {
        (IMM, _) => set.update(to, &NONE, |_, _| i.k),
        (MEM, _) => {
            if let Some(word) = memory.get(i.k as usize) {
                set.update(to, word, |_, word| word);
            }
        }
        (LEN, _) => set.each(|at| {
            if let Some(to) = to.get_mut(at) {
                *to = frames.len(at);
            }
        }),
        (MSH, _) => {
            let of = load_at::<1>(i.k, set, to, frames);
            Set { of, ..set }.update(to, &NONE, |byte, _| (byte & 0x0f) << 2);
            return of;
        }
        (_, W) => return load_at::<4>(i.k, set, to, frames),
        (_, H) => return load_at::<2>(i.k, set, to, frames),
        _ => return load_at::<1>(i.k, set, to, frames),
    }
    set.of
}

/// Loads what lies at an offset.
#[inline(always)]
fn load_at<const N: usize>(offset: u32, set: Set, to: &mut Lanes, frames: &mut impl Frames) -> u64 {
    if set.is_alone {
        if frames.load::<N>(offset, to.get_mut(..set.lanes).unwrap_or(&mut [])) {
            return set.of;
        }
    } else {
        let mut all = NONE;
        if frames.load::<N>(offset, all.get_mut(..set.lanes).unwrap_or(&mut [])) {
            set.update(to, &all, |_, loaded| loaded);
            return set.of;
        }
    }
    let mut found = 0;
    set.each(|at| {
        if let (Some(to), Some(bytes)) = (to.get_mut(at), frames.read::<N>(at, offset)) {
            *to = number(bytes);
            found |= 1 << at;
        }
    });
    found
}

/// Loads what lies so far behind the index register.
#[inline(always)]
fn load_behind<const N: usize>(
    k: u32,
    set: Set,
    (to, x): (&mut Lanes, &Lanes),
    frames: &mut impl Frames,
) -> u64 {
    let mut found = 0;
    set.each(|at| {
        let (Some(to), Some(x)) = (to.get_mut(at), x.get(at)) else {
            return;
        };
        let offset = x.wrapping_add(k);
        // Else below zero.
        if offset <= i32::MAX as u32
            && let Some(bytes) = frames.read::<N>(at, offset)
        {
            *to = number(bytes);
            found |= 1 << at;
        }
    });
    found
}

/// Stores a register.
#[inline(always)]
fn store(i: &Instruction, set: Set, runs: &mut Runs) {
    let Runs { a, x, memory, .. } = runs;
    if let Some(word) = memory.get_mut(i.k as usize) {
        let from = if i.code & 0x07 == ST { a } else { x };
        set.update(word, from, |_, from| from);
    }
}

/// Those frames that are not divided by 0.
#[inline(always)]
fn alu(i: &Instruction, set: Set, runs: &mut Runs) -> u64 {
    match i.code & 0xf0 {
        ADD => compute(i, set, runs, u32::wrapping_add),
        SUB => compute(i, set, runs, u32::wrapping_sub),
        MUL => compute(i, set, runs, u32::wrapping_mul),
        OR => compute(i, set, runs, |a, other| a | other),
        AND => compute(i, set, runs, |a, other| a & other),
        XOR => compute(i, set, runs, |a, other| a ^ other),
        LSH => compute(i, set, runs, u32::wrapping_shl),
        RSH => compute(i, set, runs, u32::wrapping_shr),
        code @ (DIV | MOD) => {
            let is_there = |_, other| other != 0;
            let of = compare(i, set, runs, is_there);
            let set = Set { of, ..set };
            compute(i, set, runs, |a, other| {
                let done = if code == DIV {
                    a.checked_div(other)
                } else {
                    a.checked_rem(other)
                };
                done.unwrap_or(0)
            });
            return of;
        }
        _ => compute(i, set, runs, |a, _| a.wrapping_neg()),
    }
    set.of
}

/// Makes the accumulator what it is with the other operand.
#[inline(never)]
fn compute(i: &Instruction, set: Set, runs: &mut Runs, value: impl Fn(u32, u32) -> u32) {
    let Runs { a, x, .. } = runs;
    match i.code & X {
        0 => set.update(a, &NONE, |a, _| value(a, i.k)),
        _ => set.update(a, x, value),
    }
}

/// The frames for which a jump's condition holds.
#[inline(always)]
fn condition(i: &Instruction, set: Set, runs: &Runs) -> u64 {
    match i.code & 0xf0 {
        JEQ => compare(i, set, runs, |a, other| a == other),
        JGT => compare(i, set, runs, |a, other| a > other),
        JGE => compare(i, set, runs, |a, other| a >= other),
        _ => compare(i, set, runs, |a, other| a & other != 0),
    }
}

/// The frames for which something holds of the accumulator and the other operand.
#[inline(never)]
fn compare(i: &Instruction, set: Set, runs: &Runs, holds: impl Fn(u32, u32) -> bool) -> u64 {
    match i.code & X {
        0 => set.which(&runs.a, &NONE, &runs.bits, |a, _| holds(a, i.k)),
        _ => set.which(&runs.a, &runs.x, &runs.bits, holds),
    }
}

/// Checks an instruction behind which there are `behind` more.
fn check_one(at: usize, i: &Instruction, behind: usize) -> Result<(), Invalid> {
    let constant = |is_good: bool| is_good.then_some(()).ok_or(Invalid::Constant(at, i.k));
    let is_in_frame = i.k <= i32::MAX as u32;
    match (i.code & 0x07, i.code & !0x07) {
        (LD, mode) => match (mode & 0xe0, mode & 0x18) {
            (ABS, W | H | B) if mode & !0xf8 == 0 => constant(is_in_frame),
            (IND, W | H | B) if mode & !0xf8 == 0 => Ok(()),
            (IMM | LEN, W) if mode & !0xf8 == 0 => Ok(()),
            (MEM, W) if mode & !0xf8 == 0 => constant(i.k < WORDS),
            _ => Err(Invalid::Code(at, i.code)),
        },
        (LDX, IMM | LEN) => Ok(()),
        (LDX, MEM) | (ST | STX, 0) => constant(i.k < WORDS),
        (LDX, mode) if mode == MSH | B => constant(is_in_frame),
        (ALU, NEG) => Ok(()),
        (ALU, mode) if mode & !0xf8 == 0 && mode & 0xf0 <= XOR && mode & 0xf0 != NEG => {
            match mode & 0xf0 {
                DIV | MOD if mode & X == 0 => constant(i.k != 0),
                LSH | RSH if mode & X == 0 => constant(i.k < 32),
                _ => Ok(()),
            }
        }
        (JMP, JA) => match (i.k as usize) < behind {
            true => Ok(()),
            false => Err(Invalid::Jump(at)),
        },
        (JMP, mode) if mode & !0xf8 == 0 && (JEQ..=JSET).contains(&(mode & 0xf0)) => {
            match usize::from(i.jt.max(i.jf)) < behind {
                true => Ok(()),
                false => Err(Invalid::Jump(at)),
            }
        }
        (RET, 0 | A) | (MISC, 0 | TXA) => Ok(()),
        _ => Err(Invalid::Code(at, i.code)),
    }
}
