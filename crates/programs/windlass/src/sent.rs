//! Bytes that accelerated sockets have sent, by ring and by kernel, for a server of metrics.
//!
//! # Model
//! Brokers and processes say what each open socket has sent. [`Sent::note`] adds what came since its last call, so that the
//! sums never go down when a socket is closed.
//!
//! # What can be lost
//! What a socket sends between the last look at it and its close; a socket that comes and goes between two looks.

use std::collections::HashMap;
use std::fmt::Write as _;

use serde_json::Value;

/// The ways that bytes take, and the fields of `windlass sockets` that count them.
const PATHS: [(&str, &str); 2] = [("ring", "ring_tx_bytes"), ("kernel", "kernel_tx_bytes")];

/// Its name.
const NAME: &str = "windlass_channel_bytes_total";

/// What was sent since it was made.
#[derive(Debug, Default)]
pub(crate) struct Sent {
    totals: [u64; 2],
    /// Of each socket that is open, by process and cookie: what it had sent.
    open: HashMap<(u64, u64), [u64; 2]>,
}

impl Sent {
    /// Adds what these sockets have sent since the last call.
    pub(crate) fn note(&mut self, sockets: &[Value]) {
        let mut open = HashMap::new();
        for row in sockets {
            let number = |key| row.get(key).and_then(Value::as_u64);
            let (Some(pid), Some(cookie)) = (number("pid"), number("cookie")) else {
                continue;
            };
            let now = PATHS.map(|(_, field)| number(field).unwrap_or(0));
            let before = self.open.get(&(pid, cookie)).copied().unwrap_or_default();
            for ((total, now), before) in self.totals.iter_mut().zip(now).zip(before) {
                // Fewer bytes than before: it is counted anew since it joined or left.
                let more = now.checked_sub(before).unwrap_or(now);
                *total = total.saturating_add(more);
            }
            open.insert((pid, cookie), now);
        }
        self.open = open;
    }

    /// The lines for a scraper.
    pub(crate) fn text(&self) -> String {
        let mut text = format!(
            "# HELP {NAME} Bytes sent by accelerated sockets, as far as they were seen since this server started.\n\
             # TYPE {NAME} counter\n"
        );
        for ((path, _), total) in PATHS.iter().zip(self.totals) {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{NAME}{{path=\"{path}\"}} {total}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn socket(cookie: u64, ring: u64, kernel: u64) -> Value {
        json!({"pid": 7, "cookie": cookie, "ring_tx_bytes": ring, "kernel_tx_bytes": kernel})
    }

    /// Sums grow by what each socket has sent since the last look, and stay when it is closed or counted anew.
    #[test]
    fn sums_never_go_down() {
        let mut sent = Sent::default();
        sent.note(&[socket(1, 100, 10), socket(2, 1000, 0)]);
        assert_eq!(sent.totals, [1100, 10]);
        sent.note(&[socket(1, 150, 10), json!({"pid": 7})]);
        assert_eq!(sent.totals, [1150, 10]);
        sent.note(&[]);
        assert_eq!(sent.totals, [1150, 10]);
        sent.note(&[socket(1, 20, 5)]);
        assert_eq!(sent.totals, [1170, 15]);
        sent.note(&[socket(1, 0, 6)]);
        assert_eq!(sent.totals, [1170, 16]);
        let text = sent.text();
        assert!(
            text.contains("\nwindlass_channel_bytes_total{path=\"ring\"} 1170\n"),
            "{text}"
        );
        assert!(
            text.ends_with("\nwindlass_channel_bytes_total{path=\"kernel\"} 16\n"),
            "{text}"
        );
    }
}
