//! What a member may send and what it is sent: sources, properties, sizes, and the forwarding table.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use windlass_tests::{Daemon, Lab, Mac, Wire, frame, mac, until};

const A: &str = "02:00:00:00:00:0a";
const B: &str = "02:00:00:00:00:0b";
const C: &str = "02:00:00:00:00:0c";
const BEHIND: &str = "02:00:00:00:01:01";
const ALL: Mac = [0xff; 6];

/// Guests a, b and c, each with further words.
fn guests(lab: &Lab, words: [&str; 3]) -> (Daemon, [Wire; 3]) {
    let daemon = lab.daemon();
    daemon.must("bridge create br0");
    for ((guest, address), words) in [("a", A), ("b", B), ("c", C)].into_iter().zip(words) {
        lab.namespace(guest);
        let words = format!("--mac {address} {words}");
        daemon.tap(lab, &format!("{guest}0"), guest, "", &words);
    }
    let wires = ["a", "b", "c"].map(|guest| Wire::open(lab, guest, "eth0"));
    (daemon, wires)
}

fn texts(frames: &[windlass_tests::Frame]) -> Vec<String> {
    frames
        .iter()
        .filter_map(windlass_tests::Frame::text)
        .collect()
}

/// Waits until a member's drops for a reason have this number.
fn dropped(daemon: &Daemon, member: &str, reason: &str, count: u64) {
    until(
        &format!("{count} frames of {member} dropped as {reason}"),
        || daemon.drops(member, reason) == count,
    );
}

/// A source that is not the VNIC's own is dropped as `mac-spoof`, and taken with `mac-nospoof=off`, when
/// addresses behind the member are learned: frames for them go to it alone. Sources that nobody may have
/// (zero, multicast) are dropped as `bad-source` even then.
#[test]
fn sources_are_checked() {
    let Some(lab) = Lab::start("sources_are_checked") else {
        return;
    };
    let (daemon, [a, b, c]) = guests(&lab, ["", "", ""]);
    a.send(&frame(ALL, mac(BEHIND), &[], "never"));
    a.send(&frame(mac(B), mac(B), &[], "never"));
    dropped(&daemon, "a0", "mac-spoof", 2);
    assert!(!daemon.knows(BEHIND, "a0"));

    daemon.must("vnic set a0 mac-nospoof=off");
    a.send(&frame(ALL, mac(BEHIND), &[], "from behind"));
    until("it is learned", || daemon.knows(BEHIND, "a0"));
    b.send(&frame(mac(BEHIND), mac(B), &[], "to behind"));
    b.send(&frame(ALL, mac(B), &[], "end"));
    assert_eq!(texts(&a.frames_until("end")), ["to behind"]);
    assert_eq!(
        texts(&c.frames_until("end")),
        ["from behind"],
        "a learned address is not flooded"
    );
    for from in [[0; 6], [0x03, 0, 0, 0, 0, 1], ALL] {
        a.send(&frame(ALL, from, &[], "never"));
    }
    dropped(&daemon, "a0", "bad-source", 3);
    let seen = b.frames_during(Duration::from_millis(50));
    assert_eq!(texts(&seen), ["from behind"], "of all that a sent to all");
    assert!(
        daemon.must("fdb show br0").contains(B),
        "b keeps its own address"
    );
}

/// A locked member sends from its own address, and from those with a static entry; with mab the table lists who tried.
#[test]
fn a_locked_member_lets_in_whom_it_was_told() {
    let Some(lab) = Lab::start("a_locked_member_lets_in_whom_it_was_told") else {
        return;
    };
    let (daemon, [a, b, _]) = guests(&lab, ["", "", ""]);
    daemon.must("vnic set a0 mac-nospoof=off locked=on");
    a.send(&frame(ALL, mac(A), &[], "its own"));
    a.send(&frame(ALL, mac(BEHIND), &[], "never"));
    dropped(&daemon, "a0", "locked", 1);
    assert!(!daemon.knows(BEHIND, "a0"));
    daemon.must("vnic set a0 mab=on");
    a.send(&frame(ALL, mac(BEHIND), &[], "never"));
    until("it is listed", || daemon.knows(BEHIND, "a0"));
    let entries = daemon.json("fdb show br0");
    let entries = entries.as_array().expect("a list");
    let kinds: Vec<_> = entries
        .iter()
        .filter(|entry| entry["mac"] == BEHIND)
        .map(|entry| &entry["kind"])
        .collect();
    assert_eq!(kinds, ["locked"]);
    a.send(&frame(ALL, mac(BEHIND), &[], "never"));
    dropped(&daemon, "a0", "locked", 3);
    daemon.must(&format!("fdb add br0 {BEHIND} a0"));
    a.send(&frame(ALL, mac(BEHIND), &[], "let in"));
    a.send(&frame(ALL, mac(A), &[], "end"));
    assert_eq!(texts(&b.frames_until("end")), ["its own", "let in"]);
    daemon.must(&format!("fdb delete br0 {BEHIND}"));
    a.send(&frame(ALL, mac(BEHIND), &[], "never"));
    dropped(&daemon, "a0", "locked", 4);
    daemon.refuses(1, "vnic set a0 state=standby");
}

