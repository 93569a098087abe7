//! `windlass trace` on programs that know what they call: what it prints is what they print, and they do the same under it as without.

#[path = "trace/language.rs"]
mod language;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::Value;
use windlass_script::code::Moment;
use windlass_script::evaluate::{Surroundings, evaluate};
use windlass_script::lower::{Location, Lowering, Names};
use windlass_script::{Code, parse};
use windlass_tests::{program, skip, until};
use windlass_types::{Encoding, Node, TypeId, Types};

/// Says of each call what it was called with, as JSON, after a line has come; then waits for another.
const SERVER: &str = r#"
#include <stdio.h>
#include <string.h>
#include <stdlib.h>
struct addr { unsigned ip; unsigned short port; char name[16]; };
struct conn { int id; struct addr *addr; long bytes; unsigned state : 3, secure : 1; struct conn *next; };
struct req { struct conn *conn; };
struct big { long a, b, c; };
enum color { RED, GREEN = 5 };
long total;
__attribute__((noinline)) long handle(struct req *r, int *n, double w, struct big b, short s, const char *tag, enum color c) {
    total += *n + s + b.a + (long)w + c;
    return r->conn->bytes + strlen(tag);
}
int main(int argc, char **argv) {
    struct addr a = { 16777343, 6379, "localhost" };
    struct conn two = { 8, &a, 5, 2, 0, 0 }, one = { 7, &a, 1402, 5, 1, &two };
    struct req first = { &one }, second = { &two };
    struct big b = { 1, -2, 3 };
    int n = 42, calls = atoi(argv[1]), tells = argc > 2;
    char line[8];
    asm volatile("" :: "r"(&first), "r"(&second) : "memory");
    puts("ready");
    fflush(stdout);
    fgets(line, sizeof line, stdin);
    for (int i = 0; i < calls; i++) {
        n = i * 7919 - 1000;
        b.a = i;
        struct req *r = i % 3 ? &first : &second;
        const char *tag = i % 2 ? "odd" : "even";
        short s = i % 7 - 3;
        long before = total, result = handle(r, &n, 2.5, b, s, tag, i % 2 ? RED : GREEN);
        if (tells)
            printf("{\"r->conn->id\":%d,\"*n\":%d,\"s\":%d,\"tag\":\"%s\",\"c\":\"%s\",\"b.a\":%ld,\"b.b\":%ld,\"r->conn->secure\":%d,"
                   "\"r->conn->state\":%d,\"total\":%ld,\"r->conn->addr->name\":\"%s\",\"r->conn->addr->port\":%d}\n%ld\n",
                   r->conn->id, n, s, tag, i % 2 ? "RED" : "GREEN", b.a, b.b, r->conn->secure, r->conn->state, before,
                   r->conn->addr->name, r->conn->addr->port, result);
    }
    fflush(stdout);
    fgets(line, sizeof line, stdin);
    return 0;
}
"#;

/// A function that throws, and one that catches, 1,000 times.
const THROWER: &str = r#"
#include <cstdio>
#include <stdexcept>
__attribute__((noinline)) int thrower(int n) {
    if (n % 3 == 0)
        throw std::runtime_error("bad");
    return n;
}
__attribute__((noinline)) int between(int n) { return thrower(n) + 1; }
int main() {
    char line[8];
    puts("ready");
    fflush(stdout);
    fgets(line, sizeof line, stdin);
    long caught = 0, sum = 0;
    for (int i = 0; i < 1000; i++) {
        try { sum += between(i); } catch (const std::exception &) { caught++; }
    }
    printf("%ld %ld\n", caught, sum);
    fflush(stdout);
    fgets(line, sizeof line, stdin);
}
"#;

/// What a person needs to trace, or the reason why this test cannot run.
fn can_trace(test: &str, tools: &[&str]) -> bool {
    if !rustix::process::geteuid().is_root() {
        skip(test, "only root may trace");
        return false;
    }
    for tool in tools {
        if Command::new(tool).arg("--version").output().is_err() {
            skip(test, &format!("{tool} is missing"));
            return false;
        }
    }
    true
}

fn build(directory: &Path, source: (&str, &str), compiler: &[&str]) -> PathBuf {
    let (name, text) = source;
    let at = directory.join(name);
    fs::write(&at, text).unwrap();
    let out = at.with_extension("");
    let done = Command::new(compiler[0])
        .args(&compiler[1..])
        .arg("-o")
        .args([&out, &at])
        .status();
    assert!(done.unwrap().success(), "{compiler:?}");
    out
}

