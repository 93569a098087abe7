//! `windlass memory --regions`: the memory through which the daemon forwards, and the pages behind it.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;

use serde_json::Value;
use windlass_tests::{Daemon, Lab, as_user};

const RED: u32 = 60_001;
const BLUE: u32 = 60_002;

/// Owners and kinds of the regions that a user sees.
fn seen(daemon: &Daemon, uid: u32) -> Vec<(String, String)> {
    let mut socket = as_user(uid, || UnixStream::connect(daemon.socket())).expect("connected");
    let ask = b"GET /v1/regions HTTP/1.1\r\nhost: w\r\nconnection: close\r\n\r\n";
    socket.write_all(ask).expect("asked");
    let mut answer = String::new();
    socket.read_to_string(&mut answer).expect("an answer");
    let (_, body) = answer.split_once("\r\n\r\n").expect("a body");
    named(&serde_json::from_str(body).expect("JSON"))
}

fn named(rows: &Value) -> Vec<(String, String)> {
    let text = |row: &Value, key: &str| row[key].as_str().expect("text").to_owned();
    let rows = rows.as_array().expect("rows").iter();
    rows.map(|row| (text(row, "owner"), text(row, "kind")))
        .collect()
}

fn owned<const N: usize>(rows: [(&str, &str); N]) -> Vec<(String, String)> {
    rows.map(|(owner, kind)| (owner.to_owned(), kind.to_owned()))
        .into()
}

/// Asks that the daemon's own region is there as a whole, in the pages that it says.
fn is_told(row: &Value) {
    let number = |key: &str| row[key].as_u64().expect("a number");
    let bytes = number("bytes");
    assert_eq!(row["asked"], "huge", "{row}");
    assert!(
        bytes >= 1 << 20 && number("resident_bytes") == bytes,
        "{row}"
    );
    let is_huge = match row["had"].as_str() {
        Some("hugetlb") => number("page_bytes") == 2 << 20 && number("page_table_bytes") == 0,
        Some("thp") => number("huge_bytes") == bytes,
        _ => false,
    };
    let is_small = row["had"] == "4k" && number("huge_bytes") == 0;
    assert!(is_huge || is_small, "{row}");
    assert_eq!(row["reason"].is_string(), is_small, "{row}");
}

/// Tables and memory that the daemon makes are asked for in huge pages and are there from the start; what the kernel gave is told with its cost,
/// or with the reason why it is small. The memory of a peer is told as its owner's choice. A user sees what belongs to his own members.
#[test]
fn regions_are_told_with_their_pages() {
    let Some(lab) = Lab::start("regions_are_told_with_their_pages") else {
        return;
    };
    let daemon = lab.daemon();
    for path in [lab.directory(), daemon.directory()] {
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).expect("opened");
    }
    daemon.must("bridge create br0 --set addresses-max=65536");
    for (zone, uid) in [("red", RED), ("blue", BLUE)] {
        daemon.must(&format!(
            "zone create {zone} --owner {uid} --group {uid} --bridge br0"
        ));
    }
    daemon.must(
        "vnic create server --zone red --bridge br0 --attach memif,socket=m.sock,role=server",
    );
    lab.namespace("other");
    let other = Daemon::start(&lab, "other", 1);
    other.must("bridge create br1 --set addresses-max=65536");
    let socket = daemon.runtime_dir().join("zones/red/m.sock");
    let attach = format!("memif,socket={},role=client", socket.display());
    other.must(&format!(
        "vnic create client --bridge br1 --attach {attach}"
    ));
    other.wait_for_state("vnic", "client", "up");
    daemon.wait_for_state("vnic", "server", "up");

    let theirs = other.json("memory --regions");
    assert_eq!(
        named(&theirs),
        owned([("br1", "table"), ("client", "memif")])
    );
    (0..2).for_each(|i| is_told(&theirs[i]));
    let rows = daemon.json("memory --regions");
    assert_eq!(named(&rows), owned([("br0", "table"), ("server", "memif")]));
    is_told(&rows[0]);
    assert_eq!(rows[1]["asked"], "peer");
    assert_eq!(rows[1]["bytes"], theirs[1]["bytes"], "it is one memory");

    let text = other.must("memory --regions client -p -o owner,asked");
    assert_eq!(text, "client:huge\n");
    assert_eq!(seen(&daemon, RED), owned([("server", "memif")]));
    assert_eq!(seen(&daemon, BLUE), []);

    other.must("vnic delete client");
    let left = other.json("memory --regions client");
    assert_eq!(left, Value::Array(Vec::new()));
}
