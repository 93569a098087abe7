//! One clause at one place as an eBPF program.
//!
//! # Model
//! Each hit is counted, and then counted once more as one of [`Outcome`]'s others: the sum is exact. The program keeps its context in r6, the counts in r7 and
//! the record that it fills in r8; r0 is where [`Code`] leaves its value. Where the ring has no room, r8 is 0: everything but the record is done,
//! and the hit is counted as dropped.
//!
//! Memory is read by `bpf_probe_read_user`; what is not there yet is waited for (`bpf_copy_from_user`), for which programs on functions may sleep.
//!
//! # Records
//! ```text
//! 0  time, nanoseconds since the machine started     16  number of the place
//! 8  process << 32 | thread                          24  fields
//! ```
//! A field is a state ([`FAULT`], or a text's bytes with its end), a value or address, and the bytes that lie there.

mod action;
mod aggregate;
mod assembler;
mod value;

use std::ops::Range;

use windlass_sys::bpf::{Condition, Instruction, ProgramKind};

use crate::Code;
use crate::syntax::{Aggregate, Stack};
use assembler::{Assembler, JUMP_MAX, Label};

/// The state of a field that could not be read.
pub const FAULT: u64 = u64::MAX;
/// The state of a field that the hit did not come to.
pub const UNREACHED: u64 = u64::MAX - 1;
/// Bytes of a program's name that the kernel keeps.
pub const NAME_BYTES: u32 = 16;
/// Variables of a clause.
pub const LOCALS_MAX: u32 = 8;
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
    /// The addresses of so many callers, the last one first.
    Stack(Stack, u32),
    /// The thread's name, [`NAME_BYTES`].
    Name,
}

/// A part of a key.
#[derive(Debug, Clone, PartialEq)]
pub enum KeyPart {
    /// 8 bytes.
    Scalar(Code),
    /// The text at an address, [`KEY_TEXT`] bytes.
    Text(Code),
    /// The addresses of so many callers, the last one first; 0 behind them.
    Stack(Stack, u32),
    /// The thread's name, [`NAME_BYTES`].
    Name,
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

/// One thing that is done at a hit.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// These fields are written.
    Tell(Range<usize>),
    /// An aggregation grows.
    Add(Addition),
    /// A thread's variable, by its number, becomes this.
    SetThread(u32, Code),
    /// A variable of the clause, by its number, becomes this.
    SetClause(u32, Code),
    /// Where it holds, the first ones; else the others.
    If(Code, Vec<Action>, Vec<Action>),
    /// At the so many-th time, nothing is counted or written any more.
    Stop(u32),
}

/// What makes a program run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum On {
    /// An instruction of a program. It may wait for memory.
    #[default]
    Instruction,
    /// This process does: no memory and no registers are there.
    Call,
    /// A clock, in whatever runs.
    Sample,
    /// An event of the kernel: memory is the kernel's.
    Kernel,
}

impl On {
    /// The program's kind.
    #[must_use]
    pub fn kind(self) -> ProgramKind {
        match self {
            Self::Instruction => ProgramKind::Uprobe,
            Self::Call => ProgramKind::Call,
            Self::Sample => ProgramKind::Sample,
            Self::Kernel => ProgramKind::Event,
        }
    }
}

/// Where a function that is entered is paired with its return: the frame, and the function's number.
#[derive(Debug, Clone, PartialEq)]
pub struct Mark {
    /// The canonical frame address.
    pub frame: Code,
    /// Which function.
    pub function: u32,
}

/// A clause at one place.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Plan {
    /// What makes it run.
    pub on: On,
    /// The clause's number.
    pub clause: u32,
    /// The place's number, where it is not an instruction.
    pub place: u64,
    /// Hits of other processes are none.
    pub pid: Option<u32>,
    /// What must hold.
    pub filter: Option<Code>,
    /// What a record has; without any, none is written.
    pub fields: Vec<Field>,
    /// What is done, in this order.
    pub actions: Vec<Action>,
    /// How many variables the clause has, at most [`LOCALS_MAX`].
    pub locals: u32,
    /// A record is written at each hit, also without fields.
    pub is_told: bool,
    /// Some clause has [`Action::Stop`].
    pub may_stop: bool,
    /// Nothing but this is done, and nothing is counted.
    pub mark: Option<Mark>,
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
    /// Variables of threads: a word by the variable's number << 32 | thread.
    Threads,
    /// When functions were entered: a word by the frame, and the process << 32 | the function's number.
    Entries,
    /// A word that is not 0 once tracing has stopped, and one for each clause, of how often it came to its stop.
    Stops,
}

impl Field {
    /// Bytes that it takes in a record.
    #[must_use]
    pub fn bytes(&self) -> u32 {
        let bytes = match self {
            Self::Scalar(_) => 0,
            Self::Text(_, bytes) | Self::Object(_, bytes) => *bytes,
            Self::Stack(_, depth) => 8 * depth,
            Self::Name => NAME_BYTES,
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
            Self::Stack(_, depth) => 8 * depth,
            Self::Name => NAME_BYTES,
        }
    }
}

/// Words of an aggregation's value.
#[must_use]
pub fn words(how: Aggregate) -> usize {
    match how {
        Aggregate::Count | Aggregate::Sum | Aggregate::Heat | Aggregate::Subsecond => 1,
        Aggregate::Avg | Aggregate::Min | Aggregate::Max => 2,
        Aggregate::Stddev => 8,
        Aggregate::Quantize => BUCKETS,
        Aggregate::Linear { steps, .. } => usize::from(steps) + 2,
    }
}

