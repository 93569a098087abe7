//! One HTTP exchange over the Unix socket.
//!
//! # Model
//! Requests are HTTP/1.0 (RFC 1945): one request on each connection, and an answer ends where the connection does, so that a
//! stream of events needs no framing. A daemon that refuses a connection may answer and close before it has read the request:
//! a request that cannot be sent is no error until it is known that there is no answer.
//!
//! A connection may be opened before there is a request ([`Connection::open`]). The daemon closes one that has none for its read timeout:
//! such a connection is not used.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv,
    send, socket_with,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use windlass_api::ErrorBody;

use crate::error::Error;
use crate::json;

/// Bytes of an answer at most: a forwarding table of a million entries is some 120 MB.
pub const ANSWER_BYTES_MAX: usize = 256 << 20;
/// Bytes of an answer's head at most.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// Bytes that are asked of the system at once.
const PIECE_BYTES: usize = 64 << 10;

/// What is asked.
#[derive(Debug)]
pub(crate) struct Request {
    method: &'static str,
    path: String,
    body: Vec<u8>,
    /// Goes into `If-Match`.
    pub(crate) revision: Option<u64>,
}

impl Request {
    pub(crate) fn bare(method: &'static str, path: impl Into<String>) -> Self {
        Self {
            method,
            path: path.into(),
            body: Vec::new(),
            revision: None,
        }
    }

    pub(crate) fn get(path: impl Into<String>) -> Self {
        Self::bare("GET", path)
    }

    pub(crate) fn with<B: Serialize + ?Sized>(
        method: &'static str,
        path: impl Into<String>,
        body: &B,
    ) -> Result<Self, Error> {
        let mut request = Self::bare(method, path);
        request.body = json(body, &request.to_string())?;
        Ok(request)
    }

    /// As it is sent.
    fn bytes(&self) -> Vec<u8> {
        let mut text = format!(
            "{} {} HTTP/1.0\r\nhost: localhost\r\naccept: application/json\r\n",
            self.method, self.path
        );
        if !self.body.is_empty() {
            let length = self.body.len();
            text.push_str(&format!(
                "content-type: application/json\r\ncontent-length: {length}\r\n"
            ));
        }
        if let Some(revision) = self.revision {
            text.push_str(&format!("if-match: \"{revision}\"\r\n"));
        }
        text.push_str("\r\n");
        let mut bytes = text.into_bytes();
        bytes.extend_from_slice(&self.body);
        bytes
    }
}

impl std::fmt::Display for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.method, self.path)
    }
}

/// The query string of a struct of optional words and numbers; all that our names and addresses are made
/// of may stand in one as it is (RFC 3986 section 3.4).
pub(crate) fn query<Q: Serialize>(query: &Q) -> Result<String, Error> {
    let value = serde_json::to_value(query).map_err(|error| Error::Answer {
        request: "query".into(),
        reason: error.to_string(),
    })?;
    let mut pairs: Vec<_> = value.as_object().into_iter().flatten().collect();
    pairs.sort_by_key(|(key, _)| *key);
    let mut text = String::new();
    for (key, value) in pairs {
        let value = value
            .as_str()
            .map_or_else(|| value.to_string(), str::to_owned);
        text.push(if text.is_empty() { '?' } else { '&' });
        text.push_str(&format!("{key}={value}"));
    }
    Ok(text)
}

/// What came back.
#[derive(Debug)]
pub(crate) struct Answer {
    head: Head,
    body: Vec<u8>,
}

impl Answer {
    /// From `ETag`.
    pub(crate) fn revision(&self) -> Option<u64> {
        self.head.revision
    }

    pub(crate) fn read<T: DeserializeOwned>(&self, request: &Request) -> Result<T, Error> {
        serde_json::from_slice(self.success(request)?)
            .map_err(|error| not_understood(request, error.to_string()))
    }

    pub(crate) fn text(&self, request: &Request) -> Result<String, Error> {
        String::from_utf8(self.success(request)?.into())
            .map_err(|error| not_understood(request, error.to_string()))
    }

