//! Programs that move bytes: web servers, language runtimes, iperf3 and ssh, each end plain or accelerated.

mod running;

use std::path::PathBuf;

use running::{Expected, House, Running, Side, in_all_pairings, must, soaks};
use rustix::process::{Pid, Signal, kill_process};
use windlass_tests::{until, until_some};

const PORT: u16 = 6500;

/// The file for nginx, which has further lines for the main part, and says where errors go.
fn nginx_configuration(house: &House, main: &str) -> PathBuf {
    let home = house.file(".");
    let home = home.display();
    house.pattern("small", 1024);
    let configuration = format!(
        "worker_processes 2; pid {home}/nginx.pid; {main}
        events {{ worker_connections 256; }}
        http {{
            access_log off; sendfile on; keepalive_requests 1000000000;
            client_body_temp_path {home}/t1; proxy_temp_path {home}/t2; fastcgi_temp_path {home}/t3;
            uwsgi_temp_path {home}/t4; scgi_temp_path {home}/t5;
            server {{ listen 127.0.0.1:{PORT}; root {home}; }}
        }}"
    );
    house.write("nginx.conf", configuration)
}

fn nginx(house: &House) -> Running {
    let configuration = nginx_configuration(house, "daemon off; error_log stderr;");
    let mut command = house.command(Side::Server, "nginx");
    command.arg("-c").arg(configuration).args(["-e", "stderr"]);
    house.serve(command, "nginx", PORT)
}

/// Starts 20 connections of wrk that ask for a small file over and over.
fn load(house: &House, seconds: u32) -> Running {
    let mut client = house.command(Side::Client, "wrk");
    client.args(["-t1", "-c20", &format!("-d{seconds}s")]);
    client.arg(format!("http://127.0.0.1:{PORT}/small"));
    house.start(client, "wrk")
}

/// It has answers to all requests, and got every connection.
fn assert_answered(load: Running) {
    let (code, said) = load.wait();
    assert_eq!(code, 0, "{said}");
    assert!(
        said.contains("requests in") && !said.contains("Non-2xx"),
        "{said}"
    );
    let errors = said.lines().find(|line| line.contains("Socket errors"));
    // A worker that ends closes connections on which the next request may be under way.
    let is_well =
        errors.is_none_or(|line| line.contains("connect 0") && line.contains("timeout 0"));
    assert!(is_well, "{said}");
}

/// Workers of nginx answer under load and across a reload: no answer but the right one; old workers end.
#[test]
fn nginx_reloads_under_load() {
    let needs = ["nginx", "wrk", "curl"];
    in_all_pairings("nginx_reloads_under_load", &needs, |house| {
        let server = nginx(house);
        let load = load(house, 2);
        std::thread::sleep(std::time::Duration::from_millis(700));
        server.signal(Signal::HUP);
        assert_answered(load);
        let log = server.log();
        assert!(!log.contains("[alert]") && !log.contains("[crit]"), "{log}");
        for _ in 0..3 {
            let mut client = house.command(Side::Client, "curl");
            client.args(["-sf", "-o"]).arg(house.file("got"));
            client.arg(format!("http://127.0.0.1:{PORT}/small"));
            must(client, b"");
            let read = |name: &str| std::fs::read(house.file(name)).expect("a file");
            assert_eq!(read("got"), read("small"));
        }
        server.end();
        house.assert_accelerated(Expected::Ring);
    });
}

/// Whether a process that is nobody's child here has ended.
fn has_ended(pid: Pid) -> bool {
    let path = format!("/proc/{}/cmdline", pid.as_raw_nonzero());
    std::fs::read(path).is_ok_and(|words| words.is_empty())
        || kill_process(pid, Signal::CONT).is_err()
}

