//! Readers beside the writer.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use windlass_bridge::fdb::{EntryFlags, Fdb, Grace, Key, Learned, Limits, Sighting};
use windlass_frame::Tick;

const START: Tick = Tick(5_000_000_000);

/// Grace periods of one reader that announces the end of each of its visits.
struct OneReader<'a> {
    global: &'a AtomicU64,
    reader: &'a AtomicU64,
}

impl Grace for OneReader<'_> {
    fn ticket(&mut self) -> u64 {
        self.global.fetch_add(1, Ordering::SeqCst) + 1
    }
    fn is_over(&self, ticket: u64) -> bool {
        self.reader.load(Ordering::SeqCst) >= ticket
    }
}

/// While the writer fills, displaces, evicts and deletes at a high load, a reader always finds the
/// entries that are never removed (they are moved), and always behind the member that its address tells.
#[test]
fn a_present_key_is_never_missed_nor_mistaken() {
    let (global, at_reader) = (AtomicU64::new(1), AtomicU64::new(1));
    let done = AtomicBool::new(false);
    let mut limits = Limits::new(96, [21, 22]);
    limits.members = 64;
    let grace = OneReader {
        global: &global,
        reader: &at_reader,
    };
    let (fdb, mut writer) = Fdb::new(limits, grace);
    let member_of = |mac: u64| (mac % 61) as u16;
    let kept: Vec<u64> = (0..40).collect();
    for &mac in &kept {
        let key = Key::new(1, mac);
        writer
            .add_fixed(key, member_of(mac), EntryFlags::STATIC, START)
            .expect("room");
    }
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let (mut rounds, mut found) = (0_u64, 0_u64);
            while !done.load(Ordering::Relaxed) || rounds < 1000 {
                let at = fdb.at(START);
                for &mac in &kept {
                    let Some(hit) = fdb.lookup(Key::new(1, mac), at) else {
                        panic!("present key {mac} was missed: {:?}", fdb.counts());
                    };
                    assert_eq!(hit.member, member_of(mac));
                }
                for mac in 1000..1100 {
                    if let Some(hit) = fdb.lookup(Key::new(1, mac), at) {
                        assert_eq!(hit.member, member_of(mac), "a stranger's value");
                        found += 1;
                    }
                }
                rounds += 1;
                at_reader.store(global.load(Ordering::SeqCst), Ordering::SeqCst);
            }
            at_reader.store(u64::MAX, Ordering::SeqCst);
            found
        });
        let mut state = 1_u64;
        while fdb.counts().learned < 20_000 && !reader.is_finished() {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let mac = 1000 + (state >> 33) % 100;
            let key = Key::new(1, mac);
            if state >> 63 == 0 && writer.len() < 90 {
                let s = Sighting {
                    key,
                    member: member_of(mac),
                    sticky: false,
                };
                if writer.learn(s, START) == Learned::Waiting {
                    std::thread::yield_now();
                }
            } else {
                writer.delete(key);
            }
        }
        done.store(true, Ordering::Relaxed);
        let found = reader.join().expect("reader");
        assert!(found > 0, "nothing learned was seen: {:?}", fdb.counts());
    });
    let c = fdb.counts();
    assert!(
        c.displaced > 0 && c.waiting > 0,
        "nothing was contended: {c:?}"
    );
}
