//! Classic BPF: the check of a program, and its interpreter.
//!
//! # Model
//! A program is a list of [`Instruction`]s over an accumulator, an index register and 16 words of memory, as `bpf(4)` of BSD and
//! `socket(7)` of Linux have them. [`Program::check`] accepts what the kernel's checker accepts (net/core/filter.c,
//! `bpf_check_classic`), but for two things: offsets below zero, by which the kernel gives what is no part of a frame, are refused, and a word of memory
//! that was never stored is 0.
//!
//! # Limits
//! Jumps go forward only, so a run takes at most as many steps as there are instructions: [`INSTRUCTIONS_MAX`].

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

/// What a program reads.
pub trait Frame {
    /// Bytes of the whole frame.
    fn len(&self) -> u32;

    /// Whether it has none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// `N` bytes at an offset. None if the frame ends before.
    fn read<const N: usize>(&mut self, offset: u32) -> Option<[u8; N]>;
}

impl Frame for &[u8] {
    fn len(&self) -> u32 {
        u32::try_from(<[u8]>::len(self)).unwrap_or(u32::MAX)
    }

    #[inline]
    fn read<const N: usize>(&mut self, offset: u32) -> Option<[u8; N]> {
        self.get(offset as usize..)?.first_chunk().copied()
    }
}

/// A program that was checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program(Box<[Instruction]>);

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
        Ok(Program(instructions.into()))
    }

    /// Instructions that it has.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Never: a program returns at least.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What it returns for a frame: 0 refuses it, as does a read behind its end and a division by 0.
    pub fn run(&self, frame: &mut impl Frame) -> u32 {
        let (mut a, mut x) = (0u32, 0u32);
        let mut memory = [0u32; WORDS as usize];
        let mut rest = self.0.iter();
        while let Some(i) = rest.next() {
            let k = i.k;
            match i.code & 0x07 {
                LD | LDX => {
                    let Some(value) = load(i, x, &memory, frame) else {
                        return 0;
                    };
                    *(if i.code & 0x07 == LD { &mut a } else { &mut x }) = value;
                }
                ST | STX => {
                    if let Some(word) = memory.get_mut(k as usize) {
                        *word = if i.code & 0x07 == ST { a } else { x };
                    }
                }
                ALU => match alu(i.code, a, if i.code & X != 0 { x } else { k }) {
                    Some(value) => a = value,
                    None => return 0,
                },
                JMP => {
                    let other = if i.code & X != 0 { x } else { k };
                    let holds = match i.code & 0xf0 {
                        JA => {
                            rest = skip(rest, k as usize);
                            continue;
                        }
                        JEQ => a == other,
                        JGT => a > other,
                        JGE => a >= other,
                        _ => a & other != 0,
                    };
                    rest = skip(rest, usize::from(if holds { i.jt } else { i.jf }));
                }
                RET => return if i.code & 0x18 == A { a } else { k },
                _ if i.code & 0xf8 == TXA => a = x,
                _ => x = a,
            }
        }
        0
    }
}

#[inline(always)]
fn skip(rest: core::slice::Iter<'_, Instruction>, n: usize) -> core::slice::Iter<'_, Instruction> {
    rest.as_slice().get(n..).unwrap_or(&[]).iter()
}

#[inline(always)]
fn load(i: &Instruction, x: u32, memory: &[u32], frame: &mut impl Frame) -> Option<u32> {
    match i.code & 0xe0 {
        IMM => return Some(i.k),
        MEM => return memory.get(i.k as usize).copied(),
        LEN => return Some(frame.len()),
        MSH => {
            let [byte] = frame.read(i.k)?;
            return Some(u32::from(byte & 0x0f) << 2);
        }
        _ => {}
    }
    let offset = match i.code & 0xe0 {
        IND => x.wrapping_add(i.k),
        _ => i.k,
    };
    // Below zero.
    if offset > i32::MAX as u32 {
        return None;
    }
    match i.code & 0x18 {
        W => frame.read(offset).map(u32::from_be_bytes),
        H => Some(u16::from_be_bytes(frame.read(offset)?).into()),
        _ => frame.read(offset).map(|[byte]| byte.into()),
    }
}

/// None for a division by 0.
#[inline(always)]
fn alu(code: u16, a: u32, other: u32) -> Option<u32> {
    Some(match code & 0xf0 {
        ADD => a.wrapping_add(other),
        SUB => a.wrapping_sub(other),
        MUL => a.wrapping_mul(other),
        DIV => a.checked_div(other)?,
        MOD => a.checked_rem(other)?,
        OR => a | other,
        AND => a & other,
        XOR => a ^ other,
        LSH => a.wrapping_shl(other),
        RSH => a.wrapping_shr(other),
        _ => a.wrapping_neg(),
    })
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
