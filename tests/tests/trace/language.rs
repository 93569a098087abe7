//! What clauses do: statements, variables, callers, clocks, the names of types; programs that are started to be traced.

use super::*;

/// Called so often as it is told: some calls are left by longjmp, some call themselves.
const JUMPER: &str = r#"
#include <glob.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
struct addr { unsigned ip; char name[16]; };
struct conn { int id; struct addr *addr; };
jmp_buf back;
glob_t all;
long total;
__attribute__((noinline)) int work(int n, struct conn *c) {
    asm volatile("" ::: "memory");
    if (n % 5 == 3)
        longjmp(back, 1);
    for (volatile int i = 0; i < n * 100; i++);
    total += n;
    return n * 2 + c->id;
}
__attribute__((noinline, optimize("O0"))) int deep(int n) {
    asm volatile("" ::: "memory");
    return n ? deep(n - 1) + 1 : 0;
}
int main(int argc, char **argv) {
    struct addr a = { 1, "host" };
    struct conn c = { 7, &a };
    for (volatile int i = 0; i < atoi(argv[1]); i++) {
        if (setjmp(back))
            continue;
        work(i, &c);
        deep(i % 4);
    }
    return argc > 2 ? 3 : 0;
}
"#;

fn jumper(directory: &Path) -> String {
    let flags = ["cc", "-g", "-O2", "-fno-omit-frame-pointer"];
    let path = build(directory, ("jumper.c", JUMPER), &flags);
    path.to_str().unwrap().to_owned()
}

/// The JSON of a run that traces a program from its start, and what was told beside it.
fn started(command: &str, args: &[&str]) -> (Vec<Value>, String) {
    let (is_well, out, errors) = run(&[&["-j", "-c", command], args].concat());
    assert!(is_well, "{command}, {args:?}: {errors}");
    let rows = out.lines().map(|line| serde_json::from_str(line).unwrap());
    (rows.collect(), errors)
}

