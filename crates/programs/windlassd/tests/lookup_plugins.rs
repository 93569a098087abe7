//! Plugins that behave, and plugins that do not: what is told, what is kept, and what is said about them.

mod told;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use told::{PATIENCE, Seen, name};
use windlass_lookup::protocol::{self, EndpointState, HostState};
use windlass_lookup::table::ENTRIES_MAX;
use windlass_wire::MacAddr;
use windlassd::lookup::{
    Answer, Endpoint, Key, LookupConf, LookupKind, Lookups, Pace, PluginFrom, PluginUser, Started,
    Told,
};

const HELLO: &str = r#"{"op":"hello","v":1,"kind":"dynamic","properties":[{"name":"t/n","type":"uint"},{"name":"t/a","type":"ip","required":true}]}"#;
const OK: &str = r#"{"op":"ok","overlay":"ov0"}"#;
const PUSH: &str = r#"{"op":"push","overlay":"ov0","entries":[{"vni":23,"mac":"02:00:00:00:00:01","target":{"ip":"192.0.2.1"},"host":"h1","gen":1}]}"#;
const PUSHED: [&str; 1] = ["23 02:00:00:00:00:01 192.0.2.1:4789"];

fn mac(last: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, last])
}

/// Quick for what the daemon waits for by design; what a busy machine makes late has 60 s.
fn pace() -> Pace {
    let user = if rustix::process::geteuid().is_root() {
        PluginUser::Other {
            uid: 65_533,
            gid: 65_533,
        }
    } else {
        PluginUser::Own
    };
    Pace {
        ping: Duration::from_secs(3_600),
        answer_max: PATIENCE,
        restart_max: Duration::from_millis(400),
        ..Pace::of(user)
    }
}

struct Lab {
    lookups: Lookups,
    seen: Seen,
    directory: tempfile::TempDir,
}

impl Lab {
    fn new(pace: Pace) -> Self {
        let (lookups, seen) = told::lookups(pace);
        Self {
            lookups,
            seen,
            directory: tempfile::tempdir().expect("a directory"),
        }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("plugin.sock")
    }

    fn conf(&self, overlay: &str, vnis: &[u32]) -> LookupConf {
        let from = PluginFrom::Socket(self.path());
        conf(overlay, vnis, from, &[("t/a", json!("192.0.2.7"))])
    }

    fn start(&self) -> Started {
        self.lookups.start(self.conf("ov0", &[23]))
    }

