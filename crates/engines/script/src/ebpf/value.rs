//! Values.

use windlass_sys::bpf::{Alu, Condition, Instruction, Width};

use super::{
    CONTEXT, FRAME, Generator, KEY_TEXT, MapUse, NUMBER, On, PAIR, READ, RECORD, TEXT, helper,
    local_at,
};
use crate::Code;
use crate::code::Moment;
use crate::syntax::Binary;

/// Where x86-64's `struct pt_regs` has a register, by its DWARF number (System V ABI, figure 3.36).
fn register_offset(number: u16) -> Option<i16> {
    const OFFSETS: [i16; 17] = [
        80, 96, 88, 40, 104, 112, 32, 152, 72, 64, 56, 48, 24, 16, 8, 0, 128,
    ];
    OFFSETS.get(usize::from(number)).copied()
}

impl Generator<'_> {
    /// Computes a value into r0. `depth`: slots that are in use.
    pub(super) fn value(&mut self, code: &Code, depth: i16) {
        // Long sums nest here alone, with little on this process's stack.
        match code {
            Code::Binary {
                is_unsigned,
                operation,
                sides,
            } => self.binary(*operation, sides, *is_unsigned, depth),
            code => self.other(code, depth),
        }
    }

    /// Computes what is no operation on two values.
    fn other(&mut self, code: &Code, depth: i16) {
        match code {
            Code::Constant(value) => self.constant(0, *value),
            Code::Register(number) => match register_offset(*number) {
                Some(offset) => self.put(Instruction::load_long(0, CONTEXT, offset)),
                None => self.asm.jump(Instruction::skip(0), self.fault),
            },
            Code::Argument(number) => {
                let at = 8 * i16::from(*number);
                self.put(Instruction::load_long(0, CONTEXT, at));
            }
            Code::Moment(what) => self.moment(*what),
            Code::Thread(number) => self.thread_variable(*number),
            Code::Local(number) => {
                self.put(Instruction::load_long(0, FRAME, local_at(*number)));
            }
            Code::Elapsed(frame, function) => self.elapsed(frame, *function, depth),
            Code::Steps(of) => {
                self.value(of, depth);
                self.steps();
            }
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
                self.load(*bytes, *bits, *is_signed, depth);
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
            Code::Choose(parts) => self.choose(parts, depth),
            Code::IsText(address, text) => {
                self.value(address, depth);
                self.is_text(text, depth);
            }
            Code::Binary { .. } => {}
        }
    }

    /// Loads a value from where r0 points to.
    fn load(&mut self, bytes: u8, bits: (u8, u8), is_signed: bool, depth: i16) {
        self.read((i32::from(bytes), READ), depth);
        let width = Width::of(bytes.into()).unwrap_or(Width::Long);
        self.put(Instruction::load(width, 0, FRAME, READ));
        if bits != (0, bytes * 8) || is_signed {
            self.narrow(bits, is_signed);
        }
    }

    fn choose(&mut self, parts: &[Code; 3], depth: i16) {
        let [condition, one, other] = parts;
        let (no, end) = (self.asm.label(), self.asm.label());
        self.value(condition, depth);
        self.jump_if(Condition::Equal, 0, 0, no);
        self.value(one, depth);
        self.asm.jump(Instruction::skip(0), end);
        self.asm.here(no);
        self.value(other, depth);
        self.asm.here(end);
    }

    pub(super) fn constant(&mut self, register: u8, value: u64) {
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

    pub(super) fn narrow(&mut self, (first, count): (u8, u8), is_signed: bool) {
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

    /// Where a value waits. Behind the last slot lie other things: `Plan::program` refuses what needs more.
    pub(super) fn slot(&mut self, depth: i16) -> i16 {
        self.slots = self.slots.max(depth + 1);
        -8 * (depth + 1)
    }

    /// Reads so many bytes at r0 to a place of the stack.
    fn read(&mut self, (bytes, to): (i32, i16), depth: i16) {
        let done = self.asm.label();
        let slot = self.slot(depth);
        self.put(Instruction::store_long(FRAME, slot, 0));
        self.put(Instruction::move_register(3, 0));
        let readers = self.readers();
        for (number, function) in readers.iter().enumerate() {
            self.stack(1, to);
            self.put(Instruction::move_immediate(2, bytes));
            if number > 0 {
                self.put(Instruction::load_long(3, FRAME, slot));
            }
            self.put(Instruction::call(*function));
            if number + 1 < readers.len() {
                self.jump_if(Condition::Equal, 0, 0, done);
            }
        }
        self.fault_if_unread();
        self.asm.here(done);
    }

    /// Reads the text at r0, at most `max` bytes with its end, to `r{base} + offset`. r0 becomes its bytes.
    pub(super) fn read_text(&mut self, (base, offset): (u8, i32), max: i32, depth: i16) {
        let done = self.asm.label();
        let slot = self.slot(depth);
        self.put(Instruction::store_long(FRAME, slot, 0));
        let (function, may_wait) = match self.plan.on {
            On::Kernel => (helper::PROBE_READ_KERNEL_STR, false),
            on => (helper::PROBE_READ_USER_STR, on == On::Instruction),
        };
        for is_last in [false, true].into_iter().skip(usize::from(!may_wait)) {
            self.put(Instruction::move_register(1, base));
            self.put(Instruction::add_immediate(1, offset));
            self.put(Instruction::move_immediate(2, max));
            self.put(Instruction::load_long(3, FRAME, slot));
            self.put(Instruction::call(function));
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

    /// What reads memory: the first, and if that fails the next.
    pub(super) fn readers(&self) -> &'static [i32] {
        match self.plan.on {
            On::Instruction => &[helper::PROBE_READ_USER, helper::COPY_FROM_USER],
            On::Sample => &[helper::PROBE_READ_USER],
            On::Kernel => &[helper::PROBE_READ_KERNEL],
            On::Call => &[],
        }
    }

    /// Behind the last of [`Generator::readers`].
    pub(super) fn fault_if_unread(&mut self) {
        if self.readers().is_empty() {
            self.put(Instruction::move_immediate(0, 1));
        }
        self.jump_if(Condition::Differ, 0, 0, self.fault);
    }

    /// The key of a thread's variable.
    pub(super) fn thread_key(&mut self, number: u32) {
        self.put(Instruction::call(helper::GET_CURRENT_PID_TGID));
        self.narrow((0, 32), false);
        let number = i32::try_from(number).unwrap_or(0);
        self.put(Instruction::move_immediate(1, number));
        self.put(Instruction::alu_immediate(Alu::ShiftLeft, 1, 32));
        self.put(Instruction::alu(Alu::Or, 0, 1));
        self.put(Instruction::store_long(FRAME, NUMBER, 0));
    }

    /// A thread's variable; 0 if it has none.
    fn thread_variable(&mut self, number: u32) {
        let end = self.asm.label();
        self.thread_key(number);
        self.stack(2, NUMBER);
        self.load_map(1, MapUse::Threads);
        self.put(Instruction::call(helper::MAP_LOOKUP));
        self.jump_if(Condition::Equal, 0, 0, end);
        self.put(Instruction::load_long(0, 0, 0));
        self.asm.here(end);
    }

    /// Puts a frame and its function where a key of [`MapUse::Entries`] is read.
    pub(super) fn frame_key(&mut self, frame: &Code, function: u32, depth: i16) {
        self.value(frame, depth);
        self.put(Instruction::store_long(FRAME, PAIR, 0));
        self.put(Instruction::call(helper::GET_CURRENT_PID_TGID));
        self.put(Instruction::shift_right(0, 32));
        self.put(Instruction::alu_immediate(Alu::ShiftLeft, 0, 32));
        let function = i32::try_from(function).unwrap_or(0);
        self.put(Instruction::alu_immediate(Alu::Or, 0, function));
        self.put(Instruction::store_long(FRAME, PAIR + 8, 0));
    }

    /// The time since the function was entered whose frame this is. The last one that was entered with a frame is the one that returns with it, whatever
    /// was left by a jump or an exception in between.
    fn elapsed(&mut self, frame: &Code, function: u32, depth: i16) {
        self.frame_key(frame, function, depth);
        self.stack(2, PAIR);
        self.load_map(1, MapUse::Entries);
        self.put(Instruction::call(helper::MAP_LOOKUP));
        self.jump_if(Condition::Equal, 0, 0, self.fault);
        self.put(Instruction::load_long(1, 0, 0));
        let slot = self.slot(depth);
        self.put(Instruction::store_long(FRAME, slot, 1));
        self.put(Instruction::call(helper::KTIME_GET_NS));
        self.put(Instruction::load_long(1, FRAME, slot));
        self.put(Instruction::alu(Alu::Subtract, 0, 1));
    }

    /// r0 becomes the number of its quarter of a power of two, see [`crate::code::steps`].
    fn steps(&mut self) {
        let end = self.asm.label();
        self.jump_if(Condition::Less, 0, 4, end);
        self.put(Instruction::move_register(1, 0));
        self.put(Instruction::move_immediate(3, 0));
        self.logarithm(64);
        // r3 bits: the two behind the first one count.
        self.put(Instruction::move_register(4, 3));
        self.put(Instruction::add_immediate(4, -3));
        self.put(Instruction::and_immediate(4, 63));
        self.put(Instruction::alu(Alu::ShiftRight, 0, 4));
        self.put(Instruction::and_immediate(0, 3));
        self.put(Instruction::add_immediate(3, -2));
        self.put(Instruction::alu_immediate(Alu::ShiftLeft, 3, 2));
        self.put(Instruction::alu(Alu::Add, 0, 3));
        self.asm.here(end);
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
