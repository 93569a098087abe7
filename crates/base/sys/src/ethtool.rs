//! What the driver of an interface has been told: its queues, what it does to frames, and which frames go to which queue
//! (`SIOCETHTOOL`).
//!
//! # Model
//! A rule leads the frames for an address to a queue, or to a context: a table of queues, over which the device spreads them by
//! hash. What no rule is for goes by context 0, the default.

use std::os::fd::AsRawFd;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::vectored::last_errno;

// <linux/ethtool.h>
const ETHTOOL_GFLAGS: u32 = 0x25;
const ETHTOOL_GRXCLSRLCNT: u32 = 0x2e;
const ETHTOOL_GRXCLSRULE: u32 = 0x2f;
const ETHTOOL_GRXCLSRLALL: u32 = 0x30;
const ETHTOOL_SRXCLSRLDEL: u32 = 0x31;
const ETHTOOL_SRXCLSRLINS: u32 = 0x32;
const ETHTOOL_GCHANNELS: u32 = 0x3c;
const ETHTOOL_GRSSH: u32 = 0x46;
const ETHTOOL_SRSSH: u32 = 0x47;
const ETH_RXFH_CONTEXT_ALLOC: u32 = u32::MAX;
const ETHER_FLOW: u32 = 0x12;
const FLOW_RSS: u32 = 0x2000_0000;
/// Cookies from here on name no queue: drop, wake up.
const RX_CLS_FLOW_WAKE: u64 = u64::MAX - 1;
const ETH_FLAG_RXVLAN: u32 = 1 << 8;
const ETH_FLAG_LRO: u32 = 1 << 15;
/// <linux/sockios.h>
const SIOCETHTOOL: u64 = 0x8946;

/// Queues in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queues {
    /// That receive.
    pub receive: u32,
    /// That transmit.
    pub transmit: u32,
}

/// What the driver changes in received frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offloads {
    /// It takes VLAN tags out of them.
    pub strips_vlan: bool,
    /// It merges them (large receive offload).
    pub merges: bool,
}

/// `struct ifreq` with a pointer. The kernel writes all of it back.
#[repr(C)]
struct Request {
    name: [u8; 16],
    data: *mut u32,
    padding: [u64; 2],
}

const _: () = assert!(size_of::<Request>() == size_of::<libc::ifreq>());

/// The words are those of the structure that the command in the first one goes with.
fn ask(name: &str, words: &mut [u32]) -> Result<(), Errno> {
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None)?;
    let mut request = Request {
        name: [0; 16],
        data: words.as_mut_ptr(),
        padding: [0; 2],
    };
    for (to, from) in request.name.iter_mut().take(15).zip(name.bytes()) {
        *to = from;
    }
    // SAFETY: the request has a name and an address, behind which there are as many words as the command in the first of
    // them, with the counts in the others, has the kernel read and write.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &raw mut request) };
    if done < 0 { Err(last_errno()) } else { Ok(()) }
}

/// The queues of an interface of the calling thread's namespace; one each way where the driver does not tell.
///
/// # Errors
/// `ENODEV` without the interface.
pub fn queues(name: &str) -> Result<Queues, Errno> {
    // struct ethtool_channels: command, the most of each kind, how many of each are in use.
    let mut words = [0; 9];
    words[0] = ETHTOOL_GCHANNELS;
    match ask(name, &mut words) {
        Ok(()) => {
            let [_, _, _, _, _, receive, transmit, _, combined] = words;
            Ok(Queues {
                receive: receive.saturating_add(combined).max(1),
                transmit: transmit.saturating_add(combined).max(1),
            })
        }
        Err(Errno::OPNOTSUPP) => Ok(Queues {
            receive: 1,
            transmit: 1,
        }),
        Err(errno) => Err(errno),
    }
}

/// What the driver changes in received frames.
///
/// # Errors
/// `ENODEV` without the interface.
pub fn offloads(name: &str) -> Result<Offloads, Errno> {
    let mut words = [ETHTOOL_GFLAGS, 0];
    match ask(name, &mut words) {
        Ok(()) => Ok(Offloads {
            strips_vlan: words[1] & ETH_FLAG_RXVLAN != 0,
            merges: words[1] & ETH_FLAG_LRO != 0,
        }),
        Err(Errno::OPNOTSUPP) => Ok(Offloads::default()),
        Err(errno) => Err(errno),
    }
}

/// Where a rule leads frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// To this queue.
    Queue(u32),
    /// Over the queues of this context.
    Context(u32),
    /// To none of these.
    Other,
}

