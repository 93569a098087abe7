//! `windlass inspect` looks into a program of C that was not prepared for it, and into a core of it.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

struct Program {
    child: Child,
    directory: tempfile::TempDir,
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn source() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.join("../../io/target/tests/fixtures/server.c")
}

impl Program {
    /// Compiles the fixture and lets it run until it waits. `after` are commands on the program before it starts.
    fn start(after: &[&[&str]]) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let at = directory.path().join("server");
        let run = |command: &mut Command| {
            let done = command.current_dir(directory.path()).status();
            assert!(done.is_ok_and(|status| status.success()), "{command:?}");
        };
        run(Command::new("gcc")
            .args(["-g", "-O1", "-o"])
            .arg(&at)
            .arg(source()));
        for words in after {
            run(Command::new(words[0]).args(&words[1..]));
        }
        let mut child = Command::new(&at)
            .arg("stay")
            .stdout(Stdio::piped())
            .spawn()
            .expect("runs");
        let out = child.stdout.take().expect("a pipe");
        let mut lines = BufReader::new(out).lines();
        assert!(lines.any(|line| line.expect("text") == "ready"));
        Self { child, directory }
    }

    fn pid(&self) -> String {
        self.child.id().to_string()
    }
}

fn windlass(arguments: &[&str], input: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_windlass"))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("runs");
    let mut stdin = child.stdin.take().expect("a pipe");
    // It may have ended without reading.
    let _ = stdin.write_all(input.as_bytes());
    drop(stdin);
    child.wait_with_output().expect("ends")
}

/// What one command writes.
fn ask(target: &str, command: &str) -> String {
    let done = windlass(&["inspect", target, "--", command], "");
    let errors = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{command}: {errors}");
    String::from_utf8(done.stdout).expect("text")
}

/// What a command that fails says.
fn refused(target: &str, command: &str) -> String {
    let done = windlass(&["inspect", target, "--", command], "");
    assert!(!done.status.success(), "{command}");
    String::from_utf8_lossy(&done.stderr).trim_end().to_owned()
}

/// What holds of the program and of its core.
fn common(target: &str) {
    for (command, answer) in [
        ("print all.id", "7"),
        ("print all.addr->name", "\"localhost\""),
        ("print all.addr.name", "\"localhost\""),
        (
            "print all.grid[1][2], all.small, all.high",
            "all.grid[1][2] = 6\nall.small = -3\nall.high = -5",
        ),
        ("print all.next->state", "LOST"),
        (
            "print all.id + 1 < 9 ? 0x10 : 2, all.id * -3",
            "all.id + 1 < 9 ? 0x10 : 2 = 16\nall.id * -3 = -21",
        ),
        ("print all.grid[all.id - 6][sizeof(char)]", "5"),
        ("print sizeof(conn_t) == sizeof all", "1"),
        ("print sizeof(struct server`conn)", "96"),
        (
            "print (unsigned char)all.small, (server`conn_t *)0",
            "(unsigned char)all.small = 253\n(server`conn_t *)0 = 0x0",
        ),
        ("print str(&all.addr->name[5], 10)", "\"host\""),
        ("print all.addr->name == \"localhost\"", "1"),
        ("print all.next + 1 - all.next", "1"),
        (
            "print all.small + all.high, !all.secure",
            "all.small + all.high = -8\n!all.secure = 0",
        ),
        ("print (*all.next).id", "9"),
        ("print ((conn_t *)all.next)->id", "9"),
        ("print ( struct conn * ) 0", "0x0"),
        ("print *&all.bytes", "1402"),
        ("print server.c`all.id", "7"),
        ("print server`all.id", "7"),
        (
            "&all::print struct conn id addr->port",
            "id = 7\naddr->port = 6379",
        ),
        ("sizeof struct conn", "96"),
        ("::sizeof conn_t", "96"),
        ("offsetof struct conn high", "34"),
        ("offsetof struct conn small", "25:1"),
        ("offsetof struct conn grid[1]", "52"),
    ] {
        assert_eq!(ask(target, command).trim_end(), answer, "{command}");
    }
    lists_and_memory(target);
}

