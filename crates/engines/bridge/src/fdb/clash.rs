//! Sources that the table gives to another member for good.
//!
//! # Model
//! Such a frame is dropped, and the table stays as it is; but somebody should know. The first one is noted in one word,
//! and the control thread is called once; until it has taken the note, further ones cost a load each.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use super::{Key, MAC_MASK};

/// A member has sent from an address that another one has for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clash {
    /// The address.
    pub mac: [u8; 6],
    /// The member that sent from it.
    pub member: u16,
}

/// The first clash of a table that nobody has taken yet.
#[derive(Default)]
pub(super) struct Clashes {
    /// The address in the low 48 bits, the member above; 0: none.
    note: AtomicU64,
    notify: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl fmt::Debug for Clashes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clashes").finish_non_exhaustive()
    }
}

impl Clashes {
    /// Whom to call, on the thread that forwards; it must not wait. The first call of this counts.
    pub(super) fn watch(&self, notify: impl Fn() + Send + Sync + 'static) {
        let _ = self.notify.set(Box::new(notify));
    }

    /// Notes one. The address is not zero.
    #[cold]
    pub(super) fn note(&self, key: Key, member: u16) {
        let note = (key.0 & MAC_MASK) | u64::from(member) << 48;
        let is_first = self.note.load(Relaxed) == 0
            && (self.note)
                .compare_exchange(0, note, AcqRel, Relaxed)
                .is_ok();
        if is_first && let Some(notify) = self.notify.get() {
            notify();
        }
    }

    pub(super) fn is_noted(&self) -> bool {
        self.note.load(Acquire) != 0
    }

    pub(super) fn take(&self) -> Option<Clash> {
        let note = self.note.swap(0, AcqRel);
        (note != 0).then_some(Clash {
            mac: Key(note).octets(),
            member: (note >> 48) as u16,
        })
    }
}
