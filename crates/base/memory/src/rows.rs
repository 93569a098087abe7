//! Rows: words under a sequence number, with one writer each.

use core::sync::atomic::Ordering::{Relaxed, Release};

use crate::shim::{AtomicU64, fence};

/// What a field of a row is made of: a word, or an array of words.
pub trait Field: Sized {
    /// The field in shared memory.
    type Shared;
    /// Of a row that was never written.
    const NOTHING: Self;

    /// Nothing in it yet.
    #[cfg(test)]
    fn nothing() -> Self::Shared;

    /// Writes the field.
    fn store(self, shared: &Self::Shared);

    /// Reads the field from the front of some words. `None`: there are too few.
    fn load(words: &mut dyn Iterator<Item = u64>) -> Option<Self>;
}

impl Field for u64 {
    type Shared = AtomicU64;
    const NOTHING: Self = 0;

    #[cfg(test)]
    fn nothing() -> AtomicU64 {
        AtomicU64::new(0)
    }

    fn store(self, shared: &AtomicU64) {
        // A store takes the cache line from a processor that only looks at it.
        if shared.load(Relaxed) != self {
            shared.store(self, Relaxed);
        }
    }

    fn load(words: &mut dyn Iterator<Item = u64>) -> Option<Self> {
        words.next()
    }
}

impl<const N: usize> Field for [u64; N] {
    type Shared = [AtomicU64; N];
    const NOTHING: Self = [0; N];

    #[cfg(test)]
    fn nothing() -> [AtomicU64; N] {
        [const { AtomicU64::new(0) }; N]
    }

    fn store(self, shared: &[AtomicU64; N]) {
        for (to, word) in shared.iter().zip(self) {
            to.store(word, Relaxed);
        }
    }

    fn load(words: &mut dyn Iterator<Item = u64>) -> Option<Self> {
        let mut all = [0; N];
        for word in &mut all {
            *word = words.next()?;
        }
        Some(all)
    }
}

/// The number of a row's state: odd while its writer is at it.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Sequence(AtomicU64);

impl Sequence {
    /// Brackets the stores of the row's one writer: what the closure stores is seen whole or not at all.
    #[inline]
    pub fn write(&self, stores: impl FnOnce()) {
        let number = self.0.load(Relaxed) | 1;
        self.0.store(number, Relaxed);
        // The number is odd before any word changes.
        fence(Release);
        stores();
        self.0.store(number.wrapping_add(1), Release);
    }
}

/// Makes both forms of each row from one list of fields: the plain struct that a reader gets, and the shared one that a writer stores to.
macro_rules! rows {
    ($(
        $(#[$about:meta])*
        $plain:ident, $shared:ident {
            $($(#[$field_about:meta])* $field:ident: $kind:ty,)*
        }
    )*) => {$(
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct $plain {
            $($(#[$field_about])* pub $field: $kind,)*
        }

        impl $plain {
            /// What a row that was never written says.
            pub const NOTHING: Self = Self {
                $($field: <$kind as $crate::rows::Field>::NOTHING,)*
            };
            /// Bytes of a row in the file: a sequence number, then the fields.
            pub const LEN: usize = size_of::<$shared>();

            /// Reads a row from its bytes. `None`: they are too few, or its writer was at it. Two equal copies that were read one after
            /// the other are whole.
            pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
                let (words, _) = bytes.as_chunks::<8>();
                let mut words = words.iter().map(|word| u64::from_le_bytes(*word));
                words.next().filter(|number| number.is_multiple_of(2))?;
                Some(Self { $($field: $crate::rows::Field::load(&mut words)?,)* })
            }
        }

        #[doc = concat!("[`", stringify!($plain), "`] in the file. Its writer stores to it inside [`Sequence::write`](crate::Sequence::write).")]
        #[derive(Debug)]
        #[repr(C)]
        pub struct $shared {
            /// The row's state.
            pub sequence: $crate::rows::Sequence,
            $($(#[$field_about])* pub $field: <$kind as $crate::rows::Field>::Shared,)*
        }

        impl $shared {
            /// A row that was never written.
            #[cfg(test)]
            pub fn nothing() -> Self {
                Self {
                    sequence: Default::default(),
                    $($field: <$kind as $crate::rows::Field>::nothing(),)*
                }
            }

            /// Stores all of it.
            pub fn set(&self, row: &$plain) {
                self.sequence.write(|| {
                    $($crate::rows::Field::store(row.$field, &self.$field);)*
                });
            }
        }
    )*};
}
pub(crate) use rows;
