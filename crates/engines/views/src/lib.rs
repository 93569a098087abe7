//! How types are shown and walked, as text files; lines of commands, and what a cursor in one wants.
//!
//! # Purpose
//! `std::vector` is three pointers. A *view* says in the language of `windlass inspect` that it is a sequence, and where its items are. A
//! *walker* does the same for a data structure of a program's own.
//!
//! # Where it sits
//! ```text
//!   windlass inspect     evaluates the expressions, on a program's types and memory
//!        |
//!   file, pattern        a view's text, and the types that it is for
//!   line, cursor         stages of a pipeline, mdb's spelling, what Tab is about
//! ```
//!
//! # Model
//! ```text
//! view std::vector<T, A> { items = _M_impl._M_start[0 .. _M_impl._M_finish - _M_impl._M_start] }
//! walker conns : struct conn { from = this; next = node->next; item = *node }
//! ```
//! - A pattern is a type's name in which single capital letters stand for arguments. `$T` in an expression is the type that `T` stands for.
//! - Expressions are text here. Their names are members of the record, then `node`, `index` and `item`.
//! - Of several views of a type the first one holds whose expressions make sense: so versions of a library are told apart.
//!
//! # Failure modes
//! View files are a user's. What is wrong is a [`FileError`] with its line.

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

pub mod cursor;
pub mod file;
pub mod line;
pub mod pattern;

pub use file::{Body, Definition, FileError, definitions};

/// The views that windlass comes with, each with the name of its file.
pub const SHIPPED: [(&str, &str); 3] = [
    ("libstdc++", include_str!("../shipped/libstdcxx.view")),
    ("rust", include_str!("../shipped/rust.view")),
    ("windlass", include_str!("../shipped/windlass.view")),
];