/// nginx puts a new program in its place under load (`SIGUSR2`): the new master inherits the listener, the old one's workers
/// end, and no request goes without its answer; connections of the new workers are joined like any. nginx takes only the
/// variables into the new program that its file names.
#[test]
fn nginx_is_upgraded_under_load() {
    let needs = ["nginx", "wrk", "curl"];
    in_all_pairings("nginx_is_upgraded_under_load", &needs, |house| {
        let log = house.file("error.log");
        let kept = [
            "LD_PRELOAD",
            "XDG_RUNTIME_DIR",
            "WINDLASS_SPIN",
            "WINDLASS_COUNTERS",
        ];
        let kept: String = kept.iter().map(|name| format!("env {name}; ")).collect();
        let main = format!("daemon on; error_log {}; {kept}", log.display());
        let configuration = nginx_configuration(house, &main);
        let mut command = house.command(Side::Server, "nginx");
        command.arg("-c").arg(configuration).arg("-e").arg(&log);
        assert_eq!(house.start(command, "nginx").wait().0, 0);
        let master = || {
            let text = std::fs::read_to_string(house.file("nginx.pid")).ok()?;
            Pid::from_raw(text.trim().parse().ok()?)
        };
        until("nginx listens", || house.listens(PORT));
        let old = until_some("the master", master);
        let first = load(house, 2);
        std::thread::sleep(std::time::Duration::from_millis(700));
        kill_process(old, Signal::USR2).expect("the old master");
        let new = until_some("the new master", || master().filter(|new| *new != old));
        std::thread::sleep(std::time::Duration::from_millis(300));
        kill_process(old, Signal::QUIT).expect("the old master");
        until("the end of the old master", || has_ended(old));
        assert_answered(first);
        // What is counted from now on is the new program's.
        house.forget();
        assert_answered(load(house, 1));
        kill_process(new, Signal::QUIT).expect("the new master");
        until("the end of the new master", || has_ended(new));
        let said = std::fs::read_to_string(&log).unwrap_or_default();
        assert!(
            !said.contains("[alert]") && !said.contains("[crit]"),
            "{said}"
        );
        house.assert_accelerated(Expected::Ring);
    });
}

/// curl gets large files from nginx byte by byte as they are, one after the other on a connection, and at once.
#[test]
fn curl_gets_what_nginx_has() {
    in_all_pairings("curl_gets_what_nginx_has", &["nginx", "curl"], |house| {
        let server = nginx(house);
        let names = ["one", "two", "three"];
        for (name, bytes) in names.iter().zip([8_000, 3_000_000, 40_000_000]) {
            house.pattern(name, bytes);
        }
        for parallel in [false, true] {
            let mut client = house.command(Side::Client, "curl");
            client.args(["-sf"]).args(parallel.then_some("-Z"));
            for name in names {
                client.arg("-o").arg(house.file(&format!("got-{name}")));
                client.arg(format!("http://127.0.0.1:{PORT}/{name}"));
            }
            must(client, b"");
            for name in names {
                let read = |name: &str| std::fs::read(house.file(name)).expect("a file");
                assert!(read(&format!("got-{name}")) == read(name), "{name} differs");
                std::fs::remove_file(house.file(&format!("got-{name}"))).expect("removed");
            }
        }
        server.end();
        house.assert_accelerated(Expected::Joined);
    });
}

/// The largest buffer that the kernel gives a connection, in bytes.
fn buffer_max(which: &str) -> u64 {
    let sizes = std::fs::read_to_string(format!("/proc/sys/net/ipv4/tcp_{which}"));
    let sizes = sizes.expect("the kernel's sizes");
    let last = sizes.split_whitespace().last().expect("three of them");
    last.parse().expect("a number")
}

/// iperf3's server counts as many bytes as its client has sent, in both directions and over several connections.
#[test]
fn iperf3_counts_the_same() {
    // What those of one connection hold at most.
    let buffers: u64 = ["rmem", "wmem"].map(buffer_max).iter().sum();
    in_all_pairings("iperf3_counts_the_same", &["iperf3"], |house| {
        for more in [&[][..], &["-R"], &["-P", "3"]] {
            let mut command = house.command(Side::Server, "iperf3");
            command.args(["-s", "-1", "-p", &PORT.to_string()]);
            let server = house.serve(command, "iperf3", PORT);
            let mut client = house.command(Side::Client, "iperf3");
            client.args([
                "-c",
                "127.0.0.1",
                "-p",
                &PORT.to_string(),
                "-J",
                "-n",
                "200M",
            ]);
            let said = must(
                {
                    client.args(more);
                    client
                },
                b"",
            );
            let said: serde_json::Value = serde_json::from_str(&said).expect("JSON");
            let sum = |of: &str| said["end"][of]["bytes"].as_u64().expect("a number");
            assert!(sum("sum_sent") >= 200 << 20, "{said}");
            // What lay in buffers at the end was sent and not counted by who received.
            let streams = more
                .get(1)
                .map_or(1, |count| count.parse().expect("a number"));
            let missing = sum("sum_sent").abs_diff(sum("sum_received"));
            let most = streams * buffers;
            assert!(
                missing <= most,
                "{more:?}: {missing} bytes missing of {most}"
            );
            assert_eq!(server.wait().0, 0);
        }
        house.assert_accelerated(Expected::Joined);
    });
}

