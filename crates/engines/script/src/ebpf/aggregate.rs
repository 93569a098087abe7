//! Aggregations.

use windlass_sys::bpf::{Alu, Condition, Instruction};

use super::{
    Addition, Ends, FRAME, Generator, KEY, KEY_TEXT_BYTES, KeyPart, LINE, MapUse, NUMBER, TRIES,
    helper,
};
use crate::syntax::Aggregate;

impl Generator<'_> {
    /// Adds to a line of an aggregation, which is made if it is not there.
    pub(super) fn add(&mut self, addition: &Addition, ends: &Ends) {
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
            Aggregate::Count | Aggregate::Heat => {
                self.put(Instruction::add_atomically(LINE, 0, 1));
            }
            Aggregate::Subsecond if addition.of.is_none() => {
                self.put(Instruction::add_atomically(LINE, 0, 1));
            }
            Aggregate::Sum | Aggregate::Subsecond => {
                self.put(Instruction::load_long(1, FRAME, of));
                self.put(Instruction::add_atomically(LINE, 0, 1));
            }
            Aggregate::Avg => {
                self.put(Instruction::add_atomically(LINE, 0, 1));
                self.put(Instruction::load_long(1, FRAME, of));
                self.put(Instruction::add_atomically(LINE, 8, 1));
            }
            Aggregate::Min | Aggregate::Max => self.extreme(addition, ends),
            Aggregate::Stddev => self.squares(addition.is_unsigned),
            Aggregate::Quantize => self.bucket(addition.is_unsigned),
            Aggregate::Linear { low, step, steps } => {
                self.step((low, step, steps), addition.is_unsigned);
            }
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
                KeyPart::Stack(of, depth) => {
                    let words = i16::try_from(*depth).unwrap_or(0);
                    self.put(Instruction::move_immediate(1, 0));
                    for word in 0..words {
                        self.put(Instruction::store_long(FRAME, at + 8 * word, 1));
                    }
                    self.stack_of(*of, (FRAME, at.into()), *depth);
                }
                KeyPart::Name => self.name((FRAME, at.into())),
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
        self.logarithm(63);
        self.put(Instruction::alu(Alu::Add, 2, 3));
        self.asm.jump(Instruction::skip(0), found);
        if !is_unsigned {
            self.asm.here(is_negative);
            self.put(Instruction::negate(1));
            self.logarithm(63);
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

    /// Adds to the count, the sum, and the products of the halves of the value with each other, each product in two words: exact for 2^32 values.
    fn squares(&mut self, is_unsigned: bool) {
        let slot = self.slot(0);
        self.put(Instruction::add_atomically(LINE, 0, 1));
        self.put(Instruction::load_long(1, FRAME, slot));
        self.put(Instruction::add_atomically(LINE, 8, 1));
        if !is_unsigned {
            self.put(Instruction::skip_if_immediate(
                Condition::GreaterOrEqualSigned,
                1,
                0,
                1,
            ));
            self.put(Instruction::negate(1));
        }
        self.put(Instruction::move_register(2, 1));
        self.put(Instruction::shift_right(2, 32));
        self.put(Instruction::alu_immediate(Alu::ShiftLeft, 1, 32));
        self.put(Instruction::shift_right(1, 32));
        for (at, left, right) in [(16, 1, 1), (32, 1, 2), (48, 2, 2)] {
            self.put(Instruction::move_register(3, left));
            self.put(Instruction::alu(Alu::Multiply, 3, right));
            self.put(Instruction::move_register(4, 3));
            self.put(Instruction::shift_right(4, 32));
            self.put(Instruction::alu_immediate(Alu::ShiftLeft, 3, 32));
            self.put(Instruction::shift_right(3, 32));
            self.put(Instruction::add_atomically(LINE, at, 3));
            self.put(Instruction::add_atomically(LINE, at + 8, 4));
        }
    }

    /// Counts the value in its step: the first word is for what is below all, the last one for what is above.
    fn step(&mut self, (low, step, steps): (i32, i32, u16), is_unsigned: bool) {
        let (found, below) = (self.asm.label(), self.asm.label());
        let slot = self.slot(0);
        self.put(Instruction::load_long(1, FRAME, slot));
        self.put(Instruction::move_immediate(2, 0));
        if is_unsigned {
            // What has no sign and is too large for one is above all.
            self.put(Instruction::move_immediate(3, i32::MAX));
            self.put(Instruction::skip_if(Condition::LessOrEqual, 1, 3, 1));
            self.put(Instruction::move_register(1, 3));
        }
        self.jump_if(Condition::LessSigned, 1, low, below);
        self.put(Instruction::alu_immediate(Alu::Subtract, 1, low));
        self.put(Instruction::alu_immediate(Alu::Divide, 1, step));
        self.put(Instruction::move_register(2, 1));
        self.put(Instruction::add_immediate(2, 1));
        let last = i32::from(steps) + 1;
        self.jump_if(Condition::LessOrEqual, 2, last, found);
        self.put(Instruction::move_immediate(2, last));
        self.asm.here(found);
        self.asm.here(below);
        self.put(Instruction::and_immediate(2, 127));
        self.jump_if(Condition::Greater, 2, last, self.fault);
        self.put(Instruction::alu_immediate(Alu::ShiftLeft, 2, 3));
        self.put(Instruction::alu(Alu::Add, LINE, 2));
        self.put(Instruction::move_immediate(1, 1));
        self.put(Instruction::add_atomically(LINE, 0, 1));
    }

    /// r3 += the number of bits that r1, which is not 0, needs; at most `most`.
    pub(super) fn logarithm(&mut self, most: i32) {
        for bits in [32, 16, 8, 4, 2, 1] {
            // If nothing is above the lower bits, nothing is shifted.
            self.put(Instruction::move_register(4, 1));
            self.put(Instruction::shift_right(4, bits));
            self.put(Instruction::skip_if_zero(4, 2));
            self.put(Instruction::move_register(1, 4));
            self.put(Instruction::add_immediate(3, bits));
        }
        self.put(Instruction::skip_if_is(3, most, 1));
        self.put(Instruction::add_immediate(3, 1));
    }
}
