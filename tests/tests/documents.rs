//! What the README tells people to type works as it is written.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use windlass_tests::{program, run, skip};

/// A shell example: its lines, and who types it.
struct Example {
    lines: Vec<String>,
    by: Typist,
    /// Its lines are commands behind a prompt, and what they answer.
    is_session: bool,
}

enum Typist {
    Root,
    Nobody,
    /// Why not.
    None(String),
}

/// The shell examples and sessions of a page.
fn examples(page: &str) -> Vec<Example> {
    let mut found = Vec::new();
    let parts: Vec<&str> = page.split("\n```").collect();
    for pair in parts.chunks_exact(2) {
        let said = pair[0].trim_end().rsplit('\n').next().unwrap_or_default();
        let (language, fence) = pair[1].split_once('\n').unwrap_or_default();
        let is_session = fence
            .lines()
            .next()
            .is_some_and(|line| prompted(line).is_some());
        if language != "sh" && !is_session {
            continue;
        }
        let comment = said.rsplit_once("<!-- ").map_or("", |(_, comment)| comment);
        let comment = comment.trim_end_matches(" -->");
        let is_test = comment.contains('_') && !comment.contains(' ');
        let by = match comment.strip_prefix("not typed: ") {
            Some(why) => Typist::None(why.to_owned()),
            None if is_test => Typist::None(format!("`{comment}` types it")),
            None if comment == "typed as nobody" => Typist::Nobody,
            None => Typist::Root,
        };
        let joined = match is_session {
            true => fence.to_owned(),
            false => fence.replace("\\\n", " "),
        };
        let lines = joined.lines().map(str::to_owned).collect();
        found.push(Example {
            lines,
            by,
            is_session,
        });
    }
    found
}

/// The user before a prompt, none for root, and the command behind it.
fn prompted(line: &str) -> Option<(&str, &str)> {
    let (user, command) = line.split_once("$ ")?;
    user.chars()
        .all(|letter| letter.is_ascii_lowercase())
        .then_some((user, command))
}

/// What a session shows: commands, and the lines that they answer.
fn steps(example: &Example) -> Vec<(&str, Vec<&str>)> {
    let mut steps: Vec<(&str, Vec<&str>)> = Vec::new();
    for line in &example.lines {
        match (prompted(line), steps.last_mut()) {
            (Some(_), _) => steps.push((line, Vec::new())),
            (None, Some((_, shown))) => shown.push(line),
            (None, None) => panic!("{line:?} answers no command"),
        }
    }
    steps
}

/// A session as a script has it: each answer between two marks, errors with the rest.
fn script_of_session(example: &Example) -> String {
    let mut script = String::new();
    for (line, _) in steps(example) {
        let (user, command) = prompted(line).expect("a command");
        let who = match user {
            "" => String::new(),
            user => format!("setpriv --reuid={user} --regid={user} --clear-groups "),
        };
        let _ = writeln!(
            script,
            "echo '{MARK}'; {{ {who}{command}; }} 2>&1 || true; echo '{MARK}'"
        );
    }
    script
}

const MARK: &str = "@@@";

/// Numbers and link-layer addresses differ from run to run.
fn settled(word: &str) -> String {
    let is_mac = word.len() == 17 && word.bytes().filter(|byte| *byte == b':').count() == 5;
    let mac = word.split_once("mac=").map_or("", |(_, mac)| mac);
    if is_mac {
        return "MAC".to_owned();
    }
    if mac.len() >= 17 && mac.as_bytes().get(2) == Some(&b':') {
        return settled(&word.replace(&mac[..17], "MAC"));
    }
    let is_number = word.parse::<f64>().is_ok();
    if is_number {
        "0".to_owned()
    } else {
        word.to_owned()
    }
}

