//! Who called: frames from the tables that compilers leave for exceptions (`.eh_frame`).
//!
//! # Model
//! A frame's rules say where its caller's stack pointer, return address and saved registers are. A frame without rules is left by its frame
//! pointer, if it has one. Each step must move the stack pointer up: so every chain ends.

use gimli::{
    BaseAddresses, CfaRule, EhFrame, EhFrameHdr, EndianSlice, EvaluationResult, LittleEndian,
    RegisterRule, UnwindContext, UnwindExpression, UnwindSection, UnwindTableRow, Value,
};

use crate::elf::Tables;
use crate::memory::Memory;
use crate::modules::Modules;
use crate::threads::{NUMBERED, RETURN, Registers};

/// Frames of a stack at most.
pub const FRAMES_MAX: usize = 128;
/// Steps of a location's program.
const STEPS_MAX: u32 = 1000;

type Reader<'a> = EndianSlice<'a, LittleEndian>;

/// The program counters of a stack, innermost first: that of the registers, then return addresses.
pub fn frames(memory: &dyn Memory, modules: &Modules, registers: Registers) -> Vec<u64> {
    chain(memory, modules, registers, true)
}

/// The same of registers as they are when a call returns: the first address is a return address, too.
pub fn callers(memory: &dyn Memory, modules: &Modules, registers: Registers) -> Vec<u64> {
    chain(memory, modules, registers, false)
}

fn chain(
    memory: &dyn Memory,
    modules: &Modules,
    registers: Registers,
    is_innermost: bool,
) -> Vec<u64> {
    let mut all = vec![registers.pc];
    let mut now = registers;
    while all.len() < FRAMES_MAX {
        let is_innermost = is_innermost && all.len() == 1;
        let Some(caller) = step(memory, modules, &now, is_innermost) else {
            break;
        };
        if caller.pc == 0 {
            break;
        }
        all.push(caller.pc);
        now = caller;
    }
    all
}

/// The registers of the caller.
fn step(
    memory: &dyn Memory,
    modules: &Modules,
    now: &Registers,
    is_innermost: bool,
) -> Option<Registers> {
    // A return address is behind its call, which may be the last instruction of its function.
    let at = if is_innermost {
        now.pc
    } else {
        now.pc.checked_sub(1)?
    };
    let by_rules = modules
        .tables(at)
        .and_then(|(tables, inner)| by_rules(memory, tables, inner, now));
    let caller = by_rules.unwrap_or_else(|| by_frame_pointer(memory, now))?;
    let is_up = caller.sp()? > now.sp()?;
    is_up.then_some(caller)
}

/// The caller by the frame pointer: the saved one lies where it points to, and the return address behind that.
fn by_frame_pointer(memory: &dyn Memory, now: &Registers) -> Option<Registers> {
    let fp = now.frame_pointer()?;
    if fp < now.sp()? || !fp.is_multiple_of(8) {
        return None;
    }
    let saved = memory.word(fp)?;
    let pc = memory.word(fp.checked_add(8)?)?;
    Some(Registers::of(pc, fp.checked_add(16)?, saved))
}

/// The caller by the rules of this address; `None` if there are none. Where rules lead to memory that is not there, the stack ends: what their
/// frame has in the register of frame pointers need not be one.
fn by_rules(
    memory: &dyn Memory,
    tables: &Tables,
    at: u64,
    now: &Registers,
) -> Option<Option<Registers>> {
    let frames = EhFrame::new(&tables.frames.1, LittleEndian);
    let bases = BaseAddresses::default()
        .set_eh_frame(tables.frames.0)
        .set_eh_frame_hdr(tables.header.0)
        .set_text(tables.text);
    let mut context = UnwindContext::new();
    let header = EhFrameHdr::new(&tables.header.1, LittleEndian).parse(&bases, 8);
    let header = header.ok();
    let table = header.as_ref().and_then(|header| header.table());
    let row = match table {
        Some(table) => table.unwind_info_for_address(
            &frames,
            &bases,
            &mut context,
            at,
            EhFrame::cie_from_offset,
        ),
        None => frames.unwind_info_for_address(&bases, &mut context, at, EhFrame::cie_from_offset),
    };
    Some(caller(memory, &frames, row.ok()?, now))
}

/// The caller by a row of rules.
fn caller(
    memory: &dyn Memory,
    frames: &EhFrame<Reader<'_>>,
    row: &UnwindTableRow<usize>,
    now: &Registers,
) -> Option<Registers> {
    let evaluate = |expression: &UnwindExpression<usize>, initial| {
        evaluate(memory, frames, expression, now, initial)
    };
    let cfa = match row.cfa() {
        CfaRule::RegisterAndOffset { register, offset } => {
            now.get(register.0)?.checked_add_signed(*offset)?
        }
        CfaRule::Expression(expression) => evaluate(expression, None)?,
    };
    let value = |rule: RegisterRule<usize>, number: u16| match rule {
        RegisterRule::Undefined => None,
        RegisterRule::SameValue => now.get(number),
        RegisterRule::Offset(offset) => memory.word(cfa.checked_add_signed(offset)?),
        RegisterRule::ValOffset(offset) => cfa.checked_add_signed(offset),
        RegisterRule::Register(other) => now.get(other.0),
        RegisterRule::Expression(expression) => memory.word(evaluate(&expression, Some(cfa))?),
        RegisterRule::ValExpression(expression) => evaluate(&expression, Some(cfa)),
        _ => None,
    };
    // What no rule names, a callee keeps.
    let mut caller = Registers {
        numbered: now.numbered,
        pc: 0,
    };
    caller.set_sp(cfa);
    for (register, rule) in row.registers() {
        if usize::from(register.0) < NUMBERED {
            caller.set(register.0, value(rule.clone(), register.0));
        }
    }
    caller.pc = caller.get(RETURN)?;
    Some(caller)
}

/// The result of a location's program.
fn evaluate(
    memory: &dyn Memory,
    frames: &EhFrame<Reader<'_>>,
    expression: &UnwindExpression<usize>,
    now: &Registers,
    initial: Option<u64>,
) -> Option<u64> {
    let encoding = gimli::Encoding {
        address_size: 8,
        format: gimli::Format::Dwarf32,
        version: 4,
    };
    let mut evaluation = expression.get(frames).ok()?.evaluation(encoding);
    evaluation.set_max_iterations(STEPS_MAX);
    if let Some(initial) = initial {
        evaluation.set_initial_value(initial);
    }
    let mut result = evaluation.evaluate().ok()?;
    for _ in 0..STEPS_MAX {
        result = match result {
            EvaluationResult::Complete => {
                return match evaluation.as_result() {
                    [
                        gimli::Piece {
                            location: gimli::Location::Address { address },
                            ..
                        },
                    ] => Some(*address),
                    _ => None,
                };
            }
            EvaluationResult::RequiresRegister { register, .. } => {
                let value = now.get(register.0)?;
                evaluation
                    .resume_with_register(Value::Generic(value))
                    .ok()?
            }
            EvaluationResult::RequiresMemory { address, size, .. } => {
                let mut bytes = [0; 8];
                let wanted = bytes.get_mut(..usize::from(size))?;
                if !memory.read_all(address, wanted) {
                    return None;
                }
                let value = Value::Generic(u64::from_le_bytes(bytes));
                evaluation.resume_with_memory(value).ok()?
            }
            _ => return None,
        };
    }
    None
}