/// A program that waits for a line before it begins, and for another before it ends.
struct Waiting {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Waiting {
    fn start(program: &Path, args: &[&str]) -> Self {
        let mut command = Command::new(program);
        command
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let input = child.stdin.take().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Self {
            child,
            input,
            output,
        }
    }

    fn pid(&self) -> String {
        self.child.id().to_string()
    }

    fn go_on(&mut self) {
        self.input.write_all(b"\n").unwrap();
    }

    /// Lets it end; gives what it wrote and whether it ended well.
    fn end(mut self) -> (String, bool) {
        // Whatever line it waits for comes, as the end.
        drop(self.input);
        let mut text = String::new();
        self.output.read_to_string(&mut text).unwrap();
        (text, self.child.wait().unwrap().success())
    }
}

/// `windlass trace`, whose probes are there.
struct Trace {
    child: Child,
}

impl Trace {
    fn start(args: &[&str]) -> Self {
        let mut command = Command::new(program("windlass"));
        command.arg("trace").args(args);
        let piped = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = piped.spawn().unwrap();
        let mut traced = Self { child };
        until("the probes are there", || {
            if let Some(status) = traced.child.try_wait().unwrap() {
                let mut why = String::new();
                let errors = traced.child.stderr.as_mut().unwrap();
                errors.read_to_string(&mut why).unwrap();
                panic!("{status}: {why}");
            }
            let all = fs::read_dir(format!("/proc/{}/fd", traced.child.id()));
            let links = all.into_iter().flatten().flatten();
            let mut links = links.filter_map(|entry| fs::read_link(entry.path()).ok());
            // It takes signals once all probes are there.
            links.any(|link| link.to_string_lossy().contains("[eventfd]"))
        });
        traced
    }

