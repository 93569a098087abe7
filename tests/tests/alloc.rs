//! `windlass run --alloc`: the allocator and the accelerated sockets in one process.

#[path = "sockets/place.rs"]
mod place;

use std::fs;
use std::process::{Command, Stdio};

use place::Place;
use windlass_tests::{program, skip};

/// A server with a thread for each connection, a client in another process, and messages of growing length that are allocated anew.
/// Each side says which libraries it has.
const CODE: &str = r#"
import os, socket, subprocess, sys, threading
def libraries():
    maps = open("/proc/self/maps").read()
    return " ".join(name for name in ("libwindlass_alloc", "libwindlass_sockets") if name in maps)
def take(connection, length):
    got = b""
    while len(got) < length:
        part = connection.recv(length - len(got))
        if not part:
            return None
        got += part
    return got
def answer(connection):
    while head := take(connection, 8):
        body = take(connection, int(head))
        connection.sendall(head + body[::-1])
if len(sys.argv) == 1:
    listener = socket.create_server(("127.0.0.1", 0))
    client = subprocess.Popen([sys.executable, "-c", sys.orig_argv[2], str(listener.getsockname()[1])])
    threads = [threading.Thread(target=answer, args=(listener.accept()[0],)) for _ in range(2)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    print("server", libraries(), client.wait())
else:
    def ask(seed):
        connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
        for at in range(2000):
            body = os.urandom(8) * (1 + at * seed % 700)
            connection.sendall(b"%8d" % len(body) + body)
            assert take(connection, 8 + len(body))[8:] == body[::-1]
    threads = [threading.Thread(target=ask, args=(seed,)) for seed in (7, 11)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    print("client", libraries(), flush=True)
"#;

/// Both libraries are loaded, every answer is right, and the connections are accelerated.
#[test]
fn both_libraries_run_together() {
    let name = "both_libraries_run_together";
    let Some(place) = Place::new(name) else {
        return;
    };
    let windlass = program("windlass");
    if !windlass.with_file_name("libwindlass_alloc.so").exists() {
        return skip(name, "libwindlass_alloc.so was not built beside windlass");
    }
    if Command::new("python3").arg("-V").output().is_err() {
        return skip(name, "python3 is missing");
    }
    let counters = place.directory.path().join("counters");
    let output = Command::new(windlass)
        .args([
            "run", "--alloc", "--spin", "50", "--", "python3", "-c", CODE,
        ])
        .env("WINDLASS_SOCKETS", place.daemon())
        .env("WINDLASS_COUNTERS", &counters)
        .env("PYTHONMALLOC", "malloc")
        .stdin(Stdio::null())
        .output()
        .expect("windlass");
    let said = String::from_utf8_lossy(&output.stdout);
    let both = "libwindlass_alloc libwindlass_sockets";
    let expected = format!("client {both}\nserver {both} 0\n");
    assert_eq!(
        said,
        expected,
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let counted = fs::read_to_string(counters).expect("counters");
    let joined = counted
        .lines()
        .filter(|line| line.starts_with("joined ") && !line.ends_with(" 0"));
    assert_eq!(joined.count(), 2, "{counted}");
}
