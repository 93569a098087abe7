//! Totals, rates over intervals, drops by reason.

use crate::fake::Fake;

fn stats(time_s: u64, rx: u64, dropped: u64) -> String {
    format!(
        r#"{{"time_ns":{}000000000,"members":[
            {{"name":"v0","bridge":"br0","rx_frames":{rx},"rx_bytes":{},"tx_frames":2,"tx_bytes":128,
              "rx_unicast":{rx},"tx_offered":2,"tx_held":0,"rx_dropped":{dropped},"tx_dropped":0,"drops":{{"mac-spoof":{dropped},"runt":0}}}},
            {{"name":"up0","bridge":"br0","rx_frames":1}}],
            "bridges":[{{"name":"br0","addresses":4,"learned":{rx},"rx_flooded":{rx}}}],
            "workers":[{{"worker":0,"core":1,"rings":2,"frames":{rx},"cycles_busy":{},
              "cycles_per_second":1000}}]}}"#,
        time_s,
        rx * 64,
        rx * 10,
    )
}

fn fake() -> Fake {
    Fake::start()
        .on("GET /v1/vnics", 200,
            r#"[{"name":"v0","bridge":"br0","state":"up","mtu_now":1500,"rings_now":1,"counters":{}}]"#)
        .on("GET /v1/stats", 200, &stats(10, 100, 6))
        .on("GET /v1/stats", 200, &stats(12, 300, 10))
        .on("GET /v1/stats", 200, &stats(13, 300, 10))
}

/// Without an interval totals; only those of the kind that was asked for.
#[test]
fn totals() {
    assert_eq!(
        fake().run("vnic show -s").out,
        "\
NAME  BRIDGE  RX-FRAMES  RX-BYTES  TX-FRAMES  TX-BYTES  RX-DROPPED  TX-DROPPED
v0    br0           100      6400          2       128           6           0
"
    );
    assert_eq!(
        fake().run("stat -H -p -o name,rx-frames").out,
        "v0:100\nup0:1\n"
    );
    assert_eq!(fake().run("stat up0 -H -p -o name").out, "up0\n");
    assert_eq!(
        fake()
            .run("stat v0 -p -o rx-unicast,tx-offered,tx-held")
            .out,
        "100:2:0\n"
    );
    assert_eq!(
        fake().run("stat up0 -j -o name,rx-frames").out,
        "[{\"name\":\"up0\",\"rx_frames\":1}]\n"
    );
    let ran = fake().run("stat up1");
    assert_eq!(ran.code, 4);
    assert!(ran.err.contains("did you mean \"up0\"?"), "{}", ran.err);
}

/// With an interval first totals, then rates of the daemon's clock, the titles naming the unit once.
#[test]
fn rates() {
    assert_eq!(
        fake()
            .run("vnic show -s -i 0.01 -c 3 -o name,rx-frames,rx-dropped")
            .out,
        "\
NAME  RX-FRAMES  RX-DROPPED
v0          100           6

NAME  RX-FRAMES/S  RX-DROPPED/S
v0            100           2.0
v0            0.0           0.0
"
    );
    let out = fake().run("stat v0 -i 0.01 -c 2 --json").out;
    let lines: Vec<serde_json::Value> = out
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    assert_eq!(lines[0][0]["rx_frames"], 100);
    assert!(lines[0][0].get("rates").is_none());
    assert_eq!(
        (&lines[1][0]["rx_frames"], &lines[1][0]["interval_s"]),
        (&300.into(), &2.0.into())
    );
    assert_eq!(lines[1][0]["rates"]["rx_frames_per_s"], 100.0);
}

/// Drops by reason: each with its stage, those that never happened left out.
#[test]
fn drops() {
    let table = "\
NAME  BRIDGE  REASON     STAGE    FRAMES
v0    br0     mac-spoof  ingress       6
";
    for words in [
        "vnic show -s -s",
        "vnic show -ss",
        "vnic show --drops",
        "stat --drops",
    ] {
        assert_eq!(fake().run(words).out, table, "{words}");
    }
    let out = fake().run("stat --drops -i 0.01 -c 2 -H -p -o frames").out;
    assert_eq!(out, "6\n2.0\n");
}

/// Tables of bridges and workers.
#[test]
fn bridges_and_workers() {
    let out = fake().run("bridge show -s -o name,addresses,learned").out;
    assert_eq!(out, "NAME  ADDRESSES  LEARNED\nbr0           4      100\n");
    let out = fake()
        .run("bridge show -s -i 0.01 -c 2 -H -p -o rx-flooded")
        .out;
    assert_eq!(out, "100\n100.0\n");
    let out = fake()
        .run("worker show -i 0.01 -c 2 -H -o worker,frames,busy%,cycles-per-frame")
        .out;
    assert_eq!(out, "0  100  --  10.0\n0  100  100  10.0\n");
}
