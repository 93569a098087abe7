//! Counters for a scraper.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::time::Duration;

use crate::fake::Fake;

const TEXT: &str = "windlass_uptime_seconds 5\n";

fn fake() -> Fake {
    Fake::start().on("GET /v1/metrics", 200, TEXT)
}

/// `windlass metrics --listen`, ended with the test.
struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn start(fake: &Fake, more: &str) -> Self {
        let mut command = fake.command(&format!("metrics --listen 127.0.0.1:0 {more}"));
        let mut child = command.stdout(Stdio::piped()).spawn().expect("windlass");
        let mut line = String::new();
        let out = child.stdout.as_mut().expect("stdout");
        BufReader::new(out).read_line(&mut line).expect("a line");
        let address = line
            .trim()
            .strip_prefix("http://")
            .and_then(|rest| rest.strip_suffix("/metrics"));
        Self {
            address: address.expect("an address").into(),
            child,
        }
    }

    /// Status and body of the answer to a request with these further headers.
    fn ask(&self, request: &str, headers: &str) -> (String, String) {
        let mut stream = TcpStream::connect(&self.address).expect("connection");
        stream
            .set_read_timeout(Some(Duration::from_secs(10)))
            .expect("time limit");
        write!(
            stream,
            "{request} HTTP/1.1\r\nConnection: close\r\n{headers}\r\n"
        )
        .expect("request");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("answer");
        let (head, body) = text.split_once("\r\n\r\n").expect("head and body");
        (head[9..12].into(), body.into())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().expect("kill");
        self.child.wait().expect("wait");
    }
}

/// Once, to stdout.
#[test]
fn once() {
    assert_eq!(fake().run("metrics").out, TEXT);
    let ran = fake().run("metrics -j");
    assert_eq!(ran.code, 2);
}

/// A scraper gets the daemon's text; another path, method or host does not, and a daemon that is gone is told.
#[test]
fn served() {
    let fake = fake();
    let server = Server::start(&fake, "");
    let host = format!("Host: {}\r\n", server.address);
    let (status, text) = server.ask("GET /metrics", &host);
    assert_eq!(status, "200");
    // Behind it may be what accelerated sockets of this host have sent.
    assert!(text.starts_with(TEXT), "{text}");
    assert_eq!(server.ask("GET /", &host).0, "404");
    assert_eq!(server.ask("POST /metrics", &host).0, "405");
    assert_eq!(server.ask("GET /metrics", "Host: example.org\r\n").0, "421");
    std::fs::remove_file(fake.socket()).expect("socket");
    assert_eq!(server.ask("GET /metrics", &host).0, "502");
}

/// Connections that say nothing keep no place for ever, and do not keep the others out before.
#[test]
fn silent_connections_end() {
    let fake = fake();
    let server = Server::start(&fake, "");
    let mut silent: Vec<_> = (0..15)
        .map(|_| TcpStream::connect(&server.address).expect("connection"))
        .collect();
    let host = format!("Host: {}\r\n", server.address);
    assert_eq!(server.ask("GET /metrics", &host).0, "200");
    for stream in &mut silent {
        stream
            .set_read_timeout(Some(Duration::from_secs(30)))
            .expect("time limit");
        // This process may be stopped and continued meanwhile.
        let read = rustix::io::retry_on_intr(|| rustix::io::read(&*stream, &mut [0; 256]));
        assert_eq!(read.expect("the end"), 0);
    }
}

/// With a token only who sends it is answered; an address that others reach needs one.
#[test]
fn tokens() {
    let fake = fake();
    let file = tempfile::NamedTempFile::new().expect("file");
    std::fs::write(&file, "0123456789abcdef\n").expect("token");
    let server = Server::start(&fake, &format!("--token-file {}", file.path().display()));
    let host = format!("Host: {}\r\n", server.address);
    let with = |token: &str| format!("{host}Authorization: Bearer {token}\r\n");
    assert_eq!(
        server.ask("GET /metrics", &with("0123456789abcdef")).0,
        "200"
    );
    for wrong in [
        host.clone(),
        with("0123456789abcdeF"),
        with("0123456789"),
        with(""),
    ] {
        assert_eq!(server.ask("GET /metrics", &wrong).0, "401", "{wrong}");
    }
    std::fs::write(&file, "short\n").expect("token");
    let ran = fake.run(&format!(
        "metrics --listen 127.0.0.1:0 --token-file {}",
        file.path().display()
    ));
    assert_eq!(ran.code, 2, "{}", ran.err);
    let ran = fake.run("metrics --listen 0.0.0.0:0");
    assert!(
        ran.code == 2 && ran.err.contains("--token-file"),
        "{}",
        ran.err
    );
}