impl Plan {
    /// Bytes of its records.
    #[must_use]
    pub fn record_bytes(&self) -> u32 {
        let fields = self.fields.iter().map(Field::bytes);
        fields.fold(RECORD_HEAD, u32::saturating_add)
    }

    /// Whether there may be a record.
    #[must_use]
    pub fn tells(&self) -> bool {
        self.is_told || !self.fields.is_empty()
    }

    /// Whether there is one at each hit.
    fn always_tells(&self) -> bool {
        let told = |action: &Action| matches!(action, Action::Tell(_));
        self.is_told || self.actions.iter().any(told)
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
            plan: self,
            slots: 0,
        };
        program.put(Instruction::move_register(CONTEXT, 1));
        match &self.mark {
            Some(mark) => program.mark(mark, labels.end),
            None => program.hit(&labels),
        }
        program.asm.here(labels.end);
        program.put(Instruction::move_immediate(0, 0));
        program.put(Instruction::exit());
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
    pub(super) const MAP_DELETE: i32 = 3;
    pub(super) const GET_CURRENT_COMM: i32 = 16;
    pub(super) const GET_STACK: i32 = 67;
    pub(super) const PROBE_READ_USER: i32 = 112;
    pub(super) const PROBE_READ_KERNEL: i32 = 113;
    pub(super) const PROBE_READ_USER_STR: i32 = 114;
    pub(super) const PROBE_READ_KERNEL_STR: i32 = 115;
    pub(super) const RINGBUF_RESERVE: i32 = 131;
    pub(super) const RINGBUF_SUBMIT: i32 = 132;
    pub(super) const RINGBUF_DISCARD: i32 = 133;
    pub(super) const COPY_FROM_USER: i32 = 148;
    pub(super) const GET_ATTACH_COOKIE: i32 = 174;
}

const CONTEXT: u8 = 6;
const COUNTS: u8 = 7;
const RECORD: u8 = 8;
const LINE: u8 = 9;
const FRAME: u8 = 10;

/// The stack, from its top: values that wait, what was read, a text, a key, a number, a frame and its function, whether a record is there to be told, the
/// clause's variables.
const SLOTS: i16 = 24;
const READ: i16 = -8 * SLOTS - 8;
const TEXT: i16 = READ - KEY_TEXT_BYTES - 8;
const KEY: i16 = TEXT - KEY_BYTES;
const NUMBER: i16 = KEY - 8;
const PAIR: i16 = NUMBER - 16;
const TOLD: i16 = PAIR - 8;
const LOCALS: i16 = TOLD - 8;
const KEY_TEXT_BYTES: i16 = KEY_TEXT as i16;
const KEY_BYTES: i16 = KEY_MAX as i16;
/// How often a least or greatest value is tried to be put where another processor may.
const TRIES: usize = 4;

struct Generator<'m> {
    asm: Assembler,
    map: &'m dyn Fn(u8, MapUse) -> [Instruction; 2],
    plan: &'m Plan,
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

    /// A place for a value in the program's own words.
    fn look_up_word(&mut self, map: MapUse, word: u32, or_else: Label) {
        let word = i32::try_from(word).unwrap_or(i32::MAX);
        self.put(Instruction::move_immediate(0, word));
        self.put(Instruction::store_long(FRAME, NUMBER, 0));
        self.stack(2, NUMBER);
        self.load_map(1, map);
        self.put(Instruction::call(helper::MAP_LOOKUP));
        self.jump_if(Condition::Equal, 0, 0, or_else);
    }

    /// Counts the hit, and does what is to be done.
    fn hit(&mut self, ends: &Ends) {
        let plan = self.plan;
        if plan.may_stop {
            self.look_up_word(MapUse::Stops, 0, ends.end);
            self.put(Instruction::load_long(0, 0, 0));
            self.jump_if(Condition::Differ, 0, 0, ends.end);
        }
        if let Some(pid) = plan.pid {
            self.put(Instruction::call(helper::GET_CURRENT_PID_TGID));
            self.put(Instruction::shift_right(0, 32));
            let pid = i32::try_from(pid).unwrap_or(i32::MAX);
            self.jump_if(Condition::Differ, 0, pid, ends.end);
        }
        self.look_up_word(MapUse::Counts, plan.clause, ends.end);
        self.put(Instruction::move_register(COUNTS, 0));
        self.count(Outcome::Hits);
        self.put(Instruction::move_immediate(0, 0));
        for local in 0..plan.locals.min(LOCALS_MAX) {
            self.put(Instruction::store_long(FRAME, local_at(local), 0));
        }
        if plan.tells() {
            self.put(Instruction::move_immediate(RECORD, 0));
            self.put(Instruction::store_long(FRAME, TOLD, 0));
        }
        if let Some(filter) = &plan.filter {
            self.value(filter, 0);
            self.jump_if(Condition::Equal, 0, 0, ends.filtered);
        }
        if plan.tells() {
            self.reserve();
        }
        self.actions(&plan.actions, ends);
        self.finish(ends);
        for (label, outcome) in [
            (ends.filtered, Outcome::Filtered),
            (ends.dropped, Outcome::Dropped),
            (ends.fault, Outcome::Faults),
        ] {
            // The kernel refuses what nothing reaches.
            if self.asm.is_used(label) {
                self.asm.here(label);
                self.give_up(outcome, ends);
            }
        }
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
}

/// Where a variable of the clause lies.
fn local_at(number: u32) -> i16 {
    LOCALS - 8 * i16::try_from(number.min(LOCALS_MAX - 1)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::syntax::Binary;

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
