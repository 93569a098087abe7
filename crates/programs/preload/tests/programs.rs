//! C programs and real programs, run with the library and without: what they print and how they end is
//! the same.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Longest time that a program may take; none needs a second.
const PATIENCE: Duration = Duration::from_secs(60);

fn library() -> PathBuf {
    let test = std::env::current_exe().expect("the test's own path");
    // Beside the test, not above it: `cargo test` builds it there only.
    let library = test.with_file_name("libwindlass_sockets.so");
    assert!(library.exists(), "{} was not built", library.display());
    library
}

fn scratch(name: &str) -> PathBuf {
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("preload");
    fs::create_dir_all(&place).expect("a directory for programs");
    place.join(name)
}

/// Compiles `programs/{name}.c` with these options; the binary's path.
fn compile(name: &str, options: &[&str]) -> PathBuf {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/programs")
        .join(name);
    let binary = scratch(&format!("{name}-{}-{number}", std::process::id()));
    let status = Command::new("cc")
        .args(["-w", "-pthread", "-o"])
        .args([&binary, &source.with_extension("c")])
        .args(options)
        .status()
        .expect("a C compiler");
    assert!(status.success(), "{name} does not compile");
    binary
}

/// Runs to the end, or fails after [`PATIENCE`].
fn finish(mut command: Command) -> Output {
    let output = scratch(&format!("out-{:?}", std::thread::current().id()));
    let file = fs::File::create(&output).expect("a file for output");
    command
        .stdin(Stdio::null())
        .stdout(file.try_clone().expect("a second handle"))
        .stderr(file);
    let mut child = command.spawn().expect("the program starts");
    let begin = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().expect("the program is our child") {
            break status;
        }
        if begin.elapsed() > PATIENCE {
            let _ = child.kill();
            let text = fs::read_to_string(&output).unwrap_or_default();
            panic!("{command:?} hangs after:\n{text}");
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    Output {
        status,
        stdout: fs::read(&output).unwrap_or_default(),
        stderr: Vec::new(),
    }
}

fn with_library(command: &mut Command) {
    command.env("LD_PRELOAD", library());
}

/// Runs without and with the library and compares; gives what was printed.
fn same(make: impl Fn() -> Command) -> String {
    let plain = finish(make());
    let mut command = make();
    with_library(&mut command);
    let ours = finish(command);
    let text = |output: &Output| String::from_utf8_lossy(&output.stdout).into_owned();
    let (plain_text, ours_text) = (text(&plain), text(&ours));
    for (line, (a, b)) in plain_text.lines().zip(ours_text.lines()).enumerate() {
        assert_eq!(
            a,
            b,
            "line {} differs; before: {:?}",
            line + 1,
            lines_before(&plain_text, line)
        );
    }
    assert_eq!(plain_text, ours_text);
    assert_eq!(plain.status, ours.status);
    plain_text
}

fn lines_before(text: &str, line: usize) -> Vec<&str> {
    text.lines()
        .take(line)
        .skip(line.saturating_sub(3))
        .collect()
}

/// Every kind of call gives the kernel's own result and errno, right arguments and wrong.
#[test]
fn calls_give_the_same_results() {
    let program = compile("calls", &[]);
    let text = same(|| Command::new(&program));
    assert!(text.contains("EFAULT") && text.contains("EPIPE"), "{text}");
}

/// Handlers run at the same moments, see the same, and `sigaction` shows the program its own.
#[test]
fn signals_look_the_same() {
    let program = compile("signals", &[]);
    let text = same(|| Command::new(&program));
    assert!(
        text.contains("jumped") && text.contains("on stack 1"),
        "{text}"
    );
}

/// Threads are cancelled in every call that waits.
#[test]
fn waiting_threads_can_be_cancelled() {
    let program = compile("cancel", &[]);
    let text = same(|| Command::new(&program));
    assert_eq!(text.matches("cancelled 1 cleaned 1").count(), 11, "{text}");
}

/// Processes are made, replaced and ended as without the library, in all ways.
#[test]
fn processes_live_the_same() {
    let program = compile("processes", &[]);
    let text = same(|| Command::new(&program));
    assert!(text.contains("threads and forks: bad 0"), "{text}");
}

/// A fortified program runs through the checked names, and is ended where it oversteps.
#[test]
fn fortified_programs_are_seen() {
    let program = compile("fortified", &["-O2", "-D_FORTIFY_SOURCE=2"]);
    let symbols = Command::new("nm")
        .arg("-D")
        .arg(&program)
        .output()
        .expect("nm runs");
    let symbols = String::from_utf8_lossy(&symbols.stdout).into_owned();
    for name in [
        "__read_chk",
        "__recv_chk",
        "__recvfrom_chk",
        "__poll_chk",
        "__ppoll_chk",
    ] {
        assert!(symbols.contains(name), "{name} is not used: {symbols}");
    }
    let text = same(|| Command::new(&program));
    assert!(text.contains("overflow detected"), "{text}");
}

/// A static program that inherits a connected socket gets the right bytes, by every way to execute it.
#[test]
fn static_heirs_get_their_bytes() {
    let heir = compile("heir", &["-static"]);
    heirs(&heir);
}

/// So does a dynamic one, whose environment is kept or cleared.
#[test]
fn dynamic_heirs_get_their_bytes() {
    let heir = compile("heir", &[]);
    heirs(&heir);
}

/// So does a setuid one, which the loader runs without the library.
#[test]
fn setuid_heirs_get_their_bytes() {
    use std::os::unix::fs::PermissionsExt;
    let heir = compile("heir", &[]);
    fs::set_permissions(&heir, fs::Permissions::from_mode(0o4755)).expect("our own file");
    heirs(&heir);
}

fn heirs(heir: &Path) {
    let parent = compile("parent", &[]);
    let text = same(|| {
        let mut command = Command::new(&parent);
        command.arg(heir);
        command
    });
    assert_eq!(text.matches("heir read 6 before").count(), 4, "{text}");
}

/// A shell, its pipes, subshells and traps.
#[test]
fn bash_runs_the_same() {
    let script = "trap 'echo usr1' USR1; kill -USR1 $$; x=$(echo a | tr a b); echo $x; (exit 3); \
                  echo $?; for i in 1 2 3; do echo $i & wait; done; cat <(echo sub); exec echo end";
    same(|| {
        let mut command = Command::new("bash");
        command.args(["-c", script]);
        command
    });
}

/// Python: sockets, threads, asyncio, subprocesses, multiprocessing, and descriptors passed.
#[test]
fn python_runs_the_same() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/smoke.py");
    let text = same(|| {
        let mut command = Command::new("python3");
        command.arg(&script);
        command
    });
    assert!(text.ends_with("done\n"), "{text}");
}

