//! DHCPv4 (RFC 2131, RFC 2132) and DHCPv6 (RFC 8415) as bytes: what the guard and the learner read.

/// UDP ports of DHCPv4 (RFC 2131, section 4.1).
pub(crate) const SERVER: u16 = 67;
pub(crate) const CLIENT: u16 = 68;
/// UDP ports of DHCPv6 (RFC 8415, section 7.2).
pub(crate) const CLIENT6: u16 = 546;
pub(crate) const SERVER6: u16 = 547;
/// Operations of BOOTP (RFC 951).
pub(crate) const REQUEST: u8 = 1;
pub(crate) const REPLY: u8 = 2;
/// Hardware type, and type of client identifiers: an Ethernet address (RFC 2132, section 9.14).
pub(crate) const ETHERNET: u8 = 1;
/// Where options begin (RFC 2132, section 2).
pub(crate) const COOKIE: [u8; 4] = [99, 130, 83, 99];

/// Options of DHCPv4.
pub(crate) mod code4 {
    pub(crate) const REQUESTED: u8 = 50;
    pub(crate) const LEASE_TIME: u8 = 51;
    pub(crate) const OVERLOAD: u8 = 52;
    pub(crate) const TYPE: u8 = 53;
    pub(crate) const CLIENT_ID: u8 = 61;
    /// RFC 4039.
    pub(crate) const RAPID_COMMIT: u8 = 80;
}

/// Options of DHCPv6 (RFC 8415, section 21).
pub(crate) mod code6 {
    pub(crate) const CLIENT_ID: u16 = 1;
    pub(crate) const IA_NA: u16 = 3;
    pub(crate) const IA_TA: u16 = 4;
    pub(crate) const IA_ADDRESS: u16 = 5;
    pub(crate) const RAPID_COMMIT: u16 = 14;
    pub(crate) const IA_PD: u16 = 25;
    pub(crate) const IA_PREFIX: u16 = 26;
}

/// Options end in the middle of one, or say of what nobody can be sure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

/// The options of DHCPv4 in a field, each with its code, up to the end mark. Behind [`Malformed`] there is nothing.
pub(crate) struct Options4<'a>(pub(crate) &'a [u8]);

impl<'a> Iterator for Options4<'a> {
    type Item = Result<(u8, &'a [u8]), Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match *self.0 {
                [] | [255, ..] => return None,
                [0, ref rest @ ..] => self.0 = rest,
                [code, ref rest @ ..] => {
                    let option = rest
                        .split_first()
                        .and_then(|(size, rest)| rest.split_at_checked(usize::from(*size)));
                    self.0 = option.map_or(&[], |(_, rest)| rest);
                    return Some(option.map(|(value, _)| (code, value)).ok_or(Malformed));
                }
            }
        }
    }
}

/// Options of DHCPv6, each with its code. Behind [`Malformed`] there is nothing.
pub(crate) struct Options6<'a>(pub(crate) &'a [u8]);

impl<'a> Iterator for Options6<'a> {
    type Item = Result<(u16, &'a [u8]), Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let option = self.0.split_first_chunk().and_then(|(head, rest)| {
            let &[c0, c1, s0, s1] = head;
            let size = u16::from_be_bytes([s0, s1]);
            let (value, rest) = rest.split_at_checked(size.into())?;
            Some((u16::from_be_bytes([c0, c1]), value, rest))
        });
        self.0 = option.map_or(&[], |(_, _, rest)| rest);
        Some(
            option
                .map(|(code, value, _)| (code, value))
                .ok_or(Malformed),
        )
    }
}