/// Each line that a session shows stands in the answer, in its order.
fn is_answered(shown: &[&str], answer: &str) -> Result<(), String> {
    let words = |text: &str| text.split_whitespace().map(settled).collect::<Vec<_>>();
    let answer = words(answer);
    let mut rest = &answer[..];
    for line in shown.iter().filter(|line| !line.is_empty()) {
        let line = words(line);
        let at = rest
            .windows(line.len())
            .position(|found| *found == line[..]);
        let at = at.ok_or_else(|| line.join(" "))?;
        rest = &rest[at + line.len()..];
    }
    Ok(())
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

/// The words of a command as a shell has them, up to what is another one's, or nobody's.
fn words_of(line: &str) -> Vec<String> {
    let (mut words, mut word, mut is_quoted) = (Vec::new(), String::new(), false);
    for letter in line.chars() {
        match letter {
            '\'' => is_quoted = !is_quoted,
            _ if is_quoted => word.push(letter),
            ';' => break,
            '#' | '|' | '&' | '>' if word.is_empty() => break,
            _ if letter.is_whitespace() => words.push(std::mem::take(&mut word)),
            _ => word.push(letter),
        }
    }
    words.push(word);
    words.retain(|word| !word.is_empty());
    words
}

/// Whether a command is understood, as far as that can be seen without a daemon.
fn is_understood(line: &str) -> bool {
    const NO_DAEMON: i32 = 3;
    let line = PLACES.iter().fold(line.to_owned(), |line, (place, word)| {
        line.replace(place, word)
    });
    let words = words_of(&line);
    let words: Vec<_> = words.iter().map(String::as_str).collect();
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

/// All commands of windlass, ip and testpmd in the README succeed, one after the other, in namespaces of the test's own. `make` and
/// `windlass run` have tests of their own (CI itself, `demo.rs`, `programs.rs`).
#[test]
fn the_readme_can_be_typed() {
    const NAME: &str = "the_readme_can_be_typed";
    if !rustix::process::geteuid().is_root() {
        return skip(NAME, "only root can make namespaces with names");
    }
    if Command::new("dpdk-testpmd")
        .arg("--version")
        .output()
        .is_err()
    {
        return skip(NAME, "there is no dpdk-testpmd");
    }
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md");
    let page = std::fs::read_to_string(page).expect("the README");
    let mut script = String::from(
        "set -eu\n\
         mount -t tmpfs tmpfs /run\n\
         mount -t tmpfs tmpfs /var/lib\n\
         ip link set lo up\n",
    );
    script.push_str(TESTPMD);
    let mut commands = 0;
    for line in examples(&page).into_iter().flat_map(|e| e.lines) {
        let is_elsewhere = ["windlass run", "windlass sockets"];
        if is_elsewhere.iter().any(|words| line.starts_with(words)) {
            continue;
        }
        if line.starts_with("windlassd &") {
            script.push_str("windlassd & daemon=$!\n");
            script.push_str(
                "until windlass status > /dev/null 2>&1; do kill -0 $daemon; sleep 0.05; done\n",
            );
        } else if ["windlass ", "ip ", "dpdk-testpmd "]
            .iter()
            .any(|word| line.starts_with(word))
        {
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
        .args([
            "--net",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
        ])
        .args(["bash", "-xc", &script])
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

/// What a machine has on which the guides are typed: the programs, accounts, a wire, and nothing of this machine's daemons.
const MACHINE: &str = r#"
set -eu
programs=$1
mount --bind "$programs" /mnt
mount -t tmpfs tmpfs /run
mount -t tmpfs -o mode=1777 tmpfs /tmp
mount -t tmpfs tmpfs /var/lib
cd /tmp
export PATH=/mnt:$PATH
cp /etc/passwd /run/passwd
printf '%s\n' ann:x:1001:1001::/:/bin/sh libvirt-qemu:x:64055:64055::/:/bin/false >> /run/passwd
mount --bind /run/passwd /etc/passwd
cp /etc/group /run/group
printf '%s\n' ann:x:1001: libvirt-qemu:x:64055: kvm:x:64056: >> /run/group
mount --bind /run/group /etc/group
ip link set lo up
ip link add eth0 type veth peer name wire
ip link set eth0 up
ip link set wire up
# A daemon is there when it answers.
started() { until windlass "$@" status > /dev/null 2>&1; do kill -0 $daemon; sleep 0.05; done; }
# What goes on until somebody ends it is ended after a second.
endless() { timeout --signal=INT 1 "$@" || [ $? = 124 ]; }
export -f started endless
# The trace is no answer.
exec 9>&2
BASH_XTRACEFD=9
"#;

/// DPDK's program goes on in the background once its VNIC is up.
const TESTPMD: &str = r#"
dpdk-testpmd() {
    command dpdk-testpmd "$@" < <(exec sleep 60) > /run/testpmd.log 2>&1 &
    until [ "$(windlass vnic show m0 -p -o state)" = up ]; do kill -0 $!; sleep 0.05; done
}
"#;

/// What a guide takes for granted.
fn granted(page: &str) -> &'static str {
    match page {
        "operator-guide.md" => {
            "ip netns add a\n\
             windlass bridge create br0\n\
             windlass vnic create v0 --bridge br0 --attach tap,netns=a,queues=2\n\
             until [ \"$(windlass vnic show v0 -p -o rings-now)\" = 2 ]; do sleep 0.05; done\n"
        }
        _ => "",
    }
}

/// A line as a script has it.
fn scripted(line: &str) -> String {
    let (line, _) = line.split_once(" #").unwrap_or((line, ""));
    let line = line.trim_end();
    if let Some(daemon) = line.strip_suffix('&')
        && daemon.starts_with("windlassd")
    {
        let mut words = daemon.split_whitespace();
        let socket = words
            .find(|word| *word == "--socket")
            .and_then(|_| words.next());
        let socket = socket.map_or(String::new(), |socket| format!(" --socket {socket}"));
        return format!("{daemon}& daemon=$!\nstarted{socket}\n");
    }
    match line.ends_with(" -i 1") || line == "windlass monitor" {
        true => format!("endless {line}\n"),
        false => format!("{line}\n"),
    }
}

/// A fence as a script has it. A shell that is started in it gets the lines behind it.
fn script_of(example: &Example) -> String {
    if example.is_session {
        return script_of_session(example);
    }
    let mut script = String::new();
    for (at, line) in example.lines.iter().enumerate() {
        if line.starts_with("unshare ") && line.ends_with(" bash") {
            let rest: String = example
                .lines
                .iter()
                .skip(at + 1)
                .map(|l| scripted(l))
                .collect();
            let _ = write!(
                script,
                "{line} -eux <<'END'\n{rest}kill $daemon; wait $daemon\nEND\n"
            );
            break;
        }
        script.push_str(&scripted(line));
    }
    match example.by {
        Typist::Nobody => format!(
            "setpriv --reuid=65534 --regid=65534 --clear-groups env -u XDG_RUNTIME_DIR -u XDG_STATE_HOME \
             HOME=/tmp/home bash -eux <<'END'\n{}kill $daemon; wait $daemon\nEND\n",
            // Not the other daemon, which answers everyone.
            script.replace(
                "started\n",
                "started --socket /tmp/windlass-65534/control.sock\n"
            )
        ),
        _ => script,
    }
}

/// Runs the lines of a page on a machine of their own; they have to succeed. What its sessions answer.
fn type_all(page: &str, lines: &str) -> Vec<String> {
    let granted = granted(page);
    let workers = match std::thread::available_parallelism().map_or(1, usize::from) {
        1 => "0",
        _ => "0,1",
    };
    let script = format!(
        "{MACHINE}{TESTPMD}windlassd --workers {workers} & daemon=$!\nstarted\nset -x\n{granted}{lines}"
    );
    let done = Command::new("unshare")
        .args([
            "--net",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
        ])
        .args(["bash", "-c", &script, "bash"])
        .arg(program("windlassd").parent().expect("a directory"))
        .env_remove("WINDLASS_SOCKET")
        .output()
        .expect("unshare");
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{page}: {said}");
    let said = String::from_utf8_lossy(&done.stdout);
    let mark = format!("{MARK}\n");
    let answers = said.split(mark.as_str()).skip(1).step_by(2);
    answers.map(str::to_owned).collect()
}

/// Every shell example of the guides succeeds, line by line, from top to bottom, on a machine of the test's own with one daemon for
/// each guide. Sessions answer what the page shows. An example that is not typed says why in the text, and is counted.
#[test]
fn the_guides_can_be_typed() {
    const NAME: &str = "the_guides_can_be_typed";
    if !rustix::process::geteuid().is_root() {
        return skip(NAME, "only root can make namespaces with names");
    }
    for tool in ["curl", "dpdk-testpmd"] {
        if Command::new(tool).arg("--version").output().is_err() {
            return skip(NAME, &format!("there is no {tool}"));
        }
    }
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    let (mut typed, mut compared, mut left, mut wrong) = (0, 0, Vec::new(), Vec::new());
    let mut pages: Vec<_> = std::fs::read_dir(&docs)
        .expect("the guides")
        .map(|entry| {
            entry
                .expect("an entry")
                .file_name()
                .into_string()
                .expect("a name")
        })
        .filter(|name| name.ends_with(".md"))
        .collect();
    pages.sort();
    for page in pages {
        let text = std::fs::read_to_string(docs.join(&page)).expect("a page");
        let examples = examples(&text);
        let (run, not): (Vec<_>, Vec<_>) = examples
            .iter()
            .partition(|e| !matches!(e.by, Typist::None(_)));
        for example in not {
            if let Typist::None(why) = &example.by {
                println!("not typed: {page}: {} lines: {why}", example.lines.len());
            }
            left.push(example.lines.len());
        }
        typed += run.iter().map(|e| e.lines.len()).sum::<usize>();
        if run.is_empty() {
            continue;
        }
        let lines: String = run.iter().map(|e| script_of(e)).collect();
        let answers = type_all(&page, &lines);
        let sessions = run.iter().filter(|e| e.is_session);
        let steps: Vec<_> = sessions.flat_map(|e| steps(e)).collect();
        assert_eq!(steps.len(), answers.len(), "{page}: answers");
        for ((command, shown), answer) in steps.iter().zip(&answers) {
            compared += shown.len();
            if let Err(line) = is_answered(shown, answer) {
                wrong.push(format!(
                    "{page}: {command}\nlacks: {line}\nanswer: {answer}"
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(typed >= 60, "{typed} lines are typed");
    assert!(compared >= 15, "{compared} lines of output are compared");
    assert_eq!(
        (left.len(), left.iter().sum::<usize>()),
        (9, 64),
        "examples that are not typed, and their lines"
    );
}
