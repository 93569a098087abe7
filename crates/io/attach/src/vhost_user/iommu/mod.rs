//! A guest behind an IOMMU (`VIRTIO_F_ACCESS_PLATFORM`): every address is one that only its front end can translate.
//!
//! # Where it sits
//! ```text
//!  rings      the halves that workers use: those of any other guest, made anew when translations change
//!      |
//!  gate       what workers and session share: translations as a whole, visits, what lacks
//!      |
//!  platform   the session's side: what the front end is asked, and has told
//!      |
//!  iotlb      the translations themselves
//! ```

mod gate;
mod iotlb;
mod platform;
mod rings;

pub(super) use gate::{Shared, Visits};
pub use platform::IotlbError;
pub(super) use platform::{Follow, Platform};
pub(super) use rings::{IommuRx, IommuTx, Plan, ProgressOf};
