//! What must hold for every input of the wire crate. The fuzz target and the tests both call it.

use windlass_wire::parse::HEADERS_MAX;
use windlass_wire::segment::{Gso, Plan};
use windlass_wire::{Fault, Layers, Tci, checksum, parse, tag};

/// Runs everything that takes foreign bytes on `data`, and panics where an invariant breaks. The
/// first two bytes say how much of the rest is "private"; the rest is the frame.
pub fn check(data: &[u8]) {
    let Some((head, frame)) = data.split_first_chunk::<2>() else {
        return;
    };
    let have = usize::from(u16::from_le_bytes(*head)).min(frame.len());
    let len = frame.len() as u32;
    let whole = parse(frame, len);
    layers(frame.len(), len, &whole);
    assert_eq!(whole.need, 0, "nothing is missing");
    // Bytes beyond the frame's length do not count, and a claim of more is no licence to read.
    let cut = have as u32;
    layers(frame.len(), cut, &parse(frame, cut));
    assert_eq!(parse(frame, cut), parse(&frame[..have], cut));
    layers(have, u32::MAX, &parse(&frame[..have], u32::MAX));

    let mut given = have;
    let last = loop {
        let got = parse(&frame[..given], len);
        layers(given, len, &got);
        if got.need == 0 {
            break got;
        }
        assert!(usize::from(got.need) > given, "deepening makes progress");
        given = usize::from(got.need);
    };
    assert_eq!(
        last, whole,
        "the result does not depend on how much was given"
    );
    segments(frame, &whole, have as u16);
    rewriting(frame, have);
}

fn layers(have: usize, len: u32, got: &Layers) {
    assert!(
        got.headers() <= have.min(len as usize),
        "headers beyond the bytes: {got:?}"
    );
    assert!(got.end <= len, "packet beyond the frame: {got:?}");
    assert!(got.end == 0 || got.end as usize >= got.headers(), "{got:?}");
    assert!(got.need == 0 || got.fault == Fault::None, "{got:?}");
    assert!(got.need == 0 || usize::from(got.need) > have, "{got:?}");
    assert!(
        u32::from(got.need) <= len && usize::from(got.need) <= HEADERS_MAX,
        "{got:?}"
    );
    assert!(got.l3 == 0 || got.l2 != 0, "{got:?}");
    assert!(got.l4 == 0 || got.l3 != 0, "{got:?}");
}

/// Segments of whatever can be segmented cover the payload exactly.
fn segments(frame: &[u8], whole: &Layers, size: u16) {
    for kind in [Gso::Tcp4, Gso::Tcp6, Gso::UdpL4] {
        let Ok(plan) = Plan::new(frame, whole, kind, size) else {
            continue;
        };
        let mut out = [0; 256];
        let mut next = 0;
        for k in 0..plan.count() {
            let part = plan.header(k, &mut out).expect("planned segment");
            assert_eq!(part.from, next);
            assert!(part.len <= size && part.check_at < part.headers);
            next += u32::from(part.len);
        }
        assert_eq!(next, plan.payload());
        assert_eq!(plan.headers() as u32 + plan.payload(), whole.end);
        assert_eq!(plan.header(plan.count(), &mut out), None);
    }
}

/// Tags and checksum requests at any offset change nothing outside what they say.
fn rewriting(frame: &[u8], at: usize) {
    let mut room = frame.to_vec();
    if let Some(start) = tag::push(&mut room, at, 0x8100, Tci(7)) {
        let popped = (frame.len() >= at + 14).then_some((at, 0x8100, Tci(7)));
        assert_eq!(tag::pop(&mut room, start), popped);
        assert!(popped.is_none() || room[at..] == frame[at..]);
    } else {
        assert_eq!(room, frame);
    }
    let done = checksum::finish_in_place(&mut room, at, 16);
    assert_eq!(done, at + 18 <= frame.len());
}
