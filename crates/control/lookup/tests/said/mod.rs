//! What holds whatever a plugin says, and whatever a file has.

use windlass_lookup::files;
use windlass_lookup::line::{LINE_BYTES_MAX, LineError, Lines, decode, encode};
use windlass_lookup::protocol::{ENTRIES_A_LINE_MAX, FromPlugin, IPS_MAX, ToPlugin, VNI_MAX};
use windlass_lookup::table::{ENTRIES_MAX, Table};

/// Takes bytes as a plugin's stream, in pieces that the first byte chooses, and as a file: nothing panics, what is taken is within its
/// limits and survives its own encoding, and the table tells just its differences.
pub fn check(data: &[u8]) {
    let Some((first, data)) = data.split_first() else {
        return;
    };
    let mut lines = Lines::default();
    let mut table = Table::default();
    table.set_vnis([0, 23, VNI_MAX]);
    let mut mirror = std::collections::BTreeMap::new();
    'all: for piece in data.chunks(usize::from(*first).max(1)) {
        lines.feed(piece);
        loop {
            match lines.next_line() {
                Ok(Some(line)) => take(line, &mut table),
                Ok(None) => break,
                Err(error) => {
                    assert_eq!(error, LineError::TooLong);
                    break 'all;
                }
            }
        }
        while let Some((vni, changes)) = table.take_changes(3) {
            for (mac, record) in changes {
                match record {
                    Some(record) => mirror.insert((vni, mac), record),
                    None => mirror.remove(&(vni, mac)),
                };
            }
        }
    }
    assert_eq!(mirror.len(), table.len());
    for ((vni, mac), record) in &mirror {
        assert_eq!(table.get(*vni, *mac), Some(&**record));
    }
    if let Ok(endpoints) = files::parse(data) {
        assert!(endpoints.len() <= ENTRIES_MAX);
        assert!(endpoints.values().all(|record| record.target.port() != 0));
    }
}

fn take(line: &[u8], table: &mut Table) {
    assert!(line.len() < LINE_BYTES_MAX);
    if let Ok(message) = decode::<ToPlugin>(line)
        && let Ok(again) = encode(&message)
    {
        assert_eq!(decode(&again), Ok(message));
    }
    let Ok(message) = decode::<FromPlugin>(line) else {
        return;
    };
    if let Ok(again) = encode(&message) {
        assert_eq!(decode(&again), Ok(message.clone()));
    }
    // Refusals leave the table whole; that is looked at behind.
    match message {
        FromPlugin::Push { entries, .. } => {
            assert!(entries.len() <= ENTRIES_A_LINE_MAX);
            for entry in entries {
                assert!(entry.vni <= VNI_MAX && entry.ips.len() <= IPS_MAX);
                let _ = table.push(entry);
            }
        }
        FromPlugin::Withdraw { entries, .. } => {
            for entry in &entries {
                let _ = table.withdraw(entry);
            }
        }
        FromPlugin::SyncBegin { vni, .. } => drop(table.sync_begin(vni)),
        FromPlugin::SyncEnd { vni, .. } => drop(table.sync_end(vni)),
        _ => {}
    }
}
