//! What the writer must know of the readers: when the ones of a moment ago are done.

/// Tells when every reader that was looking at the table at some moment has finished its visit.
///
/// The writer takes a ticket when it erases a slot and lets another key use that slot only once the ticket is over.
pub trait Grace {
    /// A ticket for "now". Tickets start above 0 and never go down.
    fn ticket(&mut self) -> u64;

    /// Whether every visit that was under way when the ticket was taken has ended. Once true for a
    /// ticket, true for it and all earlier ones for ever.
    fn is_over(&self, ticket: u64) -> bool;
}

/// Nobody reads while the writer writes: one worker that applies its own sightings after its visit.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoReaders;

impl Grace for NoReaders {
    fn ticket(&mut self) -> u64 {
        1
    }

    fn is_over(&self, _ticket: u64) -> bool {
        true
    }
}

/// The 16 bits of a ticket that are kept beside an erased slot: 0 for a slot that never was used.
const MODULUS: u64 = 0xffff;

/// Packs a ticket.
pub(super) fn pack(ticket: u64) -> u16 {
    ((ticket % MODULUS) as u16).wrapping_add(1)
}

/// The latest ticket not above `newest` that packs to `packed`: the one that was packed or a later
/// one, never an earlier one, so that waiting for it is always enough. None if the slot is free.
pub(super) fn unpack(packed: u16, newest: u64) -> Option<u64> {
    let residue = u64::from(packed.checked_sub(1)?);
    let back = (newest % MODULUS)
        .wrapping_add(MODULUS)
        .wrapping_sub(residue)
        % MODULUS;
    Some(newest.saturating_sub(back))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A packed ticket is never read back as an earlier one, over several wraps.
    #[test]
    fn tickets_survive_packing() {
        assert_eq!(unpack(0, 5), None);
        for ticket in (1..300_000_u64).step_by(97) {
            for later in [0, 1, 7, 65_534, 65_535, 65_536, 200_001] {
                let back = unpack(pack(ticket), ticket + later).expect("packed");
                assert!(back >= ticket && back <= ticket + later);
                if later < MODULUS {
                    assert_eq!(back, ticket);
                }
            }
        }
    }
}
