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
//! whoever jumps waits at the target until the pass comes there. What an instruction costs besides its work is paid once for all
//! frames, and no branch depends on one frame.
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

/// What a program reads: frames by their numbers, below the lanes of [`Runs`].
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

/// The registers of one program over as many frames as there are lanes: 64 at most.
#[derive(Debug)]
pub struct Runs<const LANES: usize> {
    a: [u32; LANES],
    x: [u32; LANES],
    memory: [[u32; LANES]; WORDS as usize],
    returned: [u32; LANES],
    /// By instruction: frames that a jump has sent there.
    sent: Box<[u64]>,
}

impl<const LANES: usize> Runs<LANES> {
    /// For runs of this program.
    pub fn new(program: &Program) -> Box<Runs<LANES>> {
        Box::new(Runs {
            a: [0; LANES],
            x: [0; LANES],
            memory: [[0; LANES]; WORDS as usize],
            returned: [0; LANES],
            sent: vec![0; program.len()].into(),
        })
    }

    /// What the last run has returned for a frame.
    #[inline(always)]
    pub fn returned(&self, i: usize) -> u32 {
        self.returned.get(i).copied().unwrap_or(0)
    }

    fn begin(&mut self, has_memory: bool) {
        (self.a, self.x, self.returned) = ([0; LANES], [0; LANES], [0; LANES]);
        if has_memory {
            self.memory = [[0; LANES]; WORDS as usize];
        }
    }

    fn send(&mut self, at: usize, frames: u64) {
        if let Some(sent) = self.sent.get_mut(at) {
            *sent |= frames;
        }
    }
}

/// If a set has the first frames and no others: how many.
#[inline(always)]
fn first_ones(of: u64) -> Option<usize> {
    (of & of.wrapping_add(1) == 0).then_some(of.count_ones() as usize)
}

/// Does something with each frame of a set.
#[inline(always)]
fn each(of: u64, mut work: impl FnMut(usize)) {
    let mut rest = of;
    while rest != 0 {
        work(rest.trailing_zeros() as usize);
        rest &= rest - 1;
    }
}

/// Changes lanes of a register by those of another.
#[inline(always)]
fn update<const LANES: usize>(
    of: u64,
    to: &mut [u32; LANES],
    other: &[u32; LANES],
    value: impl Fn(u32, u32) -> u32,
) {
    if let Some(n) = first_ones(of) {
        for (to, other) in to.iter_mut().zip(other).take(n) {
            *to = value(*to, *other);
        }
        return;
    }
    each(of, |i| {
        if let (Some(to), Some(other)) = (to.get_mut(i), other.get(i)) {
            *to = value(*to, *other);
        }
    });
}

/// In which lanes something holds.
#[inline(always)]
fn which<const LANES: usize>(
    a: &[u32; LANES],
    other: &[u32; LANES],
    holds: impl Fn(u32, u32) -> bool,
) -> u64 {
    let mut flags = [0; LANES];
    for ((flag, a), other) in flags.iter_mut().zip(a).zip(other) {
        *flag = u8::from(holds(*a, *other));
    }
    let (eights, rest) = flags.as_chunks::<8>();
    // Byte n of a word becomes its bit 56 + n.
    let bits =
        |eight: &[u8; 8]| u64::from_le_bytes(*eight).wrapping_mul(0x0102_0408_1020_4080) >> 56;
    let of_eights = eights.iter().rev();
    let of_eights = of_eights.fold(0u64, |all, eight| all << 8 | bits(eight));
    let of_rest = rest
        .iter()
        .rev()
        .fold(0u64, |all, flag| all << 1 | u64::from(*flag));
    of_eights | of_rest.checked_shl(8 * eights.len() as u32).unwrap_or(0)
}

