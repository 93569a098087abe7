//! Whoever a firewall tells what it has to tell.

use std::sync::{Arc, Mutex};

use windlass_firewall::{Owner, Tell, Told};
use windlass_frame::RxId;

/// The guest's address.
const MAC: [u8; 6] = [2; 6];
/// What it has room for.
pub const ROOM: usize = 1_000;

/// What was told.
#[derive(Debug, Default)]
pub struct Heard(pub Mutex<Vec<Told>>);

impl Tell for Heard {
    fn tell(&self, told: Told) -> bool {
        let mut all = self.0.lock().expect("no panic");
        let has_room = all.len() < ROOM;
        if has_room {
            all.push(told);
        }
        has_room
    }
}

/// A member that tells it.
pub fn owner(heard: &Arc<Heard>) -> Owner {
    let [a, b, c, d, e, f] = MAC;
    Owner {
        member: RxId(7),
        mac: u64::from_le_bytes([a, b, c, d, e, f, 0, 0]),
        tell: heard.clone(),
    }
}
