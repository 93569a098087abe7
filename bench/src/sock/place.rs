//! Where a program listens, and a connected stream of either kind.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// A server has this long to listen.
const LISTENS_WITHIN: Duration = Duration::from_secs(10);

/// An address: `127.0.0.1:7000`, or a path with a slash for a Unix stream socket.
#[derive(Clone, Debug)]
pub enum Place {
    /// TCP over IPv4 or IPv6.
    Tcp(SocketAddr),
    /// A Unix stream socket.
    Unix(PathBuf),
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Place, String> {
        if text.contains('/') {
            return Ok(Place::Unix(text.into()));
        }
        text.parse()
            .map(Place::Tcp)
            .map_err(|error| format!("neither an address with a port nor a path: {error}"))
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Tcp(address) => address.fmt(f),
            Place::Unix(path) => path.display().fmt(f),
        }
    }
}

/// What accepts.
pub enum Listener {
    /// TCP.
    Tcp(TcpListener),
    /// A Unix stream socket.
    Unix(UnixListener),
}

impl Listener {
    /// Listens.
    ///
    /// # Errors
    /// If the place is taken.
    pub fn bind(place: &Place) -> Result<Listener> {
        Ok(match place {
            Place::Tcp(address) => Listener::Tcp(TcpListener::bind(address)?),
            Place::Unix(path) => Listener::Unix(UnixListener::bind(path)?),
        })
    }

    /// Waits for a connection; it sends small messages at once.
    ///
    /// # Errors
    /// If the descriptors are used up.
    pub fn accept(&self) -> Result<Stream> {
        Ok(match self {
            Listener::Tcp(listener) => Stream::Tcp(without_delay(listener.accept()?.0)?),
            Listener::Unix(listener) => Stream::Unix(listener.accept()?.0),
        })
    }
}

/// A connection.
pub enum Stream {
    /// TCP.
    Tcp(TcpStream),
    /// A Unix stream socket.
    Unix(UnixStream),
}

fn without_delay(stream: TcpStream) -> io::Result<TcpStream> {
    stream.set_nodelay(true)?;
    Ok(stream)
}

impl Stream {
    /// Connects as soon as somebody listens; it sends small messages at once.
    ///
    /// # Errors
    /// If nobody does for ten seconds.
    pub fn connect(place: &Place) -> Result<Stream> {
        let begun = Instant::now();
        loop {
            let made = match place {
                Place::Tcp(address) => TcpStream::connect(address)
                    .and_then(without_delay)
                    .map(Stream::Tcp),
                Place::Unix(path) => UnixStream::connect(path).map(Stream::Unix),
            };
            match made {
                Err(_) if begun.elapsed() < LISTENS_WITHIN => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                made => return made.with_context(|| format!("nobody listens at {place}")),
            }
        }
    }

    /// Whether calls wait.
    ///
    /// # Errors
    /// None that is known.
    pub fn set_nonblocking(&self, on: bool) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.set_nonblocking(on),
            Stream::Unix(stream) => stream.set_nonblocking(on),
        }
    }

    /// Tries again without a pause until it is not refused for want of bytes or room.
    #[inline]
    fn spin(mut attempt: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
        loop {
            match attempt() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return done,
            }
        }
    }

    /// One receive, tried until something came; 0 at the end of the stream.
    ///
    /// # Errors
    /// If the connection is broken.
    #[inline]
    pub fn take(&mut self, into: &mut [u8]) -> io::Result<usize> {
        Stream::spin(|| self.read(into))
    }

    /// One send, tried until something went.
    ///
    /// # Errors
    /// If the connection is broken.
    #[inline]
    pub fn give(&mut self, from: &[u8]) -> io::Result<usize> {
        Stream::spin(|| self.write(from))
    }

    /// Receives until `into` is full; false if the stream ended before its first byte.
    ///
    /// # Errors
    /// If it ended later, or is broken.
    #[inline]
    pub fn take_all(&mut self, into: &mut [u8]) -> io::Result<bool> {
        let mut done = 0;
        while done < into.len() {
            match self.take(&mut into[done..])? {
                0 if done == 0 => return Ok(false),
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                more => done += more,
            }
        }
        Ok(true)
    }

    /// Sends all of `from`.
    ///
    /// # Errors
    /// If the connection is broken.
    #[inline]
    pub fn give_all(&mut self, from: &[u8]) -> io::Result<()> {
        let mut done = 0;
        while done < from.len() {
            done += self.give(&from[done..])?;
        }
        Ok(())
    }
}

impl Read for Stream {
    #[inline]
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.read(into),
            Stream::Unix(stream) => stream.read(into),
        }
    }
}

impl Write for Stream {
    #[inline]
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.write(from),
            Stream::Unix(stream) => stream.write(from),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Stream::Tcp(stream) => stream.as_fd(),
            Stream::Unix(stream) => stream.as_fd(),
        }
    }
}
