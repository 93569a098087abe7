//! Rows as bytes.

use windlass_channel::EndInfo;
use windlass_channel::snapshot::{ChanWords, DirWords};
use windlass_listing::{ChannelRow, ProcessRow, ROW_BYTES, Row};

/// A row comes back as it was, and what is cut off or of an unknown kind is left out.
#[test]
fn rows_come_back() {
    let process = ProcessRow {
        slot: 65_000,
        pid: 4_000_000,
        uid: u32::MAX - 1,
        netns: 1 << 40,
        report: 0x7fff_1234_5000,
        slabs: 3,
        dead: true,
        status: 0x8000_0000_0000_0001,
        comm: "a-name-of-15-by".into(),
    };
    let end = EndInfo {
        join: 2,
        cookie: u64::MAX,
        netns: 4,
        local: "127.0.0.1:6379".parse().expect("name"),
        peer: "[fe80::1]:9".parse().expect("name"),
        slot: 7,
        pid: 99,
        fd: -1,
        connected: true,
    };
    let dir = DirWords {
        head: 1,
        k_sent: 2,
        pos: 3,
        tail: 4,
        krecv: 5,
        reclaimed: 6,
        pushed_at: 7,
        write_lock: 8,
        read_lock: 9,
        stream: 10,
        uncounted: 11,
        owed: 12,
        mark: 13,
        attn: 14,
        flags: 15,
        slot: u32::MAX,
        ring_bytes: 17,
    };
    let words = ChanWords {
        news: [false, true],
        ends: [end, EndInfo { slot: 8, ..end }],
        dirs: [dir, DirWords { head: 18, ..dir }],
    };
    let channel = ChannelRow {
        slab: 12,
        chan: 1023,
        now: 44,
        words,
    };
    let rows = [Row::Process(process), Row::Channel(Box::new(channel))];
    let mut bytes = Vec::new();
    rows.iter().for_each(|row| row.encode(&mut bytes));
    bytes.extend([9; ROW_BYTES]);
    bytes.extend([1; ROW_BYTES - 1]);
    assert_eq!(Row::decode_all(&bytes), rows);
}
