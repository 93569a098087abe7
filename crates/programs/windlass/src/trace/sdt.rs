//! Static probes: places that a program's author chose, with their arguments, in the notes of its file (SystemTap's `sys/sdt.h`, version 3).

use windlass_script::Code;
use windlass_script::lower::Location;
use windlass_target::elf::notes;

use super::module::Module;
use super::record::word;

/// The kind of these notes.
const KIND: u32 = 3;
/// Probes of a file, and arguments of a probe.
const PROBES_MAX: usize = 65_536;
const ARGUMENTS_MAX: usize = 12;

/// The names of registers by their DWARF numbers, in 64, 32, 16 and 8 bits.
const REGISTERS: [[&str; 4]; 16] = [
    ["rax", "eax", "ax", "al"],
    ["rdx", "edx", "dx", "dl"],
    ["rcx", "ecx", "cx", "cl"],
    ["rbx", "ebx", "bx", "bl"],
    ["rsi", "esi", "si", "sil"],
    ["rdi", "edi", "di", "dil"],
    ["rbp", "ebp", "bp", "bpl"],
    ["rsp", "esp", "sp", "spl"],
    ["r8", "r8d", "r8w", "r8b"],
    ["r9", "r9d", "r9w", "r9b"],
    ["r10", "r10d", "r10w", "r10b"],
    ["r11", "r11d", "r11w", "r11b"],
    ["r12", "r12d", "r12w", "r12b"],
    ["r13", "r13d", "r13w", "r13b"],
    ["r14", "r14d", "r14w", "r14b"],
    ["r15", "r15d", "r15w", "r15b"],
];

/// A static probe.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Static {
    /// Its provider and its name.
    pub(super) provider: String,
    pub(super) name: String,
    /// The address of its instruction, and of the number that says how many look at it; 0: there is none.
    pub(super) address: u64,
    pub(super) semaphore: u64,
    pub(super) arguments: Vec<Argument>,
}

/// An argument of a static probe.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Argument {
    /// As the file has it.
    pub(super) text: String,
    /// Bytes of its value.
    pub(super) bytes: u8,
    pub(super) is_signed: bool,
    pub(super) location: Location,
}

/// The static probes of a file.
pub(super) fn of(module: &Module) -> Vec<Static> {
    let Some((_, bytes)) = module.elf.section_of(".note.stapsdt") else {
        return Vec::new();
    };
    // Where a section was when the notes were written, to tell how far a tool has moved all of them since.
    let base = module.elf.section_of(".stapsdt.base");
    let base = base.map(|(address, _)| address);
    let own = notes(&bytes).filter(|(owner, kind, _)| *owner == b"stapsdt" && *kind == KIND);
    let probes = own.filter_map(|(.., content)| probe(content, base));
    probes.take(PROBES_MAX).collect()
}

fn probe(content: &[u8], base: Option<u64>) -> Option<Static> {
    let (address, was, semaphore) = (word(content, 0)?, word(content, 8)?, word(content, 16)?);
    let moved = base.map_or(0, |base| base.wrapping_sub(was));
    let mut texts = content.get(24..)?.split(|byte| *byte == 0);
    let mut text = || Some(String::from_utf8_lossy(texts.next()?).into_owned());
    let (provider, name, arguments) = (text()?, text()?, text()?);
    let arguments = arguments.split_whitespace().take(ARGUMENTS_MAX);
    Some(Static {
        provider,
        name,
        address: address.wrapping_add(moved),
        semaphore: match semaphore {
            0 => 0,
            place => place.wrapping_add(moved),
        },
        arguments: arguments.map(argument).collect(),
    })
}

/// `-4@%eax`, `8@-16(%rbp)`, `8@$5`: bytes, a sign if there is one, and an operand in the assembler's words.
fn argument(text: &str) -> Argument {
    let (size, operand) = text.split_once('@').unwrap_or(("8", text));
    let (is_signed, size) = match size.strip_prefix('-') {
        Some(size) => (true, size),
        None => (false, size),
    };
    let bytes = size
        .parse()
        .ok()
        .filter(|bytes| [1, 2, 4, 8].contains(bytes));
    let found = bytes.and_then(|bytes| {
        let bits = (0, bytes * 8);
        operand_code(operand).map(|code| match code {
            Operand::Value(of) if bytes == 8 => of,
            Operand::Value(of) => Code::Narrow {
                of: Box::new(of),
                bits,
                is_signed,
            },
            Operand::Memory(address) => Code::Load {
                address: Box::new(address),
                bytes,
                bits,
                is_signed,
            },
        })
    });
    let absent = || Location::Absent(format!("at {operand}, which cannot be read"));
    Argument {
        text: text.to_owned(),
        bytes: bytes.unwrap_or(8),
        is_signed,
        location: found.map_or_else(absent, Location::Value),
    }
}

enum Operand {
    Value(Code),
    Memory(Code),
}

fn operand_code(text: &str) -> Option<Operand> {
    if let Some(number) = text.strip_prefix('$') {
        return Some(Operand::Value(Code::Constant(
            integer(number)?.cast_unsigned(),
        )));
    }
    if text.starts_with('%') {
        return register(text).map(Operand::Value);
    }
    // offset(base, index, scale)
    let (offset, inner) = text.strip_suffix(')')?.split_once('(')?;
    let offset = match offset {
        "" => 0,
        offset => integer(offset)?,
    };
    let mut parts = inner.split(',');
    let base = parts.next().filter(|base| *base != "%rip")?;
    let mut address = register(base)?;
    if let Some(index) = parts.next() {
        let scale = parts.next().map_or(Some(1), integer)?;
        let scaled = binary(
            windlass_script::syntax::Binary::Multiply,
            register(index)?,
            Code::Constant(scale.cast_unsigned()),
        );
        address = binary(windlass_script::syntax::Binary::Add, address, scaled);
    }
    Some(Operand::Memory(address.plus(offset)))
}

fn binary(operation: windlass_script::syntax::Binary, left: Code, right: Code) -> Code {
    Code::Binary {
        is_unsigned: true,
        operation,
        sides: Box::new([left, right]),
    }
}

fn integer(text: &str) -> Option<i64> {
    match text.strip_prefix("0x") {
        Some(digits) => i64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

fn register(text: &str) -> Option<Code> {
    let name = text.strip_prefix('%')?;
    let number = REGISTERS.iter().position(|names| names.contains(&name))?;
    Some(Code::Register(u16::try_from(number).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operands_are_read() {
        let of = |text: &str| argument(text).location;
        let value = Location::Value;
        assert_eq!(of("8@%rdi"), value(Code::Register(5)));
        assert_eq!(
            of("-8@$-3"),
            value(Code::Constant((-3_i64).cast_unsigned()))
        );
        assert_eq!(
            of("-4@%eax"),
            value(Code::Narrow {
                of: Box::new(Code::Register(0)),
                bits: (0, 32),
                is_signed: true,
            })
        );
        assert_eq!(
            of("2@-20(%rbp)"),
            value(Code::Load {
                address: Box::new(Code::Register(6).plus(-20)),
                bytes: 2,
                bits: (0, 16),
                is_signed: false,
            })
        );
        assert!(matches!(
            of("8@8(%rax,%rcx,4)"),
            Location::Value(Code::Load { .. })
        ));
        for text in ["8@%xmm0", "8@errno(%rip)", "16@%rax", "8@", "x"] {
            assert!(matches!(of(text), Location::Absent(_)), "{text}");
        }
    }
}
