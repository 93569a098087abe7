//! What the README and the guides tell people to type works as it is written.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use windlass_tests::{Image, check_qemu, program, run, skip};

fn root() -> &'static Path {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests.parent().expect("the tree")
}

/// A shell example, or one in Python: its lines, and who types it.
struct Example {
    lines: Vec<String>,
    by: Typist,
    kind: Kind,
}

#[derive(PartialEq)]
enum Typist {
    Root,
    Nobody,
    /// Root, while a machine runs at the VNIC `web`.
    BesideGuest,
    /// Another test, of this name.
    Other(String),
}

#[derive(PartialEq)]
enum Kind {
    Lines,
    /// Its lines are commands behind a prompt, and what they answer.
    Session,
    Python,
}

/// The examples and sessions of a page.
fn examples(page: &str) -> Vec<Example> {
    let mut found = Vec::new();
    let parts: Vec<&str> = page.split("\n```").collect();
    for pair in parts.chunks_exact(2) {
        let said = pair[0].trim_end().rsplit('\n').next().unwrap_or_default();
        let (language, fence) = pair[1].split_once('\n').unwrap_or_default();
        let first = fence.lines().next();
        let kind = match language {
            "sh" => Kind::Lines,
            "python" => Kind::Python,
            _ if first.is_some_and(|line| prompted(line).is_some()) => Kind::Session,
            _ => continue,
        };
        let comment = said.rsplit_once("<!-- ").map_or("", |(_, comment)| comment);
        let comment = comment.trim_end_matches(" -->");
        let is_test = comment.contains('_') && !comment.contains(' ');
        let by = match comment {
            _ if is_test => Typist::Other(comment.to_owned()),
            "typed as nobody" => Typist::Nobody,
            "typed beside a guest" => Typist::BesideGuest,
            _ => Typist::Root,
        };
        let joined = match kind {
            Kind::Lines => fence.replace("\\\n", " "),
            Kind::Session | Kind::Python => fence.to_owned(),
        };
        let lines = joined.lines().map(str::to_owned).collect();
        found.push(Example { lines, by, kind });
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

/// A session as a script has it: each answer between two marks, errors with the rest. What a person ends with Ctrl-C is ended when it
/// has said as many lines as the page shows above that.
fn script_of_session(example: &Example) -> String {
    let mut script = String::new();
    for (line, shown) in steps(example) {
        let (user, command) = prompted(line).expect("a command");
        let who = match user {
            "" => String::new(),
            user => format!("setpriv --reuid={user} --regid={user} --clear-groups "),
        };
        let until = shown.iter().position(|line| line.starts_with("^C"));
        let until = until.map_or(String::new(), |lines| format!("interrupted {lines} "));
        let _ = writeln!(
            script,
            "echo '{MARK}'\n{{ {until}{who}{command}\n}} 2>&1 || true\necho '{MARK}'"
        );
    }
    script
}

const MARK: &str = "@@@";

/// Numbers, times and link-layer addresses differ from run to run.
fn settled(word: &str) -> String {
    let word = word.trim_end_matches(',').trim_start_matches("^C");
    let is_mac = word.len() == 17 && word.bytes().filter(|byte| *byte == b':').count() == 5;
    let mac = word.split_once("mac=").map_or("", |(_, mac)| mac);
    if is_mac {
        return "MAC".to_owned();
    }
    if mac.len() >= 17 && mac.as_bytes().get(2) == Some(&b':') {
        return settled(&word.replace(&mac[..17], "MAC"));
    }
    let is_time = |letter: char| letter.is_ascii_digit() || ":.-TZ".contains(letter);
    let is_number = |word: &str| word.parse::<f64>().is_ok();
    if word.contains(':') && word.chars().all(is_time) {
        "TIME".to_owned()
    } else if is_number(word) || word.strip_suffix(['k', 'M', 'G']).is_some_and(is_number) {
        "0".to_owned()
    } else {
        word.to_owned()
    }
}

/// Each line that a session shows stands in the answer, in its order; "..." stands for what was left out.
fn is_answered(shown: &[&str], answer: &str) -> Result<(), String> {
    let words = |text: &str| text.split_whitespace().map(settled).collect::<Vec<_>>();
    let answer = words(answer);
    let mut rest = &answer[..];
    for part in shown.iter().flat_map(|line| line.split("...")) {
        let part = words(part);
        if part.is_empty() {
            continue;
        }
        let at = rest
            .windows(part.len())
            .position(|found| *found == part[..]);
        let at = at.ok_or_else(|| part.join(" "))?;
        rest = &rest[at + part.len()..];
    }
    Ok(())
}

/// Words in capitals that stand for something, and something that they may stand for.
const PLACES: [(&str, &str); 13] = [
    ("OBJECT VERB", "vnic show"),
    ("KEY=VALUE", "mtu=1500"),
    ("PROP=VALUE", "vxlan/ttl=9"),
    ("MAC IP:PORT", "02:00:00:00:00:01 192.0.2.2:4789"),
    ("ov0 MAC", "ov0 02:00:00:00:00:01"),
    ("NAME", "v0"),
    ("ADDRESS", "02:00:00:00:00:01"),
    ("BRIDGE", "br0"),
    ("PROGRAM", "true"),
    ("PID|all", "all"),
    ("PID", "4711"),
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
            "apply" | "memory" | "metrics" | "sockets" | "stackdump",
            ..,
        ] => ends(&["--help"]) == 0,
        // What comes behind -- is read in the program that is looked into.
        ["windlass", "inspect" | "trace", ..] => {
            let own = words.split(|word| *word == "--").next().unwrap_or_default();
            let mut command = Command::new(program("windlass"));
            run(command.args(&own[1..]).arg("--help")).code == 0
        }
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
    let root = root();
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

/// What a machine has on which the pages are typed: the programs as they were built, accounts, a wire, and nothing of this machine's
/// daemons. What is installed on it goes with it.
const MACHINE: &str = r#"
set -eu
mount --bind "$1" /mnt
mount --bind "$2" /media
mount -t tmpfs tmpfs /run
for file in "${@:3}"; do cp "$file" /run; done
mount -t tmpfs -o mode=1777 tmpfs /tmp
mount -t tmpfs tmpfs /var/lib
for place in etc usr/local; do
    mkdir -p /run/own/$place/{upper,work}
    mount -t overlay own -o lowerdir=/$place,upperdir=/run/own/$place/upper,workdir=/run/own/$place/work /$place
done
mkdir /tmp/target
ln -s /mnt /tmp/target/release
cd /tmp
export PATH=/mnt:$PATH
sed -i -E '/^(ann|libvirt-qemu|kvm):/d' /etc/passwd /etc/group
printf '%s\n' ann:x:1001:1001::/:/bin/sh libvirt-qemu:x:64055:64055::/:/bin/false >> /etc/passwd
printf '%s\n' ann:x:1001: libvirt-qemu:x:64055: kvm:x:104: >> /etc/group
ip link set lo up
ip link add eth0 type veth peer name wire
ip link set eth0 up
ip link set wire up
# A daemon is there when it answers.
started() { until windlass "$@" status > /dev/null 2>&1; do kill -0 $daemon; sleep 0.05; done; }
# What goes on until somebody ends it is ended after a second.
endless() { timeout --signal=INT 1 "$@" || [ $? = 124 ]; }
# What goes on until somebody ends it is ended when it has said so many lines.
interrupted() {
    local lines=$1
    env --default-signal=INT "${@:2}" > /run/said 2>&1 &
    # The shell goes on behind what fails here.
    until [ "$(wc -l < /run/said)" -ge "$lines" ]; do kill -0 $! || break; sleep 0.05; done
    kill -INT $!
    wait $!
    cat /run/said
}
export -f started endless
# The programs are built; that the tests and the demo work is for CI and demo.rs to say, who run them.
make() {
    case $1 in
    demo | test) command make -C /media -n "$1" > /dev/null ;;
    *) command make -C /media -o build BIN=/tmp/target/release "$@" ;;
    esac
}
# All is typed as root.
sudo() { "$@"; }
# The program without windows, which takes the same file.
wireshark() { tshark "${@/-k/-n}"; }
# DPDK's program goes on in the background once its VNIC is up.
dpdk-testpmd() {
    command dpdk-testpmd "$@" < <(exec sleep 60) > /run/testpmd.log 2>&1 &
    until [ "$(windlass vnic show m0 -p -o state)" = up ]; do kill -0 $!; sleep 0.05; done
}
# So does a virtual machine.
guest() {
    local words line=
    words=$(windlass vnic qemu-args "$1" --memory 262152K --accel tcg)
    coproc machine {
        exec qemu-system-x86_64 -cpu max -nodefaults -no-user-config -display none -serial stdio -kernel /run/vmlinuz-* \
            -initrd /run/initramfs -append "$GUEST_KERNEL" ${words//\\$'\n'/ },vectors=0 2> /run/qemu.log
    }
    until [[ $line = @ready* ]]; do read -r line || { cat /run/qemu.log; exit 1; }; done <&${machine[0]}
    echo 'ip link set eth0 up' >&${machine[1]}
    until [ "$(windlass vnic show "$1" -p -o state)" = up ]; do kill -0 $machine_PID; sleep 0.05; done
}
# The trace is no answer.
exec 9>&2
BASH_XTRACEFD=9
"#;

/// Says where the pip is that a Python with ensurepip has with it.
const PIP: &str = "import ensurepip, glob; \
    print(glob.glob((ensurepip._WHEEL_PKG_DIR or ensurepip.__path__[0] + \"/_bundled\") + \"/pip-*.whl\")[0])";

/// What a page takes for granted.
fn granted(page: &str, text: &str) -> String {
    let workers = match std::thread::available_parallelism().map_or(1, usize::from) {
        1 => "0",
        _ => "0,1",
    };
    let mut granted = format!(
        "mkdir -p /etc/windlass\n\
         echo 'workers = \"{workers}\"' > /etc/windlass/windlass.toml\n"
    );
    // These start it themselves.
    if !["README.md", "user-guide.md"].contains(&page) {
        granted.push_str("windlassd & daemon=$!\nstarted\n");
    }
    match page {
        "operator-guide.md" => granted.push_str(
            "ip netns add a\n\
             windlass bridge create br0\n\
             windlass vnic create v0 --bridge br0 --attach tap,netns=a,queues=2\n\
             until [ \"$(windlass vnic show v0 -p -o rings-now)\" = 2 ]; do sleep 0.05; done\n",
        ),
        "overlays.md" => granted.push_str("ip addr add 192.0.2.1/24 dev eth0\n"),
        "packet-programs.md" => {
            let (_, program) = text.split_once("```c\n").expect("a program");
            let (program, _) = program.split_once("```").expect("its end");
            let _ = write!(
                granted,
                "windlass bridge create br0\n\
                 cat > lengths.c <<'END'\n{program}END\n\
                 python3 -m venv --without-pip /run/python\n\
                 PATH=/run/python/bin:$PATH\n\
                 pip() {{ python3 \"$(python3 -c '{PIP}')\"/pip \"$@\"; }}\n"
            );
        }
        _ => {}
    }
    granted.push_str("set -x\n");
    granted
}

/// A line as a script has it.
fn scripted(line: &str) -> String {
    let (line, _) = line.split_once(" #").unwrap_or((line, ""));
    let line = line.trim_end();
    if let Some(daemon) = line.strip_suffix('&')
        && daemon.split(' ').any(|word| word.ends_with("windlassd"))
    {
        let mut words = daemon.split_whitespace();
        let socket = words
            .find(|word| *word == "--socket")
            .and_then(|_| words.next());
        let socket = socket.map_or(String::new(), |socket| format!(" --socket {socket}"));
        return format!("{daemon}& daemon=$!\nstarted{socket}\n");
    }
    let endless = ["windlass monitor", "windlass snoop ", "./lengths "];
    let is_endless = line.ends_with(" -i 1") || endless.iter().any(|words| line.starts_with(words));
    match is_endless {
        true => format!("endless {line}\n"),
        // A server is there when it answers.
        false if line.contains("redis-server") && line.ends_with('&') => {
            format!("{line}\nuntil redis-cli -p 6399 ping; do kill -0 $!; sleep 0.05; done\n")
        }
        false => format!("{line}\n"),
    }
}

/// A fence as a script has it. A shell that is started in it gets the lines behind it.
fn script_of(example: &Example) -> String {
    match example.kind {
        Kind::Session if example.by == Typist::BesideGuest => {
            return format!("guest web\n{}", script_of_session(example));
        }
        Kind::Session => return script_of_session(example),
        Kind::Python => {
            let lines = example.lines.join("\n");
            return format!("endless python3 - <<'END'\nimport windlass\n{lines}\nEND\n");
        }
        Kind::Lines => {}
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

/// Runs the examples of a page on a machine of their own; they have to succeed. What it said.
fn type_all(page: &str, text: &str, examples: &[&Example], image: Option<&Image>) -> String {
    let granted = granted(page, text);
    let lines: String = examples.iter().map(|e| script_of(e)).collect();
    let script = format!("{MACHINE}{granted}{lines}");
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
        .args(["bash", "-c", &script, "bash"])
        .arg(program("windlassd").parent().expect("a directory"))
        .arg(root())
        .env("GUEST_KERNEL", Image::KERNEL_ARGUMENTS)
        .env_remove("WINDLASS_SOCKET")
        .env_remove("MAKEFLAGS");
    if let Some(image) = image {
        command.arg(&image.kernel).arg(&image.initramfs);
    }
    let done = run(&mut command);
    assert_eq!(done.code, 0, "{page}: {}", done.err);
    done.out
}

/// What the sessions of a page show, and its machine did not say; and how many lines were compared.
fn differences(page: &str, examples: &[&Example], said: &str) -> (String, usize) {
    let mark = format!("{MARK}\n");
    let answers: Vec<&str> = said.split(mark.as_str()).skip(1).step_by(2).collect();
    let sessions = examples.iter().filter(|e| e.kind == Kind::Session);
    let steps: Vec<_> = sessions.flat_map(|e| steps(e)).collect();
    assert_eq!(steps.len(), answers.len(), "{page}: answers");
    let (mut wrong, mut compared) = (String::new(), 0);
    for ((command, shown), answer) in steps.iter().zip(&answers) {
        compared += shown.len();
        let is_silent = shown.is_empty() && !command.ends_with('&');
        let said = match is_answered(shown, answer) {
            Ok(()) if is_silent && !answer.is_empty() => Err("(it says nothing)".to_owned()),
            said => said,
        };
        if let Err(line) = said {
            let _ = writeln!(wrong, "{page}: {command}\nlacks: {line}\nanswer: {answer}");
        }
    }
    (wrong, compared)
}

/// Whether a test of this name is in one of these files.
fn is_test(name: &str) -> bool {
    let places = [
        "tests/tests",
        "crates/programs/alloc/tests",
        "crates/programs/windlass/tests",
        "crates/programs/windlassd/tests",
    ];
    let files = places.map(|place| std::fs::read_dir(root().join(place)).expect("the tests"));
    files.into_iter().flatten().flatten().any(|file| {
        let text = std::fs::read_to_string(file.path()).unwrap_or_default();
        text.contains(&format!("#[test]\nfn {name}()"))
    })
}

/// Every example of the README and the guides succeeds, line by line, from top to bottom, on a machine of the test's own for each page.
/// Sessions answer what the page shows.
#[test]
fn the_pages_can_be_typed() {
    const NAME: &str = "the_pages_can_be_typed";
    if !rustix::process::geteuid().is_root() {
        return skip(NAME, "only root can make namespaces with names");
    }
    for tool in ["curl", "dpdk-testpmd", "redis-server", "tshark", "make"] {
        if Command::new(tool).arg("--version").output().is_err() {
            return skip(NAME, &format!("there is no {tool}"));
        }
    }
    let place = tempfile::tempdir().expect("a directory");
    let image = check_qemu().and_then(|()| Image::make(place.path()));
    let mut pages = vec![root().join("README.md")];
    let docs = std::fs::read_dir(root().join("docs")).expect("the guides");
    pages.extend(docs.map(|entry| entry.expect("an entry").path()));
    pages.retain(|page| page.extension().is_some_and(|end| end == "md"));
    let pages = pages.iter().map(|path| {
        let page = path.file_name().and_then(|name| name.to_str());
        let text = std::fs::read_to_string(path).expect("a page");
        (page.expect("a name"), text)
    });
    let pages: Vec<_> = pages.collect();
    let (mut typed, mut compared, mut left_out, mut wrong) = (0, 0, 0, String::new());
    std::thread::scope(|scope| {
        let mut machines = Vec::new();
        for (page, text) in &pages {
            let examples = examples(text);
            typed += examples.iter().map(|e| e.lines.len()).sum::<usize>();
            for example in &examples {
                if let Typist::Other(name) = &example.by {
                    assert!(is_test(name), "{page}: there is no test {name}");
                }
            }
            if let Err(reason) = &image
                && examples.iter().any(|e| e.by == Typist::BesideGuest)
            {
                skip(&format!("{NAME}: {page}"), reason);
                let sessions = examples.iter().filter(|e| e.kind == Kind::Session);
                let shown = sessions.flat_map(steps).map(|(_, shown)| shown.len());
                left_out += shown.sum::<usize>();
                continue;
            }
            let image = image.as_ref().ok();
            machines.push(scope.spawn(move || {
                let examples = examples.iter();
                let here = examples.filter(|e| !matches!(e.by, Typist::Other(_)));
                let here: Vec<_> = here.collect();
                if here.is_empty() {
                    return (String::new(), 0);
                }
                let said = type_all(page, text, &here, image);
                if *page == "README.md" {
                    assert!(said.contains(" 0% packet loss"), "{said}");
                    assert!(said.contains("<interface type='vhostuser'>"), "{said}");
                }
                differences(page, &here, &said)
            }));
        }
        for machine in machines {
            let (differ, lines) = machine.join().expect("a page that can be typed");
            wrong.push_str(&differ);
            compared += lines;
        }
    });
    assert!(wrong.is_empty(), "{wrong}");
    assert!(typed >= 230, "{typed} lines are typed");
    let shown = compared + left_out;
    assert!(shown >= 60, "{compared} lines of output are compared");
}
