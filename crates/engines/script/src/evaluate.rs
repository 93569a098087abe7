//! What a [`Code`] comes to on memory that is read from outside.

use crate::Code;
use crate::code::{Moment, narrow};
use crate::syntax::Binary;

/// Why there is no value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Nothing could be read there.
    Address(u64),
    /// A division by 0.
    Division,
    /// What only a running program has.
    NotHere,
}

/// What values are computed from.
pub trait Surroundings {
    /// Fills `into` from an address; false if it cannot be read.
    fn read(&self, address: u64, into: &mut [u8]) -> bool;

    /// What a register holds, by its DWARF number.
    fn register(&self, _number: u16) -> Option<u64> {
        None
    }

    /// Something of the moment.
    fn moment(&self, _what: Moment) -> Option<u64> {
        None
    }
}

/// The value.
///
/// # Errors
/// What could not be read.
pub fn evaluate(code: &Code, on: &impl Surroundings) -> Result<u64, Fault> {
    let flag = |is_so: bool| Ok(u64::from(is_so));
    match code {
        Code::Constant(value) => Ok(*value),
        Code::Register(number) => on.register(*number).ok_or(Fault::NotHere),
        Code::Moment(what) => on.moment(*what).ok_or(Fault::NotHere),
        Code::Steps(of) => Ok(crate::code::steps(evaluate(of, on)?)),
        Code::Captured(_)
        | Code::Argument(_)
        | Code::Thread(_)
        | Code::Local(_)
        | Code::Elapsed(..) => Err(Fault::NotHere),
        Code::Load {
            address,
            bytes,
            bits,
            is_signed,
        } => {
            let at = evaluate(address, on)?;
            let mut value = [0; 8];
            let into = value.get_mut(..usize::from(*bytes));
            if !into.is_some_and(|into| on.read(at, into)) {
                return Err(Fault::Address(at));
            }
            Ok(narrow(u64::from_le_bytes(value), *bits, *is_signed))
        }
        Code::Narrow {
            of,
            bits,
            is_signed,
        } => Ok(narrow(evaluate(of, on)?, *bits, *is_signed)),
        Code::Negate(of) => Ok(evaluate(of, on)?.wrapping_neg()),
        Code::Complement(of) => Ok(!evaluate(of, on)?),
        Code::Not(of) => flag(evaluate(of, on)? == 0),
        Code::Choose(parts) => {
            let [condition, one, other] = &**parts;
            match evaluate(condition, on)? {
                0 => evaluate(other, on),
                _ => evaluate(one, on),
            }
        }
        Code::IsText(address, text) => flag(is_text(evaluate(address, on)?, text, on)?),
        Code::Binary {
            is_unsigned,
            operation,
            sides,
        } => {
            let [left, right] = &**sides;
            let left = evaluate(left, on)?;
            match (operation, left) {
                (Binary::And, 0) => return Ok(0),
                (Binary::Or, 1..) => return Ok(1),
                _ => {}
            }
            binary(*operation, left, evaluate(right, on)?, *is_unsigned)
        }
    }
}

/// Whether there is this text, and its end behind it.
fn is_text(at: u64, text: &str, on: &impl Surroundings) -> Result<bool, Fault> {
    for (offset, byte) in (0..).zip(text.bytes().chain([0])) {
        let mut read = [0];
        if !on.read(at.wrapping_add(offset), &mut read) {
            return Err(Fault::Address(at));
        }
        if read != [byte] {
            return Ok(false);
        }
    }
    Ok(true)
}

fn binary(operation: Binary, a: u64, b: u64, is_unsigned: bool) -> Result<u64, Fault> {
    let (sa, sb) = (a.cast_signed(), b.cast_signed());
    let less = match is_unsigned {
        true => a < b,
        false => sa < sb,
    };
    // As the instruction takes them.
    let bits = u32::try_from(b & 63).unwrap_or(0);
    Ok(match operation {
        Binary::Or => u64::from(a != 0 || b != 0),
        Binary::And => u64::from(a != 0 && b != 0),
        Binary::BitOr => a | b,
        Binary::BitXor => a ^ b,
        Binary::BitAnd => a & b,
        Binary::Equal => u64::from(a == b),
        Binary::Differ => u64::from(a != b),
        Binary::Less => u64::from(less),
        Binary::LessOrEqual => u64::from(less || a == b),
        Binary::Greater => u64::from(!less && a != b),
        Binary::GreaterOrEqual => u64::from(!less),
        Binary::ShiftLeft => a << bits,
        Binary::ShiftRight if is_unsigned => a >> bits,
        Binary::ShiftRight => (sa >> bits).cast_unsigned(),
        Binary::Add => a.wrapping_add(b),
        Binary::Subtract => a.wrapping_sub(b),
        Binary::Multiply => a.wrapping_mul(b),
        Binary::Divide | Binary::Remainder if b == 0 => return Err(Fault::Division),
        Binary::Divide if is_unsigned => a / b,
        Binary::Divide => sa.wrapping_div(sb).cast_unsigned(),
        Binary::Remainder if is_unsigned => a % b,
        Binary::Remainder => sa.wrapping_rem(sb).cast_unsigned(),
    })
}
