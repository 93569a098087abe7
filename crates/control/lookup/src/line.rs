//! Messages as lines: one JSON object each, ended by a newline.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::protocol::Message;

/// Longest line, in bytes, with its newline.
pub const LINE_BYTES_MAX: usize = 64 << 10;

/// Characters of a bad line that are shown to a person.
const SHOWN_CHARS_MAX: usize = 80;

/// Why a line is no message.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LineError {
    /// The line does not end where it must.
    #[error("a line of more than {LINE_BYTES_MAX} bytes")]
    TooLong,
    /// The line is JSON with an `op` that this side does not know. The session goes on: the answer is `unsupported`.
    #[error("unknown op \"{0}\"")]
    UnknownOp(String),
    /// The line is no JSON, or a field is missing or wrong.
    #[error("{reason} in the line \"{shown}\"")]
    Bad {
        /// What is wrong.
        reason: String,
        /// The beginning of the line, printable.
        shown: String,
    },
}

/// A message as a line with its newline.
///
/// # Errors
/// [`LineError::TooLong`]. A list of entries has to be divided then.
pub fn encode<M: Serialize + Message>(message: &M) -> Result<Vec<u8>, LineError> {
    let mut line = serde_json::to_vec(message).map_err(|error| LineError::Bad {
        reason: error.to_string(),
        shown: String::new(),
    })?;
    line.push(b'\n');
    match line.len() {
        ..=LINE_BYTES_MAX => Ok(line),
        _ => Err(LineError::TooLong),
    }
}

/// The message in a line, with or without its newline. Keys that it does not know are ignored.
///
/// # Errors
/// If the line is too long, is no message, or has values beyond the limits of [`protocol`](crate::protocol).
pub fn decode<M: DeserializeOwned + Message>(line: &[u8]) -> Result<M, LineError> {
    if line.len() > LINE_BYTES_MAX {
        return Err(LineError::TooLong);
    }
    let bad = |reason: String| LineError::Bad {
        reason,
        shown: shown(line),
    };
    let message: M = match serde_json::from_slice(line) {
        Ok(message) => message,
        Err(error) => {
            return Err(match serde_json::from_slice::<Op>(line) {
                Ok(Op { op }) if !M::OPS.contains(&op.as_str()) => {
                    LineError::UnknownOp(clean(&op, SHOWN_CHARS_MAX))
                }
                _ => bad(error.to_string()),
            });
        }
    };
    message.check().map_err(bad)?;
    Ok(message)
}

#[derive(Deserialize)]
struct Op {
    op: String,
}

/// The beginning of a line as a person may see it: what a terminal would act on is replaced.
fn shown(line: &[u8]) -> String {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let start = line.get(..SHOWN_CHARS_MAX).unwrap_or(line);
    let dots = if start.len() < line.len() { "..." } else { "" };
    format!(
        "{}{dots}",
        clean(&String::from_utf8_lossy(start), SHOWN_CHARS_MAX)
    )
}

/// A text of others as a person may see it: at most `max` characters, none of them a control character.
pub(crate) fn clean(text: &str, max: usize) -> String {
    let printable = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    text.chars().take(max).map(printable).collect()
}

/// Lines out of a stream that comes in pieces. Keeps one unfinished line.
#[derive(Debug, Default)]
pub struct Lines {
    bytes: Vec<u8>,
    /// Where the first line that was not taken begins.
    start: usize,
    /// Up to where no newline was found.
    seen: usize,
}

impl Lines {
    /// Adds what was received.
    pub fn feed(&mut self, received: &[u8]) {
        self.bytes.drain(..self.start);
        self.seen = self.seen.saturating_sub(self.start);
        self.start = 0;
        self.bytes.extend_from_slice(received);
    }

    /// The next whole line without its newline; `None` if the rest of it has not come.
    ///
    /// # Errors
    /// [`LineError::TooLong`]: the stream cannot be used any more.
    pub fn next_line(&mut self) -> Result<Option<&[u8]>, LineError> {
        let rest = self.bytes.get(self.seen..).unwrap_or_default();
        let Some(at) = rest.iter().position(|byte| *byte == b'\n') else {
            self.seen = self.bytes.len();
            return match self.seen.saturating_sub(self.start) {
                ..LINE_BYTES_MAX => Ok(None),
                _ => Err(LineError::TooLong),
            };
        };
        let (start, end) = (self.start, self.seen.saturating_add(at));
        self.start = end.saturating_add(1);
        self.seen = self.start;
        match end.saturating_sub(start) {
            ..LINE_BYTES_MAX => Ok(self.bytes.get(start..end)),
            _ => Err(LineError::TooLong),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{FromPlugin, ToPlugin};

    /// Lines come out whole, in whatever pieces they came in, and one without an end is an error once it is too long.
    #[test]
    fn a_stream_is_cut_into_lines() {
        let mut lines = Lines::default();
        let mut found = Vec::new();
        for byte in b"one\n\nthree\nfo" {
            lines.feed(&[*byte]);
            while let Some(line) = lines.next_line().expect("short") {
                found.push(line.to_vec());
            }
        }
        assert_eq!(found, [&b"one"[..], b"", b"three"]);
        lines.feed(b"ur\nfive\n");
        assert_eq!(lines.next_line(), Ok(Some(&b"four"[..])));
        assert_eq!(lines.next_line(), Ok(Some(&b"five"[..])));
        assert_eq!(lines.next_line(), Ok(None));
        lines.feed(&vec![b'x'; LINE_BYTES_MAX - 1]);
        assert_eq!(lines.next_line(), Ok(None));
        lines.feed(b"\n");
        assert_eq!(
            lines.next_line().map(|line| line.map(<[u8]>::len)),
            Ok(Some(LINE_BYTES_MAX - 1))
        );
        lines.feed(&vec![b'x'; LINE_BYTES_MAX]);
        assert_eq!(lines.next_line(), Err(LineError::TooLong));
        assert!(lines.bytes.len() <= LINE_BYTES_MAX);
    }

    /// An op that is not known is told apart from a line that is bad, and what is shown of either cannot move a cursor.
    #[test]
    fn bad_lines_are_told_apart() {
        let unknown = decode::<FromPlugin>(br#"{"op":"wave\u001b[2J"}"#);
        assert_eq!(
            unknown,
            Err(LineError::UnknownOp("wave\u{fffd}[2J".to_owned()))
        );
        for bad in [
            &b""[..],
            b"{",
            b"[]",
            b"7",
            b"\xff\xfe",
            br#"{"op":7}"#,
            br#"{"op":"pong"}"#,
            br#"{"op":"pong","id":-1}"#,
            br#"{"op":"ping","id":1}{"op":"ping","id":2}"#,
        ] {
            let found = decode::<ToPlugin>(bad);
            let is_bad = matches!(found, Err(LineError::Bad { .. } | LineError::UnknownOp(_)));
            assert!(is_bad, "{bad:?}: {found:?}");
        }
        let long = [b'{'; LINE_BYTES_MAX + 1];
        assert_eq!(decode::<ToPlugin>(&long), Err(LineError::TooLong));
        let Err(LineError::Bad { shown, .. }) = decode::<ToPlugin>(&[0x1b; 200]) else {
            panic!("a line of escapes is bad");
        };
        assert_eq!(shown.chars().filter(|c| *c == '\u{fffd}').count(), 80);
        assert_eq!(
            decode(b"{\"op\":\"ping\",\"id\":7,\"new\":[]}\n"),
            Ok(ToPlugin::Ping { id: 7 })
        );
    }
}
