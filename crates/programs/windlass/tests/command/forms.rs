//! Each form of the command line asks the daemon for what it says.

use serde_json::{Value, json};

use crate::fake::{Fake, Ran, windlass};

const APPLIED: &str = r#"{"revision":8,"dry_run":false,"changes":[]}"#;

/// Runs the words against a daemon that answers the request with success, and gives the body that came.
fn body(words: &str, request: &str) -> Value {
    let fake = Fake::start().on(request, 200, APPLIED);
    let ran = fake.run(words);
    assert_eq!(
        ran,
        Ran {
            code: 0,
            out: String::new(),
            err: String::new()
        },
        "{words}"
    );
    let asked = fake.asked();
    let of = |(method, path, _): &&(String, String, String)| format!("{method} {path}") == request;
    let found: Vec<_> = asked.iter().filter(of).collect();
    let [(_, _, body)] = found[..] else {
        panic!("{words}: {asked:?}")
    };
    if body.is_empty() {
        Value::Null
    } else {
        serde_json::from_str(body).expect("JSON")
    }
}

/// A VNIC that must wait for its peer, and an uplink for its device, says so on stderr; with `-j` nothing is added.
#[test]
fn a_new_member_waits() {
    let view = r#"{"name":"v0","bridge":"br0","state":"waiting","reason":"no peer at /m.sock","counters":{}}"#;
    let fake = Fake::start()
        .on("POST /v1/vnics", 200, APPLIED)
        .on("GET /v1/vnics/v0", 200, view);
    let ran = fake.run("vnic create v0 --bridge br0");
    assert_eq!((ran.code, ran.out.as_str()), (0, ""));
    assert_eq!(ran.err, "windlass: VNIC \"v0\" waits: no peer at /m.sock\n");
    assert_eq!(fake.run("vnic create v0 --bridge br0 -j").err, "");
    let view = r#"{"name":"up0","device":"eth7","bridge":"br0","state":"waiting","reason":"there is no eth7","counters":{}}"#;
    let fake =
        Fake::start()
            .on("POST /v1/uplinks", 200, APPLIED)
            .on("GET /v1/uplinks/up0", 200, view);
    let create = "uplink create up0 --device eth7 --bridge br0";
    let ran = fake.run(create);
    assert_eq!((ran.code, ran.out.as_str()), (0, ""));
    assert_eq!(
        ran.err,
        "windlass: uplink \"up0\" waits: there is no eth7\n"
    );
    assert_eq!(fake.run(&format!("{create} -j")).err, "");
}

/// Creation of each kind of object, in the forms that the manual shows.
#[test]
fn create() {
    assert_eq!(
        body("bridge create br0", "POST /v1/bridges"),
        json!({"name": "br0"})
    );
    assert_eq!(
        body(
            "bridge create br0 --set ageing=60 --set vlan-filtering=off",
            "POST /v1/bridges"
        ),
        json!({"name": "br0", "properties": {"ageing": 60, "vlan-filtering": false}})
    );
    assert_eq!(
        body(
            "vnic create v0 --bridge br0 --attach tap,netns=a,address=10.0.0.1/24",
            "POST /v1/vnics"
        ),
        json!({"name": "v0", "zone": "global", "bridge": "br0",
            "attach": {"kind": "tap", "netns": "a", "address": ["10.0.0.1/24"]}})
    );
    assert_eq!(
        body(
            "vnic create v0 --bridge br0 --attach memif,socket=/run/m.sock,id=0,role=server",
            "POST /v1/vnics"
        ),
        json!({"name": "v0", "zone": "global", "bridge": "br0",
            "attach": {"kind": "memif", "socket": "/run/m.sock", "id": 0, "role": "server"}})
    );
    assert_eq!(
        body(
            "vnic create v0 --bridge br0 --zone a --mac 2:0:0:0:0:A --vlan 10 --tagged 20-21,30 \
             --mtu 9000 --set mac-nospoof=off --set span=on",
            "POST /v1/vnics"
        ),
        json!({"name": "v0", "zone": "a", "bridge": "br0", "mac": "02:00:00:00:00:0a",
            "attach": {"kind": "none"},
            "properties": {"mac-nospoof": false, "mtu": 9000, "span": true, "tagged": "20-21,30",
                "vlan": 10}})
    );
    assert_eq!(
        body(
            "uplink create up0 --device eth0 --bridge br0 --attach packet",
            "POST /v1/uplinks"
        ),
        json!({"name": "up0", "device": "eth0", "bridge": "br0", "attach": {"kind": "packet"}})
    );
    assert_eq!(
        body(
            "uplink create up0 --device eth0 --bridge br0 --share",
            "POST /v1/uplinks"
        ),
        json!({"name": "up0", "device": "eth0", "bridge": "br0", "attach": {"kind": "packet"},
            "share": true})
    );
    assert_eq!(
        body(
            "zone create a --owner 4000000000 --group 7 --netns a --bridge br0 --bridge br1",
            "POST /v1/zones"
        ),
        json!({"name": "a", "owner_uid": 4_000_000_000_u32, "owner_gid": 7, "netns": "a",
            "bridges": ["br0", "br1"]})
    );
}