    /// A plugin that has connected and said nothing.
    fn connect(&self) -> Plugin {
        let start = Instant::now();
        loop {
            match UnixStream::connect(self.path()) {
                Ok(stream) => return Plugin::of(stream),
                Err(error) => assert!(start.elapsed() < PATIENCE, "{error}"),
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// One that has said ok for ov0.
    fn started(&self) -> Plugin {
        let mut plugin = self.connect();
        plugin.say(HELLO);
        plugin.hear("start");
        plugin.say(OK);
        plugin
    }
}

fn conf(overlay: &str, vnis: &[u32], from: PluginFrom, properties: &[(&str, Value)]) -> LookupConf {
    let properties = properties.iter().cloned();
    LookupConf {
        overlay: name(overlay),
        vnis: vnis.iter().map(|vni| (0, *vni)).collect(),
        kind: LookupKind::Plugin {
            from,
            properties: properties
                .map(|(name, value)| (name.to_owned(), value))
                .collect::<BTreeMap<_, _>>(),
        },
    }
}

struct Plugin {
    stream: UnixStream,
    lines: BufReader<UnixStream>,
}

impl Plugin {
    fn of(stream: UnixStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).expect("a time");
        let lines = BufReader::new(stream.try_clone().expect("a copy"));
        Self { stream, lines }
    }

    fn say(&mut self, line: &str) {
        writeln!(self.stream, "{line}").expect("said");
    }

    /// As much of it as is taken: the daemon may end the session before.
    fn pour(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    /// The next line with this `op`; `None` if there will be none.
    fn next(&mut self, op: &str) -> Option<Value> {
        loop {
            let mut line = String::new();
            match self.lines.read_line(&mut line) {
                Ok(0) => return None,
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("{op}: {error}"),
            }
            let message: Value = serde_json::from_str(&line).expect("JSON");
            if message["op"] == op {
                return Some(message);
            }
        }
    }

    fn hear(&mut self, op: &str) -> Value {
        self.next(op).expect("the session goes on")
    }

    fn is_ended(&mut self) -> bool {
        self.next("nothing has this name").is_none()
    }
}

/// A session from hello to stop: what is pushed, withdrawn, synced and asked is told, and the plugin is told what it has to know.
#[test]
fn a_plugin_is_asked_and_believed() {
    let lab = Lab::new(pace());
    let started = lab.start();
    let mut plugin = lab.connect();
    assert_eq!(plugin.hear("hello")["v"], 1);
    plugin.say(HELLO);
    let start = plugin.hear("start");
    assert_eq!(
        (&start["vnis"], &start["properties"]["t/a"]),
        (&json!([23]), &json!("192.0.2.7"))
    );
    plugin.say(OK);
    started.wait(PATIENCE).expect("ok");
    lab.seen.until("restored", |seen| seen.degraded.is_none());

    plugin.say(PUSH);
    lab.seen.until("pushed", |seen| seen.targets() == PUSHED);
    plugin.say(r#"{"op":"degraded","overlay":"ov0","text":"one of three servers is away"}"#);
    lab.seen.until("degraded", |seen| {
        seen.degraded.as_deref() == Some("one of three servers is away")
    });
    plugin.say(r#"{"op":"restored","overlay":"ov0"}"#);
    lab.seen.until("restored", |seen| seen.degraded.is_none());
    plugin.say(r#"{"op":"sync-begin","overlay":"ov0","vni":23}"#);
    plugin.say(r#"{"op":"sync-end","overlay":"ov0","vni":23}"#);
    lab.seen.until("swept", |seen| seen.targets().is_empty());

    lab.lookups.lookup(&name("ov0"), 7, 23, Key::Target(mac(9)));
    lab.lookups
        .lookup(&name("ov0"), 8, 23, Key::Mac([10, 0, 0, 5].into()));
    let (lookup, arp) = (plugin.hear("lookup"), plugin.hear("arp"));
    assert_eq!(lookup["mac"], "02:00:00:00:00:09");
    plugin.say(&format!(
        r#"{{"op":"answer","id":{},"drop":true}}"#,
        arp["id"]
    ));
    plugin.say(&format!(
        r#"{{"op":"answer","id":{},"target":{{"ip":"192.0.2.3"}},"ttl":5}}"#,
        lookup["id"]
    ));
    plugin.say(r#"{"op":"answer","id":99,"drop":true}"#);
    let answer = |id, answer| Told::Answer { id, answer };
    let target = Answer::Target(([192, 0, 2, 3], 4789).into(), Duration::from_secs(5));
    lab.seen.until("answered", |seen| {
        seen.rest == [answer(8, Answer::Drop), answer(7, target)]
    });

    plugin.say(r#"{"op":"wave","at":1}"#);
    assert_eq!(plugin.hear("unsupported")["what"], "wave");
    lab.lookups.stop(&name("ov0"));
    assert!(plugin.is_ended());
    assert!(
        UnixStream::connect(lab.path()).is_err(),
        "nobody can connect any more"
    );
}

/// A claim of addresses is answered by the plugin; at once where there is none, where its session ends, and where it gives none.
#[test]
fn claims_are_answered() {
    let lab = Lab::new(pace());
    let (to, answers) = std::sync::mpsc::channel();
    let claim = |owner: &str| {
        let claim = protocol::Claim {
            id: 0,
            overlay: "ov0".to_owned(),
            vni: 23,
            owner: owner.to_owned(),
            mac: None,
            pool: "p0".to_owned(),
            sets: Vec::new(),
            ips: Vec::new(),
            dry_run: false,
        };
        let (to, owner) = (to.clone(), owner.to_owned());
        let answer = Box::new(move |claimed| to.send((owner, claimed)).expect("awaited"));
        lab.lookups.claim(&name("ov0"), claim, answer);
    };
    let answer = || answers.recv_timeout(PATIENCE).expect("an answer");
    claim("too early");
    assert!(answer().1.is_err());
    let started = lab.start();
    claim("not served yet");
    let told = answer().1.expect_err("it is refused");
    assert!(!told.is_empty());
    let mut plugin = lab.started();
    started.wait(PATIENCE).expect("ok");
    claim("a");
    claim("b");
    let (first, second) = (plugin.hear("claim"), plugin.hear("claim"));
    assert_eq!((&first["owner"], &first["vni"]), (&json!("a"), &json!(23)));
    let number = &second["id"];
    plugin.say(&format!(
        r#"{{"op":"claimed","id":{number},"mac":"02:00:00:00:00:01","ips":["10.0.0.5"]}}"#
    ));
    let given = (mac(1), vec![[10, 0, 0, 5].into()]);
    assert_eq!(answer(), ("b".to_owned(), Ok(given)));
    plugin.say(r#"{"op":"claimed","id":99,"text":"of nobody"}"#);
    plugin.say(&format!(
        r#"{{"op":"claimed","id":{},"text":"all are taken"}}"#,
        first["id"]
    ));
    assert_eq!(answer(), ("a".to_owned(), Err("all are taken".to_owned())));
    claim("c");
    plugin.hear("claim");
    plugin.say(r#"{"op":"unsupported","what":"claim"}"#);
    assert!(answer().1.is_err());
    claim("d");
    plugin.hear("claim");
    lab.lookups.release(&name("ov0"), 23, "d".to_owned());
    assert_eq!(plugin.hear("release")["owner"], "d");
    drop(plugin);
    let (owner, told) = answer();
    assert!(owner == "d" && told.is_err_and(|why| why.contains("ended")));
    let mut plugin = lab.started();
    lab.seen.until("restored", |seen| seen.degraded.is_none());
    claim("e");
    plugin.hear("claim");
    lab.lookups.stop(&name("ov0"));
    assert!(answer().1.is_err());
}

/// Endpoints are announced to each session once it has said ok, until they are retired; its word about them is told, about others not.
#[test]
fn endpoints_are_announced_again() {
    let lab = Lab::new(pace());
    let _started = lab.start();
    let endpoint = |last, state| Endpoint {
        vni: 23,
        mac: mac(last),
        ips: vec![[10, 0, 0, last].into()],
        state,
    };
    lab.lookups
        .announce(&name("ov0"), endpoint(1, EndpointState::Standby));
    let mut plugin = lab.started();
    let first = plugin.hear("announce");
    assert_eq!(
        (&first["state"], &first["ips"]),
        (&json!("standby"), &json!(["10.0.0.1"]))
    );
    for _ in 0..2 {
        lab.lookups
            .announce(&name("ov0"), endpoint(1, EndpointState::Active));
    }
    lab.lookups
        .announce(&name("ov0"), endpoint(2, EndpointState::Active));
    assert_eq!(plugin.hear("announce")["state"], "active");
    assert_eq!(plugin.hear("announce")["mac"], "02:00:00:00:00:02");
    let about = |what: &str, last: u8, more: &str| {
        format!(
            r#"{{"op":"{what}","overlay":"ov0","vni":23,"mac":"{}",{more}}}"#,
            mac(last)
        )
    };
    plugin.say(&about("owned", 9, "\"gen\":1"));
    plugin.say(&about("owned", 1, "\"gen\":4"));
    plugin.say(&about("refused", 2, "\"by\":\"h2\""));
    let owned = Told::Owned {
        vni: 23,
        mac: mac(1),
        generation: 4,
    };
    let refused = Told::Refused {
        vni: 23,
        mac: mac(2),
        by: "h2".to_owned(),
    };
    lab.seen.until("its word", |seen| {
        seen.rest == [owned.clone(), refused.clone()]
    });
    lab.lookups.retire(&name("ov0"), 23, mac(1));
    assert_eq!(plugin.hear("retire")["mac"], "02:00:00:00:00:01");
    lab.lookups
        .announce(&name("ov0"), endpoint(3, EndpointState::Active));
    plugin.hear("announce");
    drop(plugin);
    lab.seen.until("gone", |seen| seen.degraded.is_some());
    lab.lookups.retire(&name("ov0"), 23, mac(3));
    let mut plugin = lab.started();
    assert_eq!(plugin.hear("retire")["mac"], "02:00:00:00:00:03");
    assert_eq!(plugin.hear("announce")["mac"], "02:00:00:00:00:02");
    lab.lookups.forget(&name("ov0"), "h3".to_owned());
    assert_eq!(plugin.hear("forget")["host"], "h3");
}

/// Each session tells of all hosts anew: those of the one before are gone, and take no place.
#[test]
fn hosts_are_those_of_the_session() {
    let lab = Lab::new(pace());
    let _started = lab.start();
    let told = |state: &told::State, host: &str, wanted: HostState| {
        state.rest.iter().rev().any(
            |told| matches!(told, Told::Host { host: of, state, .. } if of == host && *state == wanted),
        )
    };
    for session in ["h", "g"] {
        let mut plugin = lab.started();
        for number in 0..4_096 {
            plugin.say(&format!(
                r#"{{"op":"host","overlay":"ov0","host":"{session}{number}","state":"alive"}}"#
            ));
        }
        let last = format!("{session}4095");
        lab.seen
            .until("told", |seen| told(seen, &last, HostState::Alive));
    }
    lab.seen
        .until("gone", |seen| told(seen, "h0", HostState::Gone));
}

/// What a plugin says that is wrong, and the words for it.
fn lies() -> Vec<(String, &'static str)> {
    let push = |entry: &str| PUSH.replace("\"vni\":23", entry);
    let lie = |line: &str, words| (format!("{line}\n"), words);
    vec![
        lie("garbage", "in the line \"garbage\""),
        lie("\u{1b}[2J{}", "in the line \"\u{fffd}[2J{}\""),
        ("x".repeat(80 << 10), "a line of more than 65536 bytes"),
        lie(&push("\"vni\":24"), "VNI 24 is not one of this overlay's"),
        lie(&push("\"vni\":16777216"), "is no VNI"),
        lie(r#"{"op":"sync-begin","overlay":"ov0","vni":7}"#, "VNI 7"),
        lie(
            r#"{"op":"flood","overlay":"ov0","vni":7,"targets":[]}"#,
            "VNI 7",
        ),
        lie(
            r#"{"op":"sync-end","overlay":"ov0","vni":23}"#,
            "has not begun",
        ),
        lie(HELLO, "hello a second time"),
        lie(r#"{"op":"pong","id":77}"#, "ping 77, which was not asked"),
        lie(
            r#"{"op":"answer","id":1,"mac":"02:00:00:00:00:01"}"#,
            "does not fit",
        ),
    ]
}

/// A plugin that says something wrong is ended with its words; what it said before stays, and so it does until the next one has
/// brought all.
#[test]
fn a_plugin_that_lies_is_ended_and_its_table_kept() {
    let lab = Lab::new(pace());
    let _started = lab.start();
    for (lie, words) in lies() {
        let mut plugin = lab.started();
        plugin.say(PUSH);
        plugin.say(r#"{"op":"sync-begin","overlay":"ov0"}"#);
        lab.seen.until("restored", |seen| seen.degraded.is_none());
        lab.lookups.lookup(&name("ov0"), 1, 23, Key::Target(mac(9)));
        let id = plugin.hear("lookup")["id"].to_string();
        let lie = lie.replace("\"id\":1,", &format!("\"id\":{id},"));
        plugin.pour(lie.replace("},\n", "},").as_bytes());
        lab.seen.until(words, |seen| {
            let reason = seen.degraded.clone().unwrap_or_default();
            reason.starts_with("its lookup plugin: ") && reason.contains(words)
        });
        assert!(plugin.is_ended());
        assert_eq!(lab.seen.targets(), PUSHED, "{words}");
    }
    let mut plugin = lab.started();
    plugin.say(r#"{"op":"sync-begin","overlay":"ov0"}"#);
    plugin.say(r#"{"op":"sync-end","overlay":"ov0"}"#);
    lab.seen.until("synced", |seen| {
        seen.targets().is_empty() && seen.degraded.is_none()
    });
}

/// One that speaks too early, or of another version, is ended; one that lacks a property, or refuses, is told to who waits.
#[test]
fn a_start_that_fails_is_told_in_words() {
    for (lines, words) in [
        (vec![PUSH], "does not begin with hello"),
        (
            vec!["{\"op\":\"hello\",\"v\":2,\"kind\":\"table\"}"],
            "version 2, not 1",
        ),
    ] {
        let lab = Lab::new(pace());
        let started = lab.start();
        let mut plugin = lab.connect();
        for line in &lines {
            plugin.say(line);
        }
        assert!(plugin.is_ended());
        let error = started.wait(PATIENCE).expect_err(words).0;
        assert!(error.contains(words), "{error}");
    }
    let lab = Lab::new(pace());
    let started = lab.start();
    let mut plugin = lab.connect();
    plugin.say(HELLO);
    plugin.hear("start");
    plugin.say(r#"{"op":"error","overlay":"ov0","text":"no such cluster"}"#);
    let error = started.wait(PATIENCE).expect_err("refused").0;
    assert_eq!(error, "no such cluster");
    for (properties, words) in [
        (vec![], "the plugin needs the property t/a"),
        (vec![("t/a", json!("x"))], "t/a: \"x\" is not an IP address"),
        (
            vec![("t/n", json!(-1))],
            "t/n: -1 is not a whole number that is not negative",
        ),
    ] {
        let conf = conf("ov1", &[24], PluginFrom::Socket(lab.path()), &properties);
        let error = lab.lookups.start(conf).wait(PATIENCE).expect_err(words).0;
        assert_eq!(error, words);
    }
    assert_eq!(lab.seen.targets().len(), 0);
}

/// A plugin that has no answer in time is ended, whatever it was to answer; one that does not read, too.
#[test]
fn a_mute_plugin_is_ended() {
    let quick = Pace {
        ping: Duration::from_millis(50),
        answer_max: Duration::from_millis(300),
        ..pace()
    };
    let lab = Lab::new(quick);
    let _started = lab.start();
    // A busy machine may have one late with an earlier answer.
    let is_ended = |words: &str, lines: &[&str]| {
        let start = Instant::now();
        while !lab
            .seen
            .reasons()
            .iter()
            .any(|reason| reason.contains(words))
        {
            assert!(
                start.elapsed() < PATIENCE,
                "{words}: {:?}",
                lab.seen.reasons()
            );
            let mut plugin = lab.connect();
            for line in lines {
                plugin.pour(format!("{line}\n").as_bytes());
            }
            assert!(plugin.is_ended());
        }
    };
    is_ended("has not said hello for 0.3 s", &[]);
    is_ended("does not answer for ov0", &[HELLO]);
    is_ended("has not answered for 0.3 s", &[HELLO, OK]);

    let lab = Lab::new(pace());
    let _started = lab.start();
    let plugin = lab.started();
    lab.seen.until("restored", |seen| seen.degraded.is_none());
    let ips = vec![[10, 0, 0, 1].into(); 16];
    for number in 0..60_000_u32 {
        let [a, b, c, d] = number.to_be_bytes();
        let endpoint = Endpoint {
            vni: 23,
            mac: MacAddr([2, 0, a, b, c, d]),
            ips: ips.clone(),
            state: EndpointState::Active,
        };
        lab.lookups.announce(&name("ov0"), endpoint);
    }
    lab.seen.until("ended", |seen| {
        seen.reasons
            .iter()
            .any(|reason| reason.contains("does not read"))
    });
    plugin.stream.shutdown(Shutdown::Both).expect("ours");
}

/// A plugin that pushes without an end fills its overlay's table and no more.
#[test]
fn a_flood_of_entries_is_bounded() {
    let lab = Lab::new(pace());
    let _started = lab.start();
    let mut plugin = lab.started();
    let mut number = 0_u32;
    loop {
        let entry = |number: u32| {
            let [_, a, b, c] = number.to_be_bytes();
            let mac = MacAddr([2, 0, 0, a, b, c]);
            format!(r#"{{"vni":23,"mac":"{mac}","target":{{"ip":"192.0.2.1"}}}}"#)
        };
        let entries: Vec<_> = (number..number + 500).map(entry).collect();
        number += 500;
        let entries = entries.join(",");
        let push = format!(r#"{{"op":"push","overlay":"ov0","entries":[{entries}]}}"#);
        if writeln!(plugin.stream, "{push}").is_err() {
            break;
        }
        assert!(number < 1_000_000, "it is taken without an end");
    }
    lab.seen.until("refused", |seen| {
        let reason = seen.degraded.clone().unwrap_or_default();
        reason.contains(&format!("more than {ENTRIES_MAX} endpoints"))
    });
    assert_eq!(lab.seen.targets().len(), ENTRIES_MAX);
}

/// Overlays of one plugin share its session, and its end; each is changed by itself, and a change that is refused changes nothing.
#[test]
fn overlays_share_a_plugin() {
    let lab = Lab::new(pace());
    let first = lab.start();
    let second = lab.lookups.start(lab.conf("ov1", &[24]));
    let mut plugin = lab.started();
    assert_eq!(plugin.hear("start")["overlay"], "ov1");
    plugin.say(r#"{"op":"ok","overlay":"ov1"}"#);
    first.wait(PATIENCE).expect("ok");
    second.wait(PATIENCE).expect("ok");
    plugin.say(PUSH);
    lab.seen.until("pushed", |seen| seen.targets() == PUSHED);

    let set = lab.lookups.set(lab.conf("ov0", &[23, 25]));
    assert_eq!(plugin.hear("set")["vnis"], json!([23, 25]));
    plugin.say(PUSH);
    plugin.say(r#"{"op":"error","overlay":"ov0","text":"no"}"#);
    assert_eq!(set.wait(PATIENCE).expect_err("refused").0, "no");
    let set = lab.lookups.set(lab.conf("ov0", &[25]));
    plugin.hear("set");
    plugin.say(OK);
    set.wait(PATIENCE).expect("ok");
    lab.seen
        .until("the VNI is gone", |seen| seen.targets().is_empty());
    plugin.say(&PUSH.replace("\"vni\":23", "\"vni\":25"));
    lab.seen.until("pushed", |seen| seen.targets().len() == 1);

    let again = lab.start();
    assert_eq!(plugin.hear("stop")["overlay"], "ov0");
    // As said before it has read that: of an overlay that it does not serve now.
    let told = lab.seen.changes();
    for line in [PUSH, r#"{"op":"sync-end","overlay":"ov0"}"#, OK, OK] {
        plugin.say(line);
    }
    again.wait(PATIENCE).expect("ok");
    assert_eq!(lab.seen.changes(), told);

    lab.lookups.stop(&name("ov0"));
    assert_eq!(plugin.hear("stop")["overlay"], "ov0");
    plugin.say(PUSH);
    plugin.say(r#"{"op":"degraded","overlay":"ov1","text":"still here"}"#);
    lab.seen
        .until("it serves the other", |seen| seen.degraded.is_some());
    lab.lookups.stop(&name("ov1"));
    assert!(plugin.is_ended());
}

fn shell(script: &str) -> PluginFrom {
    PluginFrom::Command(["/bin/sh", "-c", script].map(str::to_owned).to_vec())
}

/// A plugin that is started says who it is; killed again and again it is started again, later each time, and its table stays.
#[test]
fn a_started_plugin_is_started_again() {
    let lab = Lab::new(pace());
    let script = r#"
        exec >&3 <&3
        echo '{"op":"hello","v":1,"kind":"table"}'
        while read -r line; do
            case $line in
                *'"start"'*) echo '{"op":"ok","overlay":"ov0"}'
                    echo '{"op":"push","overlay":"ov0","entries":[{"vni":23,"mac":"02:00:00:00:00:01","target":{"ip":"192.0.2.1"}}]}'
                    echo '{"op":"host","overlay":"ov0","host":"'$$'","state":"alive"}' ;;
            esac
        done"#;
    let conf = conf("ov0", &[23], shell(script), &[]);
    lab.lookups.start(conf).wait(PATIENCE).expect("ok");
    for turn in 0..6 {
        lab.seen.until("another process", |seen| {
            // The one before is told to be gone.
            seen.rest.len() == 2 * turn + 1 && seen.targets() == PUSHED && seen.degraded.is_none()
        });
        let process = lab.seen.hosts().last().cloned().expect("one");
        let pid: i32 = process.parse().expect("a number");
        let pid = rustix::process::Pid::from_raw(pid).expect("a process");
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("killed");
    }
    assert_eq!(
        lab.seen.changes(),
        1,
        "nothing differs, however often it is said"
    );
    let mut processes = lab.seen.hosts();
    processes.dedup();
    assert_eq!(processes.len(), 6);
}

/// A plugin that ends at once is started so often as its rule says, and no oftener.
#[test]
fn a_plugin_that_ends_at_once_is_started_ever_later() {
    let lab = Lab::new(pace());
    let directory = lab.directory.path();
    std::fs::set_permissions(
        directory,
        std::os::unix::fs::PermissionsExt::from_mode(0o777),
    )
    .expect("ours");
    let file = directory.join("starts");
    let script = format!("date >> {}", file.display());
    let begun = Instant::now();
    let started = lab.lookups.start(conf("ov0", &[23], shell(&script), &[]));
    let error = started.wait(PATIENCE).expect_err("it has ended").0;
    assert!(
        error.contains("it has ended or closed its connection"),
        "{error}"
    );
    std::thread::sleep(Duration::from_secs(2));
    lab.lookups.stop(&name("ov0"));
    let starts = std::fs::read_to_string(&file)
        .expect("written")
        .lines()
        .count();
    // Once at once, then after 0.1, 0.2 and 0.4 s, then every 0.4 s.
    let most = 4 + begun.elapsed().as_millis() / 400;
    assert!((2..=most).contains(&(starts as u128)), "{starts} of {most}");
}

/// What cannot be started is refused in words: no program, one that others can change, no user to run it.
#[test]
fn what_cannot_be_started_is_refused() {
    let lab = Lab::new(pace());
    let own = lab.directory.path().join("plugin");
    std::fs::write(&own, "#!/bin/sh\n").expect("written");
    for (from, words) in [
        (PluginFrom::Command(vec![]), "no command"),
        (
            PluginFrom::Command(vec!["/nowhere/plugin".to_owned()]),
            "No such file or directory",
        ),
        (
            PluginFrom::Command(vec!["sh".to_owned()]),
            "No such file or directory",
        ),
        (
            PluginFrom::Command(vec!["/etc/passwd".to_owned()]),
            "Permission denied",
        ),
        (
            PluginFrom::Command(vec![own.display().to_string()]),
            "others can replace",
        ),
        (PluginFrom::Socket(own.clone()), "is not a socket"),
    ] {
        let error = lab.lookups.start(conf("ov0", &[23], from, &[]));
        let error = error.wait(PATIENCE).expect_err(words).0;
        assert!(error.contains(words), "{error}");
    }
    let lab = Lab::new(Pace::of(PluginUser::Missing));
    let started = lab.lookups.start(conf("ov0", &[23], shell("exit"), &[]));
    let error = started.wait(PATIENCE).expect_err("no user").0;
    assert!(
        error.contains("there is no user windlass-lookup to run it"),
        "{error}"
    );
}
