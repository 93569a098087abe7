//! Files of endpoints, good and bad.

use std::fmt::Write;
use std::net::SocketAddr;

use windlass_lookup::files::{FILE_BYTES_MAX, FileError, parse};
use windlass_lookup::table::ENTRIES_MAX;
use windlass_wire::MacAddr;

/// The example of illumos' manual page overlay_files(5), with its forms of addresses.
const MANUAL: &str = r#"{
    "de:ad:be:ef:00:00": { "arp": "10.55.55.2", "ip": "10.88.88.69", "ndp": "fe80::3", "port": 4789 },
    "de:ad:be:ef:00:01": { "arp": "10.55.55.3", "dhcp-proxy": "de:ad:be:ef:00:00", "ip": "10.88.88.70", "ndp": "fe80::4", "port": 4789 },
    "2:8:20:A:b:0c": { "ip": "::ffff:10.88.88.71" }
}"#;

fn mac(text: &str) -> MacAddr {
    text.parse().expect("a MAC address")
}

/// The manual's example is read as it is, with short forms of addresses and the default port.
#[test]
fn the_manuals_example_is_read() {
    let records = parse(MANUAL.as_bytes()).expect("good");
    assert_eq!(records.len(), 3);
    let second = &records[&mac("de:ad:be:ef:00:01")];
    assert_eq!(second.target, SocketAddr::from(([10, 88, 88, 70], 4789)));
    assert_eq!(second.dhcp, Some(mac("de:ad:be:ef:00:00")));
    let ips: Vec<_> = second.ips.iter().map(ToString::to_string).collect();
    assert_eq!(ips, ["10.55.55.3", "fe80::4"]);
    let third = &records[&mac("02:08:20:0a:0b:0c")];
    assert_eq!(third.target, SocketAddr::from(([10, 88, 88, 71], 4789)));
    assert_eq!(parse(b" {} \n").map(|records| records.len()), Ok(0));
}

/// Cut anywhere, the example is bad; nothing of it is taken.
#[test]
fn a_truncated_file_is_bad() {
    assert_eq!(parse(b""), Err(FileError::Empty));
    for end in 1..MANUAL.len() {
        let found = parse(&MANUAL.as_bytes()[..end]);
        assert!(
            matches!(found, Err(FileError::Bad { .. })),
            "{end}: {found:?}"
        );
    }
}

/// What is put for what in the example, the line of that, and what is said.
const MISTAKES: &[(&str, &str, usize, &str)] = &[
    (
        "de:ad:be:ef:00:01",
        "de:ad:be:ef:00:00",
        3,
        "de:ad:be:ef:00:00 comes twice",
    ),
    (
        "de:ad:be:ef:00:01",
        "DE:AD:be:ef:0:0",
        3,
        "de:ad:be:ef:00:00 comes twice",
    ),
    (
        "de:ad:be:ef:00:01",
        "de-ad-be-ef-00-01",
        3,
        "\"de-ad-be-ef-00-01\" is no MAC address",
    ),
    (
        "de:ad:be:ef:00:01",
        "de:ad:be:ef:00",
        3,
        "is no MAC address",
    ),
    (
        "de:ad:be:ef:00:01",
        "de:ad:be:ef:00:001",
        3,
        "is no MAC address",
    ),
    (
        "de:ad:be:ef:00:01",
        "01:00:00:00:00:01",
        3,
        "no MAC address of an endpoint",
    ),
    (
        "10.55.55.3",
        "10.55.55.2",
        3,
        "10.55.55.2 is the address of de:ad:be:ef:00:00 already",
    ),
    (
        "fe80::4",
        "FE80:0::3",
        3,
        "fe80::3 is the address of de:ad:be:ef:00:00 already",
    ),
    (
        "fe80::4",
        "10.0.0.1",
        3,
        "\"ndp\": \"10.0.0.1\" is not an IPv6 address",
    ),
    (
        "10.55.55.3",
        "fe80::9",
        3,
        "\"arp\": \"fe80::9\" is not an IPv4 address",
    ),
    (
        "10.55.55.3",
        "255.255.255.255",
        3,
        "is not an IPv4 address of an endpoint",
    ),
    (
        "10.88.88.70",
        "10.88.88",
        3,
        "de:ad:be:ef:00:01: \"ip\": \"10.88.88\" is not an IP address",
    ),
    (
        "10.88.88.70",
        "239.1.1.1",
        3,
        "\"ip\": 239.1.1.1 is no address of a host",
    ),
    (
        "\"ip\": \"10.88.88.70\", ",
        "",
        3,
        "de:ad:be:ef:00:01: \"ip\" is missing",
    ),
    (
        "\"ip\": \"10.88.88.70\"",
        "\"ip\": 7",
        3,
        "expected an IP address as \"ip\" of de:ad:be:ef:00:01",
    ),
    (
        "\"ip\": \"10.88.88.70\"",
        "\"ip\": null",
        3,
        "expected an IP address as \"ip\"",
    ),
    (
        "4789 },\n    \"2",
        "0 },\n    \"2",
        3,
        "de:ad:be:ef:00:01: \"port\": 0 is not from 1 to 65535",
    ),
    (
        "4789 },\n    \"2",
        "65536 },\n    \"2",
        3,
        "\"port\": 65536 is not from 1 to 65535",
    ),
    (
        "4789 },\n    \"2",
        "-1 },\n    \"2",
        3,
        "expected a number from 1 to 65535 as \"port\"",
    ),
    (
        "4789 },\n    \"2",
        "4789.0 },\n    \"2",
        3,
        "expected a number from 1 to 65535",
    ),
    (
        "4789 },\n    \"2",
        "\"4789\" },\n    \"2",
        3,
        "expected a number from 1 to 65535",
    ),
    (
        "4789 },\n    \"2",
        "[[[]]] },\n    \"2",
        3,
        "expected a number from 1 to 65535",
    ),
    (
        "dhcp-proxy",
        "vlan",
        3,
        "de:ad:be:ef:00:01: unknown key \"vlan\"",
    ),
    (
        "dhcp-proxy",
        "arp",
        3,
        "\"arp\": \"de:ad:be:ef:00:00\" is not",
    ),
    (
        "\"ndp\": \"fe80::4\"",
        "\"ip\": \"10.0.0.1\"",
        3,
        "\"ip\" comes twice",
    ),
    (
        "{ \"ip\": \"::ffff:10.88.88.71\" }",
        "[]",
        4,
        "expected an object for 02:08:20:0a:0b:0c",
    ),
    ("71\" }\n}", "71\" }\n}\n}", 6, "trailing characters"),
    ("71\" }\n}", "71\" },\n}", 5, "trailing comma"),
];

