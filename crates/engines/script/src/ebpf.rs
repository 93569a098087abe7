//! One clause at one place as an eBPF program.
//!
//! # Model
//! Each hit is counted, and then counted once more as one of [`Outcome`]'s others: the sum is exact. The program keeps its context in r6, the counts in r7 and
//! the record that it fills in r8; r0 is where [`Code`] leaves its value.
//!
//! Memory is read by `bpf_probe_read_user`; what is not there yet is waited for (`bpf_copy_from_user`), for which programs may sleep.
//!
//! # Records
//! ```text
//! 0  time, nanoseconds since the machine started     16  number of the place
//! 8  process << 32 | thread                          24  fields
//! ```
//! A field is a state ([`FAULT`], or a text's bytes with its end), a value or address, and the bytes that lie there.

mod assembler;

use windlass_sys::bpf::{Alu, Condition, Instruction, Width};

use crate::Code;
use crate::code::Moment;
use crate::syntax::{Aggregate, Binary};
use assembler::{Assembler, JUMP_MAX, Label};

/// The state of a field that could not be read.
pub const FAULT: u64 = u64::MAX;
/// Bytes before the fields of a record.
pub const RECORD_HEAD: u32 = 24;
/// Bytes before those of a field.
pub const FIELD_HEAD: u32 = 16;
/// Bytes of a record at most.
pub const RECORD_MAX: u32 = 32 << 10;
/// Bytes of a text in a key, and of one that is compared.
pub const KEY_TEXT: u32 = 56;
/// Bytes of a key at most.
pub const KEY_MAX: u32 = 128;
/// Words of a `quantize`: of numbers below 0, of 0, of numbers above.
pub const BUCKETS: usize = 128;

/// What is counted of hits, by its place among the words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// All.
    Hits,
    /// A record was written.
    Records,
    /// It is in an aggregation, without a record.
    Aggregated,
    /// The filter did not hold.
    Filtered,
    /// There was no room in the ring or the map, or others were quicker too often.
    Dropped,
    /// Something could not be read that the filter, a key or an aggregate needs.
    Faults,
}

/// Words of the counts.
pub const OUTCOMES: usize = 6;

/// What is written of one value.
#[derive(Debug, Clone, PartialEq)]
pub enum Field {
    /// 8 bytes.
    Scalar(Code),
    /// The text at an address, at most so many bytes with its end.
    Text(Code, u32),
    /// So many bytes at an address.
    Object(Code, u32),
}

/// A part of a key.
#[derive(Debug, Clone, PartialEq)]
pub enum KeyPart {
    /// 8 bytes.
    Scalar(Code),
    /// The text at an address, [`KEY_TEXT`] bytes.
    Text(Code),
}

/// What is added to an aggregation.
#[derive(Debug, Clone, PartialEq)]
pub struct Addition {
    /// The aggregation's number.
    pub to: usize,
    /// To which line.
    pub key: Vec<KeyPart>,
    /// How.
    pub how: Aggregate,
    /// What; `None` for a count.
    pub of: Option<Code>,
    /// Its values are 0 or more.
    pub is_unsigned: bool,
}

/// A clause at one place.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Plan {
    /// What must hold.
    pub filter: Option<Code>,
    /// What is written; without any, no record is.
    pub fields: Vec<Field>,
    /// What is added.
    pub additions: Vec<Addition>,
    /// A record is written at each hit, also without fields.
    pub is_told: bool,
}

/// Why there is no program for a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlanError {
    /// Its jumps do not reach.
    Length,
    /// More values wait for others than the stack has room for.
    Nesting,
}

impl std::fmt::Display for PlanError {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Length => write!(
                to,
                "this needs more than {JUMP_MAX} instructions: say less in one clause"
            ),
            Self::Nesting => write!(
                to,
                "this is nested too deep: more than {SLOTS} values wait for others"
            ),
        }
    }
}

impl std::error::Error for PlanError {}

/// A map that a program needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MapUse {
    /// [`OUTCOMES`] words, for each processor.
    Counts,
    /// The ring of records.
    Ring,
    /// An aggregation by its number: keys, and values of [`words`] words for each processor.
    Aggregation(usize),
    /// [`BUCKETS`] words of 0.
    Zeros,
}

