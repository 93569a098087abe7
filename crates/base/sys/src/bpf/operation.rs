//! Instructions by operation, width and condition, for programs that are made at run time (RFC 9669, sections 4 and 5).

use super::Instruction;

/// What is done to a register with another one, or with a constant: 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Alu {
    /// `+`
    Add = 0x00,
    /// `-`
    Subtract = 0x10,
    /// `*`
    Multiply = 0x20,
    /// `/`, unsigned; by 0 it gives 0.
    Divide = 0x30,
    /// `|`
    Or = 0x40,
    /// `&`
    And = 0x50,
    /// `<<`, by the lower 6 bits.
    ShiftLeft = 0x60,
    /// `>>`, zeros from above.
    ShiftRight = 0x70,
    /// `%`, unsigned; by 0 it changes nothing.
    Modulo = 0x90,
    /// `^`
    Xor = 0xa0,
    /// `=`
    Move = 0xb0,
    /// `>>`, the sign from above.
    ShiftRightSigned = 0xc0,
}

/// How many bytes a load or store moves. What a load leaves of the register is zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Width {
    /// 1
    Byte = 0x10,
    /// 2
    Half = 0x08,
    /// 4
    Word = 0x00,
    /// 8
    Long = 0x18,
}

/// When a jump is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Condition {
    /// `==`
    Equal = 0x10,
    /// `>`, unsigned.
    Greater = 0x20,
    /// `>=`, unsigned.
    GreaterOrEqual = 0x30,
    /// `!=`
    Differ = 0x50,
    /// `>`, signed.
    GreaterSigned = 0x60,
    /// `>=`, signed.
    GreaterOrEqualSigned = 0x70,
    /// `<`, unsigned.
    Less = 0xa0,
    /// `<=`, unsigned.
    LessOrEqual = 0xb0,
    /// `<`, signed.
    LessSigned = 0xc0,
    /// `<=`, signed.
    LessOrEqualSigned = 0xd0,
}

impl Width {
    /// The width of so many bytes, if there is one.
    #[must_use]
    pub const fn of(bytes: u64) -> Option<Self> {
        Some(match bytes {
            1 => Self::Byte,
            2 => Self::Half,
            4 => Self::Word,
            8 => Self::Long,
            _ => return None,
        })
    }
}

impl Instruction {
    /// `r{to} = r{to} OP r{from}`.
    #[must_use]
    pub const fn alu(operation: Alu, to: u8, from: u8) -> Self {
        // ALU64 | X
        Self::registers(0x0f | operation as u8, to, from, 0)
    }

    /// `r{to} = r{to} OP value`, the value sign-extended.
    #[must_use]
    pub const fn alu_immediate(operation: Alu, to: u8, value: i32) -> Self {
        Self {
            immediate: value,
            // ALU64 | K
            ..Self::registers(0x07 | operation as u8, to, 0, 0)
        }
    }

    /// `r{register} = -r{register}`.
    #[must_use]
    pub const fn negate(register: u8) -> Self {
        Self::registers(0x87, register, 0, 0)
    }

    /// `r{to} = *(WIDTH *)(r{from} + offset)`.
    #[must_use]
    pub const fn load(width: Width, to: u8, from: u8, offset: i16) -> Self {
        // LDX | MEM
        Self::registers(0x61 | width as u8, to, from, offset)
    }

    /// `*(WIDTH *)(r{to} + offset) = r{from}`.
    #[must_use]
    pub const fn store(width: Width, to: u8, offset: i16, from: u8) -> Self {
        // STX | MEM
        Self::registers(0x63 | width as u8, to, from, offset)
    }

    /// Skips `count` instructions if `r{left} CONDITION r{right}`.
    #[must_use]
    pub const fn skip_if(condition: Condition, left: u8, right: u8, count: i16) -> Self {
        // JMP | X
        Self::registers(0x0d | condition as u8, left, right, count)
    }

    /// Skips `count` instructions if `r{left} CONDITION value`, the value sign-extended.
    #[must_use]
    pub const fn skip_if_immediate(condition: Condition, left: u8, value: i32, count: i16) -> Self {
        Self {
            immediate: value,
            // JMP | K
            ..Self::registers(0x05 | condition as u8, left, 0, count)
        }
    }

    /// `r{register} = value`: two instructions, one value of 64 bits.
    #[must_use]
    #[allow(clippy::cast_possible_truncation)]
    pub const fn load_constant(register: u8, value: u64) -> [Self; 2] {
        // LD | IMM | DW
        [
            Self {
                opcode: 0x18,
                registers: register & 0xf,
                offset: 0,
                immediate: (value as u32).cast_signed(),
            },
            Self {
                opcode: 0,
                registers: 0,
                offset: 0,
                immediate: ((value >> 32) as u32).cast_signed(),
            },
        ]
    }

    /// `r{to} = r{to} OP r{from}` of signed numbers: a division or a remainder (since Linux 6.6). By 0 as [`Alu`] says; the least number by -1 is itself.
    #[must_use]
    pub const fn alu_signed(operation: Alu, to: u8, from: u8) -> Self {
        Self::registers(0x0f | operation as u8, to, from, 1)
    }

    /// If `*(u64 *)(r{to} + offset) == r0`, it becomes `r{from}`; r0 becomes what it was. Whole for every processor.
    #[must_use]
    pub const fn replace_atomically(to: u8, offset: i16, from: u8) -> Self {
        Self {
            // BPF_CMPXCHG
            immediate: 0xf1,
            // STX | DW | ATOMIC
            ..Self::registers(0xdb, to, from, offset)
        }
    }
}