/// Changes and removals of each kind.
#[test]
fn set_and_delete() {
    assert_eq!(
        body(
            "vnic set v0 mac-nospoof=off mtu=auto bridge=br1",
            "PATCH /v1/vnics/v0"
        ),
        json!({"bridge": "br1", "properties": {"mac-nospoof": false, "mtu": null}})
    );
    assert_eq!(
        body(
            "vnic set v0 --attach none --mac 02:00:00:00:00:01 --vlan 5",
            "PATCH /v1/vnics/v0"
        ),
        json!({"attach": {"kind": "none"}, "mac": "02:00:00:00:00:01", "properties": {"vlan": 5}})
    );
    assert_eq!(
        body("bridge set br0 ageing=10", "PATCH /v1/bridges/br0"),
        json!({"properties": {"ageing": 10}})
    );
    assert_eq!(
        body(
            "uplink set up0 --bridge br1 --set learn=off",
            "PATCH /v1/uplinks/up0"
        ),
        json!({"bridge": "br1", "properties": {"learn": false}})
    );
    assert_eq!(
        body("zone set a --bridge br0", "PATCH /v1/zones/a"),
        json!({"bridges": ["br0"]})
    );
    for (kind, path) in [
        ("zone", "zones"),
        ("bridge", "bridges"),
        ("uplink", "uplinks"),
        ("overlay", "overlays"),
        ("vnic", "vnics"),
    ] {
        let request = format!("DELETE /v1/{path}/x");
        assert_eq!(body(&format!("{kind} delete x"), &request), Value::Null);
    }
}

