//! From the kernel to a ring: which connections are worth it, and how both ends agree.

pub mod names;
pub mod promote;