    fn success(&self, request: &Request) -> Result<&[u8], Error> {
        if self.head.is_success() {
            Ok(&self.body)
        } else {
            Err(refusal(request, self.head.status, &self.body))
        }
    }
}

fn not_understood(request: &Request, reason: String) -> Error {
    Error::Answer {
        request: request.to_string(),
        reason,
    }
}

fn refusal(request: &Request, status: u16, body: &[u8]) -> Error {
    match serde_json::from_slice::<ErrorBody>(body) {
        Ok(body) => Error::Refused(body),
        Err(_) => not_understood(request, format!("status {status} without an error in JSON")),
    }
}

/// What is read of an answer's head.
#[derive(Debug, Default, PartialEq, Eq)]
struct Head {
    status: u16,
    /// Bytes of the body; none: it ends with the connection.
    length: Option<usize>,
    revision: Option<u64>,
}

impl Head {
    /// Reads it without the empty line; none if it is not one.
    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.split("\r\n");
        let mut words = lines.next()?.split(' ');
        words.next().filter(|word| word.starts_with("HTTP/1."))?;
        let mut head = Self {
            status: words.next()?.parse().ok()?,
            ..Self::default()
        };
        for line in lines {
            let (name, value) = line.split_once(':')?;
            match name.to_ascii_lowercase().as_str() {
                "content-length" => head.length = Some(value.trim().parse().ok()?),
                "etag" => {
                    let tag = value.trim().trim_start_matches("W/").trim_matches('"');
                    head.revision = tag.parse().ok();
                }
                "transfer-encoding" => return None,
                _ => {}
            }
        }
        Some(head)
    }

    fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }
}

/// A connection, and what of the answer was read already.
#[derive(Debug)]
pub(crate) struct Connection {
    socket: OwnedFd,
    limit: Option<Duration>,
    until: Option<Instant>,
    read: Vec<u8>,
    /// Why the request was not sent whole.
    unsent: Option<Errno>,
}

impl Connection {
    pub(crate) fn open(path: &Path, limit: Option<Duration>) -> Result<Self, Error> {
        let until = end_of(limit);
        let unreachable = |errno: Errno| Error::Unreachable {
            path: path.to_owned(),
            source: io::Error::from(errno),
        };
        let address = SocketAddrUnix::new(path).map_err(unreachable)?;
        let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
        let socket = socket_with(family, kind, SocketFlags::CLOEXEC, None).map_err(unreachable)?;
        let connection = Self {
            socket,
            limit,
            until,
            read: Vec::new(),
            unsent: None,
        };
        loop {
            connection.allow(Timeout::Send)?;
            match connect(&connection.socket, &address) {
                Ok(()) => return Ok(connection),
                Err(Errno::INTR) => {}
                // So many wait to be accepted already.
                Err(Errno::AGAIN) => return Err(connection.late()),
                Err(errno) => return Err(unreachable(errno)),
            }
        }
    }

    /// Gives the request that follows its time, unless the daemon has closed the connection.
    pub(crate) fn begin(mut self) -> Option<Self> {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let is_open = match recv(&self.socket, &mut [0_u8], flags) {
            // A refusal is an answer.
            Ok((bytes, _)) => bytes != 0,
            Err(errno) => errno == Errno::AGAIN,
        };
        self.until = end_of(self.limit);
        is_open.then_some(self)
    }

    fn late(&self) -> Error {
        Error::Timeout(self.limit.unwrap_or_default())
    }

