//! The forwarding table under those who want it to fail.

use windlass_bridge::fdb::{
    AddError, EntryFlags, Fdb, Grace, Key, Learned, Limits, NoReaders, Sighting, Tally,
};
use windlass_frame::Tick;

const START: Tick = Tick(5_000_000_000);
const MS: u64 = 1_000_000;

fn seen(mac: u64, member: u16) -> Sighting {
    Sighting {
        key: Key::new(1, mac),
        member,
        sticky: false,
    }
}

fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("statm");
    let pages = statm.split(' ').nth(1).expect("resident");
    pages.parse::<u64>().expect("number") * 4096
}

/// Ten million addresses from one member: none of the 1,000 entries of ten other members goes, newcomers of those still
/// get in, the table stays within its limit, and memory does not grow.
#[test]
fn ten_million_sources_harm_only_their_own_member() {
    let limits = Limits::new(16_384, [11, 13]);
    let (fdb, mut writer) = Fdb::new(limits, NoReaders);
    let mut honest: Vec<Sighting> = (0..1000)
        .map(|i| seen(0xaa00 + i, 1 + (i % 10) as u16))
        .collect();
    for &s in &honest {
        assert_eq!(writer.learn(s, START), Learned::New);
    }
    let before = resident_bytes();
    for i in 0..10_000_000_u64 {
        let now = START.plus(i * 10_000);
        writer.learn(seen(1 << 40 | i, 0), now);
        if i % 100_000 == 0 {
            let late = seen(0xbb_0000 + i, 5);
            assert_eq!(writer.learn(late, now), Learned::New, "at {i}");
            honest.push(late);
        }
    }
    let now = fdb.at(START.plus(100_000_000_000));
    for s in &honest {
        assert_eq!(fdb.lookup(s.key, now).map(|h| h.member), Some(s.member));
    }
    assert!(writer.len() <= limits.entries);
    assert!(resident_bytes() < before + (1 << 20), "memory grew");
    let c = fdb.counts();
    assert_eq!(
        c.learned + c.refused_bridge,
        10_000_000 + honest.len() as u64
    );
    assert!(c.evicted > 1_000_000, "{c:?}");
}

/// A table filled to its limit by many members still takes entries of a member that has few, at the cost of those that
/// have many, and shares are about equal in the end.
#[test]
fn shares_become_fair() {
    let (fdb, mut writer) = Fdb::new(Limits::new(4000, [1, 2]), NoReaders);
    for i in 0..4000 {
        writer.learn(seen(i, 0), START);
    }
    for i in 0..40_000 {
        writer.learn(seen(1 << 20 | i, 1 + (i % 3) as u16), START);
    }
    for member in 0..4 {
        let (learned, _) = writer.member_len(member);
        assert!(
            (900..=1100).contains(&learned),
            "member {member} has {learned}"
        );
    }
    assert!(writer.len() <= 4000);
    assert!(fdb.counts().evicted > 0);
}

/// The table takes as many entries as it was made for, at its load of up to 75 %, without
/// evicting anyone, whatever pattern the addresses have.
#[test]
fn holds_what_it_was_made_for() {
    for (entries, shift) in [
        (49_152, 0),
        (49_152, 8),
        (49_152, 24),
        (393_216, 16),
        (12, 0),
    ] {
        let (fdb, mut writer) = Fdb::new(Limits::new(entries, [99, 1 << 60]), NoReaders);
        let entries = u64::from(entries);
        for i in 0..entries {
            assert_eq!(
                writer.learn(seen(i << shift, 0), START),
                Learned::New,
                "{i} of {entries}"
            );
        }
        let c = fdb.counts();
        assert_eq!(
            c.evicted, 0,
            "{entries} entries, addresses shifted by {shift}: {c:?}"
        );
        let at = fdb.at(START);
        assert!((0..entries).all(|i| fdb.lookup(Key::new(1, i << shift), at).is_some()));
        if entries > 12 {
            assert_eq!(entries * 4, fdb.slots() as u64 * 3, "the load is 75 %");
        }
    }
}

/// An address that flaps between two members at full rate moves 1,000 times each, then 40 times a
/// second each; other members' moves are not held up.
#[test]
fn flapping_is_damped() {
    let (fdb, mut writer) = Fdb::new(Limits::new(1000, [5, 5]), NoReaders);
    for i in 0..200_000_u64 {
        writer.learn(seen(7, (i & 1) as u16), START.plus(i));
    }
    let moved = fdb.counts().moved;
    assert!((1999..=2001).contains(&moved), "{moved}");
    assert!(fdb.counts().refused_damped > 95_000);
    for i in 0..100_000_u64 {
        writer.learn(seen(7, (i & 1) as u16), START.plus(i * 100_000));
    }
    let more = fdb.counts().moved - moved;
    assert!((700..=820).contains(&more), "{more} moves in 10 s");
    writer.learn(seen(8, 4), START);
    assert_eq!(writer.learn(seen(8, 5), START), Learned::Moved);
}

