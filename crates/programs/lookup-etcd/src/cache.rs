//! The copy on disk of what is known, with which a host starts while etcd is down.
//!
//! # Model
//! Lines of JSON: whose it is, then each scope with its revision, each followed by its records; at the end the sum (FNV-1a, 64 bits) of
//! all bytes before. It is written beside the old one and renamed. A copy that is cut off, changed or another host's is not read: the
//! host starts with nothing.

use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::engine::Engine;
use crate::registry::{Kv, Scope};

/// Bytes of a copy that is read.
const BYTES_MAX: u64 = 256 << 20;
const VERSION: u32 = 1;
const SUM_START: u64 = 0xcbf2_9ce4_8422_2325;

#[derive(Serialize, Deserialize)]
enum Line {
    Of {
        version: u32,
        cluster_name: String,
        host: String,
        cluster: u64,
    },
    Hosts(i64),
    Endpoints(u32, i64),
    Flood(u32, i64),
    Record {
        key: String,
        revision: i64,
        value: String,
    },
}

fn sum(mut sum: u64, bytes: &[u8]) -> u64 {
    for byte in bytes {
        sum = (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    }
    sum
}

struct Summed<W> {
    to: W,
    sum: u64,
}

impl<W: Write> Summed<W> {
    fn line(&mut self, line: &Line) -> io::Result<()> {
        let mut bytes = serde_json::to_vec(line)?;
        bytes.push(b'\n');
        self.sum = sum(self.sum, &bytes);
        self.to.write_all(&bytes)
    }
}

/// Where a host's copy is.
#[must_use]
pub fn path(directory: &Path, cluster: &str, host: &str) -> PathBuf {
    directory.join(format!("{cluster}+{host}.cache"))
}

/// Writes what an engine knows.
///
/// # Errors
/// The file system's. The old copy is there still.
pub fn save(engine: &Engine, path: &Path) -> io::Result<()> {
    let beside = path.with_extension("part");
    let mut out = Summed {
        to: BufWriter::new(File::create(&beside)?),
        sum: SUM_START,
    };
    let (cluster_name, host, cluster) = engine.identity();
    out.line(&Line::Of {
        version: VERSION,
        cluster_name: cluster_name.to_owned(),
        host: host.to_owned(),
        cluster,
    })?;
    for (scope, revision) in engine.kept() {
        let line = match scope {
            Scope::Hosts => Line::Hosts(revision),
            Scope::Endpoints(vni) => Line::Endpoints(vni, revision),
            Scope::Flood(vni) => Line::Flood(vni, revision),
            Scope::Alive | Scope::Addresses(_) | Scope::Blocks | Scope::All => continue,
        };
        out.line(&line)?;
        for kv in engine.records(scope) {
            out.line(&Line::Record {
                key: kv.key,
                revision: kv.mod_revision,
                value: String::from_utf8_lossy(&kv.value).into_owned(),
            })?;
        }
    }
    writeln!(out.to, "{:016x}", out.sum)?;
    out.to.into_inner()?.sync_data()?;
    fs::rename(&beside, path)
}

/// Gives an engine what its host knew. Returns whether there was a copy.
///
/// # Errors
/// Why the copy is of no use, or the file system's.
pub fn load(engine: &mut Engine, path: &Path) -> io::Result<bool> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    let mut text = String::new();
    file.take(BYTES_MAX).read_to_string(&mut text)?;
    let bad = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
    let body = text
        .strip_suffix('\n')
        .and_then(|text| Some(text.rfind('\n')? + 1));
    let (body, end) = text.split_at(body.ok_or_else(|| bad("it is cut off"))?);
    let is_whole = u64::from_str_radix(end.trim_end(), 16) == Ok(sum(SUM_START, body.as_bytes()));
    if !is_whole {
        return Err(bad("its sum is wrong"));
    }
    let mut lines = body.lines().map(serde_json::from_str::<Line>);
    let (cluster_name, host, _) = engine.identity();
    match lines.next().transpose()? {
        Some(Line::Of {
            version: VERSION,
            cluster_name: of,
            host: by,
            cluster,
        }) if of == cluster_name && by == host => engine.restore_cluster(cluster),
        _ => return Err(bad("it is of another host, cluster or version")),
    }
    let mut scope = None;
    for line in lines {
        scope = match (line?, scope) {
            (Line::Hosts(revision), _) => Some((Scope::Hosts, revision)),
            (Line::Endpoints(vni, revision), _) => Some((Scope::Endpoints(vni), revision)),
            (Line::Flood(vni, revision), _) => Some((Scope::Flood(vni), revision)),
            (
                Line::Record {
                    key,
                    revision,
                    value,
                },
                Some((of, at)),
            ) => {
                let kv = Kv {
                    key,
                    value: value.into_bytes(),
                    mod_revision: revision,
                };
                engine.restore(of, at, Some(kv));
                Some((of, at))
            }
            _ => return Err(bad("its lines are out of order")),
        };
        if let Some((of, at)) = scope {
            engine.restore(of, at, None);
        }
    }
    Ok(true)
}