/// Starts a server, asks it some things and stops it: the answers, and the counters of all.
fn ask_redis(ours: bool) -> (String, String) {
    let socket = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = socket.local_addr().expect("its name").port().to_string();
    drop(socket);
    let counters = scratch(&format!("redis-{ours}"));
    let _ = fs::remove_file(&counters);
    let prepare = |name: &str| {
        let mut command = Command::new(name);
        if ours {
            with_library(&mut command);
            command.env("WINDLASS_COUNTERS", &counters);
        }
        command
    };
    let mut server = prepare("redis-server");
    server.args([
        "--port",
        &port,
        "--save",
        "",
        "--appendonly",
        "no",
        "--bind",
        "127.0.0.1",
    ]);
    let mut server = server
        .stdout(Stdio::null())
        .spawn()
        .expect("redis-server starts");
    let begin = Instant::now();
    while std::net::TcpStream::connect(format!("127.0.0.1:{port}")).is_err() {
        assert!(begin.elapsed() < PATIENCE, "redis-server does not listen");
        std::thread::sleep(Duration::from_millis(10));
    }
    let mut text = String::new();
    let asks: [&[&str]; 5] = [
        &["set", "k", "v"],
        &["get", "k"],
        &["-r", "50", "incr", "n"],
        &["lrange", "l", "0", "-1"],
        &["shutdown", "nosave"],
    ];
    for arguments in asks {
        let mut command = prepare("redis-cli");
        command.args(["-p", &port]).args(arguments);
        text += &String::from_utf8_lossy(&finish(command).stdout);
    }
    assert!(server.wait().expect("our child").success());
    (text, fs::read_to_string(counters).unwrap_or_default())
}

/// redis answers the same through both of its ends, and the counters tell that both were seen.
#[test]
fn redis_answers_the_same() {
    if Command::new("redis-server")
        .arg("--version")
        .output()
        .is_err()
    {
        println!("skipped: redis_answers_the_same: redis-server is not installed");
        return;
    }
    let (plain, _) = ask_redis(false);
    let (ours, counters) = ask_redis(true);
    assert_eq!(plain, ours);
    assert!(
        counters
            .lines()
            .filter(|line| line.starts_with("sockets "))
            .count()
            >= 6,
        "{counters}"
    );
}

/// curl fetches a page, and says the same of a port where nobody listens.
#[test]
fn curl_fetches_the_same() {
    use std::io::{Read, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("its name").port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut stream = stream;
            let _ = stream.read(&mut [0; 4_096]);
            let body = "x".repeat(100_000);
            let head = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 100000\r\n\r\n";
            let _ = stream.write_all(format!("{head}{body}").as_bytes());
        }
    });
    for url in [
        format!("http://127.0.0.1:{port}/"),
        "http://127.0.0.1:1/".to_owned(),
    ] {
        same(|| {
            let mut command = Command::new("curl");
            command.args([
                "-s",
                "-w",
                "%{http_code} %{size_download} %{exitcode}",
                &url,
            ]);
            command
        });
    }
}

/// The library prints nothing, opens nothing and leaves no trace in the environment of what it runs.
#[test]
fn nothing_shows() {
    same(|| {
        let mut command = Command::new("bash");
        command.args([
            "-c",
            "ls /proc/self/fd; python3 -c 'import socket,os;\
            s=socket.socket(); print(sorted(os.listdir(\"/proc/self/fd\")))'; true",
        ]);
        command
    });
}
