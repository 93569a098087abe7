//! Programs of everyone's: web servers, transfers of large files, and what carries files from host to host.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::measure::{ENDS_WITHIN, Figures, Pair, after, number};
use super::place::Place;
use crate::compare::child::Child;
use crate::compare::stop;

/// A server has this long until it listens.
const LISTENS_WITHIN: Duration = Duration::from_secs(20);

/// Bytes of a large file, and how often it is fetched for one figure.
const LARGE_BYTES: usize = 40_000_000;
const FETCHES: usize = 25;

/// Bytes that rsync and ssh carry for one figure: about half a second of either.
const CARRIED_BYTES: usize = 300_000_000;

/// What a web server answers with, in bytes.
const PAGE_BYTES: usize = 1024;

/// A sender goes on for so many seconds longer than its receiver measures.
const SENDS_LONGER_S: f64 = 0.5;

/// Seconds of load before a server is measured that compiles while it runs.
const WARM_UP_S: f64 = 1.0;

/// A server of files or pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Web {
    /// nginx as it is by itself: a file is read and written.
    Nginx,
    /// nginx as Debian sets it up: by sendfile.
    NginxSendfile,
    /// `python3 -m http.server`: a connection for each request; a file is read and written.
    Python,
    /// `http.createServer` of Node.
    Node,
    /// `com.sun.net.httpserver.HttpServer`.
    Java,
}

/// Python of the system: a user's own may lie in a directory that is closed to others.
pub const PYTHON: &str = "/usr/bin/python3";
const NGINX: &str = "/usr/sbin/nginx";

impl Web {
    /// Its program.
    #[must_use]
    pub fn program(self) -> &'static str {
        match self {
            Web::Nginx | Web::NginxSendfile => NGINX,
            Web::Python => PYTHON,
            Web::Node => "node",
            Web::Java => "java",
        }
    }

    /// Whether its first second says little of the rest.
    fn warms_up(self) -> bool {
        matches!(self, Web::Node | Web::Java)
    }

    /// Adds the arguments that make it serve the directory `www` at `port`.
    fn tell(self, command: &mut Command, place: &Place, port: u16) -> Result<()> {
        let script = |name, text: &str| script(place, name, text);
        let port = port.to_string();
        match self {
            Web::Nginx | Web::NginxSendfile => {
                let sendfile = if self == Web::Nginx { "off" } else { "on" };
                let text = nginx_configuration(place, &port, sendfile);
                let path = script("nginx.conf", &text)?;
                command.arg("-p").arg(place.home()).arg("-c").arg(path);
                command.args(["-e", "stderr"]);
            }
            Web::Python => {
                command.args(["-m", "http.server", "--bind", "127.0.0.1", "--directory"]);
                command.arg(place.file("www")).arg(port);
            }
            Web::Node => {
                command.arg(script("pages.js", include_str!("programs/pages.js"))?);
                command.args([port, PAGE_BYTES.to_string()]);
            }
            Web::Java => {
                // Without it the kernel's side waits 40 ms for each answer's second part.
                command.arg("-Dsun.net.httpserver.nodelay=true");
                command.arg(script("Pages.java", include_str!("programs/Pages.java"))?);
                command.args([port, PAGE_BYTES.to_string()]);
            }
        }
        Ok(())
    }
}

/// Writes a file for a program.
fn script(place: &Place, name: &str, text: &str) -> Result<PathBuf> {
    let path = place.file(name);
    std::fs::write(&path, text)?;
    Ok(path)
}

fn nginx_configuration(place: &Place, port: &str, sendfile: &str) -> String {
    let home = place.home().display();
    format!(
        "daemon off; worker_processes 1; pid {home}/nginx.pid; error_log stderr;
events {{ worker_connections 1024; }}
http {{
    access_log off; sendfile {sendfile}; keepalive_requests 1000000000; keepalive_timeout 60s;
    client_body_temp_path {home}/t1; proxy_temp_path {home}/t2; fastcgi_temp_path {home}/t3;
    uwsgi_temp_path {home}/t4; scgi_temp_path {home}/t5;
    server {{ listen 127.0.0.1:{port}; root {home}/www; }}
}}
"
    )
}

/// A file of zeros, which is kept for the next turn. It is on the disk at once: nothing is written during a measurement.
fn make_file(place: &Place, name: &str, bytes: usize) -> Result<()> {
    std::fs::create_dir_all(place.file("www"))?;
    let path = place.file("www").join(name);
    if !path.exists() {
        let mut file = File::create(path)?;
        file.write_all(&vec![0; bytes])?;
        file.sync_all()?;
    }
    Ok(())
}

