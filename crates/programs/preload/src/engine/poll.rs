//! `poll` and `select`: ring bytes beside what the kernel says of the same set.
//!
//! # Model
//! Each joined member that is asked for input is looked at. If one has bytes, the kernel is asked without waiting and its
//! answer completed. If none has, the call spins as the user allows, counts itself as a sleeper on each such
//! member, looks once more, and sleeps in the program's own call. Where the kernel was asked a moment ago, the rings answer
//! alone ([`super::looks`]).
//!
//! # Limits
//! [`MEMBERS`] joined members a call, and [`BITS`] numbers in a `select`; a call with more asks for their bytes in the kernel.

use std::ffi::c_int;
use std::mem::MaybeUninit;

use libc::{fd_set, nfds_t, pollfd, sigset_t};
use windlass_channel::{Asleep, Link, Reason};

use super::clock::Limit;
use super::inside::Sleeper;
use super::looks::{Key, room_of};
use super::sets::{self, At};
use super::stream::KERNEL_NEWS;
use super::{clock, death, kernel, memory, promote, rest, stream};
use crate::counters::{self, Counter};
use crate::own::{Own, Sock, Wait};
use crate::{options, signals, table};

/// Joined members of one call.
const MEMBERS: usize = 128;
/// Numbers in a `select` whose sets are copied.
const BITS: usize = libc::FD_SETSIZE;
const WORDS: usize = BITS / 64;
/// Looks of a call whose ring bytes are moved away under it, each time anew, before it relies on the kernel alone.
const RETRIES: u32 = 1_000;
/// A spin asks the kernel every so often.
const LOOK_US: u32 = 4;
const READABLE: i16 = libc::POLLIN | libc::POLLRDNORM;
const WRITABLE: i16 = libc::POLLOUT | libc::POLLWRNORM;

/// A joined member that waits for input: where it stands in the set, its record, and its channel. Small, since a call may be made on
/// a signal stack.
#[derive(Clone, Copy)]
struct Member {
    at: u32,
    record: u32,
    channel: At,
}

impl Member {
    fn link(&self) -> Option<Link<'static>> {
        self.channel.link()
    }
}

/// The joined members of a call that wait for input.
struct Members {
    count: usize,
    list: [MaybeUninit<Member>; MEMBERS],
}

impl Members {
    fn new() -> Self {
        Self {
            count: 0,
            list: [const { MaybeUninit::uninit() }; MEMBERS],
        }
    }

    /// Those of a `poll`.
    fn find(&mut self, entries: &[pollfd]) {
        self.count = 0;
        let asked = entries.iter().enumerate();
        for (at, entry) in asked.filter(|(_, entry)| entry.events & READABLE != 0) {
            self.add(at, entry.fd);
        }
    }

    /// Those of a `select`.
    fn find_selected(&mut self, copy: &Sets) {
        self.count = 0;
        for fd in (0..copy.count).filter(|fd| copy.wants_input(*fd)) {
            self.add(fd, fd as c_int);
        }
    }

    /// One more, if it has joined; beyond the limit its bytes are asked for in the kernel.
    fn add(&mut self, at: usize, fd: c_int) {
        let Some(sock) = table::known(fd) else { return };
        let Some((link, place)) = promote::joined(&sock).zip(promote::place(&sock)) else {
            return;
        };
        let Some(free) = self.list.get_mut(self.count) else {
            return stream::drain(&sock, &link, Reason::Limit);
        };
        free.write(Member {
            at: at as u32,
            record: sock.index(),
            channel: At {
                place,
                side: link.side(),
                chan: link.index(),
            },
        });
        self.count += 1;
    }

    fn iter(&self) -> impl Iterator<Item = &Member> {
        let used = self.list.iter().take(self.count);
        // SAFETY: `add` has written the first `count` ones.
        used.map(|member| unsafe { member.assume_init_ref() })
    }

    /// The places in the set of those whose rings have bytes.
    fn ready(&self) -> impl Iterator<Item = usize> {
        let is_ready = |link: Link<'_>| link.incoming().ring_ready();
        self.iter()
            .filter(move |member| member.link().is_some_and(is_ready))
            .map(|member| member.at as usize)
    }

    fn any_ready(&self) -> bool {
        self.ready().next().is_some()
    }