impl Field {
    /// Bytes that it takes in a record.
    #[must_use]
    pub fn bytes(&self) -> u32 {
        let bytes = match self {
            Self::Scalar(_) => 0,
            Self::Text(_, bytes) | Self::Object(_, bytes) => *bytes,
        };
        FIELD_HEAD + bytes.next_multiple_of(8)
    }
}

impl KeyPart {
    /// Bytes that it takes in a key.
    #[must_use]
    pub fn bytes(&self) -> u32 {
        match self {
            Self::Scalar(_) => 8,
            Self::Text(_) => KEY_TEXT,
        }
    }
}

/// Words of an aggregation's value.
#[must_use]
pub fn words(how: Aggregate) -> usize {
    match how {
        Aggregate::Count | Aggregate::Sum => 1,
        Aggregate::Avg | Aggregate::Min | Aggregate::Max => 2,
        Aggregate::Quantize => BUCKETS,
    }
}

impl Plan {
    /// Bytes of its records.
    #[must_use]
    pub fn record_bytes(&self) -> u32 {
        let fields = self.fields.iter().map(Field::bytes);
        fields.fold(RECORD_HEAD, u32::saturating_add)
    }

    /// The program. `map` gives the instructions that load a map's address.
    ///
    /// # Errors
    /// It has more instructions than a jump can skip, or needs more of the stack than a program has.
    pub fn program(
        &self,
        map: &dyn Fn(u8, MapUse) -> [Instruction; 2],
    ) -> Result<Vec<Instruction>, PlanError> {
        let mut asm = Assembler::default();
        let labels = Ends {
            filtered: asm.label(),
            dropped: asm.label(),
            fault: asm.label(),
            end: asm.label(),
        };
        let mut program = Generator {
            fault: labels.fault,
            asm,
            map,
            slots: 0,
        };
        program.begin(&labels);
        if let Some(filter) = &self.filter {
            program.value(filter, 0);
            program.jump_if(Condition::Equal, 0, 0, labels.filtered);
        }
        for addition in &self.additions {
            program.add(addition, &labels);
        }
        match self.is_told || !self.fields.is_empty() {
            true => program.tell(self, &labels),
            false => program.outcome(Outcome::Aggregated, &labels),
        }
        for (label, outcome) in [
            (labels.filtered, Outcome::Filtered),
            (labels.dropped, Outcome::Dropped),
            (labels.fault, Outcome::Faults),
        ] {
            // The kernel refuses what nothing reaches.
            if program.asm.is_used(label) {
                program.asm.here(label);
                program.outcome(outcome, &labels);
            }
        }
        program.asm.here(labels.end);
        program.asm.put(Instruction::move_immediate(0, 0));
        program.asm.put(Instruction::exit());
        if program.slots > SLOTS {
            return Err(PlanError::Nesting);
        }
        program.asm.finish().ok_or(PlanError::Length)
    }
}

/// Where a hit ends.
struct Ends {
    filtered: Label,
    dropped: Label,
    fault: Label,
    end: Label,
}

/// Helper functions of the kernel, by their numbers in `<linux/bpf.h>`.
mod helper {
    pub(super) const MAP_LOOKUP: i32 = 1;
    pub(super) const MAP_UPDATE: i32 = 2;
    pub(super) const KTIME_GET_NS: i32 = 5;
    pub(super) const GET_SMP_PROCESSOR_ID: i32 = 8;
    pub(super) const GET_CURRENT_PID_TGID: i32 = 14;
    pub(super) const PROBE_READ_USER: i32 = 112;
    pub(super) const PROBE_READ_USER_STR: i32 = 114;
    pub(super) const RINGBUF_RESERVE: i32 = 131;
    pub(super) const RINGBUF_SUBMIT: i32 = 132;
    pub(super) const COPY_FROM_USER: i32 = 148;
    pub(super) const GET_ATTACH_COOKIE: i32 = 174;
}

const CONTEXT: u8 = 6;
const COUNTS: u8 = 7;
const RECORD: u8 = 8;
const LINE: u8 = 9;
const FRAME: u8 = 10;

/// The stack, from its top: values that wait, what was read, a text, a key, a number.
const SLOTS: i16 = 24;
const READ: i16 = -8 * SLOTS - 8;
const TEXT: i16 = READ - KEY_TEXT_BYTES - 8;
const KEY: i16 = TEXT - KEY_BYTES;
const NUMBER: i16 = KEY - 8;
const KEY_TEXT_BYTES: i16 = KEY_TEXT as i16;
const KEY_BYTES: i16 = KEY_MAX as i16;
/// How often a least or greatest value is tried to be put where another processor may.
const TRIES: usize = 4;

