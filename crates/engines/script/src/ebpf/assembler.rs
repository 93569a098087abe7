//! Instructions with jumps to places that are known later.

use windlass_sys::bpf::Instruction;

/// Instructions that a jump skips at most.
pub(super) const JUMP_MAX: i16 = i16::MAX;

/// A place in a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Label(usize);

/// A program that is being made.
#[derive(Debug, Default)]
pub(super) struct Assembler {
    code: Vec<Instruction>,
    labels: Vec<usize>,
    jumps: Vec<(usize, Label)>,
}

impl Assembler {
    pub(super) fn put(&mut self, instruction: Instruction) {
        self.code.push(instruction);
    }

    /// A place that [`Assembler::here`] gives.
    pub(super) fn label(&mut self) -> Label {
        self.labels.push(0);
        Label(self.labels.len() - 1)
    }

    /// The next instruction is that place.
    pub(super) fn here(&mut self, label: Label) {
        if let Some(at) = self.labels.get_mut(label.0) {
            *at = self.code.len();
        }
    }

    /// Whether something jumps there.
    pub(super) fn is_used(&self, label: Label) -> bool {
        self.jumps.iter().any(|(_, to)| *to == label)
    }

    /// A jump there, with what it skips still to be said.
    pub(super) fn jump(&mut self, jump: Instruction, to: Label) {
        self.jumps.push((self.code.len(), to));
        self.code.push(jump);
    }

    /// The instructions; `None` if a jump has to skip more than [`JUMP_MAX`].
    pub(super) fn finish(mut self) -> Option<Vec<Instruction>> {
        for (at, label) in self.jumps {
            let to = self.labels.get(label.0)?;
            let count = i16::try_from(to.checked_sub(at + 1)?).ok()?;
            let jump = self.code.get_mut(at)?;
            *jump = jump.skipping(count);
        }
        Some(self.code)
    }
}