/// Overlays: settings are split where a property begins, and options are properties.
#[test]
fn overlays() {
    assert_eq!(
        body(
            "overlay create ov0 --bridge br0 --vni 23 --search learn --mtu 1400 \
             --set vxlan/listen-ip=192.0.2.1,learn/remotes=192.0.2.2,192.0.2.3:8472,broadcast=off",
            "POST /v1/overlays"
        ),
        json!({"name": "ov0", "bridge": "br0", "encap": "vxlan", "search": "learn", "properties": {
            "vnetid": 23, "mtu": 1400, "vxlan/listen-ip": "192.0.2.1",
            "learn/remotes": "192.0.2.2,192.0.2.3:8472", "broadcast": false}})
    );
    assert_eq!(
        body(
            "overlay create ov0 --vnis 10=10010,20=20020 --search files --set files/config=/f",
            "POST /v1/overlays"
        ),
        json!({"name": "ov0", "encap": "vxlan", "search": "files", "properties": {
            "vnis": "10=10010,20=20020", "files/config": "/f"}})
    );
    assert_eq!(
        body(
            "overlay set ov0 vxlan/ttl=9,unknown=auto",
            "PATCH /v1/overlays/ov0"
        ),
        json!({"properties": {"vxlan/ttl": 9, "unknown": null}})
    );
    let flush = "POST /v1/overlays/ov0/targets/flush";
    let fake = Fake::start().on(flush, 200, r#"{"entries":3}"#);
    let ran = fake.run("overlay target flush ov0 --mac 02:00:00:00:00:01 -j");
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    assert!(ran.out.contains('3'), "{}", ran.out);
}

/// Targets of overlays are entries of the bridge's table; wrong words are told with what there is.
#[test]
fn targets_and_mistakes() {
    let view =
        r#"{"name":"ov0","search":"direct","state":"up","targets":0,"addresses":0,"counters":{}}"#;
    let fake = Fake::start().on("GET /v1/overlays/ov0", 200, view).on(
        "POST /v1/bridges/ov0/fdb",
        201,
        APPLIED,
    );
    let ran = fake.run("overlay target set ov0 02:00:00:00:00:01 [2001:db8::2]:4789");
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    for (wrong, why) in [
        (
            "overlay create ov0 --search dns",
            "\"dns\" is none of direct, files, learn, etcd, plugin",
        ),
        (
            "overlay create ov0 --search direct --set direct/dest-ip=x",
            "\"x\" is not the IP address of a host",
        ),
        (
            "overlay create ov0 --search files --vnis 10",
            "\"10\" is not VLAN=VNI",
        ),
        (
            "overlay create ov0 --search files --vni 16777216",
            "from 0 to 16777215",
        ),
        (
            "overlay create ov0 --search files --set proxy=arp,icmp",
            "\"icmp\" is none of arp, ndp",
        ),
        (
            "vnic create v0 --over ov0 --bridge br0",
            "cannot be used with",
        ),
        ("vnic create v0", "--bridge"),
    ] {
        let ran = Fake::start().run(wrong);
        assert_eq!(ran.code, 2, "{wrong}: {}", ran.err);
        assert!(ran.err.contains(why), "{wrong}: {}", ran.err);
    }
}

/// Forwarding tables, by both names of the command.
#[test]
fn fdb() {
    for prefix in ["fdb", "bridge fdb"] {
        assert_eq!(
            body(
                &format!("{prefix} add br0 02:00:00:00:00:01 v0 --vlan 7 --sticky"),
                "POST /v1/bridges/br0/fdb"
            ),
            json!({"vlan": 7, "mac": "02:00:00:00:00:01", "member": "v0", "kind": "sticky"})
        );
        let request = "DELETE /v1/bridges/br0/fdb?mac=02:00:00:00:00:01&vlan=7";
        body(
            &format!("{prefix} delete br0 2:0:0:0:0:1 --vlan 7"),
            request,
        );
        let fake = Fake::start().on("POST /v1/bridges/br0/fdb/flush", 200, r#"{"entries":3}"#);
        let ran = fake.run(&format!("{prefix} flush br0 --member v0 --json"));
        assert_eq!((ran.code, ran.out.as_str()), (0, "[{\"entries\":3}]\n"));
        assert_eq!(fake.asked()[0].2, r#"{"member":"v0"}"#);
    }
}

/// `apply` from a file and from stdin, with and without `--dry-run`; `export` gives what `apply` reads.
#[test]
fn documents() {
    use std::io::Write;
    let document = r#"{"version":1,"bridges":[{"name":"br0"}]}"#;
    let changed = r#"{"revision":8,"dry_run":true,"changes":[{"op":"create","to":
        {"object":"bridge","config":{"name":"br0"}}}]}"#;
    let fake = Fake::start()
        .on("PUT /v1/document?dry_run=true", 200, changed)
        .on("PUT /v1/document", 200, &changed.replace("true", "false"))
        .on("GET /v1/document", 200, document);
    let dir = tempfile::tempdir().expect("directory");
    let file = dir.path().join("d.json");
    std::fs::write(&file, document).expect("file");
    let ran = fake.run(&format!("apply {} --dry-run", file.display()));
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    assert!(ran.out.starts_with("+ bridge br0"), "{}", ran.out);
    let mut child = fake.command("apply -");
    let mut child = child
        .stdin(std::process::Stdio::piped())
        .spawn()
        .expect("windlass");
    child
        .stdin
        .take()
        .expect("stdin")
        .write_all(document.as_bytes())
        .expect("pipe");
    assert!(child.wait().expect("end").success());
    let asked = fake.asked();
    let sent: Value = serde_json::from_str(&asked[1].2).expect("JSON");
    assert_eq!(
        (asked[1].1.as_str(), &sent["bridges"]),
        ("/v1/document", &json!([{"name": "br0"}]))
    );
    let exported = fake.run("export").out;
    let exported: Value = serde_json::from_str(&exported).expect("JSON");
    assert_eq!(exported["bridges"], json!([{"name": "br0"}]));
    std::fs::write(&file, r#"{"version":1,"vnisc":[]}"#).expect("file");
    let ran = fake.run(&format!("apply {}", file.display()));
    assert_eq!(ran.code, 1);
    assert!(ran.err.contains("vnisc"), "{}", ran.err);
    assert_eq!(fake.asked().len(), 3, "nothing was sent");
}

/// `--dry-run` of a verb sends the changed document and says what would be done.
#[test]
fn dry_runs_change_nothing() {
    let document = r#"{"version":1,"bridges":[{"name":"br0"}],
        "vnics":[{"name":"v0","bridge":"br0"}],
        "fdb":[{"bridge":"br0","mac":"02:00:00:00:00:09","member":"v0"}]}"#;
    let applied = r#"{"revision":7,"dry_run":true,"changes":[{"op":"delete","from":
        {"object":"bridge","config":{"name":"br1"}}}]}"#;
    let fake = Fake::start().on("GET /v1/document", 200, document).on(
        "PUT /v1/document?dry_run=true",
        200,
        applied,
    );
    let sent = |words: &str| -> Value {
        let ran = fake.run(words);
        assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{words}");
        assert!(ran.out.starts_with("- bridge br1"), "{}", ran.out);
        serde_json::from_str(&fake.asked().pop().expect("request").2).expect("JSON")
    };
    assert_eq!(
        sent("bridge create br1 --dry-run")["bridges"]
            .as_array()
            .map(Vec::len),
        Some(2)
    );
    let deleted = sent("vnic delete v0 --dry-run");
    assert_eq!(
        (&deleted["vnics"], &deleted["fdb"]),
        (&json!([]), &json!([]))
    );
    let set = sent("vnic set v0 learn=off --dry-run");
    assert_eq!(set["vnics"][0]["properties"], json!({"learn": false}));
    let ran = fake.run("bridge create br0 --dry-run");
    assert_eq!(ran.code, 5, "{}", ran.err);
    assert_eq!(fake.run("vnic delete v9 --dry-run").code, 4);
}

