//! `windlass memory`

pub(crate) mod regions;