    fn links(&self) -> impl Iterator<Item = Link<'static>> {
        self.iter().filter_map(Member::link)
    }

    /// Counts this thread as asleep on every member; false, and nobody is, if one has bytes.
    fn fall_asleep(&self) -> bool {
        signals::enter();
        let is_asleep = |link: &Link<'_>| link.incoming().fall_asleep() == Asleep::Yes;
        let slept = self.links().take_while(is_asleep).count();
        let is_whole = slept == self.links().count();
        if !is_whole {
            self.links()
                .take(slept)
                .for_each(|link| link.incoming().woke(0));
        }
        signals::leave();
        is_whole
    }

    /// Whether unread bytes are left in a ring that this process writes, and are to be moved.
    fn has_left(&self) -> bool {
        options::has_nets() && self.links().any(|link| link.outgoing().unread())
    }

    /// Moves what is left into the kernel. `fd` gives the number of a member by its place in the set.
    fn reclaim(&self, fd: impl Fn(usize) -> c_int) {
        for member in self.iter() {
            let sock = table::known(fd(member.at as usize));
            if let Some(sock) = sock.filter(|sock| sock.index() == member.record)
                && let Some(link) = member.link().filter(|link| link.outgoing().unread())
            {
                let _ = stream::reclaim(&sock, &link);
            }
        }
    }

    fn wake_up(&self) {
        signals::enter();
        self.links().for_each(|link| link.incoming().woke(0));
        signals::leave();
    }
}

/// The socket of a number if it has not joined, and might.
fn young(fd: c_int) -> Option<Sock> {
    table::known(fd)
        .filter(|sock| promote::is_young(sock.record) && !sock.record.has(promote::JOINED))
        .filter(|sock| promote::is_own(sock.record))
}

/// `poll` and `ppoll`; the set was read a moment ago.
pub fn poll(set: *mut pollfd, count: nfds_t, wait: Wait, mask: *const sigset_t, own: Own) -> isize {
    // SAFETY: every page of the set was read a moment ago; the program keeps it for the call.
    let entries = unsafe { std::slice::from_raw_parts(set, count as usize) };
    let instances = entries.iter().filter_map(|entry| table::epoll(entry.fd));
    instances.for_each(|instance| sets::estrange(&instance));
    let has_joined = |entry: &pollfd| {
        table::known(entry.fd).is_some_and(|sock| sock.record.has(promote::JOINED))
    };
    if !entries.iter().any(has_joined) {
        let result = if wait.is_now() {
            Some(noted(own.call()))
        } else {
            asleep_young(entries, || own.call())
        };
        if let Some(result) = result {
            return result;
        }
    }
    let (mut limit, mut members) = (None, Members::new());
    for _ in 0..RETRIES {
        members.find(entries);
        let polled = Polled {
            set,
            entries,
            members: &members,
            key: key_of(entries),
            mask,
        };
        let done = if wait.is_now() {
            polled.at_once(own)
        } else {
            polled.once(&wait, &mut limit, own)
        };
        if let Some(done) = done {
            return done;
        }
    }
    own.call()
}

impl Polled<'_> {
    /// A look and a sleep. `None`: bytes of a ring were seen and then not found, since their sender has moved them into the
    /// kernel after it had been asked.
    fn once(&self, wait: &Wait, limit: &mut Option<Limit>, own: Own) -> Option<isize> {
        let (polled, members) = (self, self.members);
        death::notice();
        let known = polled.by_rings();
        if known.is_some() {
            return known;
        }
        if members.any_ready() {
            return found_some(polled.look());
        }
        let mut looked_at = polled.key.looks_from();
        let mut found = 0;
        stream::spin(|| {
            if members.any_ready() {
                return true;
            }
            let now = clock::now();
            if now.wrapping_sub(looked_at) > clock::cycles(LOOK_US) {
                looked_at = now;
                found = polled.ask().unwrap_or(0);
            }
            found != 0
        });
        if found != 0 {
            if death::notice() {
                return found_some(polled.look());
            }
            return Some(noted(found as isize));
        }
        if members.any_ready() || !members.fall_asleep() {
            return polled.by_rings().or_else(|| found_some(polled.look()));
        }
        counters::add(Counter::Sleeps, 1);
        let is_first = limit.is_none();
        if is_first {
            *limit = Limit::of(wait);
        }
        let result = match limit {
            Some(limit) if !is_first || members.has_left() => self.sleep(limit, own),
            _ => asleep_young(self.entries, || own.call()),
        };
        members.wake_up();
        let result = result?;
        if result < 0 || !(death::notice() || members.any_ready()) {
            return Some(result);
        }
        let found = polled.look();
        // A time that is over is over.
        (found != 0 || result == 0).then_some(found)
    }

    /// The readers of this end's rings get a few milliseconds of the program's time, under its mask; then what is left goes into
    /// the kernel, and the thread sleeps there.
    fn sleep(&self, limit: &Limit, own: Own) -> Option<isize> {
        let Self {
            set,
            entries,
            members,
            mask,
            ..
        } = *self;
        members.iter().for_each(|member| rest::begin(member.record));
        let rested = kernel::poll(set, entries.len(), limit.rest_ns(), mask);
        members.iter().for_each(|member| rest::end(member.record));
        match rested {
            Ok(0) => members.reclaim(|at| entries[at].fd),
            Ok(found) => return Some(noted(found as isize)),
            Err(error) => return Some(stream::fail(error)),
        }
        asleep_young(entries, || {
            if limit.left_ns().is_none() {
                return own.call();
            }
            // SAFETY: the program's own set and mask.
            unsafe { limit.poll(set, entries.len() as nfds_t, mask) }
        })
    }
}