/// Waits until somebody listens at a port of the place.
fn wait_until_listening(place: &Place, server: &mut Child, port: u16) -> Result<()> {
    let mark = format!(":{port:04X}");
    stop::until("a server that listens", LISTENS_WITHIN, || {
        let listens = place.tcp_table().is_ok_and(|table| {
            table.lines().any(|line| {
                let mut words = line.split_ascii_whitespace().skip(1);
                words.next().is_some_and(|own| own.ends_with(&mark)) && words.nth(1) == Some("0A")
            })
        });
        (listens || server.still_runs().is_err()).then_some(())
    })?;
    server.still_runs()
}

/// Megabytes a second that a command carries which ends when all has arrived.
fn carry(command: &mut Command, place: &Place) -> Result<Figures> {
    let begun = Instant::now();
    let log = place.file("client.log");
    Child::start(command, &log)?
        .release(ENDS_WITHIN)
        .with_context(|| std::fs::read_to_string(&log).unwrap_or_default())?;
    let seconds = begun.elapsed().as_secs_f64();
    Ok(vec![("MB/s", CARRIED_BYTES as f64 / 1e6 / seconds)])
}

impl Pair {
    fn serve_web(&self, place: &Place, web: Web) -> Result<(u16, Child)> {
        let port = place.port();
        let mut serve = self.serve(place, web.program());
        web.tell(&mut serve, place, port)?;
        let mut server = Child::start(&mut serve, &place.file("web.log"))?;
        wait_until_listening(place, &mut server, port)?;
        Ok((port, server))
    }

    /// Requests of a small page by wrk; `keep`: each connection carries many.
    pub(super) fn pages(
        &self,
        place: &Place,
        seconds: f64,
        web: Web,
        connections: u32,
        keep: bool,
    ) -> Result<Figures> {
        make_file(place, "index.html", PAGE_BYTES)?;
        let (port, _server) = self.serve_web(place, web)?;
        let load = |seconds: f64| {
            let mut ask = self.ask(place, "wrk");
            let duration = format!("{}s", seconds.ceil().max(1.0));
            ask.args(["-t1", &format!("-c{connections}"), "-d", &duration]);
            if !keep {
                ask.args(["-H", "Connection: close"]);
            }
            ask.arg(format!("http://127.0.0.1:{port}/"));
            Child::start_piped(ask)?.output(ENDS_WITHIN)
        };
        if web.warms_up() {
            load(WARM_UP_S)?;
        }
        let text = load(seconds)?;
        if text.contains("Non-2xx") {
            bail!("{web:?} refuses: {text}");
        }
        Ok(vec![("requests/s", after(&text, "Requests/sec:")?)])
    }

    /// The rate at which curl gets a large file: the median of many fetches. `keep`: all of them on one connection.
    pub(super) fn file(&self, place: &Place, web: Web, keep: bool) -> Result<Figures> {
        make_file(place, "large", LARGE_BYTES)?;
        let (port, _server) = self.serve_web(place, web)?;
        let mut ask = self.ask(place, "curl");
        ask.args(["-sf", "-o", "/dev/null", "-w", "%{speed_download}\n"]);
        if !keep {
            ask.args(["-H", "Connection: close"]);
        }
        ask.arg(format!("http://127.0.0.1:{port}/large?[1-{FETCHES}]"));
        let text = Child::start_piped(ask)?.output(ENDS_WITHIN)?;
        let mut rates = text
            .lines()
            .map(str::parse)
            .collect::<Result<Vec<f64>, _>>()?;
        if rates.len() != FETCHES {
            bail!("curl says: {text}");
        }
        rates.sort_by(f64::total_cmp);
        Ok(vec![("MB/s", rates[FETCHES / 2] / 1e6)])
    }

    /// A large file by sendfile, without any other program's habits.
    pub(super) fn send_file(&self, place: &Place, seconds: f64) -> Result<Figures> {
        make_file(place, "large", LARGE_BYTES)?;
        let port = place.port();
        let mut take = self.serve(place, "sock-stream");
        take.args(["take", "--gather", "--at", &format!("127.0.0.1:{port}")]);
        take.args(["--size", &(64 << 10).to_string()]);
        take.args(["--seconds", &seconds.to_string()]);
        let mut take = Child::start_piped(take)?;
        wait_until_listening(place, &mut take, port)?;
        let mut give = self.ask(place, PYTHON);
        give.arg(script(
            place,
            "sendfile.py",
            include_str!("programs/sendfile.py"),
        )?);
        give.arg(port.to_string())
            .arg(place.file("www").join("large"));
        // The receiver's time begins later, and what comes after it is not counted.
        give.arg((seconds + SENDS_LONGER_S).to_string());
        Child::start_piped(give)?.output(ENDS_WITHIN)?;
        let taken: Value = serde_json::from_str(&take.output(ENDS_WITHIN)?)?;
        let rate = number(&taken, "bytes")? / number(&taken, "ns")?;
        Ok(vec![("MB/s", rate * 1e3)])
    }