/// Lists, addresses, symbols and stacks; and mistakes.
fn lists_and_memory(target: &str) {
    let all = ask(target, "print &all");
    let at = all.split(' ').next().expect("an address");
    let next = ask(target, "print all.next");
    let next = next.split(' ').next().expect("an address");
    assert_eq!(
        ask(target, &format!("list struct conn next {at}")),
        format!("{at}\n{}\n", next.trim_end())
    );
    assert_eq!(
        ask(target, &format!("{at}::list conn_t next")),
        format!("{at}\n{}\n", next.trim_end())
    );
    assert_eq!(
        ask(target, &format!("{at}::print struct conn")),
        ask(target, "print all")
    );
    assert_eq!(ask(target, &format!("whatis {at}")), "all+0x0 in server\n");
    assert!(ask(target, "dump &all 20").starts_with(&format!(
        "{:#014x}  07 00 00 00 ",
        u64::from_str_radix(&at[2..], 16).expect("hex")
    )));
    assert!(
        ask(target, "modules")
            .lines()
            .any(|line| line.starts_with("server ") && line.contains(" on "))
    );
    assert!(ask(target, "symbols hand*").contains("function"));
    let stack = ask(target, "stack");
    assert!(
        stack
            .lines()
            .any(|line| line.contains(" main+") && line.contains("server.c:")),
        "{stack}"
    );
    assert!(
        refused(target, "print al").ends_with("there is no variable \"al\"; did you mean \"all\"?")
    );
    assert!(refused(target, "print all.adr").contains("did you mean \"addr\"?"));
    assert!(refused(target, "print all.grid[x]").contains("there is no variable \"x\""));
    // The mark is under the place.
    let why = refused(target, "print all.id + all.adr");
    let lines: Vec<_> = why.lines().collect();
    assert_eq!(lines[0], "all.id + all.adr", "{why}");
    let mark = "         ^^^^^^^ struct conn has no member adr; did you mean \"addr\"?";
    assert_eq!(lines[1], mark, "{why}");
    assert!(refused(target, "print 1 / 0").ends_with("a division by 0"));
    assert!(refused(target, "print *(long *)16").contains("<fault 0x10>"));
    assert!(refused(target, "type struct con").contains("did you mean \"conn\"?"));
    assert!(refused(target, "prnt all").contains("did you mean \"print\"?"));
    assert!(refused(target, "print *(struct conn *)16").contains("<fault 0x10>"));
    assert!(refused(target, "list struct conn id &all").contains("is no pointer"));
}

/// A live program is looked into, by single commands and by commands from a pipe, and goes on unharmed.
#[test]
fn a_process_is_looked_into() {
    let program = Program::start(&[]);
    let pid = program.pid();
    common(&pid);
    let done = windlass(
        &["inspect", &pid],
        "print all.id\n# nothing\nprint nothing_there\nsizeof struct addr\nprint all.adr\n",
    );
    assert_eq!(String::from_utf8_lossy(&done.stdout), "7\n24\n");
    let errors = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(
        errors.contains("nothing_there") && errors.contains("adr"),
        "{errors}"
    );
    assert!(!done.status.success());
    let json = windlass(&["inspect", "-j", &pid, "--", "print", "all.id"], "");
    let rows: serde_json::Value = serde_json::from_slice(&json.stdout).expect("JSON");
    assert_eq!(
        (rows[0]["type"].as_str(), rows[0]["value"].as_str()),
        (Some("int"), Some("7"))
    );
    let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it lives");
    assert!(state.contains(") S "), "{state}");
}

/// The same of a core, whose files are found by their build ids.
#[test]
fn a_core_is_looked_into() {
    let program = Program::start(&[]);
    let core = program.directory.path().join("core");
    let done = Command::new("gdb")
        .args(["-nx", "-batch", "-p", &program.pid(), "-ex"])
        .arg(format!("generate-core-file {}", core.display()))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    if done.is_err() || !core.exists() {
        println!("skipped: a_core_is_looked_into: gdb is not installed, or may not attach");
        return;
    }
    common(core.to_str().expect("a path"));
}

