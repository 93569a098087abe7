//! What the README tells people to type works as it is written.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use windlass_tests::{program, run, skip};

/// The lines of shell examples, those that go on behind a backslash joined.
fn typed(page: &str) -> Vec<String> {
    let mut lines = Vec::new();
    for fence in page.split("```sh\n").skip(1) {
        let fence = fence.split("```").next().unwrap_or_default();
        let joined = fence.replace("\\\n", " ");
        lines.extend(joined.lines().map(str::to_owned));
    }
    lines
}

/// Words in capitals that stand for something, and something that they may stand for.
const PLACES: [(&str, &str); 9] = [
    ("OBJECT VERB", "vnic show"),
    ("KEY=VALUE", "mtu=1500"),
    ("NAME", "v0"),
    ("ADDRESS", "02:00:00:00:00:01"),
    ("BRIDGE", "br0"),
    ("PROGRAM", "true"),
    ("PID|all", "all"),
    // Users of every host.
    ("--owner ann", "--owner root"),
    ("owner=libvirt-qemu:kvm", "owner=root:root"),
];

/// What the pages tell people to type: lines of examples, and what stands in a sentence or a table.
fn commands(page: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (number, part) in page.split("```").enumerate() {
        let text = part.replace("\\\n", " ");
        if number % 2 == 1 {
            let lines = text
                .lines()
                .map(|line| line.strip_prefix("$ ").unwrap_or(line));
            // Output of windlass starts with its name and a colon.
            found.extend(lines.map(str::to_owned));
        } else {
            found.extend(text.split('`').skip(1).step_by(2).map(str::to_owned));
        }
    }
    let programs = ["windlass ", "windlassd ", "windlass-broker "];
    found.retain(|line| programs.iter().any(|program| line.starts_with(program)));
    found
}

/// Whether a command is understood, as far as that can be seen without a daemon.
fn is_understood(line: &str) -> bool {
    const NO_DAEMON: i32 = 3;
    let mut line = PLACES.iter().fold(line.to_owned(), |line, (place, word)| {
        line.replace(place, word)
    });
    for end in [" #", " |", " &", " >", ";"] {
        line.truncate(line.find(end).unwrap_or(line.len()));
    }
    let words: Vec<_> = line.split_whitespace().collect();
    let ends = |more: &[&str]| {
        let mut command = Command::new(program(words[0]));
        command.args(&words[1..]).args(more);
        run(command.env("WINDLASS_SOCKET", "/nonexistent/socket")).code
    };
    match words[..] {
        [.., "--help"] => ends(&[]) == 0,
        // The name of a command.
        [_, _] => ends(&["--help"]) == 0,
        // They do more than to ask a daemon.
        [
            "windlass",
            "apply" | "metrics" | "sockets" | "stackdump",
            ..,
        ] => ends(&["--help"]) == 0,
        ["windlass", "run", ..] => {
            // What comes behind a program is its own.
            let is_program = |word: &&str| !word.starts_with('-') && word.parse::<f64>().is_err();
            let at = words
                .iter()
                .skip(2)
                .position(is_program)
                .map_or(words.len(), |at| at + 2);
            let at = words.iter().position(|word| *word == "--").unwrap_or(at);
            let mut command = Command::new(program("windlass"));
            run(command.args(&words[1..at]).arg("--help")).code == 0
        }
        ["windlass", ..] => ends(&[]) == NO_DAEMON || (words.len() == 3 && ends(&["--help"]) == 0),
        _ => ends(&["--help"]) == 0,
    }
}

/// Every command in the pages is one that the programs understand: what they are refused is a daemon.
#[test]
fn commands_are_understood() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut pages: Vec<_> = [
        "README.md",
        "ARCHITECTURE.md",
        "SECURITY.md",
        "CONTRIBUTING.md",
    ]
    .map(|page| root.join(page))
    .into();
    let docs = std::fs::read_dir(root.join("docs")).expect("the guides");
    pages.extend(docs.map(|entry| entry.expect("an entry").path()));
    pages.retain(|page| page.extension().is_some_and(|end| end == "md"));
    let (mut number, mut wrong) = (0, Vec::new());
    for page in pages {
        let text = std::fs::read_to_string(&page).expect("a page");
        for command in commands(&text) {
            number += 1;
            if !is_understood(&command) {
                wrong.push(format!("{}: {command}", page.display()));
            }
        }
    }
    assert!(number > 120, "{number} commands");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// All commands of windlass and ip in the README succeed, one after the other, in namespaces of the test's own. `make` and
/// `windlass run` have tests of their own (CI itself, `demo.rs`, `programs.rs`), and so has testpmd (`memif.rs`).
#[test]
fn the_readme_can_be_typed() {
    const NAME: &str = "the_readme_can_be_typed";
    if !rustix::process::geteuid().is_root() {
        return skip(NAME, "only root can make namespaces with names");
    }
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md");
    let page = std::fs::read_to_string(page).expect("the README");
    let mut script = String::from(
        "set -eu\n\
         mount -t tmpfs tmpfs /run\n\
         mount -t tmpfs tmpfs /var/lib\n\
         ip link set lo up\n",
    );
    let mut commands = 0;
    for line in typed(&page) {
        let is_elsewhere = ["windlass run", "windlass sockets"];
        if is_elsewhere.iter().any(|words| line.starts_with(words)) {
            continue;
        }
        if line.starts_with("windlassd &") {
            script.push_str("windlassd & daemon=$!\n");
            script.push_str(
                "until windlass status > /dev/null 2>&1; do kill -0 $daemon; sleep 0.05; done\n",
            );
        } else if line.starts_with("windlass ") || line.starts_with("ip ") {
            commands += 1;
            let _ = writeln!(script, "{line}");
        }
    }
    script.push_str("kill $daemon; wait $daemon\n");
    assert!(commands >= 10, "{commands} commands in the README");
    let programs = program("windlassd");
    let programs = programs.parent().expect("a directory").display();
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new("unshare");
    command
        .args(["--net", "--mount", "bash", "-xc", &script])
        .env("PATH", format!("{programs}:{path}"))
        .env_remove("WINDLASS_SOCKET");
    let done = run(&mut command);
    assert_eq!(done.code, 0, "{}\n{}", done.out, done.err);
    assert!(done.out.contains(" 0% packet loss"), "{}", done.out);
    assert!(
        done.out.contains("<interface type='vhostuser'>"),
        "{}",
        done.out
    );
}