/// A program that was checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    instructions: Box<[Instruction]>,
    has_memory: bool,
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
        Ok(Program {
            has_memory: instructions.iter().any(stores),
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

    /// Runs over a set of frames; those that it does not refuse. What it returns for each is in `runs`: 0 refuses a frame, as does a read
    /// behind its end and a division by 0.
    pub fn run<const LANES: usize>(
        &self,
        runs: &mut Runs<LANES>,
        frames: &mut impl Frames,
        of: u64,
    ) -> u64 {
        runs.begin(self.has_memory);
        let (mut running, mut next, mut taken) = (of, of, 0);
        for (at, i) in self.instructions.iter().enumerate() {
            let here = next | runs.sent.get_mut(at).map_or(0, core::mem::take);
            next = here;
            if here == 0 {
                continue;
            }
            match i.code & 0x07 {
                LD | LDX => {
                    next = load(i, here, runs, frames);
                    running &= !here | next;
                }
                ST | STX => {
                    let Runs { a, x, memory, .. } = &mut *runs;
                    if let Some(word) = memory.get_mut(i.k as usize) {
                        let from = if i.code & 0x07 == ST { a } else { x };
                        update(here, word, from, |_, from| from);
                    }
                }
                ALU => {
                    next = alu(i, here, runs);
                    running &= !here | next;
                }
                JMP if i.code & 0xf0 == JA => {
                    runs.send(at + 1 + i.k as usize, here);
                    next = 0;
                }
                JMP => {
                    let holds = here & condition(i, runs);
                    next = 0;
                    for (to, which) in [(i.jt, holds), (i.jf, here & !holds)] {
                        match to {
                            0 => next |= which,
                            to => runs.send(at + 1 + usize::from(to), which),
                        }
                    }
                }
                RET => {
                    let Runs { a, returned, .. } = &mut *runs;
                    let value = match i.code & 0x18 {
                        A => *a,
                        _ => [i.k; LANES],
                    };
                    update(here, returned, &value, |_, value| value);
                    taken |= here & which(&value, &[0; LANES], |value, zero| value != zero);
                    (running, next) = (running & !here, 0);
                }
                _ => {
                    let Runs { a, x, .. } = &mut *runs;
                    match i.code & 0xf8 {
                        TXA => update(here, a, x, |_, x| x),
                        _ => update(here, x, a, |_, a| a),
                    }
                }
            }
            if running == 0 {
                break;
            }
        }
        taken
    }
}

/// Loads numbers for frames; those that have them.
#[inline(always)]
fn load<const LANES: usize>(
    i: &Instruction,
    of: u64,
    runs: &mut Runs<LANES>,
    frames: &mut impl Frames,
) -> u64 {
    let Runs { a, x, memory, .. } = runs;
    if i.code & 0xe0 == IND {
        return match i.code & 0x18 {
            W => load_behind::<4, LANES>(i.k, of, (a, x), frames),
            H => load_behind::<2, LANES>(i.k, of, (a, x), frames),
            _ => load_behind::<1, LANES>(i.k, of, (a, x), frames),
        };
    }
    let to = if i.code & 0x07 == LD { a } else { x };
    match (i.code & 0xe0, i.code & 0x18) {
        (IMM, _) => update(of, to, &[i.k; LANES], |_, k| k),
        (MEM, _) => {
            if let Some(word) = memory.get(i.k as usize) {
                update(of, to, word, |_, word| word);
            }
        }
        (LEN, _) => each(of, |at| {
            if let Some(to) = to.get_mut(at) {
                *to = frames.len(at);
            }
        }),
        (MSH, _) => {
            let found = load_at::<1, LANES>(i.k, of, to, frames);
            update(found, to, &[0; LANES], |byte, _| (byte & 0x0f) << 2);
            return found;
        }
        (_, W) => return load_at::<4, LANES>(i.k, of, to, frames),
        (_, H) => return load_at::<2, LANES>(i.k, of, to, frames),
        _ => return load_at::<1, LANES>(i.k, of, to, frames),
    }
    of
}

/// Loads what lies at an offset.
#[inline(always)]
fn load_at<const N: usize, const LANES: usize>(
    offset: u32,
    of: u64,
    to: &mut [u32; LANES],
    frames: &mut impl Frames,
) -> u64 {
    if let Some(to) = first_ones(of).and_then(|n| to.get_mut(..n))
        && frames.load::<N>(offset, to)
    {
        return of;
    }
    let mut found = 0;
    each(of, |at| {
        if let (Some(to), Some(bytes)) = (to.get_mut(at), frames.read::<N>(at, offset)) {
            *to = number(bytes);
            found |= 1 << at;
        }
    });
    found
}

/// Loads what lies so far behind the index register.
#[inline(always)]
fn load_behind<const N: usize, const LANES: usize>(
    k: u32,
    of: u64,
    (to, x): (&mut [u32; LANES], &[u32; LANES]),
    frames: &mut impl Frames,
) -> u64 {
    let mut found = 0;
    each(of, |at| {
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

/// Those frames that are not divided by 0.
#[inline(always)]
fn alu<const LANES: usize>(i: &Instruction, of: u64, runs: &mut Runs<LANES>) -> u64 {
    let Runs { a, x, .. } = runs;
    let other = if i.code & X != 0 { *x } else { [i.k; LANES] };
    match i.code & 0xf0 {
        ADD => update(of, a, &other, u32::wrapping_add),
        SUB => update(of, a, &other, u32::wrapping_sub),
        MUL => update(of, a, &other, u32::wrapping_mul),
        OR => update(of, a, &other, |a, other| a | other),
        AND => update(of, a, &other, |a, other| a & other),
        XOR => update(of, a, &other, |a, other| a ^ other),
        LSH => update(of, a, &other, u32::wrapping_shl),
        RSH => update(of, a, &other, u32::wrapping_shr),
        code @ (DIV | MOD) => {
            let of = of & which(&other, &[0; LANES], |other, zero| other != zero);
            update(of, a, &other, |a, other| {
                let done = if code == DIV {
                    a.checked_div(other)
                } else {
                    a.checked_rem(other)
                };
                done.unwrap_or(0)
            });
            return of;
        }
        _ => update(of, a, &other, |a, _| a.wrapping_neg()),
    }
    of
}

/// In which lanes a jump's condition holds.
#[inline(always)]
fn condition<const LANES: usize>(i: &Instruction, runs: &Runs<LANES>) -> u64 {
    let Runs { a, x, .. } = runs;
    let other = if i.code & X != 0 { *x } else { [i.k; LANES] };
    match i.code & 0xf0 {
        JEQ => which(a, &other, |a, other| a == other),
        JGT => which(a, &other, |a, other| a > other),
        JGE => which(a, &other, |a, other| a >= other),
        _ => which(a, &other, |a, other| a & other != 0),
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
