//! The lines of the protocol, as a plugin in any language sees them.

use std::collections::BTreeSet;
use std::fmt::Debug;

use serde::Serialize;
use serde::de::DeserializeOwned;
use windlass_lookup::line::{LineError, decode, encode};
use windlass_lookup::protocol::{
    ENTRIES_A_LINE_MAX, FromPlugin, IPS_MAX, Message, TEXT_BYTES_MAX, ToPlugin, sentence,
};

const TO: &[&str] = &[
    r#"{"op":"hello","v":1}"#,
    r#"{"op":"start","overlay":"ov0","vnis":[23],"properties":{"etcd/cluster":"c"}}"#,
    r#"{"op":"set","overlay":"ov0","vnis":[23,24],"properties":{}}"#,
    r#"{"op":"stop","overlay":"ov0"}"#,
    r#"{"op":"ping","id":7}"#,
    r#"{"op":"lookup","id":8,"overlay":"ov0","vni":23,"mac":"02:00:00:00:00:01"}"#,
    r#"{"op":"arp","id":9,"overlay":"ov0","vni":23,"ip":"10.0.0.5"}"#,
    r#"{"op":"ndp","id":9,"overlay":"ov0","vni":23,"ip":"fd00::5"}"#,
    r#"{"op":"dhcp","id":9,"overlay":"ov0","vni":23,"mac":"02:00:00:00:00:01"}"#,
    r#"{"op":"announce","overlay":"ov0","vni":23,"mac":"02:00:00:00:00:01","ips":["10.0.0.5"],"state":"active"}"#,
    r#"{"op":"retire","overlay":"ov0","vni":23,"mac":"02:00:00:00:00:01"}"#,
    r#"{"op":"claim","id":9,"overlay":"ov0","vni":23,"owner":"cni:a/eth0","pool":"p0","sets":[[["10.0.0.1","10.0.0.254"]]]}"#,
    r#"{"op":"claim","id":9,"overlay":"ov0","vni":23,"owner":"cni:a/eth0","mac":"02:00:00:00:00:01","pool":"p0","sets":[],"ips":["10.0.0.5"],"dry_run":true}"#,
    r#"{"op":"release","overlay":"ov0","vni":23,"owner":"cni:a/eth0"}"#,
    r#"{"op":"forget","overlay":"ov0","host":"h1"}"#,
    r#"{"op":"resync","overlay":"ov0"}"#,
    r#"{"op":"unsupported","what":"wave"}"#,
];

const FROM: &[&str] = &[
    r#"{"op":"hello","v":1,"kind":"dynamic","properties":[{"name":"a/b","type":"uint","default":5,"required":false}]}"#,
    r#"{"op":"ok","overlay":"ov0"}"#,
    r#"{"op":"error","overlay":"ov0","text":"no such cluster"}"#,
    r#"{"op":"pong","id":7}"#,
    r#"{"op":"answer","id":8,"target":{"ip":"192.0.2.1","port":4789},"ttl":300}"#,
    r#"{"op":"answer","id":9,"mac":"02:00:00:00:00:01"}"#,
    r#"{"op":"answer","id":9,"drop":true}"#,
    r#"{"op":"push","overlay":"ov0","entries":[{"vni":23,"mac":"02:00:00:00:00:01","target":{"ip":"192.0.2.1","port":4789},"ips":["10.0.0.5","fd00::5"],"host":"h1","gen":3}]}"#,
    r#"{"op":"withdraw","overlay":"ov0","entries":[{"vni":23,"mac":"02:00:00:00:00:01","host":"h1","gen":3}]}"#,
    r#"{"op":"sync-begin","overlay":"ov0"}"#,
    r#"{"op":"sync-end","overlay":"ov0","vni":23}"#,
    r#"{"op":"flood","overlay":"ov0","vni":23,"targets":[{"ip":"2001:db8::1","port":4789}]}"#,
    r#"{"op":"host","overlay":"ov0","host":"h1","targets":[{"ip":"192.0.2.1","port":4789}],"state":"unsure"}"#,
    r#"{"op":"owned","overlay":"ov0","vni":23,"mac":"02:00:00:00:00:01","gen":4}"#,
    r#"{"op":"refused","overlay":"ov0","vni":23,"mac":"02:00:00:00:00:01","by":"h2"}"#,
    r#"{"op":"claimed","id":9,"mac":"02:00:00:00:00:01","ips":["10.0.0.5"]}"#,
    r#"{"op":"claimed","id":9,"text":"all addresses are taken"}"#,
    r#"{"op":"degraded","overlay":"ov0","text":"no etcd answers"}"#,
    r#"{"op":"restored","overlay":"ov0"}"#,
    r#"{"op":"unsupported","what":"wave"}"#,
];