/// An answer, unless it is that nothing was found.
fn found_some(found: isize) -> Option<isize> {
    (found != 0).then_some(found)
}

/// A call that sleeps, counted at the members that might join meanwhile. `None`: one has joined before it.
fn asleep_young(entries: &[pollfd], sleep: impl FnOnce() -> isize) -> Option<isize> {
    let sock = |at: usize| young(entries.get(at)?.fd);
    let asleep = Sleeper::enter(sock, entries.len())?;
    let result = sleep();
    asleep.leave(|at| table::known(entries.get(at)?.fd));
    Some(noted(result))
}

/// The kernel has reported something: sockets that find nothing ask it.
fn noted(result: isize) -> isize {
    if result > 0 {
        KERNEL_NEWS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }
    result
}

/// What a `poll` asks for, as one number.
fn key_of(entries: &[pollfd]) -> Key {
    let word = |entry: &pollfd| u64::from(entry.fd as u32) | u64::from(entry.events as u16) << 32;
    let asks_for_room = entries.iter().any(|entry| entry.events & WRITABLE != 0);
    Key::of(entries.iter().map(word), asks_for_room)
}

/// How many bytes the kernel was given by a joined socket.
fn given(fd: c_int) -> Option<u64> {
    let link = promote::joined(&table::known(fd)?)?;
    Some(link.outgoing().kernel_sent())
}

/// The set of a `poll`, and its joined members.
struct Polled<'a> {
    set: *mut pollfd,
    entries: &'a [pollfd],
    members: &'a Members,
    key: Key,
    mask: *const sigset_t,
}

impl Polled<'_> {
    /// The whole of a call that may not wait.
    fn at_once(&self, own: Own) -> Option<isize> {
        death::notice();
        if self.members.any_ready() {
            return found_some(self.look());
        }
        let result = own.call();
        Some(if result > 0 && death::notice() {
            self.look()
        } else {
            noted(result)
        })
    }

    /// What the kernel has now, in the set.
    fn ask(&self) -> kernel::Done {
        counters::add(Counter::PollLooks, 1);
        let found = kernel::poll_now(self.set, self.entries.len())?;
        self.key.remember(match found {
            0 => Some(0),
            _ => self.only_room(),
        });
        Ok(found)
    }

    /// The joined members that are asked for room, if the kernel has reported just that of them, and nothing else.
    fn only_room(&self) -> Option<u64> {
        let is_room = |at: usize| {
            let entry = memory::fetch(self.set.wrapping_add(at))?;
            let asked = entry.events & WRITABLE;
            let has_room = asked != 0 && given(entry.fd).is_some();
            (entry.revents == if has_room { asked } else { 0 }).then_some(())
        };
        let is_all = (0..self.entries.len()).all(|at| is_room(at).is_some());
        is_all.then(|| self.room())
    }

    fn room(&self) -> u64 {
        let asked = self
            .entries
            .iter()
            .filter(|entry| entry.events & WRITABLE != 0);
        room_of(asked.filter_map(|entry| given(entry.fd)))
    }

    /// What rings and kernel have now, if the kernel need not be asked and there is something.
    fn by_rings(&self) -> Option<isize> {
        let room = self.key.believed()?;
        if room != 0 && room != self.room() {
            return None;
        }
        let mut ready = self.members.ready().peekable();
        if room == 0 && ready.peek().is_none() {
            return None;
        }
        let mut found = 0;
        for (at, entry) in self.entries.iter().enumerate() {
            let mut entry = *entry;
            entry.revents = 0;
            if ready.next_if_eq(&at).is_some() {
                entry.revents = entry.events & READABLE;
            }
            if room != 0 && entry.events & WRITABLE != 0 && given(entry.fd).is_some() {
                entry.revents |= entry.events & WRITABLE;
            }
            found += isize::from(entry.revents != 0);
            if !memory::put(self.set.wrapping_add(at), entry) {
                return None;
            }
        }
        Some(found)
    }

    /// What kernel and rings have now.
    fn look(&self) -> isize {
        let found = match self.ask() {
            Ok(found) => found,
            Err(error) => return stream::fail(error),
        };
        let mut found = noted(found as isize);
        for at in self.members.ready() {
            let entry = self.set.wrapping_add(at);
            // SAFETY: the kernel has just written the set.
            let mut value = unsafe { entry.read_unaligned() };
            found += isize::from(value.revents == 0);
            value.revents |= value.events & READABLE;
            // SAFETY: as above.
            unsafe { entry.write_unaligned(value) };
        }
        found
    }
}