/// A rule of an interface's classifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Its place in the table; lower ones come first.
    pub location: u32,
    /// The destination address of its frames; `None`: it asks for something else.
    pub destination: Option<[u8; 6]>,
    /// Where they go.
    pub target: Target,
}

/// `struct ethtool_rxnfc` as words: 192 bytes, and the last of them begin a list of locations.
const RXNFC: usize = 48;
// Where its fields are, in words.
const DATA: usize = 2;
const FLOW_TYPE: usize = 4;
const HEADER: usize = 5;
const MASK: usize = 23;
const COOKIE: usize = 42;
const LOCATION: usize = 44;
const COUNT: usize = 46;
const LOCATIONS: usize = 47;

/// An address as the two words in which it begins, and back.
fn words_of(mac: [u8; 6]) -> [u32; 2] {
    let [a, b, c, d, e, f] = mac;
    [[a, b, c, d], [e, f, 0, 0]].map(u32::from_ne_bytes)
}

fn mac_of(words: [u32; 2]) -> [u8; 6] {
    let [[a, b, c, d], [e, f, ..]] = words.map(u32::to_ne_bytes);
    [a, b, c, d, e, f]
}

/// The rules of an interface, and how many there can be.
///
/// # Errors
/// `EOPNOTSUPP` where the driver has none.
pub fn rules(name: &str) -> Result<(u32, Vec<Rule>), Errno> {
    let mut words = vec![0; RXNFC];
    words[0] = ETHTOOL_GRXCLSRLCNT;
    ask(name, &mut words)?;
    let count = words[COUNT];
    words.fill(0);
    words.resize(RXNFC + count as usize, 0);
    words[0] = ETHTOOL_GRXCLSRLALL;
    words[COUNT] = count;
    ask(name, &mut words)?;
    let rooms = u64_of(&words, DATA);
    let found = words[COUNT].min(count) as usize;
    let locations = words[LOCATIONS..].iter().take(found);
    let rules = locations.filter_map(|location| rule(name, *location).transpose());
    Ok((
        u32::try_from(rooms).unwrap_or(u32::MAX),
        rules.collect::<Result<_, _>>()?,
    ))
}

fn u64_of(words: &[u32], at: usize) -> u64 {
    let [[a, b, c, d], [e, f, g, h]] = [words[at], words[at + 1]].map(u32::to_ne_bytes);
    u64::from_ne_bytes([a, b, c, d, e, f, g, h])
}

/// None where it went since.
fn rule(name: &str, location: u32) -> Result<Option<Rule>, Errno> {
    let mut words = [0; RXNFC];
    words[0] = ETHTOOL_GRXCLSRULE;
    words[LOCATION] = location;
    match ask(name, &mut words) {
        Ok(()) => Ok(Some(decode(&words, location))),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno),
    }
}

fn decode(words: &[u32; RXNFC], location: u32) -> Rule {
    let flow = words[FLOW_TYPE];
    let is_ether = flow & !FLOW_RSS == ETHER_FLOW;
    let cookie = u64_of(words, COOKIE);
    Rule {
        location,
        destination: is_ether.then(|| mac_of([words[HEADER], words[HEADER + 1]])),
        target: match (flow & FLOW_RSS != 0, cookie) {
            (true, _) => Target::Context(words[COUNT]),
            (false, RX_CLS_FLOW_WAKE..) => Target::Other,
            // Above it, which function of the device it belongs to.
            (false, _) => Target::Queue(cookie as u32),
        },
    }
}

fn encode(rule: &Rule, command: u32) -> [u32; RXNFC] {
    let mut words = [0; RXNFC];
    words[0] = command;
    words[FLOW_TYPE] = ETHER_FLOW;
    let mac = words_of(rule.destination.unwrap_or_default());
    words[HEADER..HEADER + 2].copy_from_slice(&mac);
    words[MASK..MASK + 2].copy_from_slice(&words_of([0xff; 6]));
    match rule.target {
        Target::Queue(queue) => {
            let [a, b, c, d, e, f, g, h] = u64::from(queue).to_ne_bytes();
            words[COOKIE] = u32::from_ne_bytes([a, b, c, d]);
            words[COOKIE + 1] = u32::from_ne_bytes([e, f, g, h]);
        }
        Target::Context(context) => {
            words[FLOW_TYPE] |= FLOW_RSS;
            words[COUNT] = context;
        }
        Target::Other => {}
    }
    words[LOCATION] = rule.location;
    words
}