fn round<M: Message + Serialize + DeserializeOwned + Debug>(lines: &[&str]) {
    let mut ops = BTreeSet::new();
    for line in lines {
        let message: M = decode(line.as_bytes()).unwrap_or_else(|e| panic!("{line}: {e}"));
        let again = String::from_utf8(encode(&message).expect("short")).expect("JSON");
        assert_eq!(again, format!("{line}\n"));
        let op = line.split('"').nth(3).expect("an op");
        ops.insert(op.to_owned());
    }
    let all: BTreeSet<_> = M::OPS.iter().map(|op| (*op).to_owned()).collect();
    assert_eq!(ops, all);
}

/// Each message of both sides is the line that the documentation shows, and comes back from it. The lists of ops are whole.
#[test]
fn messages_are_these_lines() {
    round::<ToPlugin>(TO);
    round::<FromPlugin>(FROM);
}

fn refused(line: &str, why: &str) {
    match decode::<FromPlugin>(line.as_bytes()) {
        Err(LineError::Bad { reason, .. }) => assert!(reason.contains(why), "{line}: {reason}"),
        other => panic!("{line}: {other:?}"),
    }
}

fn push(entry: &str) -> String {
    format!(r#"{{"op":"push","overlay":"ov0","entries":[{entry}]}}"#)
}

/// Values beyond a limit are refused, each with a reason that names it.
#[test]
fn limits_hold() {
    let good = r#""vni":1,"mac":"02:00:00:00:00:01","target":{"ip":"192.0.2.1"}"#;
    let entry = format!("{{{good}}}");
    assert!(decode::<FromPlugin>(push(&entry).as_bytes()).is_ok());
    for (from, to, why) in [
        ("\"vni\":1", "\"vni\":16777216", "is no VNI"),
        (
            "02:00:00:00:00:01",
            "03:00:00:00:00:01",
            "no address of an endpoint",
        ),
        (
            "02:00:00:00:00:01",
            "00:00:00:00:00:00",
            "no address of an endpoint",
        ),
        (
            "02:00:00:00:00:01",
            "2:0:0:0:0:1",
            "not an Ethernet address",
        ),
        ("192.0.2.1", "224.0.0.1", "no address of a host"),
        ("192.0.2.1", "255.255.255.255", "no address of a host"),
        ("192.0.2.1", "::", "no address of a host"),
        ("192.0.2.1", "192.0.2.1.5", "invalid IP address"),
        ("\"}", "\",\"port\":0}", "0 is no port"),
        ("\"}", "\",\"port\":65536}", "65536"),
        ("\"vni\"", "\"host\":\"\",\"vni\"", "a text of 0 bytes"),
        ("\"vni\"", r#""host":"a\u0000","vni""#, "control character"),
        ("\"vni\"", "\"gen\":-1,\"vni\"", "-1"),
        ("\"vni\"", "\"vni\":2,\"vni\"", "duplicate"),
    ] {
        assert!(entry.contains(from), "{from}");
        refused(&push(&entry.replacen(from, to, 1)), why);
    }
    let ips = vec!["\"10.0.0.1\""; IPS_MAX + 1].join(",");
    refused(
        &push(&format!("{{{good},\"ips\":[{ips}]}}")),
        "17 IP addresses",
    );
    let many = vec![entry; ENTRIES_A_LINE_MAX + 1].join(",");
    refused(&push(&many), "501 entries");
    for answer in [
        "",
        r#","drop":false"#,
        r#","drop":true,"mac":"02:00:00:00:00:01""#,
    ] {
        refused(
            &format!(r#"{{"op":"answer","id":1{answer}}}"#),
            "one of target, mac and drop",
        );
    }
    let deep = format!(r#"{{"op":"pong","id":1,"x":{}"#, "[".repeat(60_000));
    refused(&deep, "recursion limit");
}

/// A sentence of any text can be said, and keeps what is readable.
#[test]
fn a_sentence_can_be_said() {
    for text in ["a\nb\u{7f}\u{9b}c", &"\u{e9}".repeat(TEXT_BYTES_MAX)] {
        let said = FromPlugin::Degraded {
            overlay: "ov0".to_owned(),
            text: sentence(text),
        };
        let line = encode(&said).expect("a line");
        assert_eq!(decode::<FromPlugin>(&line), Ok(said));
    }
    assert_eq!(sentence("a\nb"), "a b");
}
