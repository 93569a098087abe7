//! What a call costs with the library loaded, against the bare kernel, on descriptors that it does not
//! accelerate; and what starting a program costs.
//!
//! `cargo run --release -p windlass-preload --example cost [ROUNDS]`: runs itself with and without
//! the library in turns, and prints the median of the rounds with their spread, and by how much the best
//! round with the library is slower than the best without: what else runs on the machine only ever adds.

use std::ffi::c_int;
use std::io::{self, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

/// Calls of each kind in one round.
const CALLS: u32 = 40_000;
/// Starts of `true` in one round.
const STARTS: u32 = 40;

fn time(name: &str, calls: u32, mut call: impl FnMut()) {
    for _ in 0..calls / 10 {
        call();
    }
    let begin = Instant::now();
    for _ in 0..calls {
        call();
    }
    println!(
        "{name}\t{:.1}",
        begin.elapsed().as_nanos() as f64 / f64::from(calls)
    );
}

fn send(fd: c_int, bytes: &[u8]) {
    // SAFETY: reads the slice.
    unsafe { libc::send(fd, bytes.as_ptr().cast(), bytes.len(), 0) };
}

fn recv(fd: c_int, bytes: &mut [u8]) {
    // SAFETY: writes the slice.
    unsafe {
        libc::recv(
            fd,
            bytes.as_mut_ptr().cast(),
            bytes.len(),
            libc::MSG_DONTWAIT,
        )
    };
}

fn read(fd: c_int, bytes: &mut [u8]) {
    // SAFETY: writes the slice.
    unsafe { libc::read(fd, bytes.as_mut_ptr().cast(), bytes.len()) };
}

fn poll(set: &mut [libc::pollfd]) {
    // SAFETY: writes the slice.
    unsafe { libc::poll(set.as_mut_ptr(), set.len() as libc::nfds_t, 0) };
}

fn measure() -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let name = listener.local_addr()?;
    let a = TcpStream::connect(name)?;
    let (b, _) = listener.accept()?;
    let (tcp, peer) = (a.as_raw_fd(), b.as_raw_fd());
    let zero = std::fs::File::open("/dev/zero")?;
    let udp = std::net::UdpSocket::bind("127.0.0.1:0")?;
    let mut bytes = [0u8; 64];

    time("read, no descriptor", CALLS, || read(-1, &mut bytes));
    time("read 64 B of /dev/zero", CALLS, || {
        read(zero.as_raw_fd(), &mut bytes)
    });
    time("recv on an empty UDP socket", CALLS, || {
        recv(udp.as_raw_fd(), &mut bytes)
    });
    time("recv on an empty TCP socket", CALLS, || {
        recv(peer, &mut bytes)
    });
    time("send and recv of 64 B by TCP", CALLS, || {
        send(tcp, &bytes.clone());
        recv(peer, &mut bytes);
    });
    let mut one = [libc::pollfd {
        fd: udp.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    }];
    time("poll of a UDP socket", CALLS, || poll(&mut one));
    let mut one = [libc::pollfd {
        fd: peer,
        events: libc::POLLIN,
        revents: 0,
    }];
    time("poll of a TCP socket", CALLS, || poll(&mut one));
    let mut many = [libc::pollfd {
        fd: zero.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    }; 64];
    time("poll of 64 files", CALLS / 10, || poll(&mut many));
    // SAFETY: takes flags only.
    let set = unsafe { libc::epoll_create1(0) };
    let mut event = libc::epoll_event {
        events: libc::EPOLLIN as u32,
        u64: 0,
    };
    // SAFETY: a live variable.
    unsafe { libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, peer, &mut event) };
    time("epoll_wait, nothing", CALLS, || {
        // SAFETY: a live variable.
        unsafe { libc::epoll_wait(set, &mut event, 1, 0) };
    });
    lives(&listener)
}

/// Descriptors that are made and closed.
fn lives(listener: &TcpListener) -> io::Result<()> {
    let name = listener.local_addr()?;
    time("open and close of /dev/null", CALLS / 4, || {
        let _ = std::fs::File::open("/dev/null");
    });
    time("socket and close", CALLS / 4, || {
        // SAFETY: makes a socket.
        let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0) };
        // SAFETY: made just now.
        unsafe { libc::close(fd) };
    });
    time("connect, accept, 64 B, close", CALLS / 40, || {
        if let (Ok(a), Ok((b, _))) = (TcpStream::connect(name), listener.accept()) {
            send(a.as_raw_fd(), &[1; 64]);
            recv(b.as_raw_fd(), &mut [0; 64]);
        }
    });
    Ok(())
}

fn library() -> io::Result<PathBuf> {
    let here = std::env::current_exe()?;
    let profile = here.ancestors().nth(2).unwrap_or(&here);
    let places = [
        profile.join("libwindlass_sockets.so"),
        profile.join("deps/libwindlass_sockets.so"),
    ];
    places
        .into_iter()
        .find(|place| place.exists())
        .ok_or(io::ErrorKind::NotFound.into())
}

/// One round: `true` started, then the calls; name and nanoseconds of each.
fn round(preload: Option<&PathBuf>) -> io::Result<Vec<(String, f64)>> {
    let prepare = |program: PathBuf| {
        let mut command = Command::new(program);
        if let Some(library) = preload {
            command.env("LD_PRELOAD", library);
        }
        command
    };
    let begin = Instant::now();
    for _ in 0..STARTS {
        prepare("/bin/true".into()).stdout(Stdio::null()).status()?;
    }
    let start = begin.elapsed().as_nanos() as f64 / f64::from(STARTS);
    let mut all = vec![("start of true".to_owned(), start)];
    let output = prepare(std::env::current_exe()?)
        .arg("--measure")
        .output()?;
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        if let Some((name, value)) = line.split_once('\t') {
            all.push((name.to_owned(), value.parse().unwrap_or(f64::NAN)));
        }
    }
    Ok(all)
}

fn main() -> io::Result<()> {
    let argument = std::env::args().nth(1);
    if argument.as_deref() == Some("--measure") {
        return measure();
    }
    let rounds: usize = argument.and_then(|text| text.parse().ok()).unwrap_or(15);
    let library = library()?;
    let mut bare = Vec::new();
    let mut ours = Vec::new();
    for _ in 0..rounds {
        bare.push(round(None)?);
        ours.push(round(Some(&library))?);
    }
    let mut out = io::stdout().lock();
    writeln!(
        out,
        "{:32} {:>24} {:>24} {:>8} {:>7}",
        "ns", "bare", "library", "more", "ratio"
    )?;
    for (index, (name, _)) in bare[0].iter().enumerate() {
        let column = |runs: &[Vec<(String, f64)>]| {
            let mut values: Vec<f64> = runs.iter().map(|run| run[index].1).collect();
            values.sort_by(f64::total_cmp);
            (
                values[0],
                values[values.len() / 2],
                values[values.len() - 1],
            )
        };
        let show =
            |(low, middle, high): (f64, f64, f64)| format!("{middle:.0} ({low:.0}-{high:.0})");
        let (a, b) = (column(&bare), column(&ours));
        let (more, ratio) = (b.0 - a.0, b.0 / a.0);
        writeln!(
            out,
            "{name:32} {:>24} {:>24} {more:>8.1} {ratio:>7.3}",
            show(a),
            show(b)
        )?;
    }
    Ok(())
}
