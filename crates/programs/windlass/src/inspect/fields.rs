//! The columns of tables of `windlass inspect`.

use crate::fields::columns;
use crate::table::{Column, at, size_at};

columns! {
    /// `maps`.
    MAPS:
    "start" usual "First address." |row| at(row, "/start");
    "end" usual "The address behind it." |row| at(row, "/end");
    "size" usual "Bytes." |row| size_at(row, "/size");
    "perm" usual "r: readable, w: writable, x: executable, s: shared." |row| at(row, "/perm");
    "offset" more "Where in the file it begins." |row| at(row, "/offset");
    "name" usual "The file, or the kernel's name for it." |row| at(row, "/name");
}

columns! {
    /// `modules`.
    MODULES:
    "name" usual "Name of the file." |row| at(row, "/name");
    "base" usual "How far it was moved from the addresses in it." |row| at(row, "/base");
    "types" usual "Whether it has debug data." |row| at(row, "/types");
    "path" usual "Path of the file." |row| at(row, "/path");
}

columns! {
    /// `symbols`.
    SYMBOLS:
    "kind" usual "struct, union, enum, type, function, inlined, variable." |row| at(row, "/kind");
    "address" usual "Where it is." |row| at(row, "/address");
    "module" usual "File that has it." |row| at(row, "/module");
    "line" more "File and line that declare it." |row| at(row, "/line");
    "name" usual "Its name." |row| at(row, "/name");
}

columns! {
    /// `threads`.
    THREADS:
    "tid" usual "Thread id." |row| at(row, "/tid");
    "state" usual "R: running, S and D: sleeping, T and t: stopped, Z: ended." |row| at(row, "/state");
    "name" usual "Its name." |row| at(row, "/name");
}

columns! {
    /// `stack`.
    STACK:
    "tid" usual "Thread id." |row| at(row, "/tid");
    "frame" usual "Number of the frame; 0 is the innermost." |row| at(row, "/frame");
    "address" usual "Where the frame goes on." |row| at(row, "/address");
    "function" usual "Function, and how far into it." |row| at(row, "/function");
    "line" usual "File and line." |row| at(row, "/line");
}

columns! {
    /// `group`.
    GROUP:
    "count" usual "How many elements have this value." |row| at(row, "/count");
    "value" usual "The value." |row| at(row, "/value");
}

columns! {
    /// `walkers` and `views`.
    DEFINITIONS:
    "name" usual "Name of the walker." |row| at(row, "/name");
    "type" usual "The types that it is for; letters stand for any arguments." |row| at(row, "/type");
}

/// Their commands.
pub(crate) const TABLES: [(&str, &[Column]); 7] = [
    ("inspect maps", MAPS),
    ("inspect modules", MODULES),
    ("inspect symbols", SYMBOLS),
    ("inspect threads", THREADS),
    ("inspect stack", STACK),
    ("inspect group", GROUP),
    ("inspect walkers", DEFINITIONS),
];