/// Adds a rule for a destination address.
///
/// # Errors
/// The driver's answer; `EINVAL` for a rule without an address or a place to lead to.
pub fn add_rule(name: &str, rule: &Rule) -> Result<(), Errno> {
    if rule.destination.is_none() || rule.target == Target::Other {
        return Err(Errno::INVAL);
    }
    ask(name, &mut encode(rule, ETHTOOL_SRXCLSRLINS))
}

/// Removes the rule at a location.
///
/// # Errors
/// The driver's answer; `ENOENT` without one.
pub fn remove_rule(name: &str, location: u32) -> Result<(), Errno> {
    let mut words = [0; RXNFC];
    words[0] = ETHTOOL_SRXCLSRLDEL;
    words[LOCATION] = location;
    ask(name, &mut words)
}

/// The table of a context: the queue of each value of the hash.
///
/// # Errors
/// `EOPNOTSUPP` where the driver has none, `ENOENT` or `EINVAL` without the context.
pub fn table(name: &str, context: u32) -> Result<Vec<u32>, Errno> {
    // struct ethtool_rxfh: command, context, entries, bytes of the key, which function, reserved.
    let mut words = vec![ETHTOOL_GRSSH, context, 0, 0, 0, 0];
    ask(name, &mut words)?;
    let entries = words[2];
    if entries == 0 {
        return Err(Errno::OPNOTSUPP);
    }
    let mut words = vec![ETHTOOL_GRSSH, context, entries, 0, 0, 0];
    words.resize(6 + entries as usize, 0);
    ask(name, &mut words)?;
    Ok(words.split_off(6))
}

fn set(name: &str, context: u32, table: &[u32]) -> Result<u32, Errno> {
    let entries = table.len() as u32;
    let mut words = vec![ETHTOOL_SRSSH, context, entries, 0, 0, 0];
    words.extend(table);
    ask(name, &mut words)?;
    Ok(words[1])
}

/// Gives the default context a table; an empty one: the driver's own.
///
/// # Errors
/// The driver's answer.
pub fn set_default_table(name: &str, table: &[u32]) -> Result<(), Errno> {
    set(name, 0, table).map(drop)
}

/// Makes a context, and tells its number.
///
/// # Errors
/// The driver's answer: `EOPNOTSUPP` without contexts. `EINVAL` without a table.
pub fn add_context(name: &str, table: &[u32]) -> Result<u32, Errno> {
    match table {
        [] => Err(Errno::INVAL),
        _ => set(name, ETH_RXFH_CONTEXT_ALLOC, table),
    }
}

/// Removes a context that [`add_context`] made.
///
/// # Errors
/// The driver's answer; `EBUSY` while a rule leads to it.
pub fn remove_context(name: &str, context: u32) -> Result<(), Errno> {
    match context {
        0 => Err(Errno::INVAL),
        _ => set(name, context, &[]).map(drop),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The loopback interface has a queue each way; an interface that is not there has an error.
    #[test]
    fn the_loopback_interface_answers() {
        let one = Queues {
            receive: 1,
            transmit: 1,
        };
        assert_eq!(queues("lo"), Ok(one));
        assert_eq!(offloads("lo").map(|o| o.strips_vlan), Ok(false));
        assert_eq!(queues("windlass-none"), Err(Errno::NODEV));
        assert_eq!(rules("lo"), Err(Errno::OPNOTSUPP));
        assert_eq!(table("lo", 0), Err(Errno::OPNOTSUPP));
    }

    /// A rule is what `struct ethtool_rxnfc` has where (`offsetof`, <linux/ethtool.h>), and comes back from it.
    #[test]
    fn rules_are_laid_out_as_the_kernel_has_them() {
        let mac = [2, 0, 0, 0xaa, 0xbb, 0xcc];
        for target in [Target::Queue(5), Target::Context(9)] {
            let rule = Rule {
                location: 77,
                destination: Some(mac),
                target,
            };
            let words = encode(&rule, ETHTOOL_SRXCLSRLINS);
            let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_ne_bytes()).collect();
            // fs at 16; in it h_u at 4, m_u at 76, ring_cookie at 152, location at 160.
            assert_eq!((bytes.len(), &bytes[20..26]), (192, &mac[..]));
            assert_eq!(
                (&bytes[92..98], &bytes[98..168]),
                (&[0xff; 6][..], &[0; 70][..])
            );
            let cookie = if target == Target::Queue(5) { 5u64 } else { 0 };
            assert_eq!(bytes[168..176], cookie.to_ne_bytes());
            assert_eq!(bytes[176..180], 77u32.to_ne_bytes());
            assert_eq!(decode(&words, 77), rule);
        }
    }
}
