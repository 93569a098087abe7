//! UDP: which socket the kernel gives a datagram to.
//!
//! # Model
//! Two names say little of a UDP socket: several sockets may have the same ones (`SO_REUSEADDR`, `SO_REUSEPORT`). sock_diag(7)
//! looks a socket up as the kernel itself does for a datagram that arrives, and tells its cookie: so the receiver of what a
//! connected socket sends is known exactly, for as long as both stay as they are. Translation of addresses is not seen by it.

use std::net::{IpAddr, SocketAddr};

use crate::diag::{self, BY_FAMILY, HEADER_BYTES};

/// Bytes of a question with `inet_diag_req_v2`: linux/inet_diag.h.
const REQUEST_BYTES: usize = HEADER_BYTES + 56;
/// Where `inet_diag_sockid` stands in a request and in an answer, and its cookie in it.
const ID_AT: usize = HEADER_BYTES + 8;
const ANSWER_ID_AT: usize = HEADER_BYTES + 4;
const COOKIE_AT: usize = 40;
/// Room for an answer with its attributes.
const ANSWER_BYTES: usize = 512;

/// The `SO_COOKIE` of the socket that gets a datagram from `from` to `to`, in the network namespace of the calling thread. None
/// where there is none, or the kernel does not tell.
pub fn receiver(from: SocketAddr, to: SocketAddr) -> Option<u64> {
    let mut answer = [0_u8; ANSWER_BYTES];
    cookie_in(diag::ask(&request(from, to), &mut answer)?)
}

/// What asks for the receiver of a datagram: the sender is the source.
fn request(from: SocketAddr, to: SocketAddr) -> [u8; REQUEST_BYTES] {
    let (from_ip, to_ip) = (from.ip().to_canonical(), to.ip().to_canonical());
    let family = match from_ip {
        IpAddr::V4(_) => libc::AF_INET,
        IpAddr::V6(_) => libc::AF_INET6,
    };
    let mut bytes = diag::question(family, libc::IPPROTO_UDP);
    diag::put(&mut bytes, ID_AT, &from.port().to_be_bytes());
    diag::put(&mut bytes, ID_AT + 2, &to.port().to_be_bytes());
    for (at, ip) in [(ID_AT + 4, from_ip), (ID_AT + 20, to_ip)] {
        match ip {
            IpAddr::V4(ip) => diag::put(&mut bytes, at, &ip.octets()),
            IpAddr::V6(ip) => diag::put(&mut bytes, at, &ip.octets()),
        }
    }
    // No cookie is asked for.
    diag::put(&mut bytes, ID_AT + COOKIE_AT, &u64::MAX.to_ne_bytes());
    bytes
}

/// The cookie in an answer.
fn cookie_in(answer: &[u8]) -> Option<u64> {
    let kind = u16::from_ne_bytes(*answer.get(4..)?.first_chunk()?);
    let half = |at: usize| Some(u32::from_ne_bytes(*answer.get(at..)?.first_chunk()?));
    let at = ANSWER_ID_AT + COOKIE_AT;
    let (low, high) = (half(at)?, half(at + 4)?);
    (kind == BY_FAMILY).then_some(u64::from(low) | u64::from(high) << 32)
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;
    use crate::diag::cookie;

    /// Of two sockets that are connected to each other each is the receiver of the other, also over IPv6 and with an IPv4
    /// address in IPv6's form; a socket that was closed is nobody's.
    #[test]
    fn the_kernel_tells_the_receiver() {
        for any in ["127.0.0.1:0", "[::1]:0"] {
            let (Ok(a), Ok(b)) = (UdpSocket::bind(any), UdpSocket::bind(any)) else {
                println!("skipped: the_kernel_tells_the_receiver: no {any} here");
                continue;
            };
            let [own, peer] = [&a, &b].map(|socket| socket.local_addr().unwrap());
            a.connect(peer).unwrap();
            b.connect(own).unwrap();
            if receiver(own, peer).is_none() {
                println!(
                    "skipped: the_kernel_tells_the_receiver: no sock_diag of UDP sockets here"
                );
                return;
            }
            assert_eq!(receiver(own, peer), Some(cookie(&b)));
            assert_eq!(receiver(peer, own), Some(cookie(&a)));
            let other = SocketAddr::new(own.ip(), own.port() ^ 1);
            assert_ne!(receiver(other, peer), Some(cookie(&b)));
            drop(b);
            assert_eq!(receiver(own, peer), None);
        }
    }

    /// Answers of every length and content end the search.
    #[test]
    fn odd_answers_name_nobody() {
        let answer = [0_u8; 128];
        for length in 0..answer.len() {
            assert_eq!(cookie_in(&answer[..length]), None);
        }
    }
}