/// One expression names things of two files, in either order; a record that one of them only declares has the members that the other one defines.
/// Names in C++ have scopes and template arguments.
#[test]
fn names_of_several_files_meet() {
    let directory = tempfile::tempdir().expect("a directory");
    let at = |name: &str| directory.path().join(name);
    let library = "typedef struct box { int n; struct box *next; union { int low : 3; short w; }; } box_t;
        box_t second = { 2, 0, { -1 } }, first = { 1, &second, { 3 } }; box_t *boxes[2] = { &second, &first };";
    std::fs::write(at("box.c"), library).expect("written");
    let program = "extern \"C\" { struct box; extern box first; }
        namespace net { template <class T> struct Pool { T size; static Pool all; }; template <class T> Pool<T> Pool<T>::all { 5 };
        struct box *held = &first; long bias = 10; }
        template struct net::Pool<int>;
        #include <unistd.h>\n#include <stdio.h>\nint main() { puts(\"ready\"); fflush(stdout); pause(); return net::Pool<int>::all.size; }";
    std::fs::write(at("main.cc"), program).expect("written");
    let run = |command: &mut Command| {
        let done = command.current_dir(directory.path()).status();
        assert!(done.is_ok_and(|status| status.success()), "{command:?}");
    };
    run(Command::new("gcc").args(["-g", "-shared", "-fPIC", "-o", "libbox.so", "box.c"]));
    run(Command::new("g++").args(["-g", "-o", "main", "main.cc", "./libbox.so"]));
    let mut child = Command::new(at("main"))
        .current_dir(directory.path())
        .stdout(Stdio::piped())
        .spawn()
        .expect("runs");
    let out = child.stdout.take().expect("a pipe");
    let mut lines = BufReader::new(out).lines();
    assert!(lines.any(|line| line.expect("text") == "ready"));
    let program = Program { child, directory };
    for (command, answer) in [
        ("print net::held->n + first.next->n", "3"),
        ("print first.next->n + net::bias", "12"),
        ("print first.next == net::held->next", "1"),
        (
            "print net::held->next->low, net::held->low",
            "net::held->next->low = -1\nnet::held->low = 3",
        ),
        ("print libbox.so`boxes[net::bias - 9]->n", "1"),
        ("print net::bias * boxes[0]->next", "0"),
        (
            "print net::held[1].n == second.n || 1, sizeof *net::held",
            "net::held[1].n == second.n || 1 = 1\nsizeof *net::held = 24",
        ),
        ("print ((box_t *)net::held)->next->n", "2"),
        ("print net::Pool<int>::all.size + 1", "6"),
        ("print ((net::Pool<int> *)&net::Pool<int>::all)->size", "5"),
        ("print (*net::held).w", "3"),
    ] {
        assert_eq!(ask(&program.pid(), command).trim_end(), answer, "{command}");
    }
}

/// Compiles a fixture and lets it run until it waits.
fn fixture(compiler: &[&str], name: &str) -> Option<Program> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(name);
    let directory = tempfile::tempdir().expect("a directory");
    let at = directory.path().join("program");
    let built = Command::new(compiler[0])
        .args(&compiler[1..])
        .arg("-o")
        .arg(&at)
        .arg(source)
        .output();
    let Ok(built) = built else {
        println!("skipped: {} is not installed", compiler[0]);
        return None;
    };
    assert!(
        built.status.success(),
        "{}",
        String::from_utf8_lossy(&built.stderr)
    );
    let mut child = Command::new(at)
        .stdout(Stdio::piped())
        .spawn()
        .expect("runs");
    let out = child.stdout.take().expect("a pipe");
    let mut lines = BufReader::new(out).lines();
    assert!(lines.any(|line| line.expect("text") == "ready"));
    Some(Program { child, directory })
}

fn answers(program: &Program, expected: &[(&str, &str)]) {
    // One run for all: debug data is read once.
    let commands: String = expected
        .iter()
        .map(|(command, _)| format!("{command}\nsizeof char\n"))
        .collect();
    let done = windlass(&["inspect", &program.pid()], &commands);
    let errors = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{errors}");
    let text = String::from_utf8(done.stdout).expect("text");
    let wanted: String = expected
        .iter()
        .map(|(_, answer)| match answer.is_empty() {
            true => "1\n".to_owned(),
            false => format!("{answer}\n1\n"),
        })
        .collect();
    // Addresses change from run to run.
    let hidden = |text: &str| {
        let mut parts = text.split("0x");
        let first = parts.next().unwrap_or_default().to_owned();
        let rest = parts.map(|part| part.trim_start_matches(|c: char| c.is_ascii_hexdigit()));
        rest.fold(first, |all, part| all + "0x" + part)
    };
    assert_eq!(hidden(&text), hidden(&wanted), "{errors}");
}

