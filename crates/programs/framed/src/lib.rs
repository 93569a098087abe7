//! libwindlass: framed I/O.

pub mod capi;
mod conn;
mod device;
pub mod error;
mod fork;
pub mod frameio;
mod lend;
mod link;
mod ready;
mod rx;
mod turn;
mod tx;

pub use device::{Device, LINGER, LOG2_RING, Options, PATIENCE, Readiness};
pub use error::{Code, Error};
pub use frameio::{
    FRAME_MIN, FRAMEIO_NVECS_MAX, FRAMEIO_VERSION, FrameIo, FrameVec, ReadVec, WriteVec,
};
pub use lend::{Lent, Peeked, Reserved};
