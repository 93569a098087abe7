//! How a failure is told: one line for a person, the same as JSON for a program, and an exit code.

use std::io;

use windlass_api::{Detail, ErrorBody, ErrorCode};
use windlass_client::Error;

/// Why the command ends without having done what was asked.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Something to tell.
    Told(Box<Told>),
    /// Whoever read the output went away: nothing is said.
    Pipe,
}

/// What failed, why, and what to do about it.
#[derive(Debug)]
pub(crate) struct Told {
    /// What was being done: `create vnic v0`.
    what: String,
    /// Why it failed.
    why: String,
    /// What to do next; empty if `why` says it.
    todo: String,
    code: ErrorCode,
    details: Vec<Detail>,
    /// Exit code where it is not the code's.
    status: Option<u8>,
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::Pipe,
            _ => Self::new(
                ErrorCode::Host,
                "write the output",
                error.to_string(),
                "see where it goes to",
            ),
        }
    }
}

impl Failure {
    pub(crate) fn new(
        code: ErrorCode,
        what: impl Into<String>,
        why: impl Into<String>,
        todo: impl Into<String>,
    ) -> Self {
        let (what, why, todo) = (what.into(), why.into(), todo.into());
        Self::Told(Box::new(Told {
            what,
            why,
            todo,
            code,
            details: Vec::new(),
            status: None,
        }))
    }

    /// A mistake on the command line that only a closer look finds.
    pub(crate) fn usage(why: impl Into<String>, todo: impl Into<String>) -> Self {
        Self::new(ErrorCode::Usage, READING, why, todo)
    }

    /// A call to the daemon that failed while `what` was being done.
    pub(crate) fn of(what: impl Into<String>, error: Error) -> Self {
        let (code, mut why) = (error.code(), error.to_string());
        let mut todo = advice(code);
        if let Error::Unreachable { .. } | Error::NoSocket(_) | Error::Unsafe(_) = error {
            why = format!("windlassd cannot be reached: {why}");
            if code == ErrorCode::Forbidden {
                todo = "act as a user who may open the socket, or name another with --socket";
            }
        }
        let details = match error {
            Error::Refused(body) => {
                todo = "";
                body.details
            }
            _ => Vec::new(),
        };
        let (what, todo) = (what.into(), todo.into());
        Self::Told(Box::new(Told {
            what,
            why,
            todo,
            code,
            details,
            status: None,
        }))
    }

    /// The same with other advice.
    #[must_use]
    pub(crate) fn advise(mut self, advice: impl Into<String>) -> Self {
        if let Self::Told(told) = &mut self {
            told.todo = advice.into();
        }
        self
    }

    pub(crate) fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Told(told) => Some(told.code),
            Self::Pipe => None,
        }
    }

    /// The same with an exit code of its own.
    #[must_use]
    pub(crate) fn with_status(mut self, status: u8) -> Self {
        if let Self::Told(told) = &mut self {
            told.status = Some(status);
        }
        self
    }

    /// 0 for a reader that went away, else the failure's own or its code's.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Told(told) => told.status.unwrap_or(told.code.exit_code()),
            Self::Pipe => 0,
        }
    }

    /// Tells it on stderr.
    pub(crate) fn tell(&self, json: bool, to: &mut dyn io::Write) -> io::Result<()> {
        let Self::Told(told) = self else {
            return Ok(());
        };
        let Told {
            what,
            why,
            todo,
            code,
            details,
            ..
        } = told.as_ref();
        let mut line = format!("{what} failed: {}", why.trim_end_matches('.'));
        if let ([detail], false) = (details.as_slice(), json) {
            line.push_str(&place(what, why, detail));
        }
        if !todo.is_empty() {
            line.push_str(&format!("; {todo}"));
        }
        if json {
            let body = ErrorBody {
                code: *code,
                message: line,
                details: details.clone(),
            };
            let text = serde_json::to_string(&body).map_err(io::Error::other)?;
            return writeln!(to, "{text}");
        }
        writeln!(to, "windlass: {}", crate::table::clean(&line))?;
        if details.len() > 1 {
            for detail in details.iter().filter(|d| !place(what, why, d).is_empty()) {
                let line = format!("{}: {}", detail.path, detail.message);
                writeln!(to, "windlass:   {}", crate::table::clean(&line))?;
            }
        }
        Ok(())
    }
}

/// What the one place that an error speaks of adds to the line: nothing that stands there already.
fn place(what: &str, why: &str, detail: &Detail) -> String {
    let Detail { path, message, .. } = detail;
    let object = path.rsplit('.').next().unwrap_or(path);
    let known = why.contains(path.as_str()) || what.split(' ').any(|word| word == object);
    match (known || path == ".", why.contains(message.as_str())) {
        (true, true) => String::new(),
        (true, false) => format!(" ({message})"),
        (false, true) => format!(" ({path})"),
        (false, false) => format!(" ({path}: {message})"),
    }
}