fn echoes(house: &House, server: Running, connections: u32, messages: u32) {
    let script = house.write("client.py", include_str!("running/echo_client.py"));
    let mut client = house.command(Side::Client, "python3");
    client.arg(script).arg(PORT.to_string());
    client.args([connections.to_string(), messages.to_string()]);
    let said = must(client, b"");
    assert!(said.starts_with("echoed "), "{said}");
    let (code, log) = server.wait();
    assert_eq!(code, 0, "{log}");
    house.assert_accelerated(Expected::Ring);
}

fn script(house: &House, program: &str, name: &str, text: &str) -> Running {
    let script = house.write(name, text);
    let mut command = house.command(Side::Server, program);
    command.arg(script).arg(PORT.to_string());
    house.serve(command, name, PORT)
}

/// An asyncio server gives back what it got, over several connections at once.
#[test]
fn python_asyncio_echoes() {
    in_all_pairings("python_asyncio_echoes", &["python3"], |house| {
        let text = include_str!("running/echo_asyncio.py");
        let server = script(house, "python3", "server.py", text);
        echoes(house, server, 8, 60);
    });
}

/// Forked processes that accept from one inherited socket give back what they got.
#[test]
fn python_processes_echo() {
    in_all_pairings("python_processes_echo", &["python3"], |house| {
        let text = include_str!("running/echo_processes.py");
        let server = script(house, "python3", "server.py", text);
        echoes(house, server, 4, 60);
    });
}

/// Sends a file by socat, whose command begins with `before`, to another socat, whose child gives it back: both read a piece and
/// write it by turns, on sockets that block.
fn socats(house: &House, before: &[&str], bytes: usize) {
    let sent = house.pattern("sent", bytes);
    let listen = format!("TCP-LISTEN:{PORT},bind=127.0.0.1,reuseaddr");
    let mut command = house.command(Side::Server, "socat");
    command.args([listen.as_str(), "EXEC:cat"]);
    let server = house.serve(command, "socat", PORT);
    let line: Vec<&str> = before.iter().copied().chain(["socat"]).collect();
    let mut client = house.command(Side::Client, line.first().expect("a program"));
    client.args(line.iter().skip(1)).args(["-t", "10"]);
    client.arg(format!("OPEN:{},rdonly!!CREATE:got", sent.display()));
    client.arg(format!("TCP:127.0.0.1:{PORT}"));
    must(client, b"");
    assert_eq!(server.wait().0, 0);
    let read = |name: &str| std::fs::read(house.file(name)).expect("a file");
    assert!(read("got") == read("sent"), "{} bytes", read("got").len());
    house.assert_accelerated(Expected::Joined);
}

/// What one socat sends to another comes back as it was.
#[test]
fn socat_echoes() {
    in_all_pairings("socat_echoes", &["socat"], |house| {
        socats(house, &[], 8 << 20);
    });
}

/// The same while valgrind watches the client, which has no vDSO then: nothing is read that was not written.
#[test]
fn a_program_under_valgrind_echoes() {
    let needs = ["socat", "valgrind"];
    in_all_pairings("a_program_under_valgrind_echoes", &needs, |house| {
        let before = ["valgrind", "--quiet", "--error-exitcode=9"];
        socats(house, &before, 1 << 20);
    });
}

/// A server in a JVM gives back what it got.
#[test]
fn jvm_echoes() {
    if !soaks("jvm_echoes") {
        return;
    }
    in_all_pairings("jvm_echoes", &["java", "python3"], |house| {
        let text = include_str!("running/Echo.java");
        let server = script(house, "java", "Echo.java", text);
        echoes(house, server, 8, 100);
    });
}

/// A server in Node gives back what it got.
#[test]
fn node_echoes() {
    if !soaks("node_echoes") {
        return;
    }
    in_all_pairings("node_echoes", &["node", "python3"], |house| {
        let server = script(house, "node", "echo.js", include_str!("running/echo.js"));
        echoes(house, server, 8, 100);
    });
}

/// Fails if anything went by a ring: one end's program cannot be accelerated, and writes no counters.
fn assert_plain(house: &House, plain: Side, other: Side) {
    assert!(house.counted(plain).is_empty());
    let counted = house.counted(other);
    let of = |name: &str| counted.get(name).copied().unwrap_or(0);
    assert_eq!(
        of("ring_tx_bytes") + of("ring_rx_bytes") + of("joined"),
        0,
        "{counted:?}"
    );
}

