//! The three forms of output, word for word.

use crate::fake::Fake;

const VNICS: &str = r#"[
    {"name":"v0","zone":"global","bridge":"br0","mac":"02:00:00:00:00:01",
     "attach":{"kind":"tap","netns":"a","address":["10.0.0.1/24"]},"properties":{"vlan":7},
     "state":"up","mtu_now":1500,"rings_now":1,"counters":{"rx_frames":5}},
    {"name":"web","zone":"a","bridge":"br1","mac":"02:00:00:00:00:02",
     "attach":{"kind":"memif","socket":"/r:s","id":1,"role":"server","secret":"s3"},
     "state":"waiting","reason":"no peer\u001b[31m","mtu_now":0,"rings_now":0,"counters":{}}]"#;

fn vnics() -> Fake {
    Fake::start().on("GET /v1/vnics", 200, VNICS)
}

/// The table of VNICs: titles, alignment, missing and unknown values, no colours and no control
/// characters, the secret hidden.
#[test]
fn a_table() {
    assert_eq!(
        vnics().run("vnic show").out,
        "\
NAME  BRIDGE  ZONE    MAC                STATE    MTU-NOW  ATTACH                                       REASON
v0    br0     global  02:00:00:00:00:01  up          1500  tap,netns=a,address=10.0.0.1/24              --
web   br1     a       02:00:00:00:00:02  waiting        ?  memif,socket=/r:s,id=1,role=server,secret=?  no peer?[31m
"
    );
    assert_eq!(
        vnics()
            .on(
                "GET /v1/bridges/br1",
                200,
                r#"{"name":"br1","members":[],"table":{}}"#
            )
            .run("vnic show -H -o name,state --bridge br1")
            .out,
        "web  waiting\n"
    );
    assert_eq!(
        vnics()
            .run("vnic show -H -o NAME,Properties --zone global")
            .out,
        "v0  vlan=7\n"
    );
    let empty = Fake::start().on("GET /v1/zones", 200, "[]");
    assert_eq!(
        empty.run("zone show").out,
        "NAME  OWNER  GROUP  NETNS  BRIDGES  VNICS\n"
    );
}

/// A zone that is asked for by name shows the limits of its owner.
#[test]
fn limits_of_a_zone() {
    let zone = r#"{"name":"z","owner_uid":7,"owner_gid":8,"bridges":["br0"],"vnics":2,"descriptors":24,"directory":"/r/z",
        "limits":[{"uid":7,"limit":"vnics-per-uid-max","unit":"VNICs","used":3,"max":256}]}"#;
    let fake = Fake::start().on("GET /v1/zones/z", 200, zone);
    assert_eq!(
        fake.run("zone show z").out,
        "NAME  OWNER  GROUP  NETNS  BRIDGES  VNICS\nz         7      8  --     br0          2\n\nz\n  vnics-per-uid-max  3 of 256 VNICs\n"
    );
}

/// A bridge that is asked for by name shows its spanning tree.
#[test]
fn tree_of_a_bridge() {
    let bridge = r#"{"name":"b","members":["up0"],"table":{},"tree":{"id":"8000.02:00:00:00:00:02","root":"1000.02:00:00:00:00:01",
        "cost":20000,"root_port":"up0","topology_changes":3,"ports":[{"member":"up0","part":"root forwarding","cost":20000,
        "designated":"1000.02:00:00:00:00:01 128.3","edge":false,"point_to_point":false,
        "sent":4,"received":12,"malformed":1}]}}"#;
    let fake = Fake::start().on("GET /v1/bridges/b", 200, bridge);
    let shown = fake.run("bridge show b").out;
    let lines: Vec<_> = shown.lines().skip(3).collect();
    assert_eq!(
        lines,
        [
            "b",
            "  spanning tree  8000.02:00:00:00:00:02, root 1000.02:00:00:00:00:01 at cost 20000 by up0; 3 topology changes",
            "  up0            root forwarding, a hub; cost 20000; designated 1000.02:00:00:00:00:01 128.3; BPDUs: 4 sent, 12 received, 1 malformed",
        ]
    );
}

