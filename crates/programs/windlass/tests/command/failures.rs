//! Exit codes and what is said of a failure.

use std::io::Read;
use std::process::Stdio;

use crate::fake::{Fake, Ran, windlass};

const VNIC: &str = r#"{"name":"v0","zone":"global","bridge":"br0","mac":"02:00:00:00:00:01",
    "attach":{"kind":"tap"},"properties":{"learn":false},"state":"up","mtu_now":1500,"rings_now":1,
    "counters":{}}"#;

/// Each code of the daemon has its exit code and its words, for people and as JSON.
#[test]
fn codes_of_the_daemon() {
    for (status, code, exit) in [
        (422, "invalid", 1),
        (409, "in_use", 1),
        (507, "storage", 1),
        (404, "not_found", 4),
        (409, "exists", 5),
        (403, "forbidden", 6),
        (408, "timeout", 124),
    ] {
        let fake = Fake::start().refuse("POST /v1/bridges", status, code, "no: do this");
        let ran = fake.run("bridge create br0");
        assert_eq!((ran.code, ran.out.as_str()), (exit, ""), "{code}");
        assert!(
            ran.err
                .starts_with("windlass: create bridge br0 failed: no: do this"),
            "{}",
            ran.err
        );
        assert_eq!(ran.err.lines().count(), 1);
        let ran = fake.run("bridge create br0 --json");
        let told: serde_json::Value = serde_json::from_str(&ran.err).expect("JSON");
        assert_eq!((ran.code, &told["code"]), (exit, &code.into()));
        assert!(
            told["message"]
                .as_str()
                .expect("text")
                .contains("no: do this")
        );
    }
}

/// A name that is not there: code 4, the nearest name, and silence with `--if-exists`.
#[test]
fn absent_names() {
    let fake = Fake::start()
        .on("GET /v1/vnics", 200, &format!("[{VNIC}]"))
        .refuse(
            "DELETE /v1/vnics/vo",
            404,
            "not_found",
            "there is no vnic \"vo\"",
        )
        .refuse(
            "GET /v1/vnics/vo",
            404,
            "not_found",
            "there is no vnic \"vo\"",
        );
    let ran = fake.run("vnic delete vo");
    assert_eq!(ran.code, 4);
    assert_eq!(
        ran.err,
        "windlass: delete vnic vo failed: there is no vnic \"vo\"; did you mean \"v0\"? \
         \"windlass vnic show\" lists them\n"
    );
    assert!(fake.run("vnic show vo").err.contains("did you mean \"v0\""));
    let silent = Ran {
        code: 0,
        out: String::new(),
        err: String::new(),
    };
    assert_eq!(fake.run("vnic delete vo --if-exists"), silent);
    let fake = Fake::start().refuse(
        "DELETE /v1/bridges/br0/fdb?mac=02:00:00:00:00:01",
        404,
        "not_found",
        "x",
    );
    assert_eq!(fake.run("fdb delete br0 2:0:0:0:0:1").code, 4);
    assert_eq!(fake.run("fdb delete br0 2:0:0:0:0:1 --if-exists"), silent);
}

/// Verbs of other tools lead to those that there are.
#[test]
fn verbs_of_other_tools() {
    let fake = Fake::start();
    for (typed, meant) in [
        ("bridge add br0", "windlass bridge create"),
        ("vnic del v0", "windlass vnic delete"),
        ("zone list", "windlass zone show"),
        ("uplink change up0 mtu=1400", "windlass uplink set"),
        ("fdb list br0", "windlass fdb show"),
    ] {
        let ran = fake.run(typed);
        assert_eq!(ran.code, 2, "{}", ran.err);
        let end = format!("; did you mean \"{meant}\"?\n");
        assert!(ran.err.ends_with(&end), "{}", ran.err);
    }
    // There is no such verb of a forwarding table.
    assert!(!fake.run("fdb new br0").err.contains("create"));
}

