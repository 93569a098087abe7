//! A daemon that answers what it was told to, and remembers what it was asked.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};

/// A request that came: method, path with query, body.
pub type Asked = (String, String, String);

type Answers = HashMap<String, Vec<(u16, String)>>;

/// A daemon for one test, on a socket of its own.
pub struct Fake {
    dir: tempfile::TempDir,
    answers: Arc<Mutex<Answers>>,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Fake {
    /// Listens. Everything is refused with 404 until it is told otherwise.
    pub fn start() -> Self {
        let dir = tempfile::Builder::new()
            .prefix("wl-cli-")
            .tempdir()
            .expect("directory");
        let listener = UnixListener::bind(dir.path().join("s")).expect("socket");
        let (answers, asked) = (Arc::new(Mutex::default()), Arc::new(Mutex::default()));
        let fake = Self {
            dir,
            answers,
            asked,
        };
        let (answers, asked) = (fake.answers.clone(), fake.asked.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (answers, asked) = (answers.clone(), asked.clone());
                std::thread::spawn(move || serve(stream, &answers, &asked));
            }
        });
        fake
    }

    /// Answers this request (`GET /v1/vnics`) so; told again, the next time so, and the last for ever.
    pub fn on(self, request: &str, status: u16, body: &str) -> Self {
        let mut answers = self.answers.lock().expect("lock");
        answers
            .entry(request.into())
            .or_default()
            .push((status, body.into()));
        drop(answers);
        self
    }

    /// Refuses this request with a code of the API.
    pub fn refuse(self, request: &str, status: u16, code: &str, message: &str) -> Self {
        let body = format!("{{\"code\":\"{code}\",\"message\":{message:?}}}");
        self.on(request, status, &body)
    }

    /// The socket.
    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("s")
    }

    /// What was asked so far.
    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().expect("lock").clone()
    }

    /// The command against this daemon.
    pub fn command(&self, words: &str) -> Command {
        let mut command = windlass(words);
        command.env("WINDLASS_SOCKET", self.socket());
        command
    }

    /// Runs the command against this daemon.
    pub fn run(&self, words: &str) -> Ran {
        Ran::of(&self.command(words).output().expect("windlass"))
    }
}

/// The command with these words, in an environment that says nothing.
pub fn windlass(words: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_windlass"));
    command
        .args(words.split_whitespace())
        .env_clear()
        .stdin(Stdio::null());
    command
}

/// What a run of the command left.
#[derive(Debug, PartialEq, Eq)]
pub struct Ran {
    /// The exit code.
    pub code: i32,
    /// What it wrote to stdout.
    pub out: String,
    /// What it wrote to stderr.
    pub err: String,
}

impl Ran {
    /// Of an output.
    pub fn of(output: &Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

fn serve(stream: UnixStream, answers: &Mutex<Answers>, asked: &Mutex<Vec<Asked>>) {
    let mut reader = BufReader::new(stream.try_clone().expect("stream"));
    let mut line = String::new();
    if reader.read_line(&mut line).unwrap_or(0) == 0 {
        return;
    }
    let mut words = line.split_whitespace();
    let method = words.next().unwrap_or_default().to_owned();
    let path = words.next().unwrap_or_default().to_owned();
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).expect("head");
        if line.trim().is_empty() {
            break;
        }
        if let Some((key, value)) = line.split_once(':')
            && key.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().expect("length");
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).expect("body");
    let body = String::from_utf8_lossy(&body).into_owned();
    let key = format!("{method} {path}");
    let (status, answer) = {
        let mut answers = answers.lock().expect("lock");
        match answers.get_mut(&key) {
            None => (
                404,
                r#"{"code":"not_found","message":"there is no such thing"}"#.to_owned(),
            ),
            Some(list) if list.len() > 1 => list.remove(0),
            Some(list) => list[0].clone(),
        }
    };
    asked.lock().expect("lock").push((method, path, body));
    match status {
        // Never answers, until the client gives up.
        0 => drop(reader.read(&mut [0])),
        // Goes away in the middle of the answer.
        1 => drop((&stream).write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n[")),
        _ => drop(
            (&stream).write_all(
                format!("HTTP/1.1 {status} X\r\nETag: \"7\"\r\nConnection: close\r\n\r\n{answer}")
                    .as_bytes(),
            ),
        ),
    }
}
