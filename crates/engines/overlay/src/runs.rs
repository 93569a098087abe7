//! Which datagrams leave in one message.
//!
//! # Model
//! A *run* is what `UDP_SEGMENT` can send at once: datagrams of one length, of which the last may be shorter, with one TOS. The
//! cost of a send is that of its messages, so runs are as long as the kernel takes them.

/// Datagrams of a run at most: what kernels before 6.9 take.
pub const DATAGRAMS_MAX: usize = 64;
/// Bytes of a run at most: a UDP payload over IPv4.
pub const BYTES_MAX: usize = 65_507;
/// Pieces of memory of a run at most (`UIO_MAXIOV`).
pub const PIECES_MAX: usize = 1024;

/// What matters of one datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// Bytes of its payload.
    pub len: u16,
    /// The TOS of its outer header.
    pub tos: u8,
    /// Pieces of memory that it is made of.
    pub pieces: u16,
}

/// How many of the datagrams, from the first, make one run. At least 1 where there are any, at most `most`.
pub fn first_run(datagrams: &[Datagram], most: usize) -> usize {
    let Some(first) = datagrams.first() else {
        return 0;
    };
    let (mut bytes, mut pieces) = (usize::from(first.len), usize::from(first.pieces));
    let mut count = 1_usize;
    for next in datagrams
        .iter()
        .skip(1)
        .take(most.min(DATAGRAMS_MAX).saturating_sub(1))
    {
        bytes = bytes.saturating_add(next.len.into());
        pieces = pieces.saturating_add(next.pieces.into());
        let fits = bytes <= BYTES_MAX && pieces <= PIECES_MAX;
        if next.tos != first.tos || next.len > first.len || !fits {
            break;
        }
        count = count.saturating_add(1);
        if next.len < first.len {
            break;
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    fn datagrams(lens: &[u16]) -> Vec<Datagram> {
        let datagram = |len: &u16| Datagram {
            len: *len,
            tos: 0,
            pieces: 2,
        };
        lens.iter().map(datagram).collect()
    }

    /// A run ends behind a shorter datagram, before a longer one or one of another TOS, and at each limit.
    #[test]
    fn runs_end_where_they_must() {
        let run = |lens: &[u16]| first_run(&datagrams(lens), DATAGRAMS_MAX);
        assert_eq!(run(&[]), 0);
        assert_eq!(run(&[9]), 1);
        assert_eq!(run(&[9, 9, 9]), 3);
        assert_eq!(run(&[9, 9, 8, 9]), 3);
        assert_eq!(run(&[9, 9, 8, 8]), 3);
        assert_eq!(run(&[9, 10]), 1);
        assert_eq!(run(&[72; 200]), DATAGRAMS_MAX);
        assert_eq!(run(&[1500; 64]), 43);
        assert_eq!(run(&[60_000, 60_000]), 1);
        assert_eq!(first_run(&datagrams(&[9; 9]), 1), 1);
        let mut other = datagrams(&[9; 4]);
        other[2].tos = 1;
        assert_eq!(first_run(&other, DATAGRAMS_MAX), 2);
        other[1].pieces = 1024;
        assert_eq!(first_run(&other, DATAGRAMS_MAX), 1);
    }
}