/// What is wrong is told with line, key and value.
#[test]
fn mistakes_are_named() {
    for (from, to, line, reason) in MISTAKES {
        assert!(MANUAL.contains(from), "{from}");
        match parse(MANUAL.replacen(from, to, 1).as_bytes()) {
            Err(FileError::Bad {
                line: at,
                reason: found,
                ..
            }) => {
                assert!(found.contains(reason), "{to}: {found}");
                assert_eq!(at, *line, "{to}: {found}");
            }
            other => panic!("{to}: {other:?}"),
        }
    }
    for bad in [
        "[]",
        "7",
        "\"a\"",
        "null",
        "\u{feff}{}",
        "\0",
        "{\"\\ud800\":{}}",
    ] {
        let found = parse(bad.as_bytes());
        assert!(
            matches!(found, Err(FileError::Bad { .. })),
            "{bad}: {found:?}"
        );
    }
}

/// A value that is long, or that a terminal would act on, is shown in a bounded and printable form; a deep one ends at the first bracket.
#[test]
fn what_is_shown_is_bounded() {
    let long = format!("{{\"{}\u{1b}\":1}}", "x\u{7f}".repeat(1 << 20));
    let Err(FileError::Bad { reason, .. }) = parse(long.as_bytes()) else {
        panic!("bad");
    };
    assert!(reason.chars().count() <= 400 && !reason.contains(char::is_control));
    let deep = format!("{{\"2:0:0:0:0:1\":{}", "[".repeat(1 << 20));
    assert!(matches!(parse(deep.as_bytes()), Err(FileError::Bad { .. })));
}

/// Too many endpoints are refused, whether by their number or by the size of the file.
#[test]
fn large_files_are_refused() {
    let mut file = "{".to_owned();
    for number in 0..=ENTRIES_MAX {
        let [_, _, _, _, _, a, b, c] = number.to_be_bytes();
        let comma = if number == 0 { "" } else { "," };
        write!(
            file,
            "{comma}\"2:0:0:{a:x}:{b:x}:{c:x}\":{{\"ip\":\"10.0.0.1\"}}"
        )
        .expect("memory");
        if number == ENTRIES_MAX - 1 {
            let records = parse(format!("{file}}}").as_bytes()).expect("so many are good");
            assert_eq!(records.len(), ENTRIES_MAX);
        }
    }
    file.push('}');
    let Err(FileError::Bad { reason, .. }) = parse(file.as_bytes()) else {
        panic!("one too many");
    };
    assert_eq!(reason, format!("more than {ENTRIES_MAX} endpoints"));
    let blank = vec![b' '; FILE_BYTES_MAX + 1];
    assert_eq!(parse(&blank), Err(FileError::TooLarge));
}
