//! What holds whatever a bridge that answers for neighbours hears: used by the fuzz target `neigh` and by the tests that replay its corpus.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use windlass_frame::Tick;
use windlass_neigh::{BRIDGE_MAX, Neighbours, Outcome, PortConf, packet};
use windlass_wire::checksum::pseudo_v6;

const ETHERTYPES: [[u8; 2]; 2] = [[8, 6], [0x86, 0xdd]];

fn mac(n: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, n]
}

fn conf(flags: u8, n: u8) -> PortConf {
    let v6 = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, n.into());
    let fixed = [IpAddr::V4(Ipv4Addr::new(10, 0, 0, n)), IpAddr::V6(v6)];
    let fixed = fixed.into_iter().filter(|_| flags & 4 != 0);
    PortConf {
        suppress: flags & 1 == 0,
        is_host: flags & 2 == 0,
        is_private: flags & 8 != 0,
        mac: mac(n),
        fixed: fixed.map(|ip| (u16::from(flags & 1), ip)).collect(),
    }
}

/// A frame from one of a few senders; where it is neighbour discovery its length and checksum are right.
fn framed(from: u8, is_v6: bool, bytes: &[u8]) -> Vec<u8> {
    let kind = ETHERTYPES[usize::from(is_v6)];
    let mut frame = [&[0xff; 6], &mac(from)[..], &kind, bytes].concat();
    if is_v6
        && let Some((head, body)) = frame.get_mut(14..).and_then(|f| f.split_at_mut_checked(40))
    {
        let length = body.len() as u16;
        head[4..6].copy_from_slice(&length.to_be_bytes());
        (head[0], head[6], head[7]) = (0x60, 58, 255);
        if let Some(field) = body.get_mut(2..4) {
            field.fill(0);
            let ends = [8, 24].map(|at| head[at..].first_chunk().copied().unwrap_or([0; 16]));
            let mut sum = pseudo_v6(&ends[0], &ends[1], 58, length.into());
            sum.add_bytes(body);
            body[2..4].copy_from_slice(&sum.finish().to_be_bytes());
        }
    }
    frame
}

/// Takes `data` as a run of records, each what happens, where, after which pause, and bytes, and lets a bridge of a few ports hear them.
pub fn check(data: &[u8]) {
    let mut now = Tick(1_000_000_000);
    let mut engine = Neighbours::default();
    (1..4).for_each(|n| engine.set_port(n.into(), conf(0, n)));
    let mut rest = data;
    while let Some(([what, place, pause, length], tail)) = rest.split_first_chunk() {
        let (bytes, tail) = tail.split_at(tail.len().min(usize::from(*length)));
        rest = tail;
        now = now.plus(u64::from(*pause) * 1_000_000_000);
        engine.advance(now);
        let (port, from, vid) = (u16::from(place % 5), place >> 3 & 7, u16::from(place >> 7));
        match what % 8 {
            0 => hear(&mut engine, (port, vid), bytes, now),
            1 => engine.link_down(port),
            2 => engine.remove_port(port),
            3 => engine.set_port(port, conf(what >> 3, from)),
            kind => {
                let frame = framed(from, kind > 5, bytes);
                hear(&mut engine, (port, vid), &frame, now);
            }
        }
        engine.advance(now);
        assert!(
            engine.due().is_none_or(|due| due > now),
            "what is due is done"
        );
        assert!(engine.counts().0 <= BRIDGE_MAX + 2 * 5);
    }
    (0..5).for_each(|port| engine.remove_port(port));
    assert_eq!(
        (engine.counts().0, engine.due()),
        (0, None),
        "something is left"
    );
}

fn hear(engine: &mut Neighbours, (port, vid): (u16, u16), frame: &[u8], now: Tick) {
    let (_, before) = engine.counts();
    let outcome = engine.receive(port, vid, frame, now);
    let (_, after) = engine.counts();
    let is_answered = matches!(outcome, Outcome::Answer(_));
    assert_eq!(after.answered - before.answered, u64::from(is_answered));
    assert_eq!(after.passed - before.passed, u64::from(!is_answered));
    if let Outcome::Answer(answer) = outcome {
        let target = packet::parse(frame).and_then(|said| said.target);
        assert!(target.is_some(), "an answer without a question");
        // To the asker, or to all nodes.
        assert!(answer[..6] == frame[6..12] || answer[..2] == [0x33, 0x33]);
        assert_ne!(answer[..6], answer[6..12]);
    }
}
