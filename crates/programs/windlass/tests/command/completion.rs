//! What a shell completes: the generated function in a real bash, whose line editor is told what a person types.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::fake::Fake;

/// Types each line and a tab in an interactive bash, and gives the words that the line has then.
fn completed(fake: &Fake, lines: &[&str]) -> Vec<Vec<String>> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../completions/windlass.bash");
    let program = Path::new(env!("CARGO_BIN_EXE_windlass"));
    let path = std::env::var("PATH").unwrap_or_default();
    let directory = program.parent().expect("a directory").display();
    let mut bash = Command::new("script")
        .args(["-qec", "bash --norc --noprofile -i", "/dev/null"])
        .env("PATH", format!("{directory}:{path}"))
        .env("WINDLASS_SOCKET", fake.socket())
        .env("INPUTRC", "/dev/null")
        .env("TERM", "dumb")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("script");
    let mut typed = format!(
        "set +o history; bind 'set bell-style none'; . {}\n",
        page.display()
    );
    for line in lines {
        // To the begin of the line, so that it is printed, each word between brackets.
        typed.push_str(&format!("{line}\t\u{1}printf '{{%s}}' \u{5}; echo .\n"));
    }
    typed.push_str("exit\n");
    let mut input = bash.stdin.take().expect("standard input");
    input.write_all(typed.as_bytes()).expect("bash reads");
    // An end of file would overtake what bash has not read yet.
    let output = bash.wait_with_output().expect("bash");
    drop(input);
    let text = String::from_utf8_lossy(&output.stdout);
    let printed = text.lines().filter(|line| line.starts_with("{windlass}"));
    let words = |line: &str| {
        let words = line
            .split('{')
            .skip(1)
            .filter_map(|word| word.split_once('}'));
        words.map(|(word, _)| word.to_owned()).collect()
    };
    let found: Vec<Vec<String>> = printed.map(words).collect();
    assert_eq!(found.len(), lines.len(), "{text}");
    found
}

/// Names come from the daemon, properties and what --attach takes from the tables, at whatever characters bash breaks words.
#[test]
fn a_shell_completes() {
    let fake = Fake::start()
        .on("GET /v1/bridges", 200, r#"[{"name":"lan-1","members":[],"table":{}}]"#)
        .on("GET /v1/zones", 200, r#"[{"name":"blue","owner_uid":1,"owner_gid":1,"bridges":[],"vnics":0,"directory":"/"}]"#)
        .on("GET /v1/vnics", 200, "[]")
        .on("GET /v1/uplinks", 200, "[]").on("GET /v1/overlays", 200, "[]");
    let lines = [
        ("windlass bridge del", "delete"),
        ("windlass bridge delete l", "lan-1"),
        ("windlass vnic create v0 --bridge l", "lan-1"),
        ("windlass vnic create v0 --zone b", "blue"),
        (
            "windlass vnic create v0 --bridge lan-1 --attach me",
            "memif,",
        ),
        ("windlass vnic create v0 --attach tap,net", "tap,netns="),
        (
            "windlass vnic create v0 --attach memif,socket=/x,ro",
            "memif,socket=/x,role=",
        ),
        (
            "windlass vnic create v0 --attach memif,role=se",
            "memif,role=server",
        ),
        (
            "windlass vnic create v0 --attach=vhost-user,role=c",
            "--attach=vhost-user,role=client",
        ),
        ("windlass vnic create v0 --set mac-nos", "mac-nospoof="),
        (
            "windlass vnic create v0 --set mac-nospoof=of",
            "mac-nospoof=off",
        ),
        ("windlass -j bridge set lan-1 age", "ageing="),
        (
            "windlass bridge set lan-1 vlan-filtering=of",
            "vlan-filtering=off",
        ),
        ("windlass bridge get lan-1 age", "ageing"),
    ];
    let typed: Vec<_> = lines.iter().map(|(line, _)| *line).collect();
    let found = completed(&fake, &typed);
    for ((line, wanted), words) in lines.iter().zip(found) {
        assert_eq!(
            words.last().map(String::as_str),
            Some(*wanted),
            "{line}: {words:?}"
        );
    }
}
