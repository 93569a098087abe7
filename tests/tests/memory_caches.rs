//! `windlass memory`: a program's object caches, and its leaks, from outside.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdin, Command, Stdio};

use serde_json::Value;
use windlass_tests::{program, skip};

/// An object of a cache with magazines refers to one buffer, an object of a cache without to another, and three are lost. It says where the caches' objects
/// are, and waits for the end of its input.
const CODE: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <windlass/umem.h>
static void **by_number, **by_lock;
static int construct(void *object, void *data, int flags) { memset(object, 0, 192); return 0; }
__attribute__((noinline)) static void lose(size_t bytes) { void *volatile lost = malloc(bytes); lost = 0; }
__attribute__((noinline)) static void forget(void) { volatile char stack[32768]; memset((char *)stack, 0, sizeof stack); }
__attribute__((noinline)) static void fill(void) {
    umem_cache_t *conn = umem_cache_create("conn_cache", 192, 0, construct, 0, 0, 0, 0, 0);
    umem_cache_t *large = umem_cache_create("large_cache", 100000, 0, 0, 0, 0, 0, 0, 0);
    for (int i = 0; i < 100; i++) umem_cache_free(conn, by_number = umem_cache_alloc(conn, 0));
    by_number = umem_cache_alloc(conn, 0);
    by_lock = umem_cache_alloc(large, 0);
    memset(by_lock, 0, 100000);
    by_number[3] = malloc(600);
    by_lock[3000] = malloc(900);
    // Freed: of no interest, whether its memory is kept or not.
    void *volatile gone = malloc(2000);
    free(gone);
    for (int i = 0; i < 3; i++) lose(300);
}
int main(void) {
    setvbuf(stdout, 0, _IONBF, 0);
    fill();
    forget();
    printf("%p %p\n", (void *)by_number, (void *)by_lock);
    char byte;
    return read(0, &byte, 1) > 0;
}
"#;

/// The program, which runs until this ends.
struct Running {
    child: Child,
    input: Option<ChildStdin>,
    addresses: Vec<String>,
}

impl Running {
    fn start(directory: &std::path::Path, words: &str) -> Self {
        let library = program("windlass").with_file_name("libwindlass_alloc.so");
        let (source, binary) = (directory.join("memory.c"), directory.join("memory"));
        fs::write(&source, CODE).expect("a source");
        let include = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../crates/programs/alloc/include"
        );
        let compiled = Command::new("cc")
            .args([
                "-O1",
                "-fno-omit-frame-pointer",
                "-rdynamic",
                "-I",
                include,
                "-o",
            ])
            .args([&binary, &source, &library])
            .status();
        assert!(compiled.expect("a compiler").success());
        let mut child = Command::new(&binary)
            .env("LD_PRELOAD", &library)
            .env("XDG_RUNTIME_DIR", directory)
            .env("WINDLASS_MEMORY", words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program");
        let mut line = String::new();
        let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
        output.read_line(&mut line).expect("a line");
        let addresses = line.split_whitespace().map(str::to_owned).collect();
        let input = child.stdin.take();
        Self {
            child,
            input,
            addresses,
        }
    }

    /// What the command says about it.
    fn ask(&self, directory: &std::path::Path, words: &[&str]) -> Vec<Value> {
        let pid = self.child.id().to_string();
        let words = words.iter().map(|word| word.replace("PID", &pid));
        let output = Command::new(program("windlass"))
            .args(["--json", "memory"])
            .args(words)
            .env("XDG_RUNTIME_DIR", directory)
            .output()
            .expect("windlass");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success(),
            "{said}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let answer: Value = serde_json::from_str(&said).expect("JSON");
        answer
            .as_array()
            .unwrap_or_else(|| panic!("{answer}"))
            .clone()
    }

    fn end(mut self) {
        drop(self.input.take());
        assert!(self.child.wait().expect("it ends").success());
    }
}

/// Caches are named with what the program has of them, addresses with their cache. Of leaks those are found that are there, with and without debugging records, which
/// know who allocated them.
#[test]
fn caches_and_leaks_are_seen() {
    let name = "caches_and_leaks_are_seen";
    if !program("windlass")
        .with_file_name("libwindlass_alloc.so")
        .exists()
    {
        return skip(name, "libwindlass_alloc.so was not built beside windlass");
    }
    if Command::new("cc").arg("--version").output().is_err() {
        return skip(name, "cc is missing");
    }
    for words in ["", "audit", "default,transaction=1m"] {
        let directory = tempfile::tempdir().expect("a directory");
        let directory = directory.path();
        let running = Running::start(directory, words);
        let caches = running.ask(directory, &["PID", "--caches"]);
        for (at, (cache, size)) in [("conn_cache", 192), ("large_cache", 100_000)]
            .into_iter()
            .enumerate()
        {
            let row = caches.iter().find(|row| row["cache"] == cache);
            let row = row.unwrap_or_else(|| panic!("{cache}: {caches:?}"));
            assert_eq!(
                (&row["size"], &row["in_use"]),
                (&size.into(), &1.into()),
                "{words}: {row}"
            );
            let what = running.ask(directory, &["whatis", "PID", &running.addresses[at]]);
            let text = what[0]["text"].as_str().expect("a sentence");
            assert!(
                text.starts_with(&format!("object of {cache}, 0 bytes in, allocated;")),
                "{words}: {text}"
            );
            // Without words only a sample has a stack.
            let stack = what[0]["stack"].as_array();
            let by = stack.and_then(|stack| stack.first()?.as_str());
            let is_known = by.is_some_and(|by| by.starts_with("fill"));
            assert!(is_known || words.is_empty(), "{words}: {stack:?}");
        }
        let leaks = running.ask(directory, &["leaks", "PID", "--scan"]);
        let buffers: u64 = leaks.iter().filter_map(|row| row["buffers"].as_u64()).sum();
        assert_eq!(buffers, 3, "{words}: {leaks:?}");
        for leak in leaks.iter().filter(|_| !words.is_empty()) {
            let stack = leak["stack_text"].as_str().expect("a stack");
            assert!(
                stack.starts_with("lose <- fill <- main"),
                "{words}: {stack}"
            );
        }
        running.end();
    }
}