/// So are queriers, members and groups of one that snoops.
#[test]
fn multicast_of_a_bridge() {
    let bridge = r#"{"name":"b","members":["v0"],"table":{},"multicast":{"queriers":["VLAN 1 IPv4: 0.0.0.0, this bridge; snooped"],
        "ports":[{"member":"v0","router":true,"groups":1,"reports":3,"queries":2,"refused":0,"malformed":0,"over_limit":4}],
        "groups":[{"vlan":1,"group":"239.1.2.3","members":{"v0":248}}],"groups_total":1,"relays_lost":0}}"#;
    let fake = Fake::start().on("GET /v1/bridges/b", 200, bridge);
    let shown = fake.run("bridge show b").out;
    let lines: Vec<_> = shown.lines().skip(3).collect();
    assert_eq!(
        lines,
        [
            "b",
            "  multicast  VLAN 1 IPv4: 0.0.0.0, this bridge; snooped",
            "  v0         multicast: 1 groups, 4 over limit, router; 3 reports, 2 queries, 0 refused, 0 malformed",
            "  239.1.2.3  VLAN 1: v0 (248 s)",
        ]
    );
}

/// Fields for the shell: escaped when there are several, as they are when there is one.
#[test]
fn fields() {
    let fake = vnics();
    assert_eq!(
        fake.run("vnic show -p -o name,mac,mtu-now").out,
        "v0:02\\:00\\:00\\:00\\:00\\:01:1500\nweb:02\\:00\\:00\\:00\\:00\\:02:?\n"
    );
    assert_eq!(
        fake.run("-p -o MAC vnic show").out,
        "02:00:00:00:00:01\n02:00:00:00:00:02\n"
    );
    let help = fake.run("vnic show -o help").out;
    assert!(
        help.starts_with("name        Name of the VNIC.\nbridge      "),
        "{help}"
    );
}

/// A VNIC that is asked for by name tells what its attachment says of the connection, below the table; a list, a choice
/// of fields and a table without titles do not; `-o details` has it in one field.
#[test]
fn details() {
    const V0: &str = r#"{"name":"v0","zone":"global","bridge":"br0","mac":"02:00:00:00:00:01",
        "attach":{"kind":"none"},"state":"up","mtu_now":1500,"rings_now":1,"connects":2,
        "details":{"ring-size":"1024","peer":"DPDK\u001b[31m"},"counters":{}}"#;
    let fake =
        Fake::start()
            .on("GET /v1/vnics/v0", 200, V0)
            .on("GET /v1/vnics", 200, &format!("[{V0}]"));
    let shown = fake.run("vnic show v0").out;
    assert!(
        shown.ends_with("--\n\nv0\n  peer       DPDK?[31m\n  ring-size  1024\n"),
        "{shown}"
    );
    for words in ["vnic show", "vnic show v0 -H", "vnic show v0 -o name"] {
        let shown = fake.run(words).out;
        assert!(!shown.contains("ring-size"), "{words}: {shown}");
    }
    assert_eq!(
        fake.run("vnic show v0 -p -o connects,details").out,
        "2:peer=DPDK?[31m ring-size=1024\n"
    );
}

/// JSON: always an array, MAC addresses with colons, numbers as numbers, what the daemon gave.
#[test]
fn json() {
    let out = vnics().run("vnic show --json").out;
    let rows: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(rows[0]["mac"], "02:00:00:00:00:01");
    assert_eq!(
        (&rows[0]["mtu_now"], &rows[0]["properties"]["vlan"]),
        (&1500.into(), &7.into())
    );
    assert_eq!(rows[0]["counters"]["rx_frames"], 5);
    let one = Fake::start().on(
        "GET /v1/bridges/br0",
        200,
        r#"{"name":"br0","members":["v0"],"table":{"addresses":3}}"#,
    );
    let out = one.run("bridge show br0 -j").out;
    let rows: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(
        (rows.as_array().map(Vec::len), &rows[0]["members"][0]),
        (Some(1), &"v0".into())
    );
    assert_eq!(one.run("bridge show br0 -H").out, "br0  v0  3  --\n");
}

/// `get` shows live fields and properties, in the order that was asked for.
#[test]
fn get() {
    let vnic = VNICS
        .trim()
        .trim_start_matches('[')
        .split("\n    {\"name\":\"web\"")
        .next();
    let fake = Fake::start().on(
        "GET /v1/vnics/v0",
        200,
        vnic.expect("vnic").trim_end_matches(','),
    );
    assert_eq!(
        fake.run("vnic get v0 vlan mac learn spin-us").out,
        "\
NAME  PROPERTY  PERM  VALUE              DEFAULT  POSSIBLE
v0    vlan      rw    7                  1        0-4094
v0    mac       rw    02:00:00:00:00:01  --       --
v0    learn     rw    on                 on       on,off
v0    spin-us   rw    auto               auto     0-1000
"
    );
    assert_eq!(
        fake.run("vnic get v0 mac -p -o value").out,
        "02:00:00:00:00:01\n"
    );
    let rows = fake.run("vnic get v0 vlan learn --json").out;
    let rows: serde_json::Value = serde_json::from_str(&rows).expect("JSON");
    assert_eq!(
        (&rows[0]["value"], &rows[0]["set"]),
        (&"7".into(), &true.into())
    );
    assert_eq!(
        (&rows[1]["value"], &rows[1]["set"]),
        (&"on".into(), &false.into())
    );
    let props = fake.run("bridge show-props -p -o property,default").out;
    assert_eq!(
        props,
        "members:--\naddresses:--\nhome:--\nworkers:--\nageing:300\naddresses-max:8192\nvlan-filtering:on\nstp:off\nstp-force-version:rstp\n\
         priority:32768\nmax-age:20\nhello:2\nforward-delay:15\nhold-count:6\n\
         multicast-snooping:off\nmulticast-querier:off\nmulticast-querier-address:0.0.0.0\nmulticast-query-interval:125\n\
         multicast-unknown:flood\nmulticast-groups-max:4096\n"
    );
}