/// Static and sticky entries do not move, age, or go under pressure; a sticky member cannot fill
/// more than a quarter of the table with entries that stay.
#[test]
fn fixed_entries_stay() {
    let (fdb, mut writer) = Fdb::new(Limits::new(1000, [5, 6]), NoReaders);
    writer
        .add_fixed(Key::new(1, 1), 3, EntryFlags::STATIC, START)
        .expect("room");
    assert_eq!(writer.learn(seen(1, 4), START), Learned::Fixed);
    let sticky = |mac| Sighting {
        key: Key::new(1, mac),
        member: 2,
        sticky: true,
    };
    let kept = (100..10_000)
        .filter(|&m| writer.learn(sticky(m), START) == Learned::New)
        .count();
    assert_eq!(kept, 250);
    assert_eq!(writer.learn(seen(100, 4), START), Learned::Fixed);
    for i in 0..100_000 {
        writer.learn(seen(1 << 30 | i, 0), START);
    }
    let late = START.plus(400_000 * MS);
    writer.sweep(late, usize::MAX);
    let at = fdb.at(late);
    assert_eq!(fdb.lookup(Key::new(1, 1), at).map(|h| h.member), Some(3));
    assert_eq!(fdb.lookup(Key::new(1, 100), at).map(|h| h.member), Some(2));
    assert_eq!(writer.len(), 251, "all that was learned has aged");
}

/// A learned entry gives way to a static one wherever it stands: a small table that is full of learned entries takes as
/// many static ones as it has places, and refuses the one beyond.
#[test]
fn learned_entries_give_way() {
    for seed in 0..200 {
        let (_, mut writer) = Fdb::new(Limits::new(16, [seed, 7]), NoReaders);
        for mac in 0..16 {
            writer.learn(seen(0x200 + mac, 0), START);
        }
        for mac in 0..16 {
            let key = Key::new(0, 0x10_0000 + mac);
            let done = writer.add_fixed(key, 1, EntryFlags::STATIC, START);
            assert!(done.is_ok(), "seed {seed}, entry {mac}: {done:?}");
        }
        let beyond = writer.add_fixed(Key::new(0, 0x20_0000), 1, EntryFlags::STATIC, START);
        assert!(matches!(beyond, Err(AddError::Full)), "{beyond:?}");
    }
}

/// A table full of fixed entries says so, and a member beyond the limits is refused.
#[test]
fn configuration_has_limits_too() {
    let (_, mut writer) = Fdb::new(Limits::new(16, [5, 6]), NoReaders);
    let mut added = 0;
    let refusal = (0..1000).find_map(|i| {
        let result = writer.add_fixed(Key::new(1, i), 0, EntryFlags::STATIC, START);
        added += u32::from(result.is_ok());
        result.err()
    });
    assert_eq!((refusal, added), (Some(AddError::Full), 16));
    let beyond = writer.add_fixed(Key::new(1, 1), 9999, EntryFlags::STATIC, START);
    assert_eq!(beyond, Err(AddError::NoSuchMember(9999)));
}

/// After an idle time in which ages wrapped, no old entry comes back to life, for readers at once
/// and for the writer from its first call.
#[test]
fn a_long_idle_time_revives_nothing() {
    let mut limits = Limits::new(1000, [5, 6]);
    limits.ageing_ms = 16_000;
    let (fdb, mut writer) = Fdb::new(limits, NoReaders);
    writer.learn(seen(1, 1), START);
    for ticks in [17, 199, 201, 239, 240, 250, 256, 260, 512, 100_000] {
        let later = START.plus(ticks * 1000 * MS);
        assert_eq!(
            fdb.lookup(Key::new(1, 1), fdb.at(later)),
            None,
            "{ticks} ticks"
        );
    }
    let later = START.plus(256_000 * MS);
    assert_eq!(writer.learn(seen(2, 2), later), Learned::New);
    assert_eq!(fdb.lookup(Key::new(1, 1), fdb.at(later)), None);
    assert!(fdb.lookup(Key::new(1, 2), fdb.at(later)).is_some());
}

