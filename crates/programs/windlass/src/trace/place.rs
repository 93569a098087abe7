//! From where debug data says that a value is to what computes it.

use windlass_script::Code;
use windlass_script::lower::Location;
use windlass_types::{Place, Types};

/// DWARF's numbers of the registers that a probe can read (System V ABI for x86-64, figure 3.36).
const REGISTERS: [&str; 17] = [
    "rax", "rdx", "rcx", "rbx", "rsi", "rdi", "rbp", "rsp", "r8", "r9", "r10", "r11", "r12", "r13",
    "r14", "r15", "rip",
];
/// Those of the vector registers, from xmm0 on.
const VECTORS: std::ops::Range<u16> = 17..33;

/// An instruction of a file that a program has mapped.
#[derive(Clone, Copy)]
pub(super) struct At<'t, 'a> {
    pub(super) types: &'t Types<'a>,
    /// Its address in the file.
    pub(super) pc: u64,
    /// How far the file was moved.
    pub(super) bias: u64,
}

impl At<'_, '_> {
    /// Where a value is, for a program that runs at the instruction.
    pub(super) fn location(&self, place: &Place) -> Location {
        let absent = |why: &str| Location::Absent(why.to_owned());
        match place {
            Place::Register(number) if VECTORS.contains(number) => {
                absent("in a vector register, which cannot be read")
            }
            Place::Register(number) => match REGISTERS.get(usize::from(*number)) {
                Some(_) => Location::Value(Code::Register(*number)),
                None => absent("in a register that cannot be read"),
            },
            Place::Constant(value) => Location::Value(Code::Constant(*value)),
            Place::Bytes(_) => absent("a constant of many bytes"),
            Place::Absent(why) => absent(why),
            Place::AddressOf(place) => match self.address(place) {
                Some(address) => Location::Value(address),
                None => absent("an address that is not known here"),
            },
            Place::Pieces(pieces) => {
                let mut at = 0;
                let mut parts = Vec::new();
                for piece in pieces {
                    let bytes = u64::from(piece.bytes);
                    parts.extend(
                        self.part(&piece.place, piece.bytes)
                            .map(|code| (at, bytes, code)),
                    );
                    at += bytes;
                }
                match parts.is_empty() {
                    true => absent("optimized out"),
                    false => Location::Pieces(parts),
                }
            }
            place => match self.address(place) {
                Some(address) => Location::Memory(address),
                None => absent("in a frame that is not known here"),
            },
        }
    }

    /// The value of a part, if it has one of at most 8 bytes.
    fn part(&self, place: &Place, bytes: u32) -> Option<Code> {
        let size = u8::try_from(bytes).ok().filter(|bytes| *bytes <= 8)?;
        match self.location(place) {
            Location::Value(code) => Some(code),
            Location::Memory(address) if size.is_power_of_two() => Some(Code::Load {
                address: Box::new(address),
                bytes: size,
                bits: (0, size * 8),
                is_signed: false,
            }),
            _ => None,
        }
    }

    /// The address of what lies in memory.
    fn address(&self, place: &Place) -> Option<Code> {
        match place {
            Place::Memory { register, offset } => Some(Code::Register(*register).plus(*offset)),
            Place::Cfa(offset) => {
                let (register, base) = self.types.cfa(self.pc)?;
                Some(Code::Register(register).plus(base.checked_add(*offset)?))
            }
            Place::Address(address) => Some(Code::Constant(address.wrapping_add(self.bias))),
            Place::Indirect { base, offset } => {
                let word = Code::Load {
                    address: Box::new(self.address(base)?),
                    bytes: 8,
                    bits: (0, 64),
                    is_signed: false,
                };
                Some(word.plus(*offset))
            }
            _ => None,
        }
    }
}

/// A place as a person reads it.
pub(super) fn shown(place: &Place) -> String {
    let name = |number: u16| match REGISTERS.get(usize::from(number)) {
        Some(name) => (*name).to_owned(),
        None if VECTORS.contains(&number) => format!("xmm{}", number - VECTORS.start),
        None => format!("register {number}"),
    };
    let signed = |offset: i64| match offset {
        0 => String::new(),
        _ => format!("{offset:+}"),
    };
    match place {
        Place::Register(number) if VECTORS.contains(number) => {
            format!("@{} (not readable)", name(*number))
        }
        Place::Register(number) => format!("@{}", name(*number)),
        Place::Memory { register, offset } => format!("@[{}{}]", name(*register), signed(*offset)),
        // The first of what was passed in memory is 0: DWARF counts from above the return address.
        Place::Cfa(offset) if *offset >= 0 => format!("@stack+{offset}"),
        Place::Cfa(offset) => format!("@stack{offset}"),
        Place::Address(address) => format!("@{address:#x}"),
        Place::Indirect { base, offset } => {
            let base = shown(base);
            format!("@[{}{}]", base.trim_start_matches('@'), signed(*offset))
        }
        Place::AddressOf(place) => format!("= &({})", shown(place).trim_start_matches('@')),
        Place::Constant(value) => format!("= {}", value.cast_signed()),
        Place::Bytes(bytes) => format!("= {} bytes", bytes.len()),
        Place::Pieces(pieces) => {
            let parts: Vec<String> = pieces.iter().map(|piece| shown(&piece.place)).collect();
            parts.join(" ")
        }
        Place::Absent(why) => format!("({why})"),
    }
}