/// The three sets of a `select`, copied.
struct Sets {
    words: [[u64; WORDS]; 3],
    count: usize,
}

impl Sets {
    fn copy(count: c_int, sets: &[*mut fd_set; 3]) -> Option<Self> {
        let count = usize::try_from(count).ok().filter(|count| *count <= BITS)?;
        let mut copy = Self {
            words: [[0; WORDS]; 3],
            count,
        };
        for (words, set) in copy
            .words
            .iter_mut()
            .zip(sets)
            .filter(|(_, set)| !set.is_null())
        {
            memory::fetch_all(words.get_mut(..count.div_ceil(64))?, set.cast()).then_some(())?;
        }
        Some(copy)
    }

    fn wants_input(&self, fd: usize) -> bool {
        self.words[0][fd / 64] >> (fd % 64) & 1 == 1
    }

    /// All that is asked for, as one number.
    fn key(&self) -> Key {
        let length = self.count.div_ceil(64);
        let words = self.words.iter().flat_map(|words| &words[..length]);
        let asks_for_room = self.words[1][..length].iter().any(|word| *word != 0);
        Key::of(words.copied().chain([self.count as u64]), asks_for_room)
    }

    /// The numbers that are asked for room.
    fn writers(&self) -> impl Iterator<Item = c_int> {
        let rows = self.words[1][..self.count.div_ceil(64)].iter().enumerate();
        rows.filter(|(_, word)| **word != 0)
            .flat_map(|(row, word)| {
                let bits = (0..64).filter(move |bit| word >> bit & 1 == 1);
                bits.map(move |bit| (row * 64 + bit) as c_int)
            })
    }

    /// The same for those with a channel only.
    fn room(&self) -> u64 {
        room_of(self.writers().filter_map(given))
    }

    /// Writes them to where the program has its sets; false if there is no memory.
    fn put(&self, sets: &[*mut fd_set; 3]) -> bool {
        let length = self.count.div_ceil(64);
        let all = self.words.iter().zip(sets);
        all.filter(|(_, set)| !set.is_null())
            .all(|(words, set)| memory::put_all(set.cast(), &words[..length]))
    }
}

/// `select` and `pselect`.
pub fn select(count: c_int, sets: [*mut fd_set; 3], wait: Wait, own: Own) -> isize {
    death::notice();
    let Some(copy) = Sets::copy(count, &sets) else {
        for sock in table::each().filter(|sock| sock.fd < count) {
            if let Some(link) = promote::joined(&sock) {
                stream::drain(&sock, &link, Reason::Limit);
            }
        }
        return own.call();
    };
    let instances = (0..copy.count).filter(|fd| copy.wants_input(*fd));
    let instances = instances.filter_map(|fd| table::epoll(fd as c_int));
    instances.for_each(|instance| sets::estrange(&instance));
    let mut members = Members::new();
    for _ in 0..RETRIES {
        members.find_selected(&copy);
        if let Some(found) = select_once(&copy, sets, &members, wait, own) {
            return found;
        }
        copy.put(&sets);
    }
    own.call()
}

