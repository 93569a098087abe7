//! A load for memcached: one thread, several connections, one request each on the way (ten gets to one set).

use std::io::{Read, Write};

use anyhow::{Result, bail};
use clap::Parser;
use serde::Serialize;
use windlass_sync::tsc;
use windlass_sys::named::{NamedEpoll, READY_MAX};

use super::place::{Place, Stream};

/// Seconds before requests count.
const WARM_UP_S: f64 = 0.2;

/// One request in this many stores.
const SET_EVERY: u64 = 11;

/// Puts memcached under load: as many requests at once as there are connections
#[derive(Parser, Debug)]
pub struct Options {
    /// Address and port, or the path of a Unix socket
    #[arg(long)]
    at: Place,
    /// Connections
    #[arg(long, default_value_t = 16)]
    clients: usize,
    /// Bytes of a value
    #[arg(long, default_value_t = 100)]
    size: usize,
    /// Keys in use
    #[arg(long, default_value_t = 1000)]
    keys: u64,
    /// Measured seconds
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
}

/// What was measured.
#[derive(Serialize)]
struct Report {
    requests: u64,
    requests_per_second: f64,
}

/// A connection with what was asked last and what came of the answer.
struct Client {
    stream: Stream,
    wanted: Vec<u8>,
    got: Vec<u8>,
}

/// The value of a key is its number, over and over, so that an answer can be judged.
fn value(key: u64, size: usize) -> String {
    let text = format!("{key:010}");
    text.chars().cycle().take(size).collect()
}

impl Client {
    fn ask(&mut self, turn: u64, options: &Options) -> Result<()> {
        let key = turn.wrapping_mul(0x9e37_79b9) % options.keys;
        let size = options.size;
        let stores = turn.is_multiple_of(SET_EVERY);
        let request = if stores {
            format!("set k{key} 0 0 {size}\r\n{}\r\n", value(key, size))
        } else {
            format!("get k{key}\r\n")
        };
        self.wanted.clear();
        self.got.clear();
        if stores {
            self.wanted.extend(b"STORED\r\n");
        } else {
            write!(
                self.wanted,
                "VALUE k{key} 0 {size}\r\n{}\r\nEND\r\n",
                value(key, size)
            )?;
        }
        Ok(self.stream.give_all(request.as_bytes())?)
    }

    /// One receive; whether the answer is complete.
    fn hear(&mut self) -> Result<bool> {
        let mut buffer = [0; 16 * 1024];
        let got = self.stream.read(&mut buffer)?;
        self.got.extend(&buffer[..got]);
        if got == 0 || !self.wanted.starts_with(&self.got) {
            let got = String::from_utf8_lossy(&self.got);
            bail!("memcached answered {got:?}");
        }
        Ok(self.got.len() == self.wanted.len())
    }
}

/// Fills memcached, then measures, and prints one line of JSON.
///
/// # Errors
/// If an answer is wrong.
pub fn run(options: &Options) -> Result<()> {
    let set = NamedEpoll::create()?;
    let mut clients = Vec::new();
    for token in 0..options.clients {
        let stream = Stream::connect(&options.at)?;
        set.add(&stream, token as u64)?;
        clients.push(Client {
            stream,
            wanted: Vec::new(),
            got: Vec::new(),
        });
    }
    let Some(first) = clients.first_mut() else {
        bail!("at least one client is needed");
    };
    for key in 0..options.keys {
        let size = options.size;
        let request = format!("set k{key} 0 0 {size}\r\n{}\r\n", value(key, size));
        first.stream.give_all(request.as_bytes())?;
        let mut answer = [0; 8];
        first.stream.take_all(&mut answer)?;
        if answer != *b"STORED\r\n" {
            bail!("memcached does not store");
        }
    }
    measure(options, &set, &mut clients)
}

fn measure(options: &Options, set: &NamedEpoll, clients: &mut [Client]) -> Result<()> {
    let hz = tsc::Clock::get().hz() as f64;
    let measured_from = tsc::now() + (WARM_UP_S * hz) as u64;
    let end = measured_from + (options.seconds * hz) as u64;
    let mut turn = 0;
    for client in clients.iter_mut() {
        client.ask(turn, options)?;
        turn += 1;
    }
    let (mut requests, mut begun) = (0, measured_from);
    let mut tokens = [0; READY_MAX];
    let now = loop {
        let count = set.wait(&mut tokens)?;
        let now = tsc::now();
        if now >= end {
            break now;
        }
        if now < measured_from {
            (requests, begun) = (0, now);
        }
        for token in &tokens[..count] {
            let client = &mut clients[*token as usize];
            if client.hear()? {
                requests += 1;
                client.ask(turn, options)?;
                turn += 1;
            }
        }
    };
    let report = Report {
        requests,
        requests_per_second: requests as f64 * hz / (now - begun) as f64,
    };
    writeln!(std::io::stdout(), "{}", serde_json::to_string(&report)?)?;
    Ok(())
}
