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
