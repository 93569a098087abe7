#![no_std]
#![forbid(unsafe_code)]
//! What the allocator and the programs around it share.
//!
//! # Purpose
//! The allocator `libwindlass_alloc.so` cannot be linked into another program: its malloc would replace that program's. Tables that both need
//! live here.
//!
//! # Model
//! [`options`]: the words of the environment, from which the allocator's parser and the manual page are made.

pub mod options;
