//! The filter's text, and where it is wrong.
//!
//! # Model
//! libpcap compiles the text. It says what is wrong, but not where. Where it names a part of the text, that is found; else the longest
//! beginning is looked for that is a filter, or becomes one with a few words: what follows it is wrong, or missing.

use windlass_api::ErrorCode;
use windlass_sys::pcap::{FilterError, Instruction, Pcap};

use crate::failure::Failure;
use crate::table::clean;

/// What makes a filter of a beginning of one.
const ENDS: &[&str] = &[
    "",
    " 1",
    " ip",
    " 10.0.0.1",
    " port 1",
    " host 10.0.0.1",
    " ::1",
    " 1-2",
    " 00:00:00:00:00:00",
    " = 1",
    "] = 1",
    "0] = 1",
    ")",
    " ip)",
    " 1)",
    " 10.0.0.1)",
];
/// What libpcap says of a filter that no frame can match.
const NONE: &str = "rejects all packets";
const COMPILE: &str = "compile the filter";

/// The program of a filter; none for none.
pub(super) fn compile(text: &str, snap: u32) -> Result<Vec<Instruction>, Failure> {
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    let pcap = Pcap::load().map_err(|error| {
        let todo = "install it (Debian: libpcap0.8), or capture without a filter";
        Failure::new(ErrorCode::Unsupported, COMPILE, error.to_string(), todo)
    })?;
    pcap.compile(text, snap).map_err(|error| {
        let at = place(&pcap, text, &error);
        eprintln!("  {}\n  {:at$}^", clean(text), "");
        Failure::new(
            ErrorCode::Usage,
            COMPILE,
            error.to_string(),
            "see pcap-filter(7)",
        )
    })
}

/// Where a filter is wrong, in characters.
fn place(pcap: &Pcap, text: &str, error: &FilterError) -> usize {
    let says = error.to_string();
    let named = says
        .split(['\'', '"'])
        .nth(1)
        .filter(|part| !part.is_empty());
    let at = named.and_then(|part| text.find(part));
    let at = at.unwrap_or_else(|| {
        let begins = text.split_inclusive(' ').scan(0, |at, word| {
            let begin = *at;
            *at += word.len();
            Some(begin)
        });
        let is_beginning = |at: &usize| {
            let begin = text.get(..*at).unwrap_or_default().trim_end();
            ENDS.iter()
                .any(|end| match pcap.compile(&format!("{begin}{end}"), 64) {
                    Err(FilterError::Refused(why)) => why.contains(NONE),
                    other => other.is_ok(),
                })
        };
        let begins = begins.chain([text.len()]);
        begins.filter(is_beginning).last().unwrap_or(0)
    });
    text.get(..at).map_or(0, |before| before.chars().count())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The place is that of the word which no filter can have there.
    #[test]
    fn what_is_wrong_is_found() {
        let Ok(pcap) = Pcap::load() else {
            eprintln!("what_is_wrong_is_found: skipped: there is no libpcap");
            return;
        };
        for (text, wrong) in [
            ("tcp prt 80", "prt"),
            ("host 10.0.0.1 ort 5", "ort"),
            ("tcp and (udp or blurb)", "blurb"),
            ("ip[0] & 0xf != 5 ande tcp", "ande"),
            ("ether host 00:11:22:33:44:zz", "00:11:22:33:44:zz"),
        ] {
            let error = pcap.compile(text, 64).expect_err(text);
            let at = place(&pcap, text, &error);
            assert_eq!(text.find(wrong), Some(at), "{text}: {error}");
        }
        let missing = "icmp and tcp port";
        let error = pcap.compile(missing, 64).expect_err(missing);
        assert_eq!(place(&pcap, missing, &error), missing.len());
    }
}
