//! The stream of events: one JSON object a line.

use windlass_api::MonitorEvent;

use crate::error::Error;
use crate::http::Connection;

/// Bytes of one event at most.
pub const LINE_BYTES_MAX: usize = 4 << 20;

/// What happens, as it happens. Ends when the daemon does; each item is an event or the error that ended
/// the stream.
#[derive(Debug)]
pub struct Events {
    body: Option<Connection>,
    lines: Lines,
}

impl Events {
    pub(crate) fn new(body: Connection) -> Self {
        Self {
            body: Some(body),
            lines: Lines::default(),
        }
    }

    fn read(&mut self) -> Option<Result<(), Error>> {
        let read = match self.body.as_mut()?.next() {
            Ok(Some(data)) => self.lines.push(&data),
            Ok(None) => {
                self.body = None;
                return None;
            }
            Err(error) => Err(error),
        };
        Some(read.inspect_err(|_| self.body = None))
    }
}

impl Iterator for Events {
    type Item = Result<MonitorEvent, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(line) = self.lines.pop() {
                return Some(
                    serde_json::from_slice(&line).map_err(|error| Error::Answer {
                        request: "GET /v1/monitor".into(),
                        reason: error.to_string(),
                    }),
                );
            }
            if let Err(error) = self.read()? {
                return Some(Err(error));
            }
        }
    }
}

/// Bytes that came, until their line is whole.
#[derive(Debug, Default)]
struct Lines {
    bytes: Vec<u8>,
    /// Bytes at the front that hold no line end.
    searched: usize,
}

impl Lines {
    fn push(&mut self, data: &[u8]) -> Result<(), Error> {
        self.bytes.extend_from_slice(data);
        if self.bytes.len() > LINE_BYTES_MAX && !self.bytes.contains(&b'\n') {
            return Err(Error::Broken("an event without an end".into()));
        }
        Ok(())
    }

    /// The next line that is not empty.
    fn pop(&mut self) -> Option<Vec<u8>> {
        loop {
            let rest = self.bytes.get(self.searched..)?;
            let Some(end) = rest.iter().position(|&byte| byte == b'\n') else {
                self.searched = self.bytes.len();
                return None;
            };
            let mut line: Vec<u8> = self.bytes.drain(..=self.searched + end).collect();
            self.searched = 0;
            line.pop();
            if !line.iter().all(u8::is_ascii_whitespace) {
                return Some(line);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines come out whole however the bytes were cut, blank ones not at all, and endless ones end it.
    #[test]
    fn lines_are_whole() {
        let text = b"{\"a\":1}\n\n \n{\"b\":2}\n{\"c\"";
        for cut in 0..text.len() {
            let mut lines = Lines::default();
            let mut found = Vec::new();
            for part in [&text[..cut], &text[cut..]] {
                lines.push(part).expect("short");
                found.extend(std::iter::from_fn(|| lines.pop()));
            }
            assert_eq!(
                found,
                [b"{\"a\":1}".to_vec(), b"{\"b\":2}".to_vec()],
                "{cut}"
            );
        }
        assert!(
            Lines::default()
                .push(&vec![b'x'; LINE_BYTES_MAX + 1])
                .is_err()
        );
    }
}