/// Where x86-64's `struct pt_regs` has a register, by its DWARF number (System V ABI, figure 3.36).
fn register_offset(number: u16) -> Option<i16> {
    const OFFSETS: [i16; 17] = [
        80, 96, 88, 40, 104, 112, 32, 152, 72, 64, 56, 48, 24, 16, 8, 0, 128,
    ];
    OFFSETS.get(usize::from(number)).copied()
}

struct Generator<'m> {
    asm: Assembler,
    map: &'m dyn Fn(u8, MapUse) -> [Instruction; 2],
    /// Where a read that fails goes.
    fault: Label,
    /// How many of [`SLOTS`] have been used.
    slots: i16,
}

impl Generator<'_> {
    fn put(&mut self, instruction: Instruction) {
        self.asm.put(instruction);
    }

    fn jump_if(&mut self, condition: Condition, register: u8, value: i32, to: Label) {
        let jump = Instruction::skip_if_immediate(condition, register, value, 0);
        self.asm.jump(jump, to);
    }

    fn load_map(&mut self, register: u8, which: MapUse) {
        for instruction in (self.map)(register, which) {
            self.put(instruction);
        }
    }

    /// `r{to} = r10 + offset`
    fn stack(&mut self, to: u8, offset: i16) {
        self.put(Instruction::move_register(to, FRAME));
        self.put(Instruction::add_immediate(to, offset.into()));
    }

    /// Finds the counts, and counts the hit.
    fn begin(&mut self, ends: &Ends) {
        self.put(Instruction::move_register(CONTEXT, 1));
        self.put(Instruction::move_immediate(0, 0));
        self.put(Instruction::store_long(FRAME, NUMBER, 0));
        self.stack(2, NUMBER);
        self.load_map(1, MapUse::Counts);
        self.put(Instruction::call(helper::MAP_LOOKUP));
        self.jump_if(Condition::Equal, 0, 0, ends.end);
        self.put(Instruction::move_register(COUNTS, 0));
        self.count(Outcome::Hits);
    }

    fn count(&mut self, outcome: Outcome) {
        self.put(Instruction::move_immediate(1, 1));
        let offset = 8 * outcome as i16;
        self.put(Instruction::add_atomically(COUNTS, offset, 1));
    }

    fn outcome(&mut self, outcome: Outcome, ends: &Ends) {
        self.count(outcome);
        self.asm.jump(Instruction::skip(0), ends.end);
    }

    /// Computes a value into r0. `depth`: slots that are in use.
    fn value(&mut self, code: &Code, depth: i16) {
        match code {
            Code::Constant(value) => self.constant(0, *value),
            Code::Register(number) => match register_offset(*number) {
                Some(offset) => self.put(Instruction::load_long(0, CONTEXT, offset)),
                None => self.asm.jump(Instruction::skip(0), self.fault),
            },
            Code::Moment(what) => self.moment(*what),
            Code::Captured(at) => {
                let at = i16::try_from(*at).unwrap_or(i16::MAX - 8);
                self.put(Instruction::load_long(0, RECORD, at));
            }
            Code::Load {
                address,
                bytes,
                bits,
                is_signed,
            } => {
                self.value(address, depth);
                self.read((i32::from(*bytes), READ), depth);
                let width = Width::of((*bytes).into()).unwrap_or(Width::Long);
                self.put(Instruction::load(width, 0, FRAME, READ));
                if *bits != (0, *bytes * 8) || *is_signed {
                    self.narrow(*bits, *is_signed);
                }
            }
            Code::Narrow {
                of,
                bits,
                is_signed,
            } => {
                self.value(of, depth);
                self.narrow(*bits, *is_signed);
            }
            Code::Negate(of) => {
                self.value(of, depth);
                self.put(Instruction::negate(0));
            }
            Code::Complement(of) => {
                self.value(of, depth);
                self.put(Instruction::alu_immediate(Alu::Xor, 0, -1));
            }
            Code::Not(of) => {
                self.value(of, depth);
                self.flag_unless(Condition::Differ);
            }
            Code::Choose(parts) => {
                let [condition, one, other] = &**parts;
                let (no, end) = (self.asm.label(), self.asm.label());
                self.value(condition, depth);
                self.jump_if(Condition::Equal, 0, 0, no);
                self.value(one, depth);
                self.asm.jump(Instruction::skip(0), end);
                self.asm.here(no);
                self.value(other, depth);
                self.asm.here(end);
            }
            Code::IsText(address, text) => {
                self.value(address, depth);
                self.is_text(text, depth);
            }
            Code::Binary {
                is_unsigned,
                operation,
                sides,
            } => self.binary(*operation, sides, *is_unsigned, depth),
        }
    }

    fn constant(&mut self, register: u8, value: u64) {
        match i32::try_from(value.cast_signed()) {
            Ok(small) => self.put(Instruction::move_immediate(register, small)),
            Err(_) => {
                for instruction in Instruction::load_constant(register, value) {
                    self.put(instruction);
                }
            }
        }
    }

    fn moment(&mut self, what: Moment) {
        let function = match what {
            Moment::Pid | Moment::Tid => helper::GET_CURRENT_PID_TGID,
            Moment::Cpu => helper::GET_SMP_PROCESSOR_ID,
            Moment::Now => helper::KTIME_GET_NS,
        };
        self.put(Instruction::call(function));
        match what {
            Moment::Pid => self.put(Instruction::shift_right(0, 32)),
            Moment::Tid => self.narrow((0, 32), false),
            Moment::Cpu | Moment::Now => {}
        }
    }

    fn narrow(&mut self, (first, count): (u8, u8), is_signed: bool) {
        let up = 64 - i32::from(first) - i32::from(count);
        let down = 64 - i32::from(count);
        self.put(Instruction::alu_immediate(Alu::ShiftLeft, 0, up.max(0)));
        let shift = match is_signed {
            true => Alu::ShiftRightSigned,
            false => Alu::ShiftRight,
        };
        self.put(Instruction::alu_immediate(shift, 0, down.max(0)));
    }

    /// r0 becomes 0 if it is 0 as `unless` says, else 1.
    fn flag_unless(&mut self, unless: Condition) {
        self.put(Instruction::move_register(1, 0));
        self.put(Instruction::move_immediate(0, 0));
        self.put(Instruction::skip_if_immediate(unless, 1, 0, 1));
        self.put(Instruction::move_immediate(0, 1));
    }

    /// Where a value waits. Behind the last slot lie other things: [`Plan::program`] refuses what needs more.
    fn slot(&mut self, depth: i16) -> i16 {
        self.slots = self.slots.max(depth + 1);
        -8 * (depth + 1)
    }

    /// Reads so many bytes at r0 to a place of the stack.
    fn read(&mut self, (bytes, to): (i32, i16), depth: i16) {
        let done = self.asm.label();
        let slot = self.slot(depth);
        self.put(Instruction::store_long(FRAME, slot, 0));
        self.put(Instruction::move_register(3, 0));
        for (function, next) in [
            (helper::PROBE_READ_USER, Some(done)),
            (helper::COPY_FROM_USER, None),
        ] {
            self.stack(1, to);
            self.put(Instruction::move_immediate(2, bytes));
            self.put(Instruction::call(function));
            match next {
                Some(done) => {
                    self.jump_if(Condition::Equal, 0, 0, done);
                    self.put(Instruction::load_long(3, FRAME, slot));
                }
                None => self.jump_if(Condition::Differ, 0, 0, self.fault),
            }
        }
        self.asm.here(done);
    }

    /// Reads the text at r0, at most `max` bytes with its end, to `r{base} + offset`. r0 becomes its bytes.
    fn read_text(&mut self, (base, offset): (u8, i32), max: i32, depth: i16) {
        let done = self.asm.label();
        let slot = self.slot(depth);
        self.put(Instruction::store_long(FRAME, slot, 0));
        for is_last in [false, true] {
            self.put(Instruction::move_register(1, base));
            self.put(Instruction::add_immediate(1, offset));
            self.put(Instruction::move_immediate(2, max));
            self.put(Instruction::load_long(3, FRAME, slot));
            self.put(Instruction::call(helper::PROBE_READ_USER_STR));
            if is_last {
                self.jump_if(Condition::LessOrEqualSigned, 0, 0, self.fault);
                break;
            }
            self.jump_if(Condition::GreaterSigned, 0, 0, done);
            // Its page may not be there yet.
            self.stack(1, READ);
            self.put(Instruction::move_immediate(2, 1));
            self.put(Instruction::load_long(3, FRAME, slot));
            self.put(Instruction::call(helper::COPY_FROM_USER));
            self.jump_if(Condition::Differ, 0, 0, self.fault);
        }
        self.asm.here(done);
    }

    /// r0 becomes whether the text at r0 is this one.
    fn is_text(&mut self, text: &str, depth: i16) {
        let differs = self.asm.label();
        let end = self.asm.label();
        // One more than it has with its end: a longer one is another.
        let bytes = (text.len() + 2).min(KEY_TEXT as usize);
        let words = bytes.div_ceil(8);
        self.put(Instruction::move_register(5, 0));
        self.put(Instruction::move_immediate(0, 0));
        for word in 0..words {
            let at = TEXT + 8 * i16::try_from(word).unwrap_or(0);
            self.put(Instruction::store_long(FRAME, at, 0));
        }
        self.put(Instruction::move_register(0, 5));
        let max = i32::try_from(bytes).unwrap_or(0);
        self.read_text((FRAME, TEXT.into()), max, depth);
        let mut wanted = text.as_bytes().to_vec();
        wanted.resize(words * 8, 0);
        for (word, bytes) in wanted.chunks_exact(8).enumerate() {
            let at = TEXT + 8 * i16::try_from(word).unwrap_or(0);
            let value = bytes.try_into().map_or(0, u64::from_le_bytes);
            self.put(Instruction::load_long(1, FRAME, at));
            self.constant(2, value);
            self.asm
                .jump(Instruction::skip_if(Condition::Differ, 1, 2, 0), differs);
        }
        self.put(Instruction::move_immediate(0, 1));
        self.asm.jump(Instruction::skip(0), end);
        self.asm.here(differs);
        self.put(Instruction::move_immediate(0, 0));
        self.asm.here(end);
    }

    fn binary(&mut self, operation: Binary, sides: &[Code; 2], is_unsigned: bool, depth: i16) {
        let [left, right] = sides;
        self.value(left, depth);
        if matches!(operation, Binary::And | Binary::Or) {
            let end = self.asm.label();
            self.flag_unless(Condition::Equal);
            let is_known = i32::from(operation == Binary::Or);
            self.jump_if(Condition::Equal, 0, is_known, end);
            self.value(right, depth);
            self.flag_unless(Condition::Equal);
            self.asm.here(end);
            return;
        }
        // As an offset, or a bound.
        let small = match right {
            Code::Constant(value) => i32::try_from(value.cast_signed()).ok(),
            _ => None,
        };
        match small {
            Some(value) => self.put(Instruction::move_immediate(1, value)),
            None => {
                let slot = self.slot(depth);
                self.put(Instruction::store_long(FRAME, slot, 0));
                self.value(right, depth + 1);
                self.put(Instruction::move_register(1, 0));
                self.put(Instruction::load_long(0, FRAME, slot));
            }
        }
        if let Some(condition) = condition(operation, is_unsigned) {
            self.put(Instruction::move_register(2, 0));
            self.put(Instruction::move_immediate(0, 1));
            self.put(Instruction::skip_if(condition, 2, 1, 1));
            self.put(Instruction::move_immediate(0, 0));
            return;
        }
        let alu = match operation {
            Binary::BitOr => Alu::Or,
            Binary::BitXor => Alu::Xor,
            Binary::BitAnd => Alu::And,
            Binary::ShiftLeft => Alu::ShiftLeft,
            Binary::ShiftRight if is_unsigned => Alu::ShiftRight,
            Binary::ShiftRight => Alu::ShiftRightSigned,
            Binary::Subtract => Alu::Subtract,
            Binary::Multiply => Alu::Multiply,
            Binary::Divide => Alu::Divide,
            Binary::Remainder => Alu::Modulo,
            _ => Alu::Add,
        };
        let is_division = matches!(operation, Binary::Divide | Binary::Remainder);
        if is_division {
            self.jump_if(Condition::Equal, 1, 0, self.fault);
        }
        if matches!(
            alu,
            Alu::ShiftLeft | Alu::ShiftRight | Alu::ShiftRightSigned
        ) {
            self.put(Instruction::and_immediate(1, 63));
        }
        self.put(match is_division && !is_unsigned {
            true => Instruction::alu_signed(alu, 0, 1),
            false => Instruction::alu(alu, 0, 1),
        });
    }

    /// Writes a record.
    fn tell(&mut self, plan: &Plan, ends: &Ends) {
        let bytes = i32::try_from(plan.record_bytes()).unwrap_or(i32::MAX);
        self.load_map(1, MapUse::Ring);
        self.put(Instruction::move_immediate(2, bytes));
        self.put(Instruction::move_immediate(3, 0));
        self.put(Instruction::call(helper::RINGBUF_RESERVE));
        self.jump_if(Condition::Equal, 0, 0, ends.dropped);
        self.put(Instruction::move_register(RECORD, 0));
        self.put(Instruction::call(helper::KTIME_GET_NS));
        self.put(Instruction::store_long(RECORD, 0, 0));
        self.put(Instruction::call(helper::GET_CURRENT_PID_TGID));
        self.put(Instruction::store_long(RECORD, 8, 0));
        self.put(Instruction::move_register(1, CONTEXT));
        self.put(Instruction::call(helper::GET_ATTACH_COOKIE));
        self.put(Instruction::store_long(RECORD, 16, 0));
        let mut at = RECORD_HEAD;
        let was = self.fault;
        for field in &plan.fields {
            self.field(field, at);
            at += field.bytes();
        }
        self.fault = was;
        self.put(Instruction::move_register(1, RECORD));
        self.put(Instruction::move_immediate(2, 0));
        self.put(Instruction::call(helper::RINGBUF_SUBMIT));
        self.outcome(Outcome::Records, ends);
    }

    /// Fills one field; what cannot be read is said to be so.
    fn field(&mut self, field: &Field, at: u32) {
        self.fault = self.asm.label();
        // A record has at most 32,767 bytes before its last field's end.
        let offset = i16::try_from(at).unwrap_or(i16::MAX - 16);
        let bytes_at = i32::from(offset) + 16;
        self.put(Instruction::move_immediate(1, -1));
        self.put(Instruction::store_long(RECORD, offset, 1));
        self.put(Instruction::move_immediate(1, 0));
        self.put(Instruction::store_long(RECORD, offset + 8, 1));
        match field {
            Field::Scalar(code) => {
                self.value(code, 0);
                self.put(Instruction::store_long(RECORD, offset + 8, 0));
                self.put(Instruction::move_immediate(0, 0));
            }
            Field::Text(address, max) => {
                self.value(address, 0);
                self.put(Instruction::store_long(RECORD, offset + 8, 0));
                let max = i32::try_from(*max).unwrap_or(0);
                self.read_text((RECORD, bytes_at), max, 0);
            }
            Field::Object(address, bytes) => {
                self.value(address, 0);
                self.put(Instruction::store_long(RECORD, offset + 8, 0));
                let bytes = i32::try_from(*bytes).unwrap_or(0);
                self.read_object(bytes_at, bytes);
            }
        }
        self.put(Instruction::store_long(RECORD, offset, 0));
        self.asm.here(self.fault);
    }

    /// Reads an object at r0 into the record. r0 becomes 0.
    fn read_object(&mut self, to: i32, bytes: i32) {
        let done = self.asm.label();
        let slot = self.slot(0);
        self.put(Instruction::store_long(FRAME, slot, 0));
        for function in [helper::PROBE_READ_USER, helper::COPY_FROM_USER] {
            self.put(Instruction::move_register(1, RECORD));
            self.put(Instruction::add_immediate(1, to));
            self.put(Instruction::move_immediate(2, bytes));
            self.put(Instruction::load_long(3, FRAME, slot));
            self.put(Instruction::call(function));
            match function {
                helper::PROBE_READ_USER => self.jump_if(Condition::Equal, 0, 0, done),
                _ => self.jump_if(Condition::Differ, 0, 0, self.fault),
            }
        }
        self.asm.here(done);
    }

    /// Adds to a line of an aggregation, which is made if it is not there.
    fn add(&mut self, addition: &Addition, ends: &Ends) {
        // Before the key, which is on the stack: values need it, too.
        if let Some(of) = &addition.of {
            self.value(of, 0);
            let slot = self.slot(0);
            self.put(Instruction::store_long(FRAME, slot, 0));
        }
        self.key(&addition.key);
        let found = self.asm.label();
        let map = MapUse::Aggregation(addition.to);
        self.look_up(map);
        self.jump_if(Condition::Differ, 0, 0, found);
        self.put(Instruction::store_long(FRAME, NUMBER, 0));
        self.load_map(1, MapUse::Zeros);
        self.stack(2, NUMBER);
        self.put(Instruction::call(helper::MAP_LOOKUP));
        self.jump_if(Condition::Equal, 0, 0, ends.dropped);
        self.put(Instruction::move_register(3, 0));
        self.load_map(1, map);
        self.stack(2, KEY);
        // BPF_NOEXIST: another processor may have been quicker, and has made the line for all.
        self.put(Instruction::move_immediate(4, 1));
        self.put(Instruction::call(helper::MAP_UPDATE));
        self.look_up(map);
        self.jump_if(Condition::Equal, 0, 0, ends.dropped);
        self.asm.here(found);
        self.put(Instruction::move_register(LINE, 0));
        self.put(Instruction::move_immediate(1, 1));
        let of = self.slot(0);
        match addition.how {
            Aggregate::Count => self.put(Instruction::add_atomically(LINE, 0, 1)),
            Aggregate::Sum => {
                self.put(Instruction::load_long(1, FRAME, of));
                self.put(Instruction::add_atomically(LINE, 0, 1));
            }
            Aggregate::Avg => {
                self.put(Instruction::add_atomically(LINE, 0, 1));
                self.put(Instruction::load_long(1, FRAME, of));
                self.put(Instruction::add_atomically(LINE, 8, 1));
            }
            Aggregate::Min | Aggregate::Max => self.extreme(addition, ends),
            Aggregate::Quantize => self.bucket(addition.is_unsigned),
        }
    }

    fn look_up(&mut self, map: MapUse) {
        self.load_map(1, map);
        self.stack(2, KEY);
        self.put(Instruction::call(helper::MAP_LOOKUP));
    }

    fn key(&mut self, parts: &[KeyPart]) {
        let mut at = KEY;
        if parts.is_empty() {
            self.put(Instruction::move_immediate(0, 0));
            self.put(Instruction::store_long(FRAME, at, 0));
        }
        for part in parts {
            match part {
                KeyPart::Scalar(code) => {
                    self.value(code, 1);
                    self.put(Instruction::store_long(FRAME, at, 0));
                }
                KeyPart::Text(address) => {
                    self.value(address, 1);
                    self.put(Instruction::move_immediate(1, 0));
                    for word in 0..KEY_TEXT_BYTES / 8 {
                        self.put(Instruction::store_long(FRAME, at + 8 * word, 1));
                    }
                    let max = i32::from(KEY_TEXT_BYTES);
                    self.read_text((FRAME, at.into()), max, 1);
                }
            }
            at += i16::try_from(part.bytes()).unwrap_or(0);
        }
    }

    /// Puts the value where the least or greatest is. The first word says that there is one.
    fn extreme(&mut self, addition: &Addition, ends: &Ends) {
        let done = self.asm.label();
        let keeps = match (addition.how, addition.is_unsigned) {
            (Aggregate::Min, true) => Condition::GreaterOrEqual,
            (Aggregate::Min, false) => Condition::GreaterOrEqualSigned,
            (_, true) => Condition::LessOrEqual,
            (_, false) => Condition::LessOrEqualSigned,
        };
        for _ in 0..TRIES {
            let first = self.asm.label();
            let put = self.asm.label();
            let slot = self.slot(0);
            self.put(Instruction::load_long(1, FRAME, slot));
            self.put(Instruction::load_long(0, LINE, 8));
            self.put(Instruction::load_long(2, LINE, 0));
            self.jump_if(Condition::Equal, 2, 0, first);
            self.asm.jump(Instruction::skip_if(keeps, 1, 0, 0), done);
            self.asm.here(first);
            self.put(Instruction::move_register(3, 0));
            self.put(Instruction::replace_atomically(LINE, 8, 1));
            self.asm
                .jump(Instruction::skip_if(Condition::Equal, 0, 3, 0), put);
            let next = self.asm.label();
            self.asm.jump(Instruction::skip(0), next);
            self.asm.here(put);
            self.put(Instruction::move_immediate(1, 1));
            self.put(Instruction::store_long(LINE, 0, 1));
            self.asm.jump(Instruction::skip(0), done);
            self.asm.here(next);
        }
        self.asm.jump(Instruction::skip(0), ends.dropped);
        self.asm.here(done);
    }

    /// Counts the value in the bucket of its power of two.
    fn bucket(&mut self, is_unsigned: bool) {
        let (is_negative, found, zero) = (self.asm.label(), self.asm.label(), self.asm.label());
        let slot = self.slot(0);
        self.put(Instruction::load_long(1, FRAME, slot));
        self.put(Instruction::move_immediate(2, 64));
        self.jump_if(Condition::Equal, 1, 0, zero);
        self.put(Instruction::move_immediate(3, 0));
        if !is_unsigned {
            self.jump_if(Condition::LessSigned, 1, 0, is_negative);
        }
        self.logarithm();
        self.put(Instruction::alu(Alu::Add, 2, 3));
        self.asm.jump(Instruction::skip(0), found);
        if !is_unsigned {
            self.asm.here(is_negative);
            self.put(Instruction::negate(1));
            self.logarithm();
            self.put(Instruction::alu(Alu::Subtract, 2, 3));
        }
        self.asm.here(found);
        self.asm.here(zero);
        // At most 63 away from the middle, also of the greatest; the kernel wants to see it.
        self.put(Instruction::and_immediate(2, 127));
        self.put(Instruction::alu_immediate(Alu::ShiftLeft, 2, 3));
        self.put(Instruction::alu(Alu::Add, LINE, 2));
        self.put(Instruction::move_immediate(1, 1));
        self.put(Instruction::add_atomically(LINE, 0, 1));
    }

    /// r3 += the number of bits that r1, which is not 0, needs; at most 63.
    fn logarithm(&mut self) {
        for bits in [32, 16, 8, 4, 2, 1] {
            // If nothing is above the lower bits, nothing is shifted.
            self.put(Instruction::move_register(4, 1));
            self.put(Instruction::shift_right(4, bits));
            self.put(Instruction::skip_if_zero(4, 2));
            self.put(Instruction::move_register(1, 4));
            self.put(Instruction::add_immediate(3, bits));
        }
        self.put(Instruction::skip_if_is(3, 63, 1));
        self.put(Instruction::add_immediate(3, 1));
    }
}

