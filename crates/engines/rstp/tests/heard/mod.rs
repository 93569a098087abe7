//! What holds whatever a bridge hears: used by the fuzz target `bpdu` and by the tests that replay its corpus.

use windlass_frame::Tick;
use windlass_rstp::bpdu;
use windlass_rstp::{Action, Bridge, BridgeConf, PortConf, Role, State};

/// Takes `data` as a run of records, each a port, a pause and the bytes of a frame behind its source address, and lets a bridge hear
/// them.
pub fn check(data: &[u8]) {
    let conf = BridgeConf {
        address: [2, 0, 0, 0, 0, 7],
        ..BridgeConf::default()
    };
    let mut now = Tick(1_000_000_000);
    let mut bridge = Bridge::new(conf, now);
    for number in 1..=3 {
        let port = PortConf {
            root_guard: number == 3,
            ..PortConf::default()
        };
        bridge.set_port(number, port, now);
        bridge.set_link(number, true, now);
    }
    let mut rest = data;
    while let Some(([port, pause, length], tail)) = rest.split_first_chunk() {
        let (body, tail) = tail.split_at(tail.len().min(usize::from(*length)));
        rest = tail;
        now = now.plus(u64::from(*pause) * 100_000_000);
        bridge.advance(now);
        let mut frame = bpdu::DESTINATION.to_vec();
        frame.extend([2, 0, 0, 0, 0, 9]);
        frame.extend(body);
        if let Ok(heard) = bpdu::parse(&frame) {
            assert_eq!(bpdu::parse(&heard.frame([2; 6])), Ok(heard));
            bridge.receive(u16::from(port % 4), heard, now);
        }
        holds(&mut bridge, now);
    }
}

fn holds(bridge: &mut Bridge, now: Tick) {
    assert!(bridge.due().is_some_and(|due| due.0 > now.0));
    assert!(
        bridge.root().root <= bridge.conf().id(),
        "a worse root than itself"
    );
    assert_ne!(bridge.root_port(), Some(3), "the root behind the guard");
    for port in bridge.ports() {
        let open = port.state != State::Discarding;
        assert!(!open || matches!(port.role, Role::Root | Role::Designated));
    }
    let mut sent = 0;
    for action in bridge.take_actions() {
        if let Action::Send(port, message) = action {
            sent += 1;
            assert!((1..=3).contains(&port));
            assert_eq!(bpdu::parse(&message.frame([2; 6])), Ok(message));
        }
    }
    assert!(sent <= 3 * 7, "{sent} BPDUs at once");
}
