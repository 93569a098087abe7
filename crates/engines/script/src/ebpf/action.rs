//! What is done at a hit, and what becomes of its record.

use windlass_sys::bpf::{Condition, Instruction};

use super::{
    Action, CONTEXT, Ends, FRAME, Field, Generator, MapUse, Mark, NUMBER, On, Outcome, PAIR,
    RECORD, RECORD_HEAD, TOLD, UNREACHED, helper, local_at,
};
use crate::Code;
use crate::ebpf::assembler::Label;
use crate::syntax::Stack;

/// `BPF_F_USER_STACK`
const USER_STACK: i32 = 256;

impl Generator<'_> {
    /// Remembers when a function was entered.
    pub(super) fn mark(&mut self, mark: &Mark, end: Label) {
        self.fault = end;
        self.frame_key(&mark.frame, mark.function, 0);
        self.put(Instruction::call(helper::KTIME_GET_NS));
        let slot = self.slot(0);
        self.put(Instruction::store_long(FRAME, slot, 0));
        self.stack(2, PAIR);
        self.stack(3, slot);
        self.update(MapUse::Entries);
    }

    /// Puts what r3 points to where r2 points to.
    fn update(&mut self, map: MapUse) {
        self.load_map(1, map);
        self.put(Instruction::move_immediate(4, 0));
        self.put(Instruction::call(helper::MAP_UPDATE));
    }

    pub(super) fn actions(&mut self, actions: &[Action], ends: &Ends) {
        for action in actions {
            match action {
                Action::Tell(fields) => self.tell(fields.clone()),
                Action::Add(addition) => self.add(addition, ends),
                Action::SetThread(number, value) => self.set_thread(*number, value, ends),
                Action::SetClause(number, value) => {
                    self.value(value, 0);
                    self.put(Instruction::store_long(FRAME, local_at(*number), 0));
                }
                Action::If(condition, then, otherwise) => {
                    let (no, end) = (self.asm.label(), self.asm.label());
                    self.value(condition, 0);
                    self.jump_if(Condition::Equal, 0, 0, no);
                    self.actions(then, ends);
                    if !otherwise.is_empty() {
                        self.asm.jump(Instruction::skip(0), end);
                    }
                    self.asm.here(no);
                    self.actions(otherwise, ends);
                    self.asm.here(end);
                }
                Action::Stop(count) => self.stop(*count),
            }
        }
    }

    /// A variable that becomes 0 is none any more.
    fn set_thread(&mut self, number: u32, value: &Code, ends: &Ends) {
        if *value == Code::Constant(0) {
            self.thread_key(number);
            self.stack(2, NUMBER);
            self.load_map(1, MapUse::Threads);
            self.put(Instruction::call(helper::MAP_DELETE));
            return;
        }
        self.value(value, 0);
        let slot = self.slot(0);
        self.put(Instruction::store_long(FRAME, slot, 0));
        self.thread_key(number);
        self.stack(2, NUMBER);
        self.stack(3, slot);
        self.update(MapUse::Threads);
        self.jump_if(Condition::Differ, 0, 0, ends.dropped);
    }

    fn stop(&mut self, count: u32) {
        let go_on = self.asm.label();
        self.look_up_word(MapUse::Stops, self.plan.clause.saturating_add(1), go_on);
        self.put(Instruction::move_immediate(1, 1));
        self.put(Instruction::fetch_and_add(0, 0, 1));
        let before = i32::try_from(count).map_or(i32::MAX, |count| count - 1);
        self.jump_if(Condition::Less, 1, before, go_on);
        self.look_up_word(MapUse::Stops, 0, go_on);
        self.put(Instruction::move_immediate(1, 1));
        self.put(Instruction::store_long(0, 0, 1));
        self.asm.here(go_on);
    }

    /// Takes room for the record; r8 stays 0 where there is none.
    pub(super) fn reserve(&mut self) {
        let plan = self.plan;
        let full = self.asm.label();
        let bytes = i32::try_from(plan.record_bytes()).unwrap_or(i32::MAX);
        self.load_map(1, MapUse::Ring);
        self.put(Instruction::move_immediate(2, bytes));
        self.put(Instruction::move_immediate(3, 0));
        self.put(Instruction::call(helper::RINGBUF_RESERVE));
        self.put(Instruction::move_register(RECORD, 0));
        self.jump_if(Condition::Equal, RECORD, 0, full);
        self.put(Instruction::call(helper::KTIME_GET_NS));
        self.put(Instruction::store_long(RECORD, 0, 0));
        self.put(Instruction::call(helper::GET_CURRENT_PID_TGID));
        self.put(Instruction::store_long(RECORD, 8, 0));
        match plan.on {
            On::Instruction => {
                self.put(Instruction::move_register(1, CONTEXT));
                self.put(Instruction::call(helper::GET_ATTACH_COOKIE));
            }
            _ => self.constant(0, plan.place),
        }
        self.put(Instruction::store_long(RECORD, 16, 0));
        let mut reached = vec![false; plan.fields.len()];
        for action in &plan.actions {
            if let Action::Tell(fields) = action
                && let Some(reached) = reached.get_mut(fields.clone())
            {
                reached.fill(true);
            }
        }
        let mut at = RECORD_HEAD;
        self.constant(1, UNREACHED);
        for (field, is_reached) in plan.fields.iter().zip(reached) {
            if !is_reached {
                let offset = i16::try_from(at).unwrap_or(i16::MAX - 16);
                self.put(Instruction::store_long(RECORD, offset, 1));
            }
            at += field.bytes();
        }
        self.asm.here(full);
    }

    /// Fills fields of the record, if there is one.
    fn tell(&mut self, fields: std::ops::Range<usize>) {
        let full = self.asm.label();
        self.put(Instruction::move_immediate(1, 1));
        self.put(Instruction::store_long(FRAME, TOLD, 1));
        self.jump_if(Condition::Equal, RECORD, 0, full);
        let plan = self.plan;
        let before = plan.fields.get(..fields.start).unwrap_or_default();
        let mut at = RECORD_HEAD + before.iter().map(Field::bytes).sum::<u32>();
        let was = self.fault;
        for field in plan.fields.get(fields).unwrap_or_default() {
            self.field(field, at);
            at += field.bytes();
        }
        self.fault = was;
        self.asm.here(full);
    }

    /// Ends a hit of which everything was done.
    pub(super) fn finish(&mut self, ends: &Ends) {
        if !self.plan.tells() {
            self.outcome(Outcome::Aggregated, ends);
            return;
        }
        let quiet = self.asm.label();
        if !self.plan.always_tells() {
            self.put(Instruction::load_long(1, FRAME, TOLD));
            self.jump_if(Condition::Equal, 1, 0, quiet);
        }
        self.jump_if(Condition::Equal, RECORD, 0, ends.dropped);
        self.end_record(helper::RINGBUF_SUBMIT);
        self.outcome(Outcome::Records, ends);
        if !self.plan.always_tells() {
            self.asm.here(quiet);
            self.give_up(Outcome::Aggregated, ends);
        }
    }

    /// Ends a hit without a record.
    pub(super) fn give_up(&mut self, outcome: Outcome, ends: &Ends) {
        if self.plan.tells() {
            let none = self.asm.label();
            self.jump_if(Condition::Equal, RECORD, 0, none);
            self.end_record(helper::RINGBUF_DISCARD);
            self.asm.here(none);
        }
        self.outcome(outcome, ends);
    }

    fn end_record(&mut self, how: i32) {
        self.put(Instruction::move_register(1, RECORD));
        self.put(Instruction::move_immediate(2, 0));
        self.put(Instruction::call(how));
    }

    /// Writes the addresses of `depth` callers to `r{base} + offset`. r0 becomes their bytes, or less than 0.
    pub(super) fn stack_of(&mut self, of: Stack, (base, offset): (u8, i32), depth: u32) {
        self.put(Instruction::move_register(1, CONTEXT));
        self.put(Instruction::move_register(2, base));
        self.put(Instruction::add_immediate(2, offset));
        let bytes = i32::try_from(8 * depth).unwrap_or(0);
        self.put(Instruction::move_immediate(3, bytes));
        let flags = match of {
            Stack::User => USER_STACK,
            Stack::Kernel => 0,
        };
        self.put(Instruction::move_immediate(4, flags));
        self.put(Instruction::call(helper::GET_STACK));
    }

    /// Writes the thread's name to `r{base} + offset`.
    pub(super) fn name(&mut self, (base, offset): (u8, i32)) {
        self.put(Instruction::move_register(1, base));
        self.put(Instruction::add_immediate(1, offset));
        let bytes = i32::try_from(super::NAME_BYTES).unwrap_or(0);
        self.put(Instruction::move_immediate(2, bytes));
        self.put(Instruction::call(helper::GET_CURRENT_COMM));
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
            Field::Stack(of, depth) => {
                self.stack_of(*of, (RECORD, bytes_at), *depth);
                self.jump_if(Condition::LessSigned, 0, 0, self.fault);
            }
            Field::Name => {
                self.name((RECORD, bytes_at));
                self.put(Instruction::move_immediate(0, 0));
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
        let readers = self.readers();
        for (number, function) in readers.iter().enumerate() {
            self.put(Instruction::move_register(1, RECORD));
            self.put(Instruction::add_immediate(1, to));
            self.put(Instruction::move_immediate(2, bytes));
            self.put(Instruction::load_long(3, FRAME, slot));
            self.put(Instruction::call(*function));
            if number + 1 < readers.len() {
                self.jump_if(Condition::Equal, 0, 0, done);
            }
        }
        self.fault_if_unread();
        self.asm.here(done);
    }
}