    /// Gives the next call what is left of the time.
    fn allow(&self, which: Timeout) -> Result<(), Error> {
        let left = match self.until {
            None => None,
            Some(until) => {
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(self.late());
                }
                Some(left)
            }
        };
        set_socket_timeout(&self.socket, which, left)
            .map_err(|errno| Error::Broken(errno.to_string()))
    }

    fn send(&mut self, mut bytes: &[u8]) -> Result<(), Error> {
        while !bytes.is_empty() {
            self.allow(Timeout::Send)?;
            match send(&self.socket, bytes, SendFlags::NOSIGNAL) {
                Ok(sent) => bytes = bytes.get(sent..).unwrap_or_default(),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Err(self.late()),
                Err(errno) => {
                    self.unsent = Some(errno);
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Reads some more; false at the end.
    fn fill(&mut self) -> Result<bool, Error> {
        loop {
            self.allow(Timeout::Recv)?;
            let start = self.read.len();
            self.read.resize(start + PIECE_BYTES, 0);
            let room = self.read.get_mut(start..).unwrap_or_default();
            let got = recv(&self.socket, room, RecvFlags::empty());
            let bytes = got.as_ref().map_or(0, |(bytes, _)| *bytes);
            self.read.truncate(start + bytes);
            match got {
                Ok(_) => return Ok(bytes != 0),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Err(self.late()),
                Err(errno) => {
                    let errno = self.unsent.unwrap_or(errno);
                    return Err(Error::Broken(errno.to_string()));
                }
            }
        }
    }

    fn head(&mut self, request: &Request) -> Result<Head, Error> {
        const END: &[u8] = b"\r\n\r\n";
        let mut searched = 0;
        loop {
            let unseen = self.read.get(searched..).unwrap_or_default();
            if let Some(at) = unseen.windows(END.len()).position(|bytes| bytes == END) {
                let rest = self.read.split_off(searched + at + END.len());
                let bytes = std::mem::replace(&mut self.read, rest);
                let text = bytes.strip_suffix(END).unwrap_or_default();
                let head = std::str::from_utf8(text).ok().and_then(Head::parse);
                return head.ok_or_else(|| not_understood(request, "the head is not HTTP".into()));
            }
            searched = self.read.len().saturating_sub(END.len());
            if self.read.len() > HEAD_BYTES_MAX {
                return Err(not_understood(request, "the head does not end".into()));
            }
            if !self.fill()? {
                let why = match self.unsent {
                    Some(errno) => errno.to_string(),
                    None => "there was no answer".into(),
                };
                return Err(Error::Broken(why));
            }
        }
    }

    fn body(mut self, length: Option<usize>) -> Result<Vec<u8>, Error> {
        loop {
            let is_over = length.is_some_and(|length| self.read.len() >= length);
            if is_over || self.read.len() > ANSWER_BYTES_MAX {
                break;
            }
            if !self.fill()? {
                break;
            }
        }
        if self.read.len() > ANSWER_BYTES_MAX {
            return Err(Error::Broken(format!(
                "an answer of more than {ANSWER_BYTES_MAX} bytes"
            )));
        }
        match length {
            Some(length) if self.read.len() < length => {
                Err(Error::Broken("the answer was cut short".into()))
            }
            Some(length) => {
                self.read.truncate(length);
                Ok(self.read)
            }
            None => Ok(self.read),
        }
    }

    /// The next bytes of a body that does not end, whenever they come; none at its end.
    pub(crate) fn next(&mut self) -> Result<Option<Vec<u8>>, Error> {
        if self.read.is_empty() && !self.fill()? {
            return Ok(None);
        }
        Ok(Some(std::mem::take(&mut self.read)))
    }
}

fn end_of(limit: Option<Duration>) -> Option<Instant> {
    limit.and_then(|limit| Instant::now().checked_add(limit))
}

/// A whole exchange.
pub(crate) fn exchange(mut connection: Connection, request: &Request) -> Result<Answer, Error> {
    connection.send(&request.bytes())?;
    let head = connection.head(request)?;
    let body = connection.body(head.length)?;
    Ok(Answer { head, body })
}

/// The body of an answer that does not end: the limit holds for its head.
pub(crate) fn open(
    socket: &Path,
    limit: Option<Duration>,
    request: &Request,
) -> Result<Connection, Error> {
    let mut connection = Connection::open(socket, limit)?;
    connection.send(&request.bytes())?;
    let head = connection.head(request)?;
    if head.is_success() {
        connection.until = None;
        return Ok(connection);
    }
    Err(refusal(
        request,
        head.status,
        &connection.body(head.length)?,
    ))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::thread;

    use super::*;

    fn answered_by(serve: impl FnOnce(UnixStream) + Send + 'static) -> Result<u64, Error> {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("s");
        let listener = UnixListener::bind(&path).expect("a socket");
        let served = thread::spawn(move || serve(listener.accept().expect("a client").0));
        let request = Request::with("POST", "/v1/x", &"y".repeat(1 << 20)).expect("JSON");
        let connection = Connection::open(&path, Some(Duration::from_secs(20)));
        let answer = exchange(connection.expect("connected"), &request);
        served.join().expect("served");
        answer.and_then(|answer| answer.read(&request))
    }

    const BUSY: &str = r#"{"code":"busy","message":"all connections are taken"}"#;

    fn refuse(stream: &mut UnixStream) {
        let head = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: ";
        let text = format!("{head}{}\r\n\r\n{BUSY}", BUSY.len());
        stream.write_all(text.as_bytes()).expect("written");
    }

    /// A call that waits for its answer keeps no other one of its client waiting.
    #[test]
    fn calls_do_not_wait_for_each_other() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("s");
        let listener = UnixListener::bind(&path).expect("a socket");
        let client = crate::Client::new(path, Some(Duration::from_secs(2)));
        thread::scope(|scope| {
            let ask = || client.exchange(&Request::get("/v1/x")).is_ok();
            let calls = [0; 2].map(|_| scope.spawn(ask));
            let both = [0; 2].map(|_| listener.accept().expect("a client").0);
            both.into_iter().for_each(|mut stream| refuse(&mut stream));
            assert!(calls.into_iter().all(|call| call.join().expect("called")));
        });
    }

    /// Who is refused before the request was read, reads why.
    #[test]
    fn a_refusal_before_the_request_is_read() {
        let refused = answered_by(|mut stream| {
            refuse(&mut stream);
            // It closes with the request unread, of which the socket holds a part.
            thread::sleep(Duration::from_millis(50));
        });
        let Err(Error::Refused(body)) = refused else {
            panic!("{refused:?}");
        };
        assert_eq!(body.message, "all connections are taken");
    }

    /// A body ends where its length says, or with the connection; one that is cut short is no answer.
    #[test]
    fn a_body_is_whole() {
        let after = |head: &'static str, body: &'static str| {
            answered_by(move |mut stream| {
                let mut request = Vec::new();
                while !request.ends_with(b"y\"") {
                    let mut piece = [0; 4096];
                    let bytes = stream.read(&mut piece).expect("the request");
                    request.extend_from_slice(&piece[..bytes]);
                }
                write!(stream, "HTTP/1.0 200 OK\r\n{head}\r\n{body}").expect("written");
            })
        };
        assert_eq!(after("", "17").expect("whole"), 17);
        assert_eq!(after("content-length: 2\r\n", "177").expect("whole"), 17);
        let short = after("content-length: 3\r\n", "17");
        assert!(matches!(short, Err(Error::Broken(_))), "{short:?}");
        let chunked = after("transfer-encoding: chunked\r\n", "2\r\n17\r\n0\r\n\r\n");
        assert!(matches!(chunked, Err(Error::Answer { .. })), "{chunked:?}");
    }

    /// A daemon that does not answer, or does not even accept, is given up when the time is over.
    #[test]
    fn the_time_is_limited() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("s");
        let _listener = UnixListener::bind(&path).expect("a socket");
        let request = Request::get("/v1/x");
        let limit = Duration::from_millis(30);
        let connection = Connection::open(&path, Some(limit)).expect("connected");
        let late = exchange(connection, &request);
        assert!(
            matches!(late, Err(Error::Timeout(of)) if of == limit),
            "{late:?}"
        );
    }
}