/// A forwarding table of every bridge, and a note on stderr when it was cut.
#[test]
fn fdb() {
    let page = r#"{"entries":[
        {"vlan":1,"mac":"02:00:00:00:00:01","member":"v0","kind":"own"},
        {"vlan":10,"mac":"02:00:00:00:00:09","member":"up0","kind":"learned","age_s":12}],
        "total":5}"#;
    let fake = Fake::start()
        .on(
            "GET /v1/bridges",
            200,
            r#"[{"name":"br0","members":[],"table":{}}]"#,
        )
        .on("GET /v1/bridges/br0/fdb", 200, page)
        .on(
            "GET /v1/bridges/br0/fdb?limit=2&member=v0&vlan=1",
            200,
            page,
        );
    let ran = fake.run("bridge fdb show");
    assert_eq!(
        ran.out,
        "\
BRIDGE  VLAN  MAC                MEMBER  KIND     AGE
br0        1  02:00:00:00:00:01  v0      own       --
br0       10  02:00:00:00:00:09  up0     learned   12
"
    );
    assert_eq!(
        ran.err,
        "windlass: 2 of 5 entries of br0 shown; --limit shows more\n"
    );
    let ran = fake.run("fdb show br0 --member v0 --vlan 1 --limit 2 --json");
    let rows: serde_json::Value = serde_json::from_str(&ran.out).expect("JSON");
    assert_eq!(
        (&rows[1]["bridge"], &rows[1]["age_s"]),
        (&"br0".into(), &12.into())
    );
}

/// Events are a line each, in words and as JSON; the stream's end ends the command.
#[test]
fn monitor() {
    let events = concat!(
        r#"{"time_ns":1000000000,"revision":3,"event":"start"}"#,
        "\n",
        r#"{"time_ns":1500000000,"revision":4,"event":"change","change":{"op":"create","to":{"object":"bridge","config":{"name":"br0"}}}}"#,
        "\n",
        r#"{"time_ns":2000000000,"revision":4,"event":"state","name":"v0","status":{"state":"waiting","reason":"no peer"}}"#,
        "\n",
        r#"{"time_ns":2000000000,"revision":4,"event":"lost","events":9}"#,
        "\n"
    );
    let fake = Fake::start().on("GET /v1/monitor", 200, events);
    let ran = fake.run("monitor");
    let lines: Vec<_> = ran.out.lines().collect();
    assert_eq!(lines[0], "1970-01-01T00:00:01.000Z 3 = start");
    assert!(
        lines[1].starts_with("1970-01-01T00:00:01.500Z 4 + bridge br0"),
        "{}",
        lines[1]
    );
    assert_eq!(lines[2], "1970-01-01T00:00:02.000Z 4 ! v0 waiting: no peer");
    assert_eq!(lines[3], "1970-01-01T00:00:02.000Z 4 ? 9 events lost");
    assert_eq!((lines.len(), ran.code), (4, 0));
    let ran = fake.run("monitor --json --count 2");
    let last: serde_json::Value =
        serde_json::from_str(ran.out.lines().last().expect("a line")).expect("JSON");
    assert_eq!(
        (ran.out.lines().count(), &last["event"]),
        (2, &"change".into())
    );
}

/// Completions get names, one a line, and nothing at all when the daemon is away.
#[test]
fn completions_get_names() {
    let fake = vnics()
        .on("GET /v1/uplinks", 200, "[]")
        .on("GET /v1/overlays", 200, "[]");
    assert_eq!(fake.run("__complete vnic").out, "v0\nweb\n");
    assert_eq!(fake.run("__complete member").out, "v0\nweb\n");
    let away = fake
        .command("__complete vnic --socket /nowhere")
        .output()
        .expect("windlass");
    assert!(away.status.success() && away.stdout.is_empty() && away.stderr.is_empty());
}