/// What is to be shown of an object that does not exist is refused, as the object itself: an empty table is no answer.
#[test]
fn filters_that_name_nothing() {
    let fake = Fake::start().on("GET /v1/zones", 200, "[]");
    let fake = ["flows", "uplinks", "overlays", "vnics", "vnds", "bridges"]
        .into_iter()
        .fold(fake, |fake, kind| {
            fake.on(&format!("GET /v1/{kind}"), 200, "[]")
        });
    let fake = [("vnics", "vnic"), ("bridges", "bridge"), ("zones", "zone")]
        .into_iter()
        .fold(fake, |fake, (path, kind)| {
            let why = format!("there is no {kind} \"absent\"");
            fake.refuse(&format!("GET /v1/{path}/absent"), 404, "not_found", &why)
        });
    for (typed, kind) in [
        ("flow show --vnic absent", "vnic"),
        ("flow show --vnic absent -i 1 -c 1", "vnic"),
        ("uplink show --bridge absent", "bridge"),
        ("vnic show --bridge absent", "bridge"),
        ("vnic show --zone absent", "zone"),
        ("vnd list --zone absent", "zone"),
        ("vnd stat --zone absent", "zone"),
    ] {
        let ran = fake.run(typed);
        assert_eq!(
            (ran.code, ran.out.as_str()),
            (4, ""),
            "{typed}: {}",
            ran.err
        );
        let end = format!("there is no {kind} \"absent\"; \"windlass {kind} show\" lists ");
        assert!(ran.err.contains(&end), "{typed}: {}", ran.err);
    }
}

/// An entry that is there cannot be set: what is advised can be typed.
#[test]
fn an_entry_that_exists() {
    let fake = Fake::start().refuse("POST /v1/bridges/br0/fdb", 409, "exists", "it is there");
    let ran = fake.run("fdb add br0 2:0:0:0:0:1 v0");
    assert_eq!(ran.code, 5, "{}", ran.err);
    assert!(
        ran.err
            .ends_with("it is there; \"windlass fdb delete\" removes it\n"),
        "{}",
        ran.err
    );
}

/// A name that is there: code 5; with `--may-exist` silence if it is as asked, else code 5 and in what it
/// differs.
#[test]
fn names_that_exist() {
    let fake = Fake::start()
        .refuse(
            "POST /v1/vnics",
            409,
            "exists",
            "vnic \"v0\" exists already",
        )
        .on("GET /v1/vnics/v0", 200, VNIC);
    let ran = fake.run("vnic create v0 --bridge br0");
    assert_eq!(ran.code, 5);
    assert!(ran.err.contains("--may-exist"), "{}", ran.err);
    for (request, words) in [
        ("POST /v1/vnds", "vnd create d0 -z global"),
        ("PATCH /v1/vnds/global/d0", "vnd rename d0 d1 -z global"),
    ] {
        let fake = Fake::start().refuse(request, 409, "exists", "it exists already");
        let ran = fake.run(words);
        assert_eq!(ran.code, 5, "{}", ran.err);
        assert!(
            ran.err.contains("vnd destroy") && !ran.err.contains("--may-exist"),
            "{}",
            ran.err
        );
    }
    let silent = Ran {
        code: 0,
        out: String::new(),
        err: String::new(),
    };
    for same in [
        "",
        " --attach tap",
        " --set learn=off",
        " --mac 2:0:0:0:0:1",
        " --vlan 1",
    ] {
        let words = format!("vnic create v0 --bridge br0 --may-exist{same}");
        assert_eq!(fake.run(&words), silent, "{words}");
    }
    let ran =
        fake.run("vnic create v0 --bridge br1 --may-exist --set learn=on --attach tap,netns=a");
    assert_eq!(ran.code, 5);
    assert_eq!(
        ran.err,
        "windlass: create vnic v0 failed: vnic \"v0\" exists with another bridge, attach, learn; \
         use \"windlass vnic set\" to change it\n"
    );
}

