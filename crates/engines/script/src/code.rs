//! What an expression comes to once its types are known.

use crate::syntax::Binary;

/// How a value is computed: 64 bits, with all types turned into widths, offsets and signs.
#[derive(Debug, Clone, PartialEq)]
pub enum Code {
    /// This one.
    Constant(u64),
    /// What a register holds at the place, by its DWARF number.
    Register(u16),
    /// An argument of an event of the kernel, by its number.
    Argument(u8),
    /// Something of the moment.
    Moment(Moment),
    /// A variable of the thread, by its number.
    Thread(u32),
    /// A variable of the clause, by its number.
    Local(u32),
    /// How long ago the function, by its number, was entered whose frame is there.
    Elapsed(Box<Code>, u32),
    /// The number of a value's quarter of a power of two, see [`steps`].
    Steps(Box<Code>),
    /// What the record that is being written has at this byte: 8 bytes, read before.
    Captured(u32),
    /// What lies in memory there.
    Load {
        /// Where.
        address: Box<Code>,
        /// 1, 2, 4 or 8.
        bytes: u8,
        /// The lowest bit that counts, and how many do.
        bits: (u8, u8),
        /// The highest bit is the sign.
        is_signed: bool,
    },
    /// The lower bits of a value alone.
    Narrow {
        /// Of what.
        of: Box<Code>,
        /// The lowest bit that counts, and how many do.
        bits: (u8, u8),
        /// The highest bit is the sign.
        is_signed: bool,
    },
    /// `a OP b`.
    Binary {
        /// Both sides are 0 or more, for what differs.
        is_unsigned: bool,
        /// What is done.
        operation: Binary,
        /// The left and the right side.
        sides: Box<[Code; 2]>,
    },
    /// `-a`
    Negate(Box<Code>),
    /// `~a`
    Complement(Box<Code>),
    /// `!a`
    Not(Box<Code>),
    /// `a ? b : c`
    Choose(Box<[Code; 3]>),
    /// Whether the text at an address is this one: 1 or 0.
    IsText(Box<Code>, String),
}

/// What a program knows of the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// The process.
    Pid,
    /// The thread.
    Tid,
    /// The processor.
    Cpu,
    /// Nanoseconds since the machine started.
    Now,
}

impl Code {
    /// `self + offset`.
    #[must_use]
    pub fn plus(self, offset: i64) -> Self {
        match self {
            Self::Constant(value) => Self::Constant(value.wrapping_add_signed(offset)),
            code if offset == 0 => code,
            // As members of members are reached.
            Self::Binary {
                is_unsigned,
                operation: Binary::Add,
                sides,
            } if matches!(&*sides, [_, Self::Constant(_)]) => {
                let [left, right] = *sides;
                let right = right.plus(offset);
                let sides = Box::new([left, right]);
                let operation = Binary::Add;
                Self::Binary {
                    is_unsigned,
                    operation,
                    sides,
                }
            }
            code => Self::Binary {
                is_unsigned: true,
                operation: Binary::Add,
                sides: Box::new([code, Self::Constant(offset.cast_unsigned())]),
            },
        }
    }
}

/// The number of a value's quarter of a power of two: 0 to 3 are their own, and each power of two from 4 on has four.
#[must_use]
pub fn steps(value: u64) -> u64 {
    match value {
        0..4 => value,
        _ => {
            let bits = u64::BITS - value.leading_zeros();
            u64::from(4 * (bits - 2)) + (value >> (bits - 3) & 3)
        }
    }
}

/// The least value that has this number of [`steps`].
#[must_use]
pub fn step_begins(number: u64) -> u64 {
    match number {
        0..4 => number,
        _ => (4 + number % 4)
            .checked_shl(u32::try_from(number / 4 - 1).unwrap_or(64))
            .unwrap_or(u64::MAX),
    }
}

/// The lower bits of a value, with its sign.
#[must_use]
pub(crate) fn narrow(value: u64, (first, count): (u8, u8), is_signed: bool) -> u64 {
    let count = u32::from(count);
    if count == 0 || count > 64 {
        return 0;
    }
    // To the top, and back.
    let top = value.wrapping_shl(64 - count.saturating_add(first.into()).min(64));
    match is_signed {
        true => (top.cast_signed() >> (64 - count)).cast_unsigned(),
        false => top >> (64 - count),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_begin_where_they_are() {
        for number in 0..252 {
            let begin = step_begins(number);
            assert_eq!(steps(begin), number);
            assert_eq!(
                steps(step_begins(number + 1).wrapping_sub(1)),
                number,
                "{number}"
            );
        }
        assert_eq!(steps(u64::MAX), 251);
    }
}
