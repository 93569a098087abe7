//! What the table counts.

use windlass_sync::Counter;

macro_rules! counters {
    ($( $field:ident, $why:literal; )*) => {
        /// Counters of one table: written by its writer, read by anyone.
        #[derive(Debug, Default)]
        pub(super) struct Counters {
            $( pub(super) $field: Counter, )*
        }

        /// The counters of one table at one moment.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct FdbCounts {
            $( #[doc = $why] pub $field: u64, )*
            /// Sightings lost before they reached the writer: budget of a burst, or its queue full.
            pub lost: u64,
        }

        impl Counters {
            pub(super) fn read(&self, lost: u64) -> FdbCounts {
                FdbCounts { $( $field: self.$field.get(), )* lost }
            }
        }
    };
}

counters! {
    learned, "New addresses that were entered.";
    moved, "Addresses that moved to another member.";
    aged, "Entries removed because nothing was heard of them for the ageing time.";
    flushed, "Entries removed because their member was flushed.";
    evicted, "Entries removed to make room, from the member most over its share.";
    displaced, "Entries copied to their second bucket to make room.";
    refused_member, "New addresses refused because their member is at its limit.";
    refused_bridge, "New addresses refused because the table is full and no one else is over its share.";
    refused_damped, "Moves refused because their member moved addresses too often.";
    refused_fixed, "Moves refused because the address is static or sticky on another member.";
    waiting, "New addresses put off because an erased slot must rest; the next frame tries again.";
    flushes, "Flushes of a member or the table.";
}