    /// What ssh carries to a command at the other end.
    pub(super) fn ssh(&self, place: &Place) -> Result<Figures> {
        let file = |name| place.file(name).to_string_lossy().into_owned();
        if !place.file("user.pub").exists() {
            for key in ["host", "user"] {
                let mut make = place.named(place.command(self.server, None, "ssh-keygen"))?;
                make.args(["-q", "-t", "ed25519", "-N", "", "-f", &file(key)]);
                Child::start_piped(make)?.output(ENDS_WITHIN)?;
            }
        }
        let port = place.port();
        let configuration = format!(
            "Port {port}\nListenAddress 127.0.0.1\nHostKey {}\nPidFile none\nUsePAM no\nStrictModes no\n\
             AuthorizedKeysFile {}\n",
            file("host"),
            file("user.pub")
        );
        std::fs::write(place.file("sshd.conf"), configuration)?;
        let mut serve = place.named(self.serve(place, "/usr/sbin/sshd"))?;
        serve.args(["-D", "-e", "-f", &file("sshd.conf")]);
        let mut server = Child::start(&mut serve, &place.file("sshd.log"))?;
        wait_until_listening(place, &mut server, port)?;
        let mut ask = place.named(self.ask(place, "ssh"))?;
        ask.args(["-p", &port.to_string(), "-i", &file("user"), "-F", "none"]);
        ask.args(["-o", "StrictHostKeyChecking=no", "-o", "LogLevel=ERROR"]);
        ask.args(["-o", "UserKnownHostsFile=/dev/null"]);
        ask.args([&format!("{}@127.0.0.1", Place::USER), "cat > /dev/null"]);
        make_file(place, "carried", CARRIED_BYTES)?;
        ask.stdin(File::open(place.file("www").join("carried"))?);
        carry(&mut ask, place)
    }

    /// A file that rsync gets from its own server.
    pub(super) fn rsync(&self, place: &Place) -> Result<Figures> {
        make_file(place, "carried", CARRIED_BYTES)?;
        let port = place.port().to_string();
        let configuration = format!(
            "use chroot = no\nreverse lookup = no\n[files]\npath = {}\nread only = yes\n",
            place.file("www").display()
        );
        std::fs::write(place.file("rsyncd.conf"), configuration)?;
        let mut serve = self.serve(place, "rsync");
        serve.args(["--daemon", "--no-detach", "--address", "127.0.0.1"]);
        serve.args(["--port", &port, "--log-file=/dev/stdout"]);
        serve.arg(format!("--config={}", place.file("rsyncd.conf").display()));
        let mut server = Child::start(&mut serve, &place.file("rsyncd.log"))?;
        wait_until_listening(place, &mut server, port.parse()?)?;
        let mut ask = self.ask(place, "rsync");
        // The same file is written over in each turn: memory that is new to this machine comes at the host's pace.
        ask.args(["--whole-file", "--inplace", "--ignore-times"]);
        ask.arg(format!("rsync://127.0.0.1:{port}/files/carried"));
        carry(ask.arg(place.memory().join("got")), place)
    }

    /// What iperf3's server has received.
    pub(super) fn iperf3(&self, place: &Place, seconds: f64) -> Result<Figures> {
        let port = place.port();
        let mut serve = self.serve(place, "iperf3");
        serve.args(["-s", "-1", "-p", &port.to_string()]);
        let mut server = Child::start(&mut serve, &place.file("iperf3.log"))?;
        wait_until_listening(place, &mut server, port)?;
        let mut ask = self.ask(place, "iperf3");
        ask.args(["-c", "127.0.0.1", "-p", &port.to_string(), "-J", "-t"]);
        ask.arg(seconds.ceil().max(1.0).to_string());
        let text = Child::start_piped(ask)?.output(ENDS_WITHIN)?;
        let report: Value = serde_json::from_str(&text)?;
        let rate = report["end"]["sum_received"]["bits_per_second"].as_f64();
        Ok(vec![(
            "Gbit/s",
            rate.context("iperf3 names no rate")? / 1e9,
        )])
    }
}
