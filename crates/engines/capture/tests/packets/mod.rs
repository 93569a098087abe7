//! Arbitrary bytes as a file of packets.

use std::io::{self, Read};

use windlass_capture::packets::{BLOCK_BYTES_MAX, Packets, ReadError};

/// A file that gives a few bytes at a time, and is interrupted in between.
struct Slow<'a> {
    rest: &'a [u8],
    calls: usize,
}

impl Read for Slow<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        self.calls += 1;
        if self.calls % 7 == 3 {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let most = to.len().min(self.calls % 5 + 1);
        self.rest.read(&mut to[..most])
    }
}

/// What was read of each packet, and how it ended.
type All = (Vec<(Option<u64>, u32, Vec<u8>)>, Option<String>);

fn read(file: impl Read) -> All {
    let mut all = Vec::new();
    let every = || -> Result<(), ReadError> {
        let mut packets = Packets::open(file)?;
        while let Some(packet) = packets.read()? {
            all.push((packet.time_ns, packet.len, packet.bytes.to_vec()));
        }
        Ok(())
    };
    let error = every().err().map(|error| error.to_string());
    (all, error)
}

/// Every file ends, gives no more bytes than it has, and is read alike however it comes.
///
/// # Panics
/// If not.
pub fn check(data: &[u8]) {
    let (all, error) = read(data);
    let bytes: usize = all.iter().map(|(_, _, bytes)| bytes.len()).sum();
    assert!(bytes <= data.len());
    assert!(
        all.iter()
            .all(|(_, _, bytes)| bytes.len() <= BLOCK_BYTES_MAX as usize)
    );
    let slow = Slow {
        rest: data,
        calls: 0,
    };
    assert_eq!(read(slow), (all, error));
}