/// A static program is a client like any other, whatever the other end is: all bytes come back, by the kernel.
#[test]
fn static_program_is_served() {
    let name = "static_program_is_served";
    in_all_pairings(name, &["busybox", "python3"], |house| {
        let sent = house.pattern("sent", 3_000_000);
        let text = include_str!("running/echo_asyncio.py");
        let server = script(house, "python3", "server.py", text);
        let mut client = house.command(Side::Client, "busybox");
        client.args([
            "sh",
            "-c",
            "exec busybox nc 127.0.0.1 \"$0\" <sent >got",
            &PORT.to_string(),
        ]);
        must(client, b"");
        let got = std::fs::read(house.file("got")).expect("a file");
        assert!(
            got == std::fs::read(sent).expect("a file"),
            "{} bytes",
            got.len()
        );
        assert_eq!(server.wait().0, 0);
        assert_plain(house, Side::Client, Side::Server);
    });
}

/// A Go program, whose calls go round libc, is server and client like any other.
#[test]
fn go_program_is_served_and_serves() {
    let name = "go_program_is_served_and_serves";
    if !soaks(name) {
        return;
    }
    in_all_pairings(name, &["go", "python3"], |house| {
        let source = house.write("echo.go", include_str!("running/echo.go"));
        let mut build = house.plain("go");
        build.args(["build", "-o", "echo"]).arg(source);
        build
            .env("GOCACHE", house.file("cache"))
            .env("CGO_ENABLED", "0");
        must(build, b"");
        let echo = house.file("echo").to_string_lossy().into_owned();
        let text = include_str!("running/echo_asyncio.py");
        let server = script(house, "python3", "server.py", text);
        let mut client = house.command(Side::Client, &echo);
        client.args([PORT.to_string().as_str(), "ask"]);
        assert!(must(client, b"").starts_with("echoed "));
        assert_eq!(server.wait().0, 0);
        assert_plain(house, Side::Client, Side::Server);
        house.forget();

        let mut command = house.command(Side::Server, &echo);
        command.arg(PORT.to_string());
        let server = house.serve(command, "go", PORT);
        let script = house.write("client.py", include_str!("running/echo_client.py"));
        let mut client = house.command(Side::Client, "python3");
        client
            .arg(script)
            .args([PORT.to_string().as_str(), "4", "40"]);
        assert!(must(client, b"").starts_with("echoed "));
        assert_eq!(server.wait().0, 0);
        assert_plain(house, Side::Server, Side::Client);
    });
}

/// What ssh carries arrives as it was: the server's session is a process of its own, forked and executed anew.
#[test]
fn ssh_carries_bytes() {
    if !soaks("ssh_carries_bytes") {
        return;
    }
    let needs = ["sshd", "ssh", "ssh-keygen"];
    in_all_pairings("ssh_carries_bytes", &needs, |house| {
        for key in ["host", "user"] {
            let mut make = house.named("ssh-keygen");
            make.args(["-q", "-t", "ed25519", "-N", "", "-f"])
                .arg(house.file(key));
            must(make, b"");
        }
        let home = house.file(".");
        let home = home.display();
        let configuration = house.write(
            "sshd.conf",
            format!(
                "Port {PORT}\nListenAddress 127.0.0.1\nHostKey {home}/host\nPidFile none\nUsePAM no\nStrictModes no
                AuthorizedKeysFile {home}/user.pub\n"
            ),
        );
        let mut command = house.named_for(Side::Server, "sshd");
        command.args(["-D", "-e", "-f"]).arg(configuration);
        let server = house.serve(command, "sshd", PORT);
        let sent = house.pattern("sent", 20_000_000);
        let mut client = house.named_for(Side::Client, "ssh");
        client
            .args(["-p", &PORT.to_string(), "-i"])
            .arg(house.file("user"));
        client.args(["-F", "none", "-o", "StrictHostKeyChecking=no"]);
        client.args(["tester@127.0.0.1", "cat > got"]);
        let sent = std::fs::read(sent).expect("a file");
        must(client, &sent);
        until("all has arrived", || {
            std::fs::read(house.file("got")).is_ok_and(|got| got == sent)
        });
        server.end();
        // Whether sshd's sandbox leaves room for a join is its own matter.
        if !house.pairing.both() {
            house.assert_accelerated(Expected::Joined);
        }
    });
}
