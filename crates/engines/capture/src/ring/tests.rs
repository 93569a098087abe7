use super::*;
use std::os::fd::AsFd;
use windlass_sync::qsbr::Domain;

const SHAPE: Shape = Shape {
    workers: 2,
    ring_bytes: 64 << 10,
};

fn ends() -> (Arc<Memory>, [Writer; 2], Reader) {
    let (memory, fd) = Memory::create(SHAPE).expect("memory");
    let reader = Reader::new(fd.as_fd(), SHAPE).expect("mapped");
    let writers = [0, 1].map(|worker| Writer::new(memory.clone(), worker));
    (memory, writers, reader)
}

fn head(number: u64, len: usize) -> Head {
    Head {
        port: (number % 7) as u16,
        way: if number.is_multiple_of(2) {
            Way::From
        } else {
            Way::To
        },
        reason: (number % 5) as u8,
        time_ns: number,
        len: len as u32,
    }
}

/// Records come out as they were pushed, however the ring wraps, in the order of their times over all rings, and cut at the snapshot.
#[test]
fn records_come_out_in_order() {
    let domain = Domain::new(1);
    let mut worker = domain.register();
    let section = worker.section();
    let (_memory, mut writers, mut reader) = ends();
    let (mut pushed, mut popped, mut got) = (0u64, 0u64, Vec::new());
    while popped < 20_000 {
        while pushed < popped + 60 {
            let bytes: Vec<u8> = (0..pushed % 1500).map(|b| (b + pushed) as u8).collect();
            let (first, rest) = bytes.split_at(bytes.len().min(128));
            let writer = &mut writers[(pushed % 3 % 2) as usize];
            let rest = rest.chunks(100).map(Foreign::private);
            let head = head(pushed, bytes.len());
            let place = writer.push(&section, head, 700, first, rest);
            assert!(place.is_some(), "{pushed}");
            let _ = writer.publish();
            pushed += 1;
        }
        for _ in 0..50 {
            let record = reader.next(&mut got).expect("a record");
            let len = (popped % 1500) as usize;
            assert_eq!(record, head(popped, len));
            let bytes = (0..popped % 1500).map(|b| (b + popped) as u8);
            assert!(got.iter().copied().eq(bytes.take(700)));
            popped += 1;
        }
    }
    assert_eq!(reader.counted().matched, pushed);
    assert_eq!(reader.counted().lost, 0);
}

/// A ring without room loses the record and counts it; room that was read is used again. A reason that is known later stands in the record.
#[test]
fn a_full_ring_loses_records() {
    let domain = Domain::new(1);
    let mut worker = domain.register();
    let section = worker.section();
    let (memory, [mut writer, _], mut reader) = ends();
    let push = |writer: &mut Writer| {
        let none = std::iter::empty();
        writer.push(&section, head(1, 1000), 1000, &[7; 1000], none)
    };
    let fitted = (0..100).filter(|_| push(&mut writer).is_some()).count();
    assert_eq!(fitted, 64);
    assert!(
        reader.next(&mut Vec::new()).is_none(),
        "nothing is published"
    );
    assert!(!writer.publish());
    assert_eq!(
        reader.counted(),
        Counted {
            matched: 100,
            lost: 36
        }
    );
    (0..64).for_each(|_| assert!(reader.next(&mut Vec::new()).is_some()));
    assert!(reader.next(&mut Vec::new()).is_none());
    let place = push(&mut writer).expect("room");
    writer.mark(place, 9);
    assert!(!writer.publish());
    assert_eq!(
        reader.next(&mut Vec::new()).map(|head| head.reason),
        Some(9)
    );
    memory.name(3, Kind::Uplink, "eth0");
    assert_eq!(reader.port(3), (Some(Kind::Uplink), "eth0".into()));
}

/// The reader is woken once for each time that it asked, and not put to sleep over records.
#[test]
fn who_sleeps_is_woken_once() {
    let domain = Domain::new(1);
    let mut worker = domain.register();
    let section = worker.section();
    let (_memory, [mut writer, mut other], mut reader) = ends();
    let push = |writer: &mut Writer| {
        let none = std::iter::empty();
        writer.push(&section, head(1, 60), 60, &[7; 60], none);
        writer.publish()
    };
    assert!(!push(&mut writer));
    assert!(!reader.sleeps());
    assert!(reader.next(&mut Vec::new()).is_some());
    assert!(reader.sleeps());
    assert!(push(&mut writer) && !push(&mut writer));
    assert!(push(&mut other) && !push(&mut other));
}

/// Whatever a reader writes into the memory, a writer stays inside its ring, and loses records at most; and whatever a
/// writer says, a reader comes to an end.
#[test]
fn nonsense_is_survived() {
    let domain = Domain::new(1);
    let mut worker = domain.register();
    let section = worker.section();
    let (memory, [mut writer, mut other], mut reader) = ends();
    let mut seed = 1u64;
    for round in 0..20_000u64 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let wild = match round % 4 {
            0 => seed,
            1 => u64::MAX - seed % 100,
            _ => writer.head.wrapping_sub(seed % (128 << 10)),
        };
        memory.mapping.store_u64(TAIL, wild, Ordering::Relaxed);
        let none = std::iter::empty();
        let len = (seed >> 33) as usize % 1500;
        writer.push(&section, head(round, len), 1500, &vec![1; len], none);
        let _ = writer.publish();
        let at = seed >> 7;
        let ring = memory.shape.rings() as u64 + at % u64::from(SHAPE.ring_bytes);
        memory.mapping.write(ring, &seed.to_le_bytes());
        let _ = reader.next(&mut Vec::new());
    }
    assert_eq!(reader.counted().matched, 20_000);
    // The neighbour's ring is untouched.
    let none = std::iter::empty();
    assert!(
        other
            .push(&section, head(3, 60), 60, &[7; 60], none)
            .is_some()
    );
}
