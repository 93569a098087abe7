//! Values as bytes, field after field: jobs, their answers, and rows of listings.
//!
//! # Model
//! A type names its fields once, with `plain!`; integers are little-endian, each in its own length. What is read was written by
//! another process: every length is checked, and no bytes mean anything but a value of the type.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use windlass_channel::Reason;

/// A value that is written as bytes and read again.
pub trait Plain: Sized {
    /// Adds its bytes.
    fn put(&self, to: &mut Vec<u8>);

    /// Takes its bytes from the front; `None` if they are not all there.
    fn take(from: &mut &[u8]) -> Option<Self>;

    /// Its bytes.
    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.put(&mut bytes);
        bytes
    }

    /// The value of these bytes, if they are one to the last.
    fn of_bytes(mut bytes: &[u8]) -> Option<Self> {
        let value = Self::take(&mut bytes)?;
        bytes.is_empty().then_some(value)
    }
}

/// The fields of a type that are its bytes, in this order.
#[macro_export]
macro_rules! plain {
    ($type:ty: $($field:ident),+ $(,)?) => {
        impl $crate::plain::Plain for $type {
            fn put(&self, to: &mut Vec<u8>) {
                $($crate::plain::Plain::put(&self.$field, to);)+
            }

            fn take(from: &mut &[u8]) -> Option<Self> {
                Some(Self { $($field: $crate::plain::Plain::take(from)?,)+ })
            }
        }
    };
}
macro_rules! integers {
    ($($type:ty),+) => {$(
        impl Plain for $type {
            fn put(&self, to: &mut Vec<u8>) {
                to.extend_from_slice(&self.to_le_bytes());
            }

            fn take(from: &mut &[u8]) -> Option<Self> {
                let (bytes, rest) = from.split_first_chunk()?;
                *from = rest;
                Some(Self::from_le_bytes(*bytes))
            }
        }
    )+};
}
integers!(u8, u16, u32, u64, u128, i32);

/// A type that is written as another one.
macro_rules! by_way {
    ($($type:ty as $other:ty: $to:expr, $from:expr);+ $(;)?) => {$(
        impl Plain for $type {
            fn put(&self, to: &mut Vec<u8>) {
                let other: fn(&$type) -> $other = $to;
                other(self).put(to);
            }

            fn take(from: &mut &[u8]) -> Option<Self> {
                let own: fn($other) -> $type = $from;
                Some(own(<$other>::take(from)?))
            }
        }
    )+};
}
by_way! {
    bool as u8: |it| u8::from(*it), |byte| byte != 0;
    Reason as u8: |it| *it as u8, Reason::from_u8;
    SocketAddr as (u128, u16): |it| (address_bits(it.ip()), it.port()),
        |(bits, port)| SocketAddr::new(IpAddr::V6(Ipv6Addr::from_bits(bits)).to_canonical(), port);
}

/// An address as one of IPv6.
pub fn address_bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

impl<A: Plain, B: Plain> Plain for (A, B) {
    fn put(&self, to: &mut Vec<u8>) {
        self.0.put(to);
        self.1.put(to);
    }

    fn take(from: &mut &[u8]) -> Option<Self> {
        Some((A::take(from)?, B::take(from)?))
    }
}

impl<T: Plain, const N: usize> Plain for [T; N] {
    fn put(&self, to: &mut Vec<u8>) {
        self.iter().for_each(|one| one.put(to));
    }

    fn take(from: &mut &[u8]) -> Option<Self> {
        let all: Option<Vec<T>> = (0..N).map(|_| T::take(from)).collect();
        all?.try_into().ok()
    }
}

impl<T: Plain> Plain for Option<T> {
    fn put(&self, to: &mut Vec<u8>) {
        self.is_some().put(to);
        self.iter().for_each(|one| one.put(to));
    }

    fn take(from: &mut &[u8]) -> Option<Self> {
        let is_there = bool::take(from)?;
        Some(if is_there { Some(T::take(from)?) } else { None })
    }
}

impl<T: Plain> Plain for Result<T, Reason> {
    fn put(&self, to: &mut Vec<u8>) {
        self.as_ref().err().copied().put(to);
        self.iter().for_each(|one| one.put(to));
    }

    fn take(from: &mut &[u8]) -> Option<Self> {
        let refused: Option<Reason> = Plain::take(from)?;
        Some(match refused {
            Some(reason) => Err(reason),
            None => Ok(T::take(from)?),
        })
    }
}