/// Containers of C++ are shown by what they hold, and walked; pipes choose, sort and sum up. Text cannot steer the terminal.
#[test]
fn containers_of_cpp_are_shown() {
    let Some(program) = fixture(&["g++", "-std=c++17", "-g"], "containers.cc") else {
        return;
    };
    answers(
        &program,
        &[
            ("print all.numbers", "[1, 2, 3]"),
            (
                "print all.words",
                &format!("[\"a\", \"{}\"]", "b".repeat(40)),
            ),
            ("print all.bits", "[1, 0]"),
            ("print all.list", "[4, 5]"),
            ("print all.deque", "[1, 2, 3]"),
            ("print all.set", "[1, 2, 3]"),
            ("print all.hashed", "{7: \"seven\"}"),
            ("print all.hashed_set", "[4]"),
            ("print all.nested", "{\"k\": [1, 2]}"),
            ("print all.shared", "0x0 -> 5"),
            (
                "print all.owned",
                "0x0 -> { id = 1, next = 0x0, name = \"n\\u{1b}[2J\" }",
            ),
            (
                "print all.some, all.none",
                "all.some = 3\nall.none = nullopt",
            ),
            ("print all.array", "[1, 2]"),
            (
                "print all.map, all.nested, all.owned",
                "all.map = {1: \"one\", 2: \"two\"}\nall.nested = {\"k\": [1, 2]}\nall.owned = 0x0 -> { id = 1, next = 0x0, name = \"n\\u{1b}[2J\" }",
            ),
            (
                "walk all.map | print first, second",
                "first = 1, second = \"one\"\nfirst = 2, second = \"two\"",
            ),
            ("walk all.list | sum", "9"),
            ("walk all.nested | print second | walk | print", "1\n2"),
            ("list node next head | count", "5"),
            (
                "list node next head | where .id > 1 && .id != 3 | print .id .name",
                ".id = 4, .name = \"n4\"\n.id = 2, .name = \"n2\"",
            ),
            ("list node next head | sort id | head 2 | print id", "0\n1"),
            (
                "list node next head | sort -r .name | tail 1 | print name",
                "\"n0\"",
            ),
            (
                "list node next head | group id % 2",
                "COUNT  VALUE\n    3  0\n    2  1",
            ),
            ("list node next head | uniq .id / 2 | print id", "4\n3\n1"),
            ("::list node next head | ::print node id | ::sum", "10"),
            (
                "head::list node next | ::print struct node name ! grep -v 3 | head -1",
                "\"n4\"",
            ),
            (
                "list node next head | print next | where this != 0 | print -> id",
                "3\n2\n1\n0",
            ),
        ],
    );
    assert!(refused(&program.pid(), "walk head").contains("nothing says how to walk"));
    assert!(refused(&program.pid(), "count").contains("takes what another command gives"));
    assert!(refused(&program.pid(), "print 1 | count | print").contains("\"count\" writes text"));
}

/// So are those of Rust.
#[test]
fn containers_of_rust_are_shown() {
    let Some(program) = fixture(
        &["rustc", "--edition", "2021", "-g", "-A", "warnings"],
        "containers.rs",
    ) else {
        return;
    };
    let all = "containers::ALL.Some.__0";
    let print = |member: &str| format!("print {all}->{member}");
    let tree: Vec<_> = (0..30).map(|key| format!("{key}: {}", key * 2)).collect();
    let tree = format!("{{{}}}", tree.join(", "));
    let expected = [
        ("numbers", "[1, 2, 3]"),
        ("text", "\"hi \\u{1b}[2J\""),
        ("counted", "0x0 -> 5"),
        ("shared", "0x0 -> \"arc\""),
        (
            "nothing",
            "core::option::Option<alloc::boxed::Box<u64, alloc::alloc::Global>> None",
        ),
        ("hashed", "{7: \"seven\"}"),
        ("tree", &tree),
        ("ring", "[2, 3, 9]"),
        ("words", "[\"a\", \"b\"]"),
        ("slice", "[4, 5]"),
        ("set", "{3}"),
        ("fixed", "\"fixed\""),
        ("borrowed", "4"),
        ("cell", "-1"),
        ("atomic", "8"),
        ("locked", "6"),
    ];
    let printed: Vec<_> = expected
        .iter()
        .map(|(member, answer)| (print(member), *answer))
        .collect();
    let mut pairs: Vec<_> = printed
        .iter()
        .map(|(command, answer)| (command.as_str(), *answer))
        .collect();
    let walk = format!("walk {all}->tree | where this > 50 | print");
    pairs.push((&walk, "52\n54\n56\n58"));
    answers(&program, &pairs);
}