/// Every form of the manual is a form of the command line; forms that are not are refused with code 2
/// before anything is asked.
#[test]
fn usage() {
    for words in [
        "",
        "vnic",
        "bridge fdb",
        "vnci show",
        "vnic create",
        "vnic create v0",
        "vnic show --jsno",
        "vnic create -v --bridge br0",
        "vnic create v0 --bridge a/b",
        "vnic show -i 1",
        "vnic create v0 --bridge br0 --mac x",
        "vnic create v0 --bridge br0 --attach veth",
        "vnic create v0 --bridge br0 --set x=1",
        "vnic create v0 --bridge br0 --set vlan=4095",
        "vnic create v0 --bridge br0 --attach tap,netsn=a",
        "vnic set v0",
        "vnic show -p",
        "vnic show -p -j -o name",
        "vnic show -o nmae",
        "vnic get v0 vlna",
        "vnic show --timeout x",
        "stat -c 1",
        "stat -i 0",
        "bridge set br0 mtu=1",
        "zone create a --owner no-such-user",
        "uplink create up0 --bridge br0",
        "bridge create all",
    ] {
        let fake = Fake::start();
        let ran = fake.run(words);
        assert_eq!(
            (ran.code, ran.out.as_str()),
            (2, ""),
            "{words}: {}",
            ran.err
        );
        assert!(ran.err.contains("windlass"), "{words}: {}", ran.err);
        assert_eq!(fake.asked(), [], "{words}");
    }
    for words in [
        "--help",
        "--version",
        "vnic create --help",
        "vnic show -o help",
        "-h",
    ] {
        let ran = Ran::of(&windlass(words).output().expect("windlass"));
        assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{words}");
        assert!(!ran.out.is_empty());
    }
}
