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

/// Bytes of one receive, at most.
const BUFFER_BYTES: usize = 16 * 1024;

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

/// What is asked of memcached, and the answer. Made before the measurement: the generator is to cost little beside memcached.
struct Exchange {
    request: Vec<u8>,
    answer: Vec<u8>,
}

/// The exchanges about one key, whose value is its number, over and over, so that an answer can be judged.
struct Key {
    get: Exchange,
    set: Exchange,
}

impl Key {
    fn new(key: u64, size: usize) -> Self {
        let text = format!("{key:010}");
        let value: String = text.chars().cycle().take(size).collect();
        let exchange = |request: String, answer: String| Exchange {
            request: request.into(),
            answer: answer.into(),
        };
        Self {
            get: exchange(
                format!("get k{key}\r\n"),
                format!("VALUE k{key} 0 {size}\r\n{value}\r\nEND\r\n"),
            ),
            set: exchange(
                format!("set k{key} 0 0 {size}\r\n{value}\r\n"),
                "STORED\r\n".into(),
            ),
        }
    }
}

/// A connection, and how much of the answer to its last request has come.
struct Client<'k> {
    stream: Stream,
    asked: &'k Exchange,
    heard: usize,
}

impl<'k> Client<'k> {
    fn ask(&mut self, turn: u64, keys: &'k [Key]) -> Result<()> {
        let key = &keys[(turn.wrapping_mul(0x9e37_79b9) % keys.len() as u64) as usize];
        let stores = turn.is_multiple_of(SET_EVERY);
        self.asked = if stores { &key.set } else { &key.get };
        self.heard = 0;
        Ok(self.stream.give_all(&self.asked.request)?)
    }

    /// One receive; whether the answer is complete.
    fn hear(&mut self, buffer: &mut [u8]) -> Result<bool> {
        let got = self.stream.read(buffer)?;
        let rest = &self.asked.answer[self.heard..];
        if got == 0 || !rest.starts_with(&buffer[..got]) {
            let got = String::from_utf8_lossy(&buffer[..got]);
            bail!("memcached answered {got:?}");
        }
        self.heard += got;
        Ok(got == rest.len())
    }
}

/// Fills memcached, then measures, and prints one line of JSON.
///
/// # Errors
/// If an answer is wrong.
pub fn run(options: &Options) -> Result<()> {
    let set = NamedEpoll::create()?;
    let keys: Vec<_> = (0..options.keys)
        .map(|key| Key::new(key, options.size))
        .collect();
    let Some(first) = keys.first() else {
        bail!("at least one key is needed");
    };
    let mut clients = Vec::new();
    for token in 0..options.clients {
        let stream = Stream::connect(&options.at)?;
        set.add(&stream, token as u64)?;
        clients.push(Client {
            stream,
            asked: &first.set,
            heard: 0,
        });
    }
    let Some(first) = clients.first_mut() else {
        bail!("at least one client is needed");
    };
    for key in &keys {
        first.stream.give_all(&key.set.request)?;
        let mut answer = [0; 8];
        first.stream.take_all(&mut answer)?;
        if answer != *key.set.answer {
            bail!("memcached does not store");
        }
    }
    measure(options, &set, &mut clients, &keys)
}

fn measure<'k>(
    options: &Options,
    set: &NamedEpoll,
    clients: &mut [Client<'k>],
    keys: &'k [Key],
) -> Result<()> {
    let hz = tsc::Clock::get().hz() as f64;
    let measured_from = tsc::now() + (WARM_UP_S * hz) as u64;
    let end = measured_from + (options.seconds * hz) as u64;
    let (mut turn, mut buffer) = (0, vec![0; BUFFER_BYTES]);
    for client in clients.iter_mut() {
        client.ask(turn, keys)?;
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
            if client.hear(&mut buffer)? {
                requests += 1;
                client.ask(turn, keys)?;
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
