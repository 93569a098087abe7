//! The language of `windlass trace` and `windlass inspect`: one text, typed once, with two back ends.
//!
//! # Purpose
//! An expression such as `r->conn->bytes > 1K` is parsed, and typed by the debug data of the program that it is about. In a probe it becomes eBPF,
//! which reads the arguments where they lie at that instruction; elsewhere it is evaluated here. Both work on the same [`Code`].
//!
//! # Where it sits
//! ```text
//!  text --parse--> Clause, Expr --lower (types, where arguments lie)--> Code --ebpf--> instructions, layout of records
//!                                                                        \---evaluate--> value (memory of a process, a core)
//! ```
//!
//! # Model
//! - [`parse`]: C's expressions without assignments and calls; every node has its [`Span`].
//! - [`lower`]: what a name is, through how many pointers a member is reached, of what width and sign.
//! - [`format`](mod@format): the formats of `printf`.
//! - [`ebpf`]: a program for one place; a clause's hits are each counted as exactly one of what [`ebpf::Outcome`] names.
//! - [`evaluate`]: the same on memory that is read from outside.
//!
//! # Failure modes
//! Text is a user's, and debug data may be hostile: nesting, sizes and numbers of fields are bounded, and what is wrong is a [`ScriptError`] with its place in the
//! text. A read that fails in the program is a *fault*: counted, false in a filter, shown as such.
//!
//! # Not done
//! Loops and views in probes.

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(
        clippy::indexing_slicing,
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic
    )
)]

pub mod code;
pub mod ebpf;
pub mod evaluate;
pub mod format;
pub mod lower;
pub mod parse;
pub mod syntax;
mod token;

pub use code::Code;

/// From which byte of a text to which.
pub type Span = std::ops::Range<usize>;

/// What is wrong with a text, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScriptError {
    /// Where.
    pub span: Span,
    /// What, in a sentence.
    pub why: String,
}

impl ScriptError {
    pub(crate) fn at(span: Span, why: impl Into<String>) -> Self {
        let why = why.into();
        Self { span, why }
    }

    /// The text with a mark under the place, and what is wrong with it.
    #[must_use]
    pub fn show(&self, text: &str) -> String {
        let before = text.get(..self.span.start).unwrap_or(text);
        let line = before.rfind('\n').map_or(0, |at| at + 1);
        let shown = text.get(line..).unwrap_or_default();
        let shown = shown.lines().next().unwrap_or_default();
        let column = before.get(line..).unwrap_or_default().chars().count();
        let len = self.span.end.saturating_sub(self.span.start).max(1);
        let room = shown.chars().count().saturating_sub(column).max(1);
        let (pad, marks) = (" ".repeat(column), "^".repeat(len.min(room)));
        format!("{shown}\n{pad}{marks} {}", self.why)
    }
}

impl std::fmt::Display for ScriptError {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.write_str(&self.why)
    }
}

impl std::error::Error for ScriptError {}