/// A program that is started for it is traced from its first call on, and how it ended is told.
#[test]
fn a_program_is_started_for_it() {
    if !can_trace("a_program_is_started_for_it", &["cc"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let jumper = jumper(directory.path());
    let (rows, errors) = started(&format!("{jumper} '25' ended"), &["work", "print(n)"]);
    assert_exact(&counts(&errors), 25);
    for (n, row) in rows.iter().enumerate() {
        assert_eq!(row["values"]["n"], n, "{row}");
    }
    assert!(errors.contains("has ended: exit status: 3"), "{errors}");
    let (is_well, _, errors) = run(&["-c", "./there-is-none", "work"]);
    assert!(!is_well && errors.contains("No such file"), "{errors}");
}

/// A process that executes another program, and one whose file was replaced, are told of.
#[test]
fn another_program_is_told_of() {
    if !can_trace("another_program_is_told_of", &["cc"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let server = build(directory.path(), ("server.c", SERVER), &["cc", "-g", "-O2"]);
    let command = format!("sh -c 'read x; exec {} 3'", server.display());
    let told = directory.path().join("told");
    let counted = directory.path().join("counted");
    let mut traced = Command::new(program("windlass"))
        .args(["trace", "-j", "-c", &command])
        .args(["libc.so.6:strtol", "@[comm] = count()"])
        .stdin(Stdio::piped())
        .stdout(fs::File::create(&counted).unwrap())
        .stderr(fs::File::create(&told).unwrap())
        .spawn()
        .unwrap();
    let mut input = traced.stdin.take().unwrap();
    input.write_all(b"go\n").unwrap();
    let text = || fs::read_to_string(&told).unwrap();
    until("it is told", || text().contains("/server now: probes hold"));
    drop(input);
    assert!(traced.wait().unwrap().success(), "{}", text());
    // The new program has called it, too.
    let counted = fs::read_to_string(&counted).unwrap();
    let counted = counted.lines().filter(|line| line.contains("\"key\""));
    let lines = lines(&counted.collect::<Vec<_>>().join("\n"));
    let wanted = (serde_json::json!(["\"server\""]), 1.into());
    assert!(lines.contains(&wanted), "{lines:?}");

    let waiting = Waiting::start(&server, &["1"]);
    fs::remove_file(&server).unwrap();
    let traced = Trace::start(&["-p", &waiting.pid(), "handle", "@ = count()"]);
    assert!(waiting.end().1);
    let (_, errors) = traced.end();
    assert!(errors.contains("removed or replaced"), "{errors}");
    assert_exact(&counts(&errors), 1);
}

/// Each return is paired with its own entry: of calls that call themselves the outer ones took longer, and what is left by longjmp is paired with nothing.
#[test]
fn returns_are_paired_with_their_entries() {
    if !can_trace("returns_are_paired_with_their_entries", &["cc"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let jumper = jumper(directory.path());
    let command = format!("{jumper} 200");
    let (rows, errors) = started(&command, &["deep:return", "print(retval, elapsed)"]);
    let mut inner = 0;
    for row in &rows {
        let elapsed = row["values"]["elapsed"].as_u64().unwrap();
        if row["values"]["retval"] == 0 {
            inner = 0;
        }
        assert!(elapsed > inner, "{row}, after {inner}");
        inner = elapsed;
    }
    assert_exact(&counts(&errors), u64::try_from(rows.len()).unwrap());
    // The entry that a return sees is the last one of its thread.
    let clauses = [
        "work",
        "self->n = n; self->t = now; this->twice = n * 2; if (this->twice != 2 * self->n) print(n)",
        "work:return",
        "/self->n * 2 + 7 != retval || elapsed > now - self->t + 100ms/ print(retval); self->n = 0",
        "work:return",
        "@ = sum(elapsed > 0)",
    ];
    let (rows, errors) = started(&command, &clauses);
    assert_eq!(rows.len(), 1, "{rows:?}");
    assert_eq!(rows[0]["value"], 160);
    let counted = counts(&errors);
    assert_exact(&counted, 200 + 160 + 160);
    assert_eq!(counted.get("faults"), None, "{errors}");
}

/// What statements say is done, in their order.
#[test]
fn statements_are_done() {
    if !can_trace("statements_are_done", &["cc"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let jumper = jumper(directory.path());
    let command = format!("{jumper} 25");
    let said = "if (n > 20) { printf(\"%03d %s|\", n, c->addr->name); @big = count() } else @small = sum(n)";
    let (rows, errors) = started(
        &command,
        &[
            "begin",
            "printf(\"<\")",
            "work",
            said,
            "end",
            "printf(\">\")",
        ],
    );
    let texts: String = rows.iter().filter_map(|row| row["text"].as_str()).collect();
    assert_eq!(texts, "<021 host|022 host|023 host|024 host|>");
    let of = |name: &str| rows.iter().find(|row| row["name"] == name).unwrap()["value"].clone();
    assert_eq!((of("big"), of("small")), (4.into(), 210.into()));
    assert_exact(&counts(&errors), 27);
    let kept = "@d = stddev(n); @l = lquantize(n, 5, 20, 5); @h = heat(n); @s[n & 1] = subsecond()";
    let (rows, _) = started(&command, &["work", kept]);
    let of = |name: &str| rows.iter().find(|row| row["name"] == name).unwrap()["value"].clone();
    // The root of (25 * 25 - 1) / 12.
    assert_eq!(of("d"), 7);
    assert_eq!(
        of("l"),
        serde_json::json!([[4, 5], [5, 5], [10, 5], [15, 5], [20, 5]])
    );
    for (name, keys) in [("h", 1), ("s", 2)] {
        let heat = rows.iter().find(|row| row["heat"] == name).unwrap();
        let columns = heat["columns"].as_array().unwrap();
        let cells = columns.iter().flat_map(|column| column.as_array().unwrap());
        let sum: u64 = cells.map(|cell| cell[2].as_u64().unwrap()).sum();
        assert_eq!(sum, 25, "{heat}");
        assert_eq!(heat["keys"].as_array().unwrap().len(), keys);
    }
    let (rows, errors) = started(&command, &["work", "print(n); stop(5)"]);
    assert_eq!((rows.len(), counts(&errors)["hits"]), (5, 5));
}

/// Callers have their names, in keys and printed.
#[test]
fn callers_are_named() {
    if !can_trace("callers_are_named", &["cc"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let command = format!("{} 10", jumper(directory.path()));
    let (rows, _) = started(
        &command,
        &["work", "print(ustack(3), comm); @[ustack(2)] = count()"],
    );
    let first = &rows[0]["values"];
    let callers = first["ustack(3)"].as_array().unwrap();
    assert!(callers[0].as_str().unwrap().starts_with("work+"), "{first}");
    assert!(callers[1].as_str().unwrap().starts_with("main+"), "{first}");
    assert_eq!(first["comm"], "jumper");
    let last = rows.last().unwrap();
    let key = last["key"][0].as_str().unwrap();
    assert!(key.starts_with("work+") && key.contains("\nmain+"), "{key}");
    assert_eq!(last["value"], 10);
}

/// Clocks run clauses: so often a second where the process runs, and each so much time.
#[test]
fn clocks_run_clauses() {
    if !can_trace("clocks_run_clauses", &["cc"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let odd = build(directory.path(), ("odd.c", ODD), &["cc", "-g", "-O2"]);
    let mut odd = Waiting::start(&odd, &["0"]);
    odd.go_on();
    let pid = odd.pid();
    let args = [
        "-j",
        "-p",
        &pid,
        "profile:997",
        "@[comm, pid] = count(); stop(20)",
    ];
    let (is_well, out, errors) = run(&args);
    assert!(is_well, "{errors}");
    let wanted = serde_json::json!(["\"odd\"", pid]);
    assert_eq!(lines(&out), [(wanted, 20.into())]);
    assert_exact(&counts(&errors), 20);
    let (is_well, out, errors) = run(&["-j", "-p", &pid, "tick:0.01", "print(now); stop(3)"]);
    assert!(is_well, "{errors}");
    assert_eq!((out.lines().count(), counts(&errors)["hits"]), (3, 3));
    odd.child.kill().unwrap();
    odd.child.wait().unwrap();
}

/// The 24 ways in which the type of a process is named are one.
#[test]
fn types_are_named_in_24_ways() {
    if !can_trace("types_are_named_in_24_ways", &["cc"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let server = SERVER.replace("long total;", "glob_t all;\nlong total;");
    let source = format!("#include <glob.h>\n{server}");
    let server = build(
        directory.path(),
        ("server.c", &source),
        &["cc", "-g", "-O2"],
    );
    let mut server = Waiting::start(&server, &["1"]);
    let pid = server.pid();
    let mut ways = Vec::new();
    for keywords in ["", "struct ", "userland ", "struct userland "] {
        for process in ["pid".to_owned(), format!("pid{pid}")] {
            for library in ["", "server`", "LM0`server`"] {
                ways.push(format!("({keywords}{process}`{library}glob_t *)0"));
            }
        }
    }
    assert_eq!(ways.len(), 24);
    let sizes: Vec<String> = ways.iter().map(|way| format!("sizeof (*{way})")).collect();
    let clause = format!("print({})", sizes.join(", "));
    let traced = Trace::start(&["-j", "-p", &pid, "handle", &clause]);
    let (is_well, _, errors) = run(&["-p", &pid, "handle", "print((pid1`glob_t *)0)"]);
    assert!(
        !is_well && errors.contains("types of process 1 are not read"),
        "{errors}"
    );
    server.go_on();
    assert!(server.end().1);
    let row: Value = serde_json::from_str(&traced.end().0).unwrap();
    for size in sizes {
        assert_eq!(row["values"][&size], 72, "{size}");
    }
}

/// What statements cannot be is told.
#[test]
fn wrong_statements_are_told() {
    if !can_trace("wrong_statements_are_told", &["cc"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let command = format!("{} 1", jumper(directory.path()));
    for (clause, wanted) in [
        (
            "print(elapsed)",
            "elapsed is known only where a function returns",
        ),
        ("print(self->x)", "nothing before this sets self->x"),
        ("@ = lquantize(n, 0, 1000, 1)", "at most 126 steps"),
        ("printf(\"%d\")", "the format takes 1 values, and has 0"),
        ("printf(\"%f\", n)", "after % comes"),
        ("if (n) print(n", "`,` is expected here"),
        ("@[ustack(17)] = count()", "1 to 16 callers"),
        ("stop(0)", "at least 1"),
        (
            "this->a=1;this->b=1;this->c=1;this->d=1;this->e=1;this->f=1;this->g=1;this->h=1;this->i=1",
            "at most 8 variables",
        ),
    ] {
        let (is_well, _, errors) = run(&["-c", &command, "work", clause]);
        assert!(!is_well && errors.contains(wanted), "{clause}: {errors}");
    }
    let (is_well, _, errors) = run(&["-c", &command, "tick:1", "print(arg0)"]);
    assert!(
        !is_well && errors.contains("nothing here is named arg0"),
        "{errors}"
    );
}

/// Every process that runs a file is traced, and told apart.
#[test]
fn all_processes_are_traced() {
    if !can_trace("all_processes_are_traced", &["cc"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let server = build(directory.path(), ("server.c", SERVER), &["cc", "-g", "-O2"]);
    let mut servers = [0, 1].map(|_| Waiting::start(&server, &["10"]));
    // By its path: others run servers, too.
    let probe = format!("{}:handle", server.display());
    let clause = "@[pid, comm] = sum(s > -10); stop(20)";
    let traced = Trace::start(&["-j", "--all", &probe, clause]);
    let (is_well, _, errors) = run(&["--all", &probe, "print(total)"]);
    assert!(
        !is_well && errors.contains("lies elsewhere in each process"),
        "{errors}"
    );
    let pids = servers.each_ref().map(Waiting::pid);
    servers.iter_mut().for_each(Waiting::go_on);
    let (out, errors) = traced.end();
    assert_exact(&counts(&errors), 20);
    let seen: BTreeMap<String, Value> = lines(&out)
        .into_iter()
        .map(|(key, sum)| (key[0].as_str().unwrap().to_owned(), sum))
        .collect();
    assert_eq!(seen, pids.map(|pid| (pid, 10.into())).into());
    for server in servers {
        assert!(server.end().1);
    }
}

/// A probe on a line has the variables that are there, and events of the kernel the kernel's own names.
#[test]
fn lines_and_events_are_probed() {
    if !can_trace("lines_and_events_are_probed", &["cc"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let jumper = jumper(directory.path());
    let line = JUMPER
        .lines()
        .position(|line| line.contains("total += n"))
        .unwrap()
        + 1;
    let command = format!("{jumper} 20");
    let (rows, errors) = started(&command, &[&format!("jumper.c:{line}"), "print(n, total)"]);
    assert_exact(&counts(&errors), 16);
    let mut total = 0;
    for (row, n) in rows.iter().zip((0..20).filter(|n| n % 5 != 3)) {
        assert_eq!(row["values"], serde_json::json!({"n": n, "total": total}));
        total += n;
    }
    let (is_well, _, errors) = run(&["-c", &command, "jumper.c:9999"]);
    assert!(
        !is_well && errors.contains("no code is from jumper.c:9999"),
        "{errors}"
    );
    let (rows, errors) = started(
        &command,
        &[
            "kernel:sys_exit",
            "@ = count()",
            "kernel:sys_enter",
            "@[id == 231] = count()",
        ],
    );
    assert!(errors.contains("kernel:sys_enter: "), "{errors}");
    // Its last call is exit_group.
    let ends = rows
        .iter()
        .find(|row| row["key"] == serde_json::json!(["1"]));
    assert_eq!(ends.unwrap()["value"], 1, "{rows:?}");
    let (is_well, _, errors) = run(&["-c", &command, "kernel:no_such_event", "@ = count()"]);
    assert!(
        !is_well && errors.contains("has no event no_such_event"),
        "{errors}"
    );
}

/// A static probe behind a semaphore: it is executed only while somebody looks.
const STATIC: &str = r#"
#include <stdio.h>
#include <stdlib.h>
__attribute__((section(".probes"))) volatile unsigned short gate;
asm(".pushsection .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat\n"
    ".weak _.stapsdt.base\n.hidden _.stapsdt.base\n_.stapsdt.base: .space 1\n.size _.stapsdt.base, 1\n.popsection");
__attribute__((noinline)) void step(int n, long *at) {
    asm volatile("990: nop\n"
        ".pushsection .note.stapsdt,\"\",\"note\"\n.balign 4\n"
        ".4byte 992f-991f, 994f-993f, 3\n991: .asciz \"stapsdt\"\n992: .balign 4\n"
        "993: .8byte 990b\n.8byte _.stapsdt.base\n.8byte gate\n"
        ".asciz \"shop\"\n.asciz \"sold\"\n.asciz \"-4@%k0 8@(%1)\"\n994: .balign 4\n.popsection"
        :: "r"(n), "r"(at) : "memory");
}
int main(int argc, char **argv) {
    int seen = 0;
    for (int i = 0; i < atoi(argv[1]); i++) {
        long at = i * 3L;
        if (gate) {
            step(-i, &at);
            seen++;
        }
    }
    return seen;
}
"#;

/// Static probes are found in the notes of files, their semaphores are raised, and their arguments are read where the notes say.
#[test]
fn static_probes_are_probed() {
    if !can_trace("static_probes_are_probed", &["cc"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let flags = ["cc", "-O2", "-no-pie"];
    let shop = build(directory.path(), ("shop.c", STATIC), &flags);
    let command = format!("{} 12", shop.display());
    assert!(Command::new(&shop).arg("12").status().unwrap().success());
    let (rows, errors) = started(&command, &["sdt:shop:so*", "print(arg0, arg1)"]);
    assert_exact(&counts(&errors), 12);
    for (i, row) in (0_i64..).zip(&rows) {
        assert_eq!(row["probe"], "shop:shop:sold");
        assert_eq!(
            row["values"],
            serde_json::json!({"arg0": -i, "arg1": i * 3})
        );
    }
    assert!(errors.contains("exit status: 12"), "{errors}");
    let (is_well, _, errors) = run(&["-c", &command, "sdt:shop:lost", "@ = count()"]);
    assert!(
        !is_well && errors.contains("no file that is mapped has"),
        "{errors}"
    );
}
