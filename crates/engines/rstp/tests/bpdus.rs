//! BPDUs as bytes: what is written reads back, what is malformed is refused by name, and no bytes do harm.

mod heard;

use std::fs;
use std::path::Path;

use proptest::prelude::*;
use windlass_rstp::bpdu::{Bpdu, Config, Malformed, Rst, SaidRole, parse};
use windlass_rstp::vector::{BridgeId, PortId, PriorityVector, Times};

fn vector() -> impl Strategy<Value = PriorityVector> {
    any::<(u64, u32, u64, u16)>().prop_map(|(root, cost, bridge, port)| PriorityVector {
        root: BridgeId(root),
        cost,
        bridge: BridgeId(bridge),
        port: PortId(port),
    })
}

fn times() -> impl Strategy<Value = Times> {
    any::<[u16; 4]>().prop_map(|[message_age, max_age, hello, forward_delay]| Times {
        message_age,
        max_age,
        hello,
        forward_delay,
    })
}

fn bpdu() -> impl Strategy<Value = Bpdu> {
    let roles = [
        SaidRole::Unknown,
        SaidRole::AlternateOrBackup,
        SaidRole::Root,
        SaidRole::Designated,
    ];
    let rst = (vector(), times(), 0..4_usize, any::<[bool; 5]>());
    let rst = rst.prop_map(move |(vector, times, role, flags)| {
        let [topology_change, proposal, agreement, learning, forwarding] = flags;
        Bpdu::Rst(Rst {
            vector,
            times,
            role: roles[role],
            topology_change,
            proposal,
            agreement,
            learning,
            forwarding,
        })
    });
    let config = (vector(), times(), any::<[bool; 2]>());
    let config = config.prop_map(|(vector, times, flags)| {
        let [topology_change, topology_change_ack] = flags;
        Bpdu::Config(Config {
            vector,
            times,
            topology_change,
            topology_change_ack,
        })
    });
    prop_oneof![rst, config, Just(Bpdu::Tcn)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Every BPDU reads back from its frame, also with more bytes behind it; cut anywhere before its end it is refused.
    #[test]
    fn round_trip(bpdu in bpdu(), tail in 0..60_usize) {
        let mut frame = bpdu.frame([2; 6]);
        let length = 14 + usize::from(u16::from_be_bytes([frame[12], frame[13]]));
        frame.resize(frame.len() + tail, 0xa5);
        let read = parse(&frame);
        match bpdu {
            Bpdu::Config(c) if c.times.message_age >= c.times.max_age => {
                prop_assert_eq!(read, Err(Malformed::TooOld(c.times.message_age)));
            }
            _ => prop_assert_eq!(read, Ok(bpdu)),
        }
        for end in 0..length {
            prop_assert!(parse(&frame[..end]).is_err());
        }
    }

    /// Random bytes as frames: nothing that [`heard::check`] forbids.
    #[test]
    fn random_bytes(data in prop::collection::vec(any::<u8>(), 0..600)) {
        heard::check(&data);
    }

    /// BPDUs of any content at any time, with the bytes around them.
    #[test]
    fn random_bpdus(heard in prop::collection::vec((bpdu(), any::<(u8, u8)>()), 0..40)) {
        let mut data = Vec::new();
        for (bpdu, (port, pause)) in heard {
            let frame = bpdu.frame([2; 6]);
            data.extend([port, pause, (frame.len() - 12) as u8]);
            data.extend(&frame[12..]);
        }
        heard::check(&data);
    }
}

/// Each way of being malformed has its name.
#[test]
fn malformed() {
    let good = Bpdu::Tcn.frame([2; 6]);
    let changed = |at: usize, byte: u8| {
        let mut frame = good.clone();
        frame[at] = byte;
        parse(&frame)
    };
    assert_eq!(parse(&good), Ok(Bpdu::Tcn));
    assert_eq!(parse(&[]), Err(Malformed::Destination));
    assert_eq!(changed(5, 1), Err(Malformed::Destination));
    assert_eq!(parse(&good[..13]), Err(Malformed::Short(13)));
    assert_eq!(changed(12, 0x81), Err(Malformed::Length(0x8107)));
    assert_eq!(changed(13, 60), Err(Malformed::Length(60)));
    assert_eq!(changed(13, 6), Err(Malformed::Short(3)));
    assert_eq!(changed(14, 0xaa), Err(Malformed::Llc));
    assert_eq!(changed(18, 1), Err(Malformed::Protocol(1)));
    let kind = |kind, version| Err(Malformed::Type { kind, version });
    assert_eq!(changed(20, 0x03), kind(3, 0));
    // An RST BPDU of version 0 is none.
    assert_eq!(changed(20, 0x02), kind(2, 0));
    assert_eq!(changed(20, 0x00), Err(Malformed::Short(4)));
}

/// Every committed input keeps the invariants, whole and cut anywhere.
#[test]
fn corpus_replays() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus/bpdu");
    let files: Vec<_> = fs::read_dir(&dir).expect("the corpus").collect();
    assert!(files.len() >= 3, "only {} corpus files", files.len());
    for file in files {
        let data = fs::read(file.expect("an entry").path()).expect("a file");
        (0..=data.len()).for_each(|end| heard::check(&data[..end]));
    }
}