const READING: &str = "reading the command line";

/// What to do about an error, as far as the daemon's own sentence does not say it.
fn advice(code: ErrorCode) -> &'static str {
    match code {
        ErrorCode::Unreachable => {
            "start windlassd, or name its socket with --socket or WINDLASS_SOCKET"
        }
        ErrorCode::Malformed => "see that windlass and windlassd are of one version",
        ErrorCode::Timeout => {
            "see with \"show\" whether it was done after all, or allow more with --timeout"
        }
        _ => "see the daemon's log",
    }
}

/// A mistake that the parser of the command line found in the words of `command`.
pub(crate) fn misread(error: &clap::Error, command: &str) -> Failure {
    let text = error.render().to_string();
    let mut paragraphs = text.split("\n\n");
    let first = paragraphs.next().unwrap_or_default();
    let why: Vec<_> = first
        .trim_start_matches("error: ")
        .split_whitespace()
        .collect();
    let tips: Vec<_> = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix("tip: "))
        .map(str::trim)
        .collect();
    let todo = if tips.is_empty() {
        format!("see \"{command} --help\"")
    } else {
        tips.join(", ")
    };
    Failure::usage(without_secret(&why.join(" ")), todo)
}

/// The text without what stands behind `secret=`: the parser repeats the value that it refuses.
fn without_secret(text: &str) -> String {
    match text.split_once("secret=") {
        Some((before, after)) => {
            let end = after.find([',', '\'']).unwrap_or(after.len());
            let rest = after.get(end..).unwrap_or_default();
            format!("{before}secret=?{rest}")
        }
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(failure: &Failure, json: bool) -> String {
        let mut text = Vec::new();
        failure.tell(json, &mut text).expect("memory");
        String::from_utf8(text).expect("text")
    }

    /// One line says what failed, why and what to do; the daemon's own advice is not doubled.
    #[test]
    fn one_line_and_the_same_in_json() {
        let body = ErrorBody::plain(
            ErrorCode::InUse,
            "bridge \"br0\" is used: delete \"v0\" first",
        );
        let failure = Failure::of("delete bridge br0", Error::Refused(body));
        assert_eq!(
            told(&failure, false),
            "windlass: delete bridge br0 failed: bridge \"br0\" is used: delete \"v0\" first\n"
        );
        assert_eq!(
            told(&failure, true),
            "{\"code\":\"in_use\",\"message\":\"delete bridge br0 failed: bridge \\\"br0\\\" is used: \
             delete \\\"v0\\\" first\"}\n"
        );
        assert_eq!(failure.exit_code(), 1);
        let failure = Failure::of(
            "show vnics",
            Error::NoSocket(vec!["/a".into(), "/b".into()]),
        );
        assert_eq!(
            told(&failure, false),
            "windlass: show vnics failed: windlassd cannot be reached: there is no control socket at \
             /a or /b; start windlassd, or name its socket with --socket or WINDLASS_SOCKET\n"
        );
        assert_eq!(failure.exit_code(), 3);
    }

    /// A sentence is said once: a place that the line has already is not said again.
    #[test]
    fn nothing_is_said_twice() {
        let of = |what: &str, message: &str, path: &str, detail: &str| {
            let body = ErrorBody::plain(ErrorCode::Host, message).at(path, detail);
            told(&Failure::of(what, Error::Refused(body)), false)
        };
        assert_eq!(
            of(
                "create uplink up0",
                "`lo` leads nowhere",
                "uplinks.up0",
                "`lo` leads nowhere"
            ),
            "windlass: create uplink up0 failed: `lo` leads nowhere\n"
        );
        assert_eq!(
            of(
                "apply x",
                "`lo` leads nowhere",
                "uplinks.up0",
                "`lo` leads nowhere"
            ),
            "windlass: apply x failed: `lo` leads nowhere (uplinks.up0)\n"
        );
        assert_eq!(
            of(
                "apply x",
                "vnics.x.bridge: no bridge",
                "vnics.x.bridge",
                "no bridge"
            ),
            "windlass: apply x failed: vnics.x.bridge: no bridge\n"
        );
    }

    /// One place stands in the line, several on lines of their own.
    #[test]
    fn places_are_told() {
        let body = ErrorBody::plain(ErrorCode::Invalid, "bad").at("vnics.v0", "no bridge");
        let failure = Failure::of("apply x", Error::Refused(body.clone()));
        assert!(told(&failure, false).ends_with("bad (vnics.v0: no bridge)\n"));
        let failure = Failure::of("apply x", Error::Refused(body.at("vnics.v1", "no\nbridge")));
        assert_eq!(told(&failure, false).lines().count(), 3);
        assert!(told(&failure, true).contains("\"path\":\"vnics.v1\""));
    }
}
