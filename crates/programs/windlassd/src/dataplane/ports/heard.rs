//! What a member has sent to the addresses that end at a bridge (IEEE 802.1Q 8.6.3).
//!
//! Nothing in this daemon speaks these protocols; who looks for the reason why a neighbour's link does not come up, or who
//! in a guest runs a bridge, sees here that it was asked.

/// Protocols by the last byte of 01-80-C2-00-00-0x.
const NAMES: [&str; 16] = [
    "stp",
    "pause",
    "slow",
    "eapol",
    "04",
    "05",
    "06",
    "07",
    "provider-stp",
    "09",
    "0a",
    "0b",
    "0c",
    "mvrp",
    "lldp",
    "0f",
];

/// Frames of each protocol.
#[derive(Default)]
pub struct Heard([u64; NAMES.len()]);

impl Heard {
    /// Counts a frame to a reserved address.
    pub fn note(&mut self, frame: &[u8]) {
        let last = frame.get(5).map(|last| usize::from(*last));
        if let Some(count) = last.and_then(|last| self.0.get_mut(last)) {
            *count += 1;
        }
    }

    /// As `stp 12, lldp 3`; none while nothing was heard.
    pub fn describe(&self) -> Option<String> {
        let heard = NAMES.iter().zip(self.0).filter(|(_, n)| *n != 0);
        let heard: Vec<_> = heard.map(|(name, n)| format!("{name} {n}")).collect();
        (!heard.is_empty()).then(|| heard.join(", "))
    }
}