/// Mistakes on the command line are told in one line, with the word that was meant.
#[test]
fn mistakes_are_told() {
    let told = |words: &str| {
        let ran = Ran::of(&windlass(words).output().expect("windlass"));
        assert_eq!((ran.code, ran.err.lines().count()), (2, 1), "{}", ran.err);
        ran.err
    };
    assert_eq!(
        told("vnics show"),
        "windlass: reading the command line failed: unrecognized subcommand 'vnics'; \
         a similar subcommand exists: 'vnic'\n"
    );
    assert!(told("vnic shwo").contains("'show'"));
    assert!(told("vnic show --jsno").contains("'--json'"));
    let missing = told("vnic create v0");
    assert!(missing.contains("--bridge <BRIDGE>"), "{missing}");
    assert!(
        missing.ends_with("see \"windlass vnic create --help\"\n"),
        "{missing}"
    );
    assert!(told("vnic create v0 --bridge b --set mac-nospof=off").contains("\"mac-nospoof\"?"));
    assert!(told("vnic create v0 --bridge b --attach tpa").contains("there is no attachment"));
    let secret = "abcdefghijklmnopqrstuvwxyz";
    let refused = told(&format!(
        "vnic create v0 --bridge b --attach memif,socket=m,role=server,secret={secret},id=1"
    ));
    assert!(
        refused.contains("secret=?,id=1'") && !refused.contains(secret),
        "{refused}"
    );
    assert!(told("vnic show -o nmae").contains("\"name\"?"));
    for (words, said) in [
        (
            "gen p0 --dst-mac p1 --rate -5",
            "not a number from 1 to 1000G",
        ),
        ("snoop -d v0 -w f -C -1", "-1 is not in 1..=1000000"),
        ("vnd stat -1", "not a number of seconds from 0"),
        ("stat -i -1", "not a number of seconds from 0"),
        ("vnic show --timeout -1", "not a number of seconds from 0"),
    ] {
        let told = told(words);
        assert!(told.contains(said), "{words}: {told}");
    }
    assert!(told("vnic show -p").contains("-p needs -o"));
    for words in ["snoop -d v0 --json", "snoop -d v0 -o time"] {
        let told = told(words);
        assert!(
            told.contains("snoop writes frames as text"),
            "{words}: {told}"
        );
    }
    let json: serde_json::Value = serde_json::from_str(&told("vnci show --json")).expect("JSON");
    assert_eq!(json["code"], "usage");
}

/// Without a word that says what to do the words that there are come, whatever the environment says, and none that is
/// for completions only.
#[test]
fn a_missing_word_is_helped() {
    for words in ["", "vnic"] {
        for socket in [None, Some("/nowhere")] {
            let mut command = windlass(words);
            if let Some(socket) = socket {
                command.env("WINDLASS_SOCKET", socket);
            }
            let ran = Ran::of(&command.output().expect("windlass"));
            assert_eq!(ran.code, 2, "{}", ran.err);
            let shown = if words.is_empty() {
                "monitor"
            } else {
                "show-props"
            };
            assert!(ran.err.contains(shown), "{words}: {}", ran.err);
            assert!(ran.err.contains("a word is missing"), "{}", ran.err);
            assert!(!ran.err.contains("__complete"), "{}", ran.err);
        }
    }
}

/// No socket, nobody behind it, one that may not be opened, an answer that does not come or is cut.
#[test]
fn the_daemon_is_away() {
    let dir = tempfile::tempdir().expect("directory");
    let absent = dir.path().join("s");
    let run = |words: &str| {
        let socket = format!("{words} --socket {}", absent.display());
        Ran::of(&windlass(&socket).output().expect("windlass"))
    };
    let ran = run("vnic show");
    assert_eq!(ran.code, 3);
    assert!(
        ran.err.contains(absent.to_str().expect("path")),
        "{}",
        ran.err
    );
    assert!(ran.err.contains("start windlassd"), "{}", ran.err);
    drop(std::os::unix::net::UnixListener::bind(&absent).expect("socket"));
    assert_eq!(run("vnic show").code, 3, "nobody listens");
    assert!(
        run("vnic show --json")
            .err
            .starts_with("{\"code\":\"unreachable\"")
    );
    let fake = Fake::start()
        .on("GET /v1/vnics", 0, "")
        .on("GET /v1/bridges", 1, "");
    let ran = fake.run("vnic show --timeout 0.2");
    assert_eq!(ran.code, 124);
    assert!(ran.err.contains("no answer within 0.2 s"), "{}", ran.err);
    assert_eq!(fake.run("bridge show").code, 3, "cut short");
    let fake = Fake::start()
        .on("GET /v1/vnics", 200, "<html>")
        .on("GET /v1/bridges", 500, "oops");
    assert_eq!(
        (fake.run("vnic show").code, fake.run("bridge show").code),
        (1, 1)
    );
}

/// A reader that goes away ends the command without a word.
#[test]
fn broken_pipes_are_quiet() {
    let many = vec![VNIC; 20_000].join(",");
    let fake = Fake::start().on("GET /v1/vnics", 200, &format!("[{many}]"));
    let mut child = fake.command("vnic show");
    let mut child = child
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("windlass");
    let mut first = [0; 4];
    child
        .stdout
        .take()
        .expect("stdout")
        .read_exact(&mut first)
        .expect("some output");
    let output = child.wait_with_output().expect("end");
    assert_eq!(
        Ran::of(&output),
        Ran {
            code: 0,
            out: String::new(),
            err: String::new()
        }
    );
}