/// A walker and a view of the user's own; a list that comes back and one that leads nowhere are cut, and that is said.
#[test]
fn walks_end() {
    let home = tempfile::tempdir().expect("a directory");
    let views = home.path().join("windlass/views");
    std::fs::create_dir_all(&views).expect("made");
    let own = "walker conns : struct conn { from = &all; next = node->next; item = *node }
        walker chain : struct conn { from = &this; next = node->next; item = *node }
        walker stuck : struct conn { from = &all; next = &all; item = *node }
        walker lost : struct conn { from = &all; next = node->id ? 16 : 16; item = *node }
        walker senseless : struct conn { index = -all.id; item = this }
        walker wrong : struct conn { from = &all }
        view addr { text = name }\n";
    std::fs::write(views.join("own.view"), own).expect("written");
    std::fs::write(views.join("broken.view"), "view x {").expect("written");
    let program = Program::start(&[]);
    let ask = |command: &str| {
        let done = Command::new(env!("CARGO_BIN_EXE_windlass"))
            .args(["inspect", &program.pid(), "--", command])
            .env("XDG_CONFIG_HOME", home.path())
            .output()
            .expect("runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
        (text(&done.stdout), text(&done.stderr))
    };
    assert_eq!(ask("walk conns | print id").0, "7\n9");
    assert_eq!(ask("all.next::walk chain | print id").0, "9");
    assert_eq!(ask("print *all.addr").0, "\"localhost\"");
    assert!(ask("walkers").0.contains("conns"));
    let (out, why) = ask("walk stuck | count");
    assert!(
        out == "1" && why.contains("the walk ends early: it comes back to 0x"),
        "{out} {why}"
    );
    assert!(why.contains("broken.view: line 1: `}` is missing"), "{why}");
    let (out, why) = ask("walk lost | count");
    assert!(out == "1" && why.contains("<fault 0x10>"), "{out} {why}");
    let (out, why) = ask("walk senseless | count");
    assert!(
        out == "0" && why.contains("-7 items make no sense"),
        "{out} {why}"
    );
    let (out, why) = ask("walk room | count");
    assert!(
        out == "1000000" && why.contains("ends early: after 1000000 items"),
        "{out} {why}"
    );
    assert!(ask("walk wrong").1.contains("the walker has no \"next\""));
    assert!(ask("list struct conn next 16").1.contains("<fault 0x"));
}

/// What other shells offer at the end of a line.
fn offered(words: &str, word: &str) -> Vec<String> {
    let mut arguments = vec!["__complete", "inspection", word, "--"];
    arguments.extend(words.split(' '));
    let done = windlass(&arguments, "");
    let text = String::from_utf8(done.stdout).expect("text");
    text.lines().map(str::to_owned).collect()
}

/// Commands, types, variables and members to any depth are offered, behind pipes, too; in other shells, and at a terminal.
#[test]
fn names_are_completed() {
    let program = Program::start(&[]);
    let pid = program.pid();
    let behind = format!("inspect {pid} --");
    let offered = |words: &str, word: &str| offered(format!("{behind} {words}").trim_end(), word);
    for (words, word, name) in [
        ("", "whe", "where"),
        ("", "::offs", "::offsetof"),
        ("print", "server`al", "server`all"),
        ("print", "all.add", "all.addr"),
        ("print", "all.addr->n", "all.addr->name"),
        ("print", "all.next.addr.po", "all.next.addr.port"),
        ("print 1 +", "((conn_t*)0)->ne", "((conn_t*)0)->next"),
        ("sizeof struct", "server`con", "server`conn"),
        ("sizeof", "server`conn_", "server`conn_t"),
        ("offsetof struct conn", "addr.na", "addr.name"),
        ("list conn_t next all.next | print", ".hi", ".high"),
        ("list conn_t next all.next | head 1 |", "gr", "group"),
    ] {
        assert_eq!(offered(words, word), [name], "{words} {word}");
    }
    assert!(offered("print", "all.nothing.x").is_empty());
    // A name that would steer the terminal.
    let hostile = Program::start(&[&["sed", "-i", "s/conn_t/con\\x1b[m/", "server"]]);
    let behind = format!("inspect {} --", hostile.pid());
    assert_eq!(
        self::offered(&format!("{behind} sizeof"), "server`co"),
        ["server`conn"]
    );
    assert!(
        windlass(&["__complete", "program", &pid], "")
            .stdout
            .starts_with(pid.as_bytes())
    );
    // script(1) is a terminal for it.
    let typed = "print all.addr->por\t\rprint all.sm\t\rquit\r";
    let command = format!("{} inspect {pid}", env!("CARGO_BIN_EXE_windlass"));
    let child = Command::new("script")
        .args(["-qec", &command, "/dev/null"])
        .env("XDG_STATE_HOME", program.directory.path())
        .env("TERM", "xterm")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let Ok(mut child) = child else {
        println!("skipped: script(1) is not installed");
        return;
    };
    let mut stdin = child.stdin.take().expect("a pipe");
    stdin.write_all(typed.as_bytes()).expect("written");
    let done = child.wait_with_output().expect("ends");
    drop(stdin);
    let screen = String::from_utf8_lossy(&done.stdout);
    assert!(screen.contains("6379") && screen.contains("-3"), "{screen}");
    let kept = std::fs::read_to_string(program.directory.path().join("windlass/inspect_history"));
    assert_eq!(
        kept.expect("a file"),
        "print all.addr->port\nprint all.small\nquit\n"
    );
}

/// What is asked of a process that has ended, or of a file that is no core, is refused in a sentence; what is no one's to look into is, too.
#[test]
fn what_is_gone_is_said() {
    let mut program = Program::start(&[]);
    let mut child = Command::new(env!("CARGO_BIN_EXE_windlass"))
        .args(["inspect", &program.pid()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("runs");
    let mut stdin = child.stdin.take().expect("a pipe");
    let mut out = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut line = String::new();
    stdin.write_all(b"print all.id\n").expect("written");
    out.read_line(&mut line).expect("text");
    assert_eq!(line, "7\n");
    program.child.kill().expect("killed");
    program.child.wait().expect("ends");
    stdin
        .write_all(b"print all.id\nsizeof struct conn\n")
        .expect("written");
    drop(stdin);
    line.clear();
    out.read_line(&mut line).expect("text");
    // Types are of its files.
    assert_eq!(line, "96\n");
    let done = child.wait_with_output().expect("ends");
    let why = String::from_utf8_lossy(&done.stderr);
    assert!(!done.status.success() && why.contains("fault"), "{why}");
    let text = program.directory.path().join("server.txt");
    std::fs::write(&text, "no core").expect("written");
    assert!(refused(text.to_str().expect("a path"), "maps").contains("server.txt"));
}

/// Without debug data the command says where it was looked for; with it in a file beside, or deleted from its place, it is found.
#[test]
fn debug_data_is_looked_for() {
    let stripped = Program::start(&[
        &["objcopy", "--only-keep-debug", "server", "kept"],
        &["strip", "-g", "server"],
    ]);
    let why = refused(&stripped.pid(), "print server`all");
    assert!(
        why.contains("server has no debug data; looked in ")
            && why.contains("/usr/lib/debug/.build-id/"),
        "{why}"
    );
    assert!(ask(&stripped.pid(), "symbols handle").contains("handle"));
    let apart = Program::start(&[
        &["objcopy", "--only-keep-debug", "server", "server.debug"],
        &["strip", "-g", "server"],
        &["objcopy", "--add-gnu-debuglink=server.debug", "server"],
    ]);
    assert_eq!(ask(&apart.pid(), "print all.id"), "7\n");
    let deleted = Program::start(&[]);
    std::fs::remove_file(deleted.directory.path().join("server")).expect("it was there");
    assert_eq!(ask(&deleted.pid(), "print all.id"), "7\n");
    assert!(refused("999999999", "maps").contains("process 999999999"));
}