/// Another ageing time revives no entry that has expired and was not swept yet.
#[test]
fn another_ageing_time_revives_nothing() {
    let mut limits = Limits::new(1000, [5, 6]);
    limits.ageing_ms = 1000;
    let (fdb, mut writer) = Fdb::new(limits, NoReaders);
    writer.learn(seen(1, 1), START);
    let later = START.plus(1100 * MS);
    writer.learn(seen(2, 2), later);
    let known = |mac: u64| fdb.lookup(Key::new(1, mac), fdb.at(later)).is_some();
    assert_eq!([known(1), known(2)], [false, true]);
    for ageing_ms in [300_000, 0, 16_000] {
        writer.set_ageing(ageing_ms, later);
        assert_eq!([known(1), known(2)], [false, true], "{ageing_ms} ms");
    }
    assert_eq!(writer.len(), 1);
}

/// Many thousand flushes never revive a flushed entry nor kill a live one: stamps wrap unnoticed.
#[test]
fn stamps_wrap_unnoticed() {
    let (fdb, mut writer) = Fdb::new(Limits::new(64, [5, 6]), NoReaders);
    writer.learn(seen(1, 1), START);
    writer
        .add_fixed(Key::new(1, 2), 2, EntryFlags::STATIC, START)
        .expect("room");
    for i in 0..20_000_u64 {
        writer.learn(seen(100 + i, 3), START);
        writer.flush_member(3, false);
        let at = fdb.at(START);
        assert!(
            fdb.lookup(Key::new(1, 100 + i), at).is_none(),
            "flush {i} failed"
        );
        assert!(
            fdb.lookup(Key::new(1, 100 + i / 2), at).is_none(),
            "revived at {i}"
        );
        assert!(fdb.lookup(Key::new(1, 1), at).is_some(), "killed at {i}");
        assert!(
            fdb.lookup(Key::new(1, 2), at).is_some(),
            "static killed at {i}"
        );
    }
    assert_eq!(writer.len(), 2);
}

/// Grace periods that end only when the test says so.
#[derive(Default)]
struct Manual {
    taken: u64,
    over: u64,
}

impl Grace for Manual {
    fn ticket(&mut self) -> u64 {
        self.taken += 1;
        self.taken
    }
    fn is_over(&self, ticket: u64) -> bool {
        ticket <= self.over
    }
}

/// While no grace period ends, no erased slot is used again: newcomers wait, present entries stay
/// findable; once it ends they get in.
#[test]
fn erased_slots_rest() {
    let (fdb, mut writer) = Fdb::new(Limits::new(24, [5, 6]), Manual::default());
    let at = fdb.at(START);
    let present: Vec<u64> = (0..24)
        .filter(|&i| writer.learn(seen(i, 0), START) == Learned::New)
        .collect();
    for &i in &present {
        assert!(fdb.lookup(Key::new(1, i), at).is_some());
        assert!(writer.delete(Key::new(1, i)));
    }
    assert!(writer.is_empty());
    let slots = fdb.slots() as u64;
    let got: Vec<u64> = (100..200)
        .filter(|&i| writer.learn(seen(i, 0), START) == Learned::New)
        .collect();
    assert!(
        got.len() as u64 <= slots - present.len() as u64,
        "a resting slot was used"
    );
    writer.grace_mut().over = u64::MAX;
    let mut more = 0;
    for i in 200..300 {
        more += u64::from(writer.learn(seen(i, 1), START) == Learned::New);
    }
    assert!(more > 0 && writer.len() <= 24);
}

/// Entries of several members, in two tables, count in one tally, which refuses more than it has and gets back what is moved,
/// deleted, flushed, or gone with its table.
#[test]
fn members_count_together() {
    let tally = Tally::new(10);
    let (_one, mut one) = Fdb::new(Limits::new(256, [1, 2]), NoReaders);
    let (_two, mut two) = Fdb::new(Limits::new(256, [3, 4]), NoReaders);
    one.learn(seen(0xa0, 1), START);
    one.set_member_tally(1, Some(tally.clone()));
    two.set_member_tally(2, Some(tally.clone()));
    assert_eq!(tally.used(), 1, "what was learned before counts");
    for mac in 1..10 {
        assert_eq!(one.learn(seen(mac, 1), START), Learned::New);
    }
    assert_eq!(two.learn(seen(0xb0, 2), START), Learned::MemberLimit);
    assert_eq!(
        two.learn(seen(0xc0, 3), START),
        Learned::New,
        "another owner"
    );
    assert!(one.delete(Key::new(1, 1)));
    assert_eq!(one.learn(seen(2, 3), START), Learned::Moved);
    assert_eq!(tally.used(), 8);
    assert_eq!(two.learn(seen(0xb0, 2), START), Learned::New);
    one.flush_member(1, false);
    assert_eq!(tally.used(), 1);
    one.learn(seen(0xa1, 1), START);
    assert_eq!(tally.used(), 2);
    one.set_member_tally(1, None);
    assert_eq!(tally.used(), 1);
    drop(two);
    assert_eq!((tally.used(), tally.is_shared()), (0, false));
}