/// One attempt. The sets are as the program gave them.
fn select_once(
    copy: &Sets,
    sets: [*mut fd_set; 3],
    members: &Members,
    wait: Wait,
    own: Own,
) -> Option<isize> {
    let selected = Selected {
        copy,
        sets,
        members,
        key: copy.key(),
    };
    if wait.is_now() {
        return selected.at_once(own);
    }
    let known = selected.by_rings();
    if known.is_some() {
        return known;
    }
    if members.any_ready() {
        return found_some(selected.look());
    }
    let mut looked_at = selected.key.looks_from();
    let mut found = 0;
    if members.count != 0 {
        stream::spin(|| {
            if members.any_ready() {
                return true;
            }
            let now = clock::now();
            if now.wrapping_sub(looked_at) > clock::cycles(LOOK_US) {
                looked_at = now;
                found = selected.ask().unwrap_or(0);
                if found == 0 {
                    copy.put(&sets);
                }
            }
            found != 0
        });
    }
    if found != 0 {
        if death::notice() {
            copy.put(&sets);
            return found_some(selected.look());
        }
        return Some(noted(found as isize));
    }
    if members.any_ready() || !members.fall_asleep() {
        return selected.by_rings().or_else(|| found_some(selected.look()));
    }
    counters::add(Counter::Sleeps, 1);
    if members.has_left() {
        // A select of its own would need copies of the sets: the bytes go at once.
        members.reclaim(|fd| fd as c_int);
    }
    let result = asleep_select(copy, own);
    members.wake_up();
    let result = result?;
    if result < 0 || !(death::notice() || members.any_ready()) {
        return Some(result);
    }
    copy.put(&sets);
    let found = selected.look();
    (found != 0 || result == 0).then_some(found)
}

/// As [`asleep_young`].
fn asleep_select(copy: &Sets, own: Own) -> Option<isize> {
    let sock = |fd: usize| copy.wants_input(fd).then(|| young(fd as c_int))?;
    let asleep = Sleeper::enter(sock, copy.count)?;
    let result = own.call();
    asleep.leave(|fd| table::known(fd as c_int));
    Some(noted(result))
}

/// The sets of a `select`, and their joined members.
struct Selected<'a> {
    copy: &'a Sets,
    sets: [*mut fd_set; 3],
    members: &'a Members,
    key: Key,
}

impl Selected<'_> {
    /// The whole of a call that may not wait.
    fn at_once(&self, own: Own) -> Option<isize> {
        if self.members.any_ready() {
            return found_some(self.look());
        }
        let result = own.call();
        if result > 0 && death::notice() {
            self.copy.put(&self.sets);
            return found_some(self.look());
        }
        Some(noted(result))
    }

    /// What the kernel has now, in the sets.
    fn ask(&self) -> kernel::Done {
        counters::add(Counter::PollLooks, 1);
        let found = kernel::select_now(self.copy.count, &self.sets)?;
        self.key.remember(match found {
            0 => Some(0),
            _ => self.only_room(found),
        });
        Ok(found)
    }

    /// As [`Polled::only_room`], of `found` bits.
    fn only_room(&self, found: usize) -> Option<u64> {
        let now = Sets::copy(self.copy.count as c_int, &self.sets)?;
        let joined = |fds: &Sets| fds.writers().filter(|fd| given(*fd).is_some()).count();
        (joined(&now) == found && joined(self.copy) == found).then(|| self.copy.room())
    }

    /// As [`Polled::by_rings`].
    fn by_rings(&self) -> Option<isize> {
        let room = self.key.believed()?;
        if room != 0 && room != self.copy.room() {
            return None;
        }
        let mut answer = Sets {
            words: [[0; WORDS]; 3],
            count: self.copy.count,
        };
        let mut found = 0;
        let mut set = |words: usize, fd: usize| {
            answer.words[words][fd / 64] |= 1 << (fd % 64);
            found += 1;
        };
        self.members.ready().for_each(|fd| set(0, fd));
        if room != 0 {
            let writers = self.copy.writers().filter(|fd| given(*fd).is_some());
            writers.for_each(|fd| set(1, fd as usize));
        }
        (found != 0 && answer.put(&self.sets)).then_some(found)
    }

    /// What kernel and rings have now.
    fn look(&self) -> isize {
        let found = match self.ask() {
            Ok(found) => found,
            Err(error) => return stream::fail(error),
        };
        let mut found = noted(found as isize);
        for fd in self.members.ready() {
            let word = self.sets[0].cast::<u64>().wrapping_add(fd / 64);
            // SAFETY: the kernel has just written the set.
            let mut value = unsafe { word.read_unaligned() };
            found += isize::from(value >> (fd % 64) & 1 == 0);
            value |= 1 << (fd % 64);
            // SAFETY: as above.
            unsafe { word.write_unaligned(value) };
        }
        found
    }
}