/// The jump that a comparison is.
fn condition(operation: Binary, is_unsigned: bool) -> Option<Condition> {
    Some(match (operation, is_unsigned) {
        (Binary::Equal, _) => Condition::Equal,
        (Binary::Differ, _) => Condition::Differ,
        (Binary::Less, true) => Condition::Less,
        (Binary::Less, false) => Condition::LessSigned,
        (Binary::LessOrEqual, true) => Condition::LessOrEqual,
        (Binary::LessOrEqual, false) => Condition::LessOrEqualSigned,
        (Binary::Greater, true) => Condition::Greater,
        (Binary::Greater, false) => Condition::GreaterSigned,
        (Binary::GreaterOrEqual, true) => Condition::GreaterOrEqual,
        (Binary::GreaterOrEqual, false) => Condition::GreaterOrEqualSigned,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(filter: Code) -> Result<Vec<Instruction>, PlanError> {
        let plan = Plan {
            filter: Some(filter),
            ..Plan::default()
        };
        plan.program(&|register, _| Instruction::load_constant(register, 0))
    }

    fn sum(left: Code, right: Code) -> Code {
        Code::Binary {
            is_unsigned: false,
            operation: Binary::Add,
            sides: Box::new([left, right]),
        }
    }

    /// What does not fit is refused: neither does a jump go elsewhere, nor a value that waits lie where another one is read.
    #[test]
    fn programs_have_an_end() {
        let load = || Code::Load {
            address: Box::new(Code::Register(1)),
            bytes: 8,
            bits: (0, 64),
            is_signed: false,
        };
        let nested = |depth| (0..depth).fold(load(), |inner, _| sum(load(), inner));
        assert!(program(nested(usize::try_from(SLOTS).unwrap() - 1)).is_ok());
        assert_eq!(
            program(nested(usize::try_from(SLOTS).unwrap())),
            Err(PlanError::Nesting)
        );
        let long = |count| (0..count).fold(load(), |inner, _| sum(inner, load()));
        assert!(program(long(1000)).is_ok());
        assert_eq!(program(long(2000)), Err(PlanError::Length));
    }
}