    /// What it wrote, once the traced program has ended.
    fn end(self) -> (String, String) {
        let done = self.child.wait_with_output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        let errors = text(done.stderr);
        assert!(done.status.success(), "{errors}");
        (text(done.stdout), errors)
    }
}

/// What it counted, by word: `1,000 hits` and so on.
fn counts(errors: &str) -> BTreeMap<String, u64> {
    let line = errors.lines().last().unwrap_or_default();
    let pairs = line.split(", ").filter_map(|part| {
        let (number, word) = part.split_once(' ')?;
        Some((word.to_owned(), number.parse().ok()?))
    });
    pairs.collect()
}

/// Hits are each one of the others.
fn assert_exact(counts: &BTreeMap<String, u64>, hits: u64) {
    let of = |word: &str| counts.get(word).copied().unwrap_or(0);
    let others = ["records", "aggregated", "filtered", "faults", "dropped"];
    assert_eq!(of("hits"), hits, "{counts:?}");
    assert_eq!(others.map(of).iter().sum::<u64>(), hits, "{counts:?}");
}

/// The lines of aggregations, each with its key and its value.
fn lines(text: &str) -> Vec<(Value, Value)> {
    let rows = text
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    rows.map(|row| (row["key"].clone(), row["value"].clone()))
        .collect()
}

const CALLS: u64 = 200;
const PRINTED: &str = "print(r->conn->id, *n, s, tag, c, b.a, b.b, r->conn->secure, r->conn->state, total, \
     r->conn->addr->name, r->conn->addr->port)";

/// Whatever the compiler made of the function, what is printed of its arguments is what it was called with.
#[test]
fn arguments_are_what_they_are() {
    if !can_trace("arguments_are_what_they_are", &["cc"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    for flags in [
        &["-g", "-O0"][..],
        &["-g", "-O2"],
        &["-g", "-O2", "-fcf-protection", "-fno-omit-frame-pointer"],
        &["-gdwarf-4", "-O1", "-static"],
        &["-g", "-Os"],
    ] {
        let compiler = [&["cc"], flags].concat();
        let server = build(directory.path(), ("server.c", SERVER), &compiler);
        let calls = CALLS.to_string();
        let mut server = Waiting::start(&server, &[&calls, "tell"]);
        let traced = Trace::start(&["-j", "-p", &server.pid(), "server:handle", PRINTED]);
        let returned = Trace::start(&["-j", "-p", &server.pid(), "handle:return", "print(retval)"]);
        server.go_on();
        let (told, is_well) = server.end();
        assert!(is_well);
        let ((seen, errors), (results, second)) = (traced.end(), returned.end());
        assert_exact(&counts(&errors), CALLS);
        assert_exact(&counts(&second), CALLS);
        let values = |text: &str| -> Vec<Value> {
            let lines = text
                .lines()
                .map(|line| serde_json::from_str::<Value>(line).unwrap());
            lines.map(|row| row["values"].clone()).collect()
        };
        let told: Vec<Value> = told
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        let (arguments, returns): (Vec<Value>, Vec<Value>) =
            told.into_iter().partition(Value::is_object);
        let seen = values(&seen);
        assert_eq!(seen.len(), arguments.len(), "{flags:?}");
        for (seen, told) in seen.iter().zip(&arguments) {
            assert_eq!(seen, told, "{flags:?}");
        }
        let results: Vec<Value> = values(&results)
            .iter()
            .map(|row| row["retval"].clone())
            .collect();
        assert_eq!(results, returns, "{flags:?}");
    }
}

/// What a filter keeps and what an aggregation counts is all of it, also of more than 100,000 hits whose records have no room.
#[test]
fn hits_are_accounted_for() {
    if !can_trace("hits_are_accounted_for", &["cc"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let server = build(directory.path(), ("server.c", SERVER), &["cc", "-g", "-O2"]);
    let calls = 210_000;
    let mut server = Waiting::start(&server, &[&calls.to_string()]);
    let pid = server.pid();
    let start = |clause| Trace::start(&["-j", "-p", &pid, "handle", clause]);
    let runs = [
        start("/s > 1 && tag == \"odd\"/ @ = count()"),
        start("@by[tag, r->conn->addr->name, c] = sum(s)"),
        start("@ = min(*n); @ = max(*n); @ = avg(s); @ = quantize(s)"),
        start("/r->conn->next->bytes == 5/ @ = count()"),
        start("print(*r->conn, *r->conn, *r->conn)"),
    ];
    server.go_on();
    let (_, is_well) = server.end();
    assert!(is_well);
    let [filtered, sums, extremes, faults, records] = runs.map(Trace::end);
    for (_, errors) in [&filtered, &sums, &extremes, &faults, &records] {
        assert_exact(&counts(errors), calls);
    }
    let s = |i: u64| i64::try_from(i % 7).unwrap() - 3;
    let kept = (0..calls).filter(|i| s(*i) > 1 && i % 2 == 1).count();
    assert_eq!(lines(&filtered.0), [(serde_json::json!([]), kept.into())]);
    let mut wanted: Vec<(Value, Value)> = [("even", 0, "GREEN"), ("odd", 1, "RED")]
        .map(|(tag, rest, color)| {
            let sum: i64 = (0..calls).filter(|i| i % 2 == rest).map(s).sum();
            let quoted = |text: &str| format!("\"{text}\"");
            (
                serde_json::json!([quoted(tag), quoted("localhost"), color]),
                sum.into(),
            )
        })
        .into();
    wanted.sort_by_key(|(_, sum)| sum.as_i64());
    assert_eq!(lines(&sums.0), wanted);
    let extremes: Vec<Value> = lines(&extremes.0)
        .into_iter()
        .map(|(_, value)| value)
        .collect();
    let last = i32::try_from(calls - 1).unwrap();
    // As the program computes it, in 32 bits.
    let all = || (0..=last).map(|i| i64::from(i.wrapping_mul(7919).wrapping_sub(1000)));
    assert_eq!(extremes[0], all().min().unwrap());
    assert_eq!(extremes[1], all().max().unwrap());
    let sum: i64 = (0..calls).map(s).sum();
    assert_eq!(extremes[2], sum / i64::try_from(calls).unwrap());
    let each = |wanted: &[i64]| (0..calls).filter(|i| wanted.contains(&s(*i))).count();
    let buckets = [
        (-2, each(&[-2, -3])),
        (-1, each(&[-1])),
        (0, each(&[0])),
        (1, each(&[1])),
        (2, each(&[2, 3])),
    ];
    assert_eq!(extremes[3], serde_json::json!(buckets));
    // One of two connections has none behind it.
    let without = (0..calls).filter(|i| i % 3 == 0).count();
    assert_eq!(counts(&faults.1)["faults"], u64::try_from(without).unwrap());
    let told = counts(&records.1)["records"];
    assert_eq!(u64::try_from(records.0.lines().count()).unwrap(), told);
}

/// A program that throws through a probed function, and returns from it, does what it does without probes.
#[test]
fn exceptions_pass_probes() {
    if !can_trace("exceptions_pass_probes", &["c++"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let thrower = build(
        directory.path(),
        ("thrower.cc", THROWER),
        &["c++", "-g", "-O2"],
    );
    let mut plain = Waiting::start(&thrower, &[]);
    plain.go_on();
    let (wanted, _) = plain.end();
    assert_eq!(wanted, "334 333333\n");
    let mut traced = Waiting::start(&thrower, &[]);
    let pid = traced.pid();
    let runs = ["thrower", "thrower:return", "between:return"]
        .map(|probe| Trace::start(&["-j", "-p", &pid, probe, "@ = count()"]));
    traced.go_on();
    let (seen, is_well) = traced.end();
    assert!(is_well);
    assert_eq!(seen, wanted);
    let hits = runs.map(|run| counts(&run.end().1)["hits"]);
    assert_eq!(hits, [1000, 666, 666]);
}

/// A tracer that is killed leaves the program as it was.
#[test]
fn a_killed_tracer_leaves_nothing() {
    if !can_trace("a_killed_tracer_leaves_nothing", &["cc"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = build(
        directory.path(),
        ("server.c", SERVER),
        &["cc", "-g", "-O2", "-static"],
    );
    let mut server = Waiting::start(&path, &["1000", "tell"]);
    let code = || {
        // The symbol's address is the address: it is linked statically.
        let symbols = Command::new("nm").arg(&path).output().unwrap();
        let symbols = String::from_utf8(symbols.stdout).unwrap();
        let line = symbols
            .lines()
            .find(|line| line.ends_with(" T handle"))
            .unwrap();
        let at = u64::from_str_radix(line.split(' ').next().unwrap(), 16).unwrap();
        let memory = fs::File::open(format!("/proc/{}/mem", server.child.id())).unwrap();
        let mut bytes = [0; 64];
        std::os::unix::fs::FileExt::read_exact_at(&memory, &mut bytes, at).unwrap();
        bytes
    };
    let before = code();
    let mut traced = Trace::start(&["-p", &server.pid(), "handle", "print(*r->conn)"]);
    assert_ne!(code(), before);
    traced.child.kill().unwrap();
    traced.child.wait().unwrap();
    until("the code is as it was", || code() == before);
    server.go_on();
    let (told, is_well) = server.end();
    assert!(is_well);
    assert_eq!(told.lines().count(), 2000);
}

/// What cannot be done is told, with what to write instead.
#[test]
fn mistakes_are_told() {
    if !can_trace("mistakes_are_told", &["cc"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let server = build(directory.path(), ("server.c", SERVER), &["cc", "-g", "-O2"]);
    let server = Waiting::start(&server, &["1"]);
    let pid = server.pid();
    let refused = |args: &[&str]| {
        let done = Command::new(program("windlass"))
            .arg("trace")
            .args(args)
            .output()
            .unwrap();
        assert!(!done.status.success(), "{args:?}");
        String::from_utf8(done.stderr).unwrap()
    };
    for (args, wanted) in [
        (&["-p", &pid, "handel"][..], "did you mean \"handle\""),
        (
            &["-p", &pid, "handle", "print(w)"],
            "w is in a vector register",
        ),
        (
            &["-p", &pid, "handle", "print(r->con)"],
            "struct req has no member con; did you mean \"conn\"?",
        ),
        (
            &["-p", &pid, "handle", "print(x)"],
            "there are r, n, w, b, s, tag, c",
        ),
        (
            &["-p", &pid, "handle", "print(r->conn"],
            "`,` is expected here",
        ),
        (
            &["-p", &pid, "handle", "/b/ print(s)"],
            "a struct big is no number",
        ),
        (
            &["-p", &pid, "handle", "print((struct nobody *)r)"],
            "nobody",
        ),
        (
            &["-p", &pid, "libnone.so:f"],
            "it has not mapped libnone.so; it has",
        ),
        (&["-p", "999999999", "f"], "there is no process"),
        (&["-p", &pid, "handle:exit"], "has not mapped handle"),
    ] {
        let told = refused(args);
        assert!(told.contains(wanted), "{args:?}: {told}");
    }
    // Under the place in the text.
    let told = refused(&["-p", &pid, "handle", "/s > 1/ print(r->con)"]);
    assert!(
        told.lines().any(|line| line == "/s > 1/ print(r->con)"),
        "{told}"
    );
    let mark = told.lines().find(|line| line.trim_start().starts_with('^'));
    assert_eq!(mark.unwrap().find('^'), Some(14), "{told}");
    server.end();
}

/// Where nothing but arguments has a name.
struct OneArgument(TypeId);

impl Names for OneArgument {
    fn find(&self, name: &str) -> Option<(Location, TypeId)> {
        (name == "s").then_some((Location::Value(Code::Register(1)), self.0))
    }

    fn missing(&self, name: &str) -> String {
        format!("nothing here is named {name}")
    }
}

/// The register that the argument is in.
struct Register(u64);

impl Surroundings for Register {
    fn read(&self, _: u64, _: &mut [u8]) -> bool {
        false
    }

    fn register(&self, number: u16) -> Option<u64> {
        (number == 1).then_some(self.0)
    }

    fn moment(&self, _: Moment) -> Option<u64> {
        None
    }
}

/// A random expression over `s`.
fn expression(random: &mut impl FnMut(u32) -> u32, depth: u32) -> String {
    if depth == 0 || random(6) == 0 {
        return match random(4) {
            0 => "s".to_owned(),
            1 => random(10).to_string(),
            2 => format!("(long)0x{:08x}{:08x}", random(u32::MAX), random(u32::MAX)),
            _ => "(unsigned char)s".to_owned(),
        };
    }
    let operators = [
        "+", "-", "*", "/", "%", "&", "|", "^", "<<", ">>", "<", "<=", ">", ">=", "==", "!=", "&&",
        "||",
    ];
    let mut inner = || expression(random, depth - 1);
    let (a, b, c) = (inner(), inner(), inner());
    let casts = [
        "int",
        "unsigned",
        "short",
        "unsigned long",
        "char",
        "unsigned short",
    ];
    match random(10) {
        0 => format!("-({a})"),
        1 => format!("~({a})"),
        2 => format!("!({a})"),
        3 => format!("({a} ? {b} : {c})"),
        4 => {
            let cast = casts[usize::try_from(random(6)).unwrap()];
            format!("({cast})({a})")
        }
        _ => {
            let operator = operators[usize::try_from(random(18)).unwrap()];
            format!("({a} {operator} {b})")
        }
    }
}

/// The program in the kernel and the evaluator give the same value for the same text, or a fault both.
#[test]
fn the_kernel_computes_what_the_evaluator_does() {
    if !can_trace("the_kernel_computes_what_the_evaluator_does", &["cc"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let server = build(directory.path(), ("server.c", SERVER), &["cc", "-g", "-O2"]);
    let types = Types::default();
    let short = types.add(Node::Int {
        name: "short".into(),
        size: 2,
        encoding: Encoding::Signed,
    });
    let names = OneArgument(short);
    let lowering = Lowering::new(&types, &names);
    let mut seed = 88_172_645_463_325_252_u64;
    let mut random = |below: u32| {
        // Marsaglia's xorshift.
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        u32::try_from(seed % u64::from(below)).unwrap()
    };
    for _ in 0..12 {
        let all: Vec<String> = (0..40).map(|_| expression(&mut random, 4)).collect();
        let mut server = Waiting::start(&server, &["7"]);
        let clause = format!("print({})", all.join(", "));
        let traced = Trace::start(&["-j", "-p", &server.pid(), "handle", &clause]);
        server.go_on();
        server.end();
        let (seen, errors) = traced.end();
        assert_exact(&counts(&errors), 7);
        for (row, s) in seen.lines().zip(-3_i64..) {
            let row: Value = serde_json::from_str(row).unwrap();
            // What is above the argument's bits is not its own.
            let on = Register(s.cast_unsigned() ^ 0xdead_0000);
            for text in &all {
                let parsed = parse::expression(text).unwrap();
                let (location, ty) = lowering.expression(&parsed).unwrap();
                let Location::Value(code) = location else {
                    panic!("{text} is no value");
                };
                let is_unsigned = matches!(types.bare(ty), Node::Int { size: 8, encoding, .. } if !encoding.is_signed());
                let value = &row["values"][text];
                match evaluate(&code, &on) {
                    Ok(wanted) if is_unsigned => assert_eq!(*value, wanted, "{text}, s = {s}"),
                    Ok(wanted) => assert_eq!(*value, wanted.cast_signed(), "{text}, s = {s}"),
                    Err(_) => assert!(
                        value.to_string().contains("<fault"),
                        "{text}, s = {s}: {value}"
                    ),
                }
            }
        }
        assert_eq!(seen.lines().count(), 7);
    }
}

/// Runs `windlass trace` to its end: whether it did so well, and what it wrote.
fn run(args: &[&str]) -> (bool, String, String) {
    let mut command = Command::new(program("windlass"));
    let done = command.arg("trace").args(args).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (done.status.success(), text(done.stdout), text(done.stderr))
}

/// A random value, key or text of the server's arguments.
fn operand(random: &mut impl FnMut(u32) -> u32) -> String {
    let pick = |all: &[&str], number: u32| all[usize::try_from(number).unwrap()].to_owned();
    match random(5) {
        0 => pick(&["tag", "r->conn->addr->name", "str(tag, 56)"], random(3)),
        1 => {
            let len = usize::try_from(random(55)).unwrap();
            let comparison = pick(&["==", "!="], random(2));
            format!("(tag {comparison} \"{}\")", "x".repeat(len))
        }
        2 => pick(
            &[
                "*n",
                "c",
                "b.b",
                "total",
                "r->conn->state",
                "&r->conn->bytes",
            ],
            random(6),
        ),
        3 => pick(
            &["pid", "tid", "cpu", "now", "r->conn", "n[*n & 1]"],
            random(6),
        ),
        _ => expression(random, 3),
    }
}

/// A random clause.
fn clause(random: &mut impl FnMut(u32) -> u32) -> String {
    let mut text = String::new();
    if random(2) == 0 {
        text = format!("/({}) || tag != \"\"/ ", expression(random, 3));
    }
    for _ in 0..=random(4) {
        let hows = ["count", "sum", "avg", "min", "max", "quantize"];
        let how = hows[usize::try_from(random(6)).unwrap()];
        let keys: Vec<String> = (0..random(3)).map(|_| operand(random)).collect();
        let keys = match keys.is_empty() {
            true => String::new(),
            false => format!("[{}]", keys.join(", ")),
        };
        let of = match how {
            "count" => String::new(),
            _ => expression(random, 3),
        };
        let values: Vec<String> = (0..=random(6)).map(|_| operand(random)).collect();
        text += &match random(4) {
            0 => format!("print({}); ", values.join(", ")),
            1 => "print(*r->conn, b, str(tag, 4096)); ".to_owned(),
            _ => format!("@x{keys} = {how}({of}); "),
        };
    }
    text
}

/// The kernel takes whatever a clause comes to; what has no room is refused with a sentence.
#[test]
fn every_clause_loads_or_is_refused() {
    if !can_trace("every_clause_loads_or_is_refused", &["cc"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let server = build(directory.path(), ("server.c", SERVER), &["cc", "-g", "-O2"]);
    let server = Waiting::start(&server, &["1"]);
    let pid = server.pid();
    let trace = |clause: &str| run(&["-p", &pid, "--seconds", "0.01", "handle", clause]);
    let mut seed = 88_172_645_463_325_252_u64;
    let mut random = |below: u32| {
        // Marsaglia's xorshift.
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        u32::try_from(seed % u64::from(below)).unwrap()
    };
    for _ in 0..200 {
        let clause = clause(&mut random);
        let (is_well, _, errors) = trace(&clause);
        assert!(is_well, "{clause}: {errors}");
    }
    let many = |of: &str, count: usize, between: &str| vec![of; count].join(between);
    let nested = |depth: usize| format!("{}1{}", "(*n+".repeat(depth), ")".repeat(depth));
    for (clause, wanted) in [
        (format!("print({})", many("str(tag, 4096)", 7, ", ")), None),
        (
            format!("print({})", many("str(tag, 4096)", 8, ", ")),
            Some("does not fit into a record"),
        ),
        (format!("print({})", many("*n", 128, ", ")), None),
        (
            format!("print({})", many("*n", 129, ", ")),
            Some("does not fit into a record"),
        ),
        (format!("print({})", nested(23)), None),
        (format!("print({})", nested(30)), Some("nested too deep")),
        (
            format!("print({})", many(&many("*n", 50, "+"), 60, ", ")),
            Some("say less in one clause"),
        ),
    ] {
        let (is_well, _, errors) = trace(&clause);
        match wanted {
            None => assert!(is_well, "{clause}: {errors}"),
            Some(wanted) => assert!(!is_well && errors.contains(wanted), "{clause}: {errors}"),
        }
    }
    server.end();
}

/// Calls functions that are hard to probe, as often as its argument says; forever with 0.
const ODD: &str = r#"
#include <stdio.h>
#include <stdlib.h>
long total;
struct AAAAname { long BBBBmember; } one = { 5 };
__attribute__((noinline)) long next(long n) { asm volatile(""); return n * 2; }
__attribute__((noinline)) long pick(long n) {
    if (n & 1)
        return next(n + 1);
    total += n;
    return n * 3;
}
__attribute__((noinline)) void spin(struct AAAAname *s) { asm volatile("" :: "r"(s) : "memory"); }
__attribute__((naked, noinline)) void lock_first(long *n) { asm("lock incq (%rdi); ret"); }
__attribute__((noinline)) void lock_second(long *n) { asm volatile("" :: "r"(n) : "memory"); }
static long plain(long n) { return n + total; }
static long (*choose(void))(long) { return plain; }
long chosen(long) __attribute__((ifunc("choose")));
int main(int argc, char **argv) {
    char line[8];
    long calls = atol(argv[1]);
    puts("ready");
    fflush(stdout);
    fgets(line, sizeof line, stdin);
    for (long i = 0; i < calls || calls == 0; i++) {
        pick(i);
        spin(&one);
        lock_first(&total);
        lock_second(&total);
        total += chosen(i);
    }
    fgets(line, sizeof line, stdin);
}
"#;

/// What a function returns is known only where it returns: a jump to another function is left out, with a word.
#[test]
fn a_jump_to_another_function_has_no_result() {
    if !can_trace("a_jump_to_another_function_has_no_result", &["cc"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let odd = build(directory.path(), ("odd.c", ODD), &["cc", "-g", "-O2"]);
    let mut odd = Waiting::start(&odd, &["100"]);
    let pid = odd.pid();
    let results = Trace::start(&["-j", "-p", &pid, "pick:return", "print(retval)"]);
    let all = Trace::start(&["-j", "-p", &pid, "pick:return", "@ = count()"]);
    odd.go_on();
    assert!(odd.end().1);
    let (seen, errors) = results.end();
    let seen: Vec<i64> = seen
        .lines()
        .map(|line| {
            let row: Value = serde_json::from_str(line).unwrap();
            row["values"]["retval"].as_i64().unwrap()
        })
        .collect();
    let wanted: Vec<i64> = (0..100).step_by(2).map(|n| n * 3).collect();
    assert_eq!(seen, wanted);
    assert!(errors.contains("left by a jump to another one"), "{errors}");
    assert_exact(&counts(&all.end().1), 100);
}

/// The symbol of a function that is chosen at the start is that of what chooses it.
#[test]
fn a_function_that_is_chosen_is_refused() {
    if !can_trace("a_function_that_is_chosen_is_refused", &["cc"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let odd = build(directory.path(), ("odd.c", ODD), &["cc", "-g", "-O2"]);
    let odd = Waiting::start(&odd, &["1"]);
    let (is_well, _, errors) = run(&["-p", &odd.pid(), "-l", "chosen"]);
    assert!(
        !is_well && errors.contains("chooses another function"),
        "{errors}"
    );
    odd.end();
}

/// A program that is quicker than what is told of it does not keep the tracer from ending, and is told of in numbers that are exact.
#[test]
fn a_flood_ends() {
    if !can_trace("a_flood_ends", &["cc"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let odd = build(directory.path(), ("odd.c", ODD), &["cc", "-g", "-O2"]);
    let mut odd = Waiting::start(&odd, &["0"]);
    let pid = odd.pid();
    let path = directory.path().join("records");
    let mut command = Command::new(program("windlass"));
    command.args([
        "trace",
        "-j",
        "-p",
        &pid,
        "--seconds",
        "0.5",
        "spin",
        "print(*s, *s, *s, *s)",
    ]);
    command.stdout(fs::File::create(&path).unwrap());
    let mut traced = command.stderr(Stdio::piped()).spawn().unwrap();
    odd.go_on();
    until("the tracer ends", || traced.try_wait().unwrap().is_some());
    odd.child.kill().unwrap();
    odd.child.wait().unwrap();
    let mut errors = String::new();
    traced.stderr.unwrap().read_to_string(&mut errors).unwrap();
    let counts = counts(&errors);
    assert_exact(&counts, counts["hits"]);
    let lines = fs::read_to_string(&path).unwrap().lines().count();
    assert_eq!(u64::try_from(lines).unwrap(), counts["records"], "{errors}");
}

/// What a file calls its types and functions never reaches the terminal as it is.
#[test]
fn names_do_not_reach_the_terminal() {
    if !can_trace("names_do_not_reach_the_terminal", &["cc"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let odd = build(directory.path(), ("odd.c", ODD), &["cc", "-g", "-O2"]);
    let mut bytes = fs::read(&odd).unwrap();
    for (old, new) in [
        (b"AAAA", b"\x1b[2J"),
        (b"BBBB", b"\x1b[1m"),
        (b"odd.", b"\x1b[0m"),
    ] {
        for at in 0..bytes.len() - 4 {
            if bytes[at..].starts_with(old) {
                bytes[at..at + 4].copy_from_slice(new);
            }
        }
    }
    fs::write(&odd, bytes).unwrap();
    let mut odd = Waiting::start(&odd, &["3"]);
    let pid = odd.pid();
    let traced = Trace::start(&["-p", &pid, "spin", "print(*s)"]);
    let json = Trace::start(&["-j", "-p", &pid, "spin", "print(*s)"]);
    let texts = [
        run(&["-p", &pid, "-l", "spin"]),
        run(&["-p", &pid, "-l", "-j", "spin"]),
        run(&["-p", &pid, "spin", "print(s->none)"]),
    ];
    odd.go_on();
    assert!(odd.end().1);
    let mut all: Vec<String> = texts
        .into_iter()
        .flat_map(|(_, out, errors)| [out, errors])
        .collect();
    for (out, errors) in [traced.end(), json.end()] {
        assert_eq!(counts(&errors)["records"], 3);
        all.extend([out, errors]);
    }
    assert!(all.iter().any(|text| text.contains("member")), "{all:?}");
    for text in all {
        assert!(!text.contains('\x1b'), "{text:?}");
    }
}

/// Sums without sign are numbers in JSON up to 2^64 - 1.
#[test]
fn large_sums_are_numbers() {
    if !can_trace("large_sums_are_numbers", &["cc"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let odd = build(directory.path(), ("odd.c", ODD), &["cc", "-g", "-O2"]);
    let mut odd = Waiting::start(&odd, &["1"]);
    let clause = "@ = sum((unsigned long)-1)";
    let traced = Trace::start(&["-j", "-p", &odd.pid(), "spin", clause]);
    odd.go_on();
    assert!(odd.end().1);
    let row: Value = serde_json::from_str(&traced.end().0).unwrap();
    assert_eq!(row["value"], u64::MAX);
}

/// An instruction that the kernel puts no probe on is left out, and the others are traced.
#[test]
fn instructions_that_cannot_be_probed_are_left_out() {
    if !can_trace("instructions_that_cannot_be_probed_are_left_out", &["cc"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let odd = build(directory.path(), ("odd.c", ODD), &["cc", "-g", "-O2"]);
    let mut odd = Waiting::start(&odd, &["9"]);
    let pid = odd.pid();
    let (is_well, _, errors) = run(&["-p", &pid, "lock_first", "@ = count()"]);
    let why = "the kernel puts no probe on an instruction of this kind";
    assert!(!is_well && errors.contains(why), "{errors}");
    let traced = Trace::start(&["-p", &pid, "lock_*", "@ = count()"]);
    odd.go_on();
    assert!(odd.end().1);
    let (_, errors) = traced.end();
    let left_out = errors.contains("left out: odd:lock_first");
    assert!(left_out && errors.contains("\n1 probe, "), "{errors}");
    assert_exact(&counts(&errors), 9);
}

/// A symbol that points into an instruction gets no probe: the program goes on as it is.
#[test]
fn the_middle_of_an_instruction_gets_no_probe() {
    let test = "the_middle_of_an_instruction_gets_no_probe";
    if !can_trace(test, &["cc"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let liar = "asm(\".globl liar\\n.type liar, @function\\n.set liar, handle + 1\");\n";
    let source = format!("{SERVER}{liar}");
    let flags = ["cc", "-g", "-O2", "-fcf-protection"];
    let server = build(directory.path(), ("server.c", &source), &flags);
    let mut server = Waiting::start(&server, &["100"]);
    let done = Command::new(program("windlass"))
        .args(["trace", "-p", &server.pid(), "liar", "@ = count()"])
        .output()
        .unwrap();
    let told = String::from_utf8(done.stderr).unwrap();
    assert!(told.contains("no instruction is known to begin"), "{told}");
    assert!(!done.status.success());
    server.go_on();
    assert!(server.end().1);
}
