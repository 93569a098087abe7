//! Where everything is served: [`Placement`].
//!
//! # Model
//! | what | which worker |
//! | --- | --- |
//! | a bridge's forwarding table | its *home*, which alone writes it: at first by the bridge's number, then where it was moved |
//! | a receive ring | the one that polls it: at first round robin, then where it was moved |
//! | a bridge | its home, and each that polls a ring of one of its members |
//!
//! The control thread decides, and publishes a placement with each topology. It is the only statement of who serves what:
//! workers ask it for the home of a bridge whose addresses they see, the control thread for where to send what.
//!
//! A ring keeps its worker until its member goes: a peer that connects again finds its rings where they were, also where
//! they were moved to.

/// Which worker serves what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    workers: u16,
    /// By bridge; those beyond have never been moved.
    homes: Vec<u16>,
    /// By member, by ring.
    rings: Vec<Vec<u16>>,
    /// The worker of the next member's first ring.
    next: usize,
}

impl Default for Placement {
    fn default() -> Placement {
        Placement::new(1)
    }
}

impl Placement {
    /// Nothing is placed yet.
    pub fn new(workers: usize) -> Placement {
        Placement {
            workers: workers.clamp(1, usize::from(u16::MAX)) as u16,
            homes: Vec::new(),
            rings: Vec::new(),
            next: 0,
        }
    }

    /// How many workers there are.
    pub fn workers(&self) -> u16 {
        self.workers
    }

    /// The worker that writes a bridge's table.
    #[inline]
    pub fn home(&self, bridge: u16) -> u16 {
        let moved = self.homes.get(usize::from(bridge)).copied();
        moved.unwrap_or(bridge % self.workers)
    }

    /// The workers of a member's rings, those of former connections included.
    pub fn rings(&self, member: u16) -> &[u16] {
        self.rings
            .get(usize::from(member))
            .map_or(&[], Vec::as_slice)
    }

    /// Places as many rings of a member as it has now: those that were there before stay where they are.
    pub(crate) fn place(&mut self, member: u16, rings: usize) {
        let (workers, next) = (usize::from(self.workers), self.next);
        let placed = slot(&mut self.rings, member);
        // Several of one member go to the first workers, so that a ring's number says by which worker it is served.
        let start = if rings > 1 { 0 } else { next };
        if placed.is_empty() && rings > 0 {
            self.next = next.wrapping_add(1);
        }
        placed.extend((placed.len()..rings).map(|ring| ((start + ring) % workers) as u16));
    }

    /// A ring is another worker's now.
    pub(crate) fn move_ring(&mut self, member: u16, ring: usize, worker: u16) {
        if let Some(place) = slot(&mut self.rings, member).get_mut(ring) {
            *place = worker;
        }
    }

    /// A table is written by another worker now.
    pub(crate) fn move_home(&mut self, bridge: u16, worker: u16) {
        for at in self.homes.len()..=usize::from(bridge) {
            self.homes.push(at as u16 % self.workers);
        }
        if let Some(home) = self.homes.get_mut(usize::from(bridge)) {
            *home = worker;
        }
    }

    /// The member goes: its number may be another's.
    pub(crate) fn forget(&mut self, member: u16) {
        slot(&mut self.rings, member).clear();
    }

    /// A bridge goes.
    pub(crate) fn forget_bridge(&mut self, bridge: u16) {
        if usize::from(bridge) < self.homes.len() {
            self.move_home(bridge, bridge % self.workers);
        }
    }
}

fn slot(rings: &mut Vec<Vec<u16>>, member: u16) -> &mut Vec<u16> {
    let at = usize::from(member);
    if rings.len() <= at {
        rings.resize_with(at + 1, Vec::new);
    }
    &mut rings[at]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rings are spread over the workers, stay where they are when the peer comes again, also with more or fewer of them, and
    /// are placed anew for another member of the same number.
    #[test]
    fn rings_stay_where_they_are() {
        let mut placement = Placement::new(3);
        for member in 0..4 {
            placement.place(member, 1);
        }
        let of = |p: &Placement, member| p.rings(member).to_vec();
        assert_eq!(
            [0, 1, 2, 3].map(|m| of(&placement, m)),
            [[0], [1], [2], [0]]
        );
        placement.place(7, 4);
        assert_eq!(of(&placement, 7), [0, 1, 2, 0]);
        placement.move_ring(7, 1, 2);
        placement.move_ring(0, 0, 2);
        placement.move_ring(0, 1, 1);
        for rings in [0, 2, 4, 5] {
            placement.place(7, rings);
            placement.place(0, 1);
        }
        assert_eq!(of(&placement, 7), [0, 2, 2, 0, 1]);
        assert_eq!(of(&placement, 0), [2]);
        placement.forget(0);
        assert!(placement.rings(0).is_empty() && placement.rings(999).is_empty());
        placement.place(0, 1);
        assert_eq!(of(&placement, 0), [2], "after four and one");
    }

    /// A table's home is where it was moved to, until the bridge goes.
    #[test]
    fn homes_are_moved() {
        let mut placement = Placement::new(2);
        assert_eq!([0, 1, 2].map(|b| placement.home(b)), [0, 1, 0]);
        placement.move_home(2, 1);
        assert_eq!([0, 1, 2, 3].map(|b| placement.home(b)), [0, 1, 1, 1]);
        placement.forget_bridge(2);
        placement.forget_bridge(9);
        assert_eq!([0, 1, 2, 9].map(|b| placement.home(b)), [0, 1, 0, 1]);
    }
}
