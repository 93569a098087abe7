//! Which allocations are samples: on average one in [`MEAN`] bytes, with exponential intervals, so that each byte is as likely as any other.

use core::f64::consts::LN_2;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bytes between two samples, on average.
const MEAN: f64 = (512 << 10) as f64;

/// Samples so far.
static TAKEN: AtomicU64 = AtomicU64::new(0);
static STATE: AtomicU64 = AtomicU64::new(0);

/// Random bits: SplitMix64.
fn random() -> u64 {
    let add = 0x9e37_79b9_7f4a_7c15;
    let mut mixed = STATE.fetch_add(add, Relaxed).wrapping_add(add);
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

/// Minus the natural logarithm of a number above 0 and at most 1, given in parts of 2^53.
fn minus_ln(parts: u64) -> f64 {
    let parts = parts as f64;
    // A floating-point number says its own logarithm: the exponent, and 1 to 2 by the series of ln((1 + y) / (1 - y)).
    let bits = parts.to_bits();
    let exponent = (bits >> 52) as f64 - 1023.0;
    let mantissa = f64::from_bits((bits & ((1 << 52) - 1)) | (1023 << 52));
    let y = (mantissa - 1.0) / (mantissa + 1.0);
    let square = y * y;
    let ln = 2.0 * y * (1.0 + square * (1.0 / 3.0 + square * (0.2 + square / 7.0)));
    (53.0 - exponent) * LN_2 - ln
}

/// Bytes until the next sample.
pub fn interval() -> isize {
    (minus_ln((random() >> 11) + 1) * MEAN) as isize
}

/// An allocation is a sample; it has units of its own.
pub fn taken(_address: usize, _bytes: usize) {
    TAKEN.fetch_add(1, Relaxed);
}
