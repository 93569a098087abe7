//! The whole on one screen.

use serde_json::Value;

use crate::fake::Fake;

fn stats(time_ms: u64, frames: u64, busy: u64) -> String {
    format!(
        r#"{{"time_ns":{time_ms}000000,"members":[],"workers":[{{"worker":0,"core":1,"rings":2,"frames":{frames},
            "cycles_busy":{busy},"cycles_per_second":1000,"held":3}}]}}"#
    )
}

fn daemon(operator: bool) -> String {
    format!(
        r#"{{"version":"1.2.3","pid":7,"revision":9,"uptime_s":7320,"workers":1,"runtime_dir":"/run/windlass",
            "you":{{"uid":5,"gid":5,"operator":{operator},"zones":["blue"]}},
            "limits":[{{"uid":5,"limit":"vnics-per-uid-max","unit":"VNICs","used":9,"max":10}},
                {{"uid":6,"limit":"vnics-per-uid-max","unit":"VNICs","used":1,"max":10}}]}}"#
    )
}

fn fake(operator: bool) -> Fake {
    Fake::start()
        .on("GET /v1/daemon", 200, &daemon(operator))
        .on("GET /v1/stats", 200, &stats(1_000, 100, 0))
        .on("GET /v1/stats", 200, &stats(1_500, 600, 125))
        .on(
            "GET /v1/bridges",
            200,
            r#"[{"name":"br0","properties":{"addresses-max":1000},"members":["v0","v1"],"table":{"addresses":950}}]"#,
        )
        .on(
            "GET /v1/uplinks",
            200,
            r#"[{"name":"up0","device":"eth0","bridge":"br0","state":"down","reason":"no such interface","counters":{}}]"#,
        )
        .on("GET /v1/overlays", 200, "[]")
        .on(
            "GET /v1/vnics",
            200,
            r#"[{"name":"v0","bridge":"br0","state":"up","counters":{}},
                {"name":"v1","bridge":"br0","state":"waiting","reason":"no peer","counters":{}}]"#,
        )
        .on(
            "GET /v1/drops",
            200,
            r#"{"seconds":83,"drops":[{"name":"v1","reason":"no-buffer","frames":40},
                {"name":"v0","reason":"mac-spoof","frames":30},{"name":"v0","reason":"no-buffer","frames":2}]}"#,
        )
}

/// Each part has its lines; loads are of the interval, reasons are added up over members.
#[test]
fn one_screen() {
    let fake = fake(true);
    let socket = fake.socket();
    let expected = format!(
        "\
daemon      windlassd 1.2.3, pid 7, up 2 h 2 min, revision 9, {}
workers     0 on core 1: 2 rings, 25.0 % busy, 0.0 % polling, 1000 frames/s, 3 frames held
bridges     br0: 2 members, 950 of 1000 addresses
members     1 up, 1 waiting, 1 down
            up0 down: no such interface
            v1 waiting: no peer
drops       in the last 83 s
            no-buffer: 42 frames, most at v1
            mac-spoof: 30 frames, most at v0
",
        socket.display()
    );
    let ran = fake.run("status");
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    let screen: String = (ran.out.lines())
        .filter(|line| !line.starts_with("sockets"))
        .map(|line| format!("{line}\n"))
        .collect();
    let near = "near limits bridge br0: 950 of 1000 addresses (addresses-max)\n            \
                user 5: 9 of 10 VNICs (vnics-per-uid-max)\n";
    assert!(screen.starts_with(&expected), "{screen}");
    assert!(screen.ends_with(near), "{screen}");
}

/// The same as one object.
#[test]
fn one_object() {
    let ran = fake(true).run("status -j");
    let rows: Value = serde_json::from_str(&ran.out).expect("JSON");
    let status = &rows[0];
    assert_eq!(status["workers"][0]["busy"], 0.25);
    assert_eq!(status["members"]["down"], 1);
    assert_eq!(status["members"]["not_up"][1]["reason"], "no peer");
    assert_eq!(status["drops"]["drops"][0]["frames"], 40);
    assert_eq!(status["daemon"]["pid"], 7);
}

/// A tenant is told who the daemon takes it for; there are no fields to choose.
#[test]
fn a_tenant_and_a_mistake() {
    let ran = fake(false).run("status");
    assert!(
        ran.out.contains("\nyou         user 5, zones: blue\n"),
        "{}",
        ran.out
    );
    let ran = fake(true).run("status -o all");
    assert_eq!(ran.code, 2);
    assert!(ran.err.contains("no fields"), "{}", ran.err);
}