/// A change that ends what is known behind a member has ended it when it is answered: a question on the same connection finds
/// nothing, and what is learned afterwards stays.
#[test]
fn a_change_forgets_before_it_is_answered() {
    let Some(lab) = Lab::start("a_change_forgets_before_it_is_answered") else {
        return;
    };
    let (daemon, [a, ..]) = guests(&lab, ["", "", ""]);
    let body = r#"{"properties": {"mac-nospoof": true}}"#;
    let change = format!(
        "PATCH /v1/vnics/a0 HTTP/1.1\r\nHost: w\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let question = "GET /v1/bridges/br0/fdb HTTP/1.1\r\nHost: w\r\nConnection: close\r\n\r\n";
    for _ in 0..40 {
        daemon.must("vnic set a0 mac-nospoof=off");
        a.send(&frame(ALL, mac(BEHIND), &[], "from behind"));
        until("it is learned", || daemon.knows(BEHIND, "a0"));
        let mut socket = UnixStream::connect(daemon.socket()).expect("a socket");
        socket
            .write_all(format!("{change}{question}").as_bytes())
            .expect("asked");
        let mut answers = String::new();
        socket.read_to_string(&mut answers).expect("answers");
        assert_eq!(answers.matches("HTTP/1.1 200").count(), 2, "{answers}");
        assert!(
            answers.contains(B) && !answers.contains(BEHIND),
            "{answers}"
        );
    }
}

/// Private members exchange nothing with each other and everything with the rest; the drop is `private`.
#[test]
fn private_members() {
    let Some(lab) = Lab::start("private_members") else {
        return;
    };
    let (daemon, [a, b, c]) = guests(&lab, ["--set private=on", "--set private=on", ""]);
    a.send(&frame(mac(B), mac(A), &[], "never"));
    dropped(&daemon, "a0", "private", 1);
    a.send(&frame(ALL, mac(A), &[], "to all"));
    c.send(&frame(ALL, mac(C), &[], "end"));
    assert_eq!(b.frames_until("end"), []);
    a.send(&frame(mac(C), mac(A), &[], "end"));
    assert_eq!(texts(&c.frames_until("end")), ["to all"]);
}

/// A span member gets a copy of what others exchange and may send nothing (`span-source`).
#[test]
fn a_span_member_sees_copies() {
    let Some(lab) = Lab::start("a_span_member_sees_copies") else {
        return;
    };
    let (daemon, [a, b, c]) = guests(&lab, ["", "", "--set span=on"]);
    a.send(&frame(mac(B), mac(A), &[], "one"));
    b.send(&frame(mac(A), mac(B), &[], "two"));
    let mut seen = Vec::new();
    until("the span member has both", || {
        seen.extend(c.receive().and_then(|frame| frame.text()));
        seen.len() >= 2
    });
    seen.sort();
    assert_eq!(seen, ["one", "two"]);
    c.send(&frame(mac(A), mac(C), &[], "never"));
    dropped(&daemon, "c0", "span-source", 1);
    b.send(&frame(mac(A), mac(B), &[], "end"));
    assert_eq!(texts(&a.frames_until("end")), ["two"]);
}

/// With `discover=off` a member gets no frames of unknown destination, still broadcasts and its own.
#[test]
fn discover_off() {
    let Some(lab) = Lab::start("discover_off") else {
        return;
    };
    let (_daemon, [a, b, c]) = guests(&lab, ["", "", "--set discover=off"]);
    a.send(&frame(mac(BEHIND), mac(A), &[], "to the unknown"));
    a.send(&frame(ALL, mac(A), &[], "to all"));
    a.send(&frame(mac(C), mac(A), &[], "end"));
    assert_eq!(texts(&c.frames_until("end")), ["to all"]);
    a.send(&frame(mac(B), mac(A), &[], "end"));
    assert_eq!(texts(&b.frames_until("end")), ["to the unknown", "to all"]);
}

/// None of the sixteen reserved addresses 01-80-C2-00-00-0x is forwarded (IEEE 802.1Q 8.6.3); the
/// seventeenth is. All but PAUSE reach the daemon, which tells what it heard, also when nothing else wakes it.
#[test]
fn reserved_addresses_are_not_forwarded() {
    let Some(lab) = Lab::start("reserved_addresses_are_not_forwarded") else {
        return;
    };
    let (daemon, [a, b, _]) = guests(&lab, ["", "", ""]);
    for last in 0..=0x10 {
        let text = format!("{last}");
        a.send(&frame([0x01, 0x80, 0xc2, 0, 0, last], mac(A), &[], &text));
    }
    a.send(&frame(mac(B), mac(A), &[], "end"));
    assert_eq!(texts(&b.frames_until("end")), ["16"]);
    dropped(&daemon, "a0", "reserved-address", 1);
    let heard = || daemon.json("vnic show a0")[0]["details"]["heard"].clone();
    let all = "stp 1, slow 1, eapol 1, 04 1, 05 1, 06 1, 07 1, provider-stp 1, 09 1, 0a 1, 0b 1, 0c 1, mvrp 1, lldp 1, 0f 1";
    until("the daemon has heard", || heard() == all);
    let counters = daemon.json("stat a0")[0].clone();
    assert_eq!(counters["rx_local"], 15, "{counters}");
    // More than may come: what does not reach the daemon is counted.
    for number in 0..500 {
        let stp = [0x01, 0x80, 0xc2, 0, 0, 0];
        a.send(&frame(stp, mac(A), &[], &format!("{number}")));
    }
    until("each of 500 is heard or dropped", || {
        let counters = daemon.json("stat a0")[0].clone();
        let full = counters["drops"]["local-full"].as_u64().unwrap_or(0);
        let local = counters["rx_local"].as_u64().unwrap_or(0);
        let stp = local - 14;
        let heard = heard()
            .as_str()
            .is_some_and(|h| h.starts_with(&format!("stp {stp},")));
        full > 0 && local + full == 515 && heard
    });
}

/// A restricted VNIC sends IP and ARP, tagged or not, and nothing else, not even to the daemon; set and taken back while it is up.
#[test]
fn a_restricted_vnic_sends_ip_and_arp() {
    let Some(lab) = Lab::start("a_restricted_vnic_sends_ip_and_arp") else {
        return;
    };
    let (daemon, [a, b, _]) = guests(&lab, ["--set restricted=on", "", ""]);
    let typed = |kind: u16, text: &str| {
        let mut bytes = frame(mac(B), mac(A), &[], text);
        bytes[12..14].copy_from_slice(&kind.to_be_bytes());
        bytes
    };
    let other = frame(mac(B), mac(A), &[], "other");
    a.send(&other);
    a.send(&frame([0x01, 0x80, 0xc2, 0, 0, 0], mac(A), &[], "stp"));
    for kind in [0x88cc, 0x8864, 0x0026] {
        a.send(&typed(kind, "other"));
    }
    for kind in [0x0800, 0x0806, 0x86dd] {
        a.send(&typed(kind, "ip"));
    }
    dropped(&daemon, "a0", "restricted", 5);
    let passed = || daemon.counters("a0")["rx_unicast"].as_u64();
    until("what it may send passes", || passed() >= Some(3));
    daemon.must("vnic set a0 restricted=off");
    a.send(&other);
    a.send(&frame(mac(B), mac(A), &[], "end"));
    assert_eq!(texts(&b.frames_until("end")), ["other"]);
}

/// `maxbw` holds what goes to a VNIC to its rate, in order, and others' frames go on; what is more than 100 ms of it is
/// `queue-full`. Nothing is held once all has gone, and without the limit everything arrives.
#[test]
fn maxbw_limits_what_a_vnic_gets() {
    let Some(lab) = Lab::start("maxbw_limits_what_a_vnic_gets") else {
        return;
    };
    let (daemon, [a, b, c]) = guests(&lab, ["", "--set maxbw=10", ""]);
    let begun = std::time::Instant::now();
    for number in 0..1000 {
        let mut bytes = frame(mac(B), mac(A), &[], &format!("{number}"));
        bytes.resize(1000, 0);
        a.send(&bytes);
    }
    a.send(&frame(mac(C), mac(A), &[], "end"));
    assert!(c.frames_until("end").is_empty());
    until("nothing is held", || {
        let counters = daemon.counters("b0");
        counters["tx_offered"].as_u64() >= Some(1000) && counters["tx_held"] == 0
    });
    let took = begun.elapsed();
    let dropped = || daemon.drops("b0", "queue-full") + daemon.drops("b0", "queue-slow");
    let lost = dropped();
    assert!(lost > 0, "1,000 frames take 800 ms");
    a.send(&frame(mac(B), mac(A), &[], "end"));
    let got = texts(&b.frames_until("end"));
    assert_eq!(got.len() as u64, 1000 - lost);
    let numbers: Vec<u32> = got
        .iter()
        .map(|text| text.parse().expect("a number"))
        .collect();
    assert!(numbers.is_sorted(), "{numbers:?}");
    // 800 us each, but for the first two.
    let least = Duration::from_micros(800) * (got.len() as u32).saturating_sub(3);
    assert!(took >= least, "{} frames in {took:?}", got.len());
    daemon.must("vnic set b0 maxbw=0");
    for number in 0..100 {
        a.send(&frame(mac(B), mac(A), &[], &format!("{number}")));
    }
    a.send(&frame(mac(B), mac(A), &[], "end"));
    assert_eq!(texts(&b.frames_until("end")).len(), 100);
    assert_eq!(dropped(), lost);
}

/// `maxbw` holds what a VNIC sends to its rate, too, in order, whoever it goes to; what is more than 100 ms of it is
/// `rx-queue-full`. What others send does not wait. Nothing is held once all has gone, nor without the limit.
#[test]
fn maxbw_limits_what_a_vnic_sends() {
    let Some(lab) = Lab::start("maxbw_limits_what_a_vnic_sends") else {
        return;
    };
    let (daemon, [a, b, c]) = guests(&lab, ["--set maxbw=10", "", ""]);
    let begun = std::time::Instant::now();
    for number in 0..1000 {
        let to = if number % 2 == 0 { B } else { C };
        let mut bytes = frame(mac(to), mac(A), &[], &format!("{number}"));
        bytes.resize(1000, 0);
        a.send(&bytes);
    }
    b.send(&frame(mac(C), mac(B), &[], "of another"));
    until("all is fetched", || {
        let counters = daemon.counters("a0");
        counters["rx_frames"].as_u64() >= Some(1000) && counters["rx_held"] == 0
    });
    let took = begun.elapsed();
    let dropped = || daemon.drops("a0", "rx-queue-full") + daemon.drops("a0", "rx-queue-slow");
    let lost = dropped();
    assert!(lost > 0, "1,000 frames take 800 ms");
    for to in [B, C] {
        a.send(&frame(mac(to), mac(A), &[], "end"));
    }
    let (at_b, at_c) = (texts(&b.frames_until("end")), texts(&c.frames_until("end")));
    let of_a = |got: &[String]| -> Vec<u32> { got.iter().flat_map(|text| text.parse()).collect() };
    let got = [of_a(&at_b), of_a(&at_c)];
    assert!(got.iter().all(|numbers| numbers.is_sorted()), "{got:?}");
    let count = got[0].len() + got[1].len();
    assert_eq!(count as u64, 1000 - lost);
    assert!(at_c.contains(&"of another".to_owned()));
    // 800 us each, but for the first two.
    let least = Duration::from_micros(800) * (count as u32).saturating_sub(3);
    assert!(took >= least, "{count} frames in {took:?}");
    daemon.must("vnic set a0 maxbw=0");
    for number in 0..100 {
        a.send(&frame(mac(B), mac(A), &[], &format!("{number}")));
    }
    a.send(&frame(mac(B), mac(A), &[], "end"));
    assert_eq!(texts(&b.frames_until("end")).len(), 100);
    assert_eq!(dropped(), lost);
}

/// A frame above the receiver's MTU is dropped as `mtu`, one of exactly the MTU is not; one above the
/// sender's own limit is a `giant`; and neither the shortest frame that a TAP takes nor a cut-off header
/// harms anyone.
#[test]
fn sizes_are_checked() {
    let Some(lab) = Lab::start("sizes_are_checked") else {
        return;
    };
    let (mut daemon, [a, b, _]) = guests(&lab, ["--mtu 4000", "--mtu 1000", ""]);
    let sized = |packet: usize, text: &str| {
        let mut bytes = frame(mac(B), mac(A), &[], text);
        bytes.resize(14 + packet, 0);
        bytes
    };
    a.send(&sized(1000, "just fits"));
    a.send(&sized(1001, "never"));
    dropped(&daemon, "a0", "mtu", 1);
    lab.ip("a", "link set eth0 mtu 9000");
    a.send(&sized(4001, "never"));
    until("the giant is dropped", || {
        daemon.drops("a0", "giant") + daemon.drops("a0", "mtu") == 2
    });
    let whole = frame(mac(B), mac(A), &[], "cut");
    for length in [14, 15, 17, 18, 33, 34, 37] {
        // ARP, IPv4, IPv6 and a tag, each cut off after `length` bytes.
        for kind in [[0x08, 0x06], [0x08, 0x00], [0x86, 0xdd], [0x81, 0x00]] {
            let mut cut = whole.clone();
            cut[12..14].copy_from_slice(&kind);
            let _ = a.try_send(&cut[..length]);
        }
    }
    a.send(&sized(60, "end"));
    let seen = b.frames_until("end");
    assert_eq!(texts(&seen), ["just fits"]);
    assert_eq!(seen[0].0.len(), 1014);
    daemon.assert_alive();
}

/// Static entries are used at once and do not move; a flush removes what was learned and leaves them; a
/// delete removes one; learned entries age; the limit of a member is kept.
#[test]
fn the_table_does_as_told() {
    let Some(lab) = Lab::start("the_table_does_as_told") else {
        return;
    };
    let off = "--set mac-nospoof=off";
    let (daemon, [a, b, c]) = guests(
        &lab,
        [off, off, "--set mac-nospoof=off --set addresses-max=4"],
    );
    daemon.must(&format!("fdb add br0 {BEHIND} b0"));
    a.send(&frame(mac(BEHIND), mac(A), &[], "by the static entry"));
    c.send(&frame(ALL, mac(BEHIND), &[], "it does not move"));
    a.send(&frame(ALL, mac(A), &[], "end"));
    let seen = texts(&b.frames_until("end"));
    assert_eq!(
        seen.first().map(String::as_str),
        Some("by the static entry"),
        "{seen:?}"
    );
    assert!(!texts(&c.frames_until("end")).contains(&"by the static entry".to_owned()));
    assert!(daemon.knows(BEHIND, "b0") && !daemon.knows(BEHIND, "c0"));

    for last in 1..=9 {
        c.send(&frame(ALL, [0x02, 0, 0, 0, 2, last], &[], "hello"));
    }
    a.send(&frame(ALL, [0x02, 0, 0, 0, 3, 1], &[], "hello"));
    until("a's is learned", || daemon.knows("02:00:00:00:03:01", "a0"));
    let learned_at = |member: &str| {
        let entries = daemon.json("fdb show br0");
        let entries = entries.as_array().expect("a list").clone();
        entries
            .iter()
            .filter(|e| e["member"] == member && e["kind"] == "learned")
            .count()
    };
    assert!(
        (1..=4).contains(&learned_at("c0")),
        "{}",
        daemon.must("fdb show br0")
    );

    daemon.must("fdb flush br0");
    until("it is flushed", || learned_at("a0") + learned_at("c0") == 0);
    assert!(daemon.knows(BEHIND, "b0"), "static entries stay");
    daemon.must(&format!("fdb delete br0 {BEHIND}"));
    assert!(!daemon.knows(BEHIND, "b0"));
    daemon.refuses(4, &format!("fdb delete br0 {BEHIND}"));

    daemon.must("bridge set br0 ageing=1");
    a.send(&frame(ALL, mac(BEHIND), &[], "learn it"));
    until("it is learned", || daemon.knows(BEHIND, "a0"));
    until("it has aged", || !daemon.knows(BEHIND, "a0"));
}

/// An address that moves between members is where it was seen last; one that is sticky stays.
#[test]
fn addresses_move() {
    let Some(lab) = Lab::start("addresses_move") else {
        return;
    };
    let off = "--set mac-nospoof=off";
    let (daemon, [a, b, c]) = guests(&lab, [off, off, ""]);
    a.send(&frame(ALL, mac(BEHIND), &[], "here"));
    until("at a", || daemon.knows(BEHIND, "a0"));
    b.send(&frame(ALL, mac(BEHIND), &[], "now here"));
    until("at b", || daemon.knows(BEHIND, "b0"));
    assert!(!daemon.knows(BEHIND, "a0"));
    daemon.must("vnic set b0 sticky=on");
    let sticky = "02:00:00:00:01:02";
    b.send(&frame(ALL, mac(sticky), &[], "here to stay"));
    until("at b", || daemon.knows(sticky, "b0"));
    a.send(&frame(ALL, mac(sticky), &[], "never"));
    dropped(&daemon, "a0", "sticky-source", 1);
    c.send(&frame(mac(sticky), mac(C), &[], "end"));
    b.frames_until("end");
}

/// Broadcasts above a member's storm limit are dropped as `storm`, known unicast is not.
#[test]
fn storms_are_bounded() {
    let Some(lab) = Lab::start("storms_are_bounded") else {
        return;
    };
    let (daemon, [a, b, _]) = guests(&lab, ["--set storm-limit=100", "", ""]);
    for _ in 0..2000 {
        a.send(&frame(ALL, mac(A), &[], "storm"));
    }
    for _ in 0..100 {
        a.send(&frame(mac(B), mac(A), &[], "work"));
    }
    a.send(&frame(mac(B), mac(A), &[], "end"));
    let seen = texts(&b.frames_until("end"));
    assert_eq!(seen.iter().filter(|text| *text == "work").count(), 100);
    let storm = seen.iter().filter(|text| *text == "storm").count() as u64;
    assert!((1..1000).contains(&storm), "{storm} of 2000 came through");
    dropped(&daemon, "a0", "storm", 2000 - storm);
}

/// What the API tells adds up: the drops by reason of each member are its drops in all, and, as long as
/// nothing is flooded, what all members sent and was not dropped is what others were sent or lost.
#[test]
fn the_numbers_add_up() {
    let Some(lab) = Lab::start("the_numbers_add_up") else {
        return;
    };
    let (daemon, [a, b, c]) = guests(&lab, ["", "--mtu 1000", "--set private=on"]);
    let mut large = frame(mac(B), mac(A), &[], "too large");
    large.resize(1200, 0);
    for number in 0..300 {
        a.send(&frame(mac(B), mac(A), &[], "work"));
        a.send(&frame(
            mac(C),
            mac(if number % 3 == 0 { B } else { A }),
            &[],
            "half of it spoofed",
        ));
        a.send(&large);
        b.send(&frame(mac(C), mac(B), &[], "work"));
        c.send(&frame([0x01, 0x80, 0xc2, 0, 0, 3], mac(C), &[], "reserved"));
        c.send(&frame(mac(C), mac(C), &[], "to itself"));
    }
    let of = |counters: &serde_json::Value, name: &str| counters[name].as_u64().unwrap_or(0);
    let all = || ["a0", "b0", "c0"].map(|member| daemon.counters(member));
    until("all frames are taken", || {
        all()
            .iter()
            .map(|counters| of(counters, "rx_frames"))
            .sum::<u64>()
            == 1800
    });
    let (mut accepted, mut offered, mut local) = (0, 0, 0);
    for counters in all() {
        let by_reason = counters["drops"].as_object().into_iter().flatten();
        let drops: u64 = by_reason.filter_map(|(_, frames)| frames.as_u64()).sum();
        assert_eq!(
            drops,
            of(&counters, "rx_dropped") + of(&counters, "tx_dropped"),
            "{counters}"
        );
        accepted += of(&counters, "rx_frames") - of(&counters, "rx_dropped");
        local += of(&counters, "rx_local");
        offered += of(&counters, "tx_frames") + of(&counters, "tx_dropped");
    }
    assert_eq!(accepted, offered + local);
    assert_eq!(offered, 300 + 200 + 300, "only these are work");
    assert!(
        (1..=200).contains(&local),
        "the daemon's are limited: {local}"
    );
}
