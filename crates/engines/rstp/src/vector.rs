//! What bridges compare: identifiers, priority vectors (IEEE 802.1D-2004, 17.5 and 17.6) and times (17.18).

use std::fmt;

use serde::{Deserialize, Serialize};

/// A bridge identifier (9.2.5): priority in the upper 16 bits, address in the lower 48. The smaller is the better.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct BridgeId(pub u64);

impl BridgeId {
    /// The identifier of a bridge with this priority (a multiple of 4,096) and address.
    pub const fn new(priority: u16, address: [u8; 6]) -> BridgeId {
        let [a, b, c, d, e, f] = address;
        let [p, q] = (priority & 0xf000).to_be_bytes();
        BridgeId(u64::from_be_bytes([p, q, a, b, c, d, e, f]))
    }

    /// The priority, with the system id extension that other bridges may have in it.
    pub const fn priority(self) -> u16 {
        (self.0 >> 48) as u16
    }

    /// The address.
    pub const fn address(self) -> [u8; 6] {
        let [_, _, a, b, c, d, e, f] = self.0.to_be_bytes();
        [a, b, c, d, e, f]
    }
}

impl fmt::Display for BridgeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.address();
        let priority = self.priority();
        write!(
            f,
            "{priority:04x}.{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}"
        )
    }
}

impl fmt::Debug for BridgeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A port identifier (9.2.7): priority in the upper 4 bits, number in the lower 12. The smaller is the better.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Serialize, Deserialize,
)]
pub struct PortId(pub u16);

impl PortId {
    /// The highest number of a port.
    pub const NUMBER_MAX: u16 = 0x0fff;

    /// The identifier of a port with this priority (a multiple of 16) and number (1 to 4,095).
    pub const fn new(priority: u8, number: u16) -> PortId {
        PortId(((priority & 0xf0) as u16) << 8 | number & PortId::NUMBER_MAX)
    }

    /// The priority.
    pub const fn priority(self) -> u8 {
        ((self.0 >> 8) & 0xf0) as u8
    }

    /// The number.
    pub const fn number(self) -> u16 {
        self.0 & PortId::NUMBER_MAX
    }
}

/// A priority vector without the receiving port (17.5). The smaller is the better: fields are in the order of comparison.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug, Serialize, Deserialize)]
pub struct PriorityVector {
    /// The root.
    pub root: BridgeId,
    /// What the way to the root costs.
    pub cost: u32,
    /// The bridge that says so.
    pub bridge: BridgeId,
    /// The port on which it says so.
    pub port: PortId,
}

impl PriorityVector {
    /// Whether a received vector takes the place of the one that is held (17.6): it is better, or it is another one of the same
    /// designated port.
    pub fn supersedes(&self, held: &PriorityVector) -> bool {
        let same_port = self.bridge.address() == held.bridge.address()
            && self.port.number() == held.port.number();
        self < held || (self != held && same_port)
    }
}

/// Times that bridges tell each other (17.18), in 1/256 s as on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Times {
    /// How old what is said is.
    pub message_age: u16,
    /// How old it may become.
    pub max_age: u16,
    /// Time from one hello to the next.
    pub hello: u16,
    /// Time in each of the states before forwarding, where nobody agrees.
    pub forward_delay: u16,
}

/// One second of [`Times`].
pub const SECOND_256: u16 = 256;

/// Whole seconds as 1/256 s.
const fn seconds(s: u8) -> u16 {
    (s as u16).saturating_mul(SECOND_256)
}

/// 1/256 s as nanoseconds.
pub(crate) const fn ns(time: u16) -> u64 {
    (time as u64).saturating_mul(1_000_000_000 / 256)
}

impl Times {
    /// The times of a root, in whole seconds.
    pub const fn of_root(max_age_s: u8, hello_s: u8, forward_delay_s: u8) -> Times {
        Times {
            message_age: 0,
            max_age: seconds(max_age_s),
            hello: seconds(hello_s),
            forward_delay: seconds(forward_delay_s),
        }
    }

    /// With every time forced into the limits of table 17-1: a peer that says "forward after 0 s" gets no loop for it.
    pub fn limited(self) -> Times {
        Times {
            message_age: self.message_age,
            max_age: self.max_age.clamp(seconds(6), seconds(40)),
            hello: self.hello.clamp(seconds(1), seconds(10)),
            forward_delay: self.forward_delay.clamp(seconds(4), seconds(30)),
        }
    }

    /// One hop older: the age plus 1 s, rounded to a whole second (17.21.23, 17.21.25).
    pub fn aged(self) -> Times {
        let age = self
            .message_age
            .saturating_add(SECOND_256)
            .saturating_add(SECOND_256 / 2);
        Times {
            message_age: age & !(SECOND_256 - 1),
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Priority counts before address, and neither leaks into the other.
    #[test]
    fn identifiers() {
        let low = BridgeId::new(4096, [0xff; 6]);
        let high = BridgeId::new(8192, [0; 6]);
        assert!(low < high && low.priority() == 4096 && low.address() == [0xff; 6]);
        assert_eq!(high.to_string(), "2000.00:00:00:00:00:00");
        let port = PortId::new(0x8f, 0xffff);
        assert_eq!((port.0, port.number()), (0x8fff, 0xfff));
    }

    /// Each field counts before the next; a worse vector of the same designated port supersedes, one of another port does not.
    #[test]
    fn vectors() {
        let v = |root, cost, bridge, port| PriorityVector {
            root: BridgeId(root),
            cost,
            bridge: BridgeId(bridge),
            port: PortId(port),
        };
        assert!(v(1, 9, 9, 9) < v(2, 0, 0, 0) && v(1, 1, 9, 9) < v(1, 2, 0, 0));
        assert!(v(1, 1, 1, 9) < v(1, 1, 2, 0) && v(1, 1, 1, 1) < v(1, 1, 1, 2));
        assert!(v(2, 0, 7, 1).supersedes(&v(1, 0, 7, 1)));
        assert!(!v(2, 0, 7, 2).supersedes(&v(1, 0, 7, 1)));
        assert!(!v(1, 0, 7, 1).supersedes(&v(1, 0, 7, 1)));
    }

    /// An age grows by a second at each hop, whatever fraction it had, and does not overflow.
    #[test]
    fn ages() {
        let at = |message_age| Times {
            message_age,
            ..Times::default()
        };
        for (before, after) in [(0, 256), (1, 256), (127, 256), (128, 512), (256, 512)] {
            assert_eq!(at(before).aged().message_age, after);
        }
        assert!(at(u16::MAX).aged().message_age > at(60_000).aged().message_age);
    }
}
