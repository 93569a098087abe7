//! TODO

pub mod call;
pub mod record;
pub mod table;
