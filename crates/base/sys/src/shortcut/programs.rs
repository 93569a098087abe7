//! The programs, instruction by instruction.

use std::os::fd::AsFd;

use super::*;

/// A place in a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Label {
    Kind,
    Whole6,
    Transport,
    Datagram,
    Ports,
    Unchecked,
    Fits,
    Segment6,
    Segment,
    Total,
    Take,
    Slow,
    Known,
    Add,
    Tap,
    Veth,
    Ok,
    Stray,
}

/// A program whose jumps are told by labels.
#[derive(Default)]
struct Code {
    code: Vec<I>,
    jumps: Vec<(usize, Label)>,
    labels: HashMap<Label, usize>,
}

impl Code {
    fn put(&mut self, code: impl IntoIterator<Item = I>) {
        self.code.extend(code);
    }

    /// A jump to a label that comes later.
    fn jump(&mut self, jump: I, to: Label) {
        self.jumps.push((self.code.len(), to));
        self.code.push(jump);
    }

    fn label(&mut self, label: Label) {
        self.labels.insert(label, self.code.len());
    }

    /// `r0 = helper(map, r2 = the stack at `key`)`.
    fn with_map(&mut self, helper: i32, map: &Map, key: i16) {
        self.put(I::load_map(1, map.as_fd()));
        self.put([
            I::move_register(2, 10),
            I::add_immediate(2, key.into()),
            I::call(helper),
        ]);
    }

    /// Counts the frame in two words of the slot at [`SLOT`]; `r6` is its context.
    fn count(&mut self, passed: &Map, frames: i16) {
        self.with_map(LOOKUP, passed, SLOT);
        let count = [
            I::load_long(1, 0, frames),
            I::add_immediate(1, 1),
            I::store_long(0, frames, 1),
            I::load_word(2, 6, LEN),
            I::load_long(1, 0, frames + 8),
            I::add_register(1, 2),
            I::store_long(0, frames + 8, 1),
        ];
        self.put([I::skip_if_zero(0, count.len() as i16)]);
        self.put(count);
    }

    /// `return helper(interface, flags)`, where the interface is in `r1`.
    fn send(&mut self, helper: i32) {
        self.put([I::move_immediate(2, 0), I::call(helper), I::exit()]);
    }

    fn finish(mut self) -> Vec<I> {
        for (at, label) in self.jumps {
            // A label that was never put is a program that the verifier refuses.
            let to = self.labels.get(&label).copied().unwrap_or(usize::MAX >> 1);
            let count = to.wrapping_sub(at + 1) as i16;
            self.code[at] = self.code[at].skipping(count);
        }
        self.code
    }
}

/// The pair of the frame at `r7`, on the stack.
fn pair(code: &mut Code) {
    code.put([
        I::load_word(1, 7, 0),
        I::store_word(10, PAIR, 1),
        I::load_word(1, 7, 4),
        I::store_word(10, PAIR + 4, 1),
        I::load_word(1, 7, 8),
        I::store_word(10, PAIR + 8, 1),
        I::move_immediate(1, 0),
        I::store_word(10, PAIR + 12, 1),
    ]);
}

/// `r7` and `r8`: where the frame of the context in `r6` begins and ends. To `short` if it has fewer bytes than `bytes`.
fn bytes(code: &mut Code, bytes: i32, short: Label) {
    code.put([
        I::load_word(7, 6, DATA),
        I::load_word(8, 6, DATA_END),
        I::move_register(1, 7),
        I::add_immediate(1, bytes),
    ]);
    code.jump(I::skip_if_greater(1, 8, 0), short);
}

/// `r9`: what there is to know of the member at whose interface the frame of the context in `r6` is; its slot, whose that is, and its other
/// interface are on the stack. To [`Label::Stray`] if there is none.
fn whose(code: &mut Code, of: &Maps) {
    code.put([I::load_word(1, 6, INDEX), I::store_word(10, SLOT, 1)]);
    code.with_map(LOOKUP, &of.interfaces, SLOT);
    code.jump(I::skip_if_zero(0, 0), Label::Stray);
    code.put([
        I::move_register(9, 0),
        I::load_word(1, 9, OWN_SLOT),
        I::store_word(10, SLOT, 1),
        I::load_word(1, 9, OWN_WHOSE),
        I::store_word(10, WHOSE, 1),
        I::load_word(1, 9, OWN_OTHER),
        I::store_word(10, OTHER, 1),
    ]);
}

/// Sends the frame to the member's other interface.
fn cross(code: &mut Code, helper: i32) {
    code.put([I::load_word(1, 10, OTHER)]);
    code.send(helper);
}

/// What comes without a member is dropped.
fn stray(code: &mut Code) {
    code.label(Label::Stray);
    code.put([I::move_immediate(0, DROP), I::exit()]);
}

/// See [`Slot::leave`]. `r6`: context; `r7`, `r8`: the frame; `r9`: the member, then the target's MTU, later the time.
pub(super) fn leave(of: &Maps) -> Vec<I> {
    let mut code = Code::default();
    code.put([I::move_register(6, 1)]);
    whose(&mut code, of);
    bytes(&mut code, HEADER, Label::Tap);
    own(&mut code, SOURCE, Label::Tap);
    pair(&mut code);
    code.put([
        I::load_word(1, 7, 0),
        I::store_word(10, TARGET, 1),
        I::load_half(1, 7, 4),
        I::store_word(10, TARGET + 4, 1),
    ]);
    // Without a tag, with an IPv4 header if it is to have one.
    code.put([I::load_word(1, 6, VLAN_PRESENT)]);
    code.jump(I::skip_if_is_not(1, 0, 0), Label::Slow);
    reaches(&mut code, V4_END - 1);
    // Of a kind that every bridge reads as bytes, if it is for one member.
    code.put([I::load_half(1, 7, KIND)]);
    code.jump(I::skip_if_is(1, IPV4, 0), Label::Kind);
    code.jump(I::skip_if_is(1, IPV6, 0), Label::Kind);
    code.jump(I::skip_if_is_not(1, ARP, 0), Label::Slow);
    code.label(Label::Kind);
    // Both are open, at one place.
    code.with_map(LOOKUP, &of.places, SLOT);
    code.jump(I::skip_if_zero(0, 0), Label::Slow);
    code.put([I::load_word(1, 0, 4), I::load_word(2, 10, WHOSE)]);
    code.jump(I::skip_if_differ(1, 2, 0), Label::Slow);
    code.put([I::load_word(1, 0, 0)]);
    code.jump(I::skip_if_zero(1, 0), Label::Slow);
    code.put([
        I::store_long(10, TARGET_PLACE, 1),
        I::load_word(1, 0, 8),
        I::store_word(10, CHECKS, 1),
    ]);
    code.with_map(LOOKUP, &of.targets, TARGET);
    code.jump(I::skip_if_zero(0, 0), Label::Slow);
    code.put([
        I::load_word(1, 0, 0),
        I::store_long(10, TO, 1),
        I::load_word(1, 0, 4),
        I::store_word(10, NOW, 1),
        I::load_word(9, 0, 8),
    ]);
    check(&mut code, of);
    fits(&mut code);
    order(&mut code, of);
    code.label(Label::Take);
    code.count(&of.passed, 0);
    code.put([I::load_word(1, 10, NOW), I::store_word(10, SLOT, 1)]);
    code.count(&of.passed, 16);
    code.put([
        // For the host's end it was for another host; before Linux 6.13 that is what the target would see.
        I::move_register(1, 6),
        I::move_immediate(2, 0),
        I::call(CHANGE_TYPE),
        I::load_long(1, 10, TO),
    ]);
    code.send(REDIRECT_PEER);
    slow(&mut code, of);
    code.label(Label::Tap);
    cross(&mut code, REDIRECT);
    stray(&mut code);
    code.finish()
}

/// To `other` unless the address at `offset` of the frame is that of the member in `r9`.
fn own(code: &mut Code, offset: i16, other: Label) {
    code.put([I::load_half(1, 7, offset), I::load_half(2, 9, 0)]);
    code.jump(I::skip_if_differ(1, 2, 0), other);
    code.put([I::load_word(1, 7, offset + 2), I::load_word(2, 9, OWN_TAIL)]);
    code.jump(I::skip_if_differ(1, 2, 0), other);
}

/// To [`Label::Slow`] unless the frame passes what [`CHECKS`] says: see [`Checks`].
fn check(code: &mut Code, of: &Maps) {
    code.put([I::load_word(1, 10, CHECKS)]);
    code.jump(I::skip_if_is(1, CHECK_NONE, 0), Label::Unchecked);
    code.jump(I::skip_if_zero(1, 0), Label::Slow);
    code.put([
        I::load_word(1, 10, SLOT),
        I::store_word(10, ALLOWED, 1),
        I::load_word(1, 10, WHOSE),
        I::store_word(10, ALLOWED + 4, 1),
        I::move_immediate(1, 0),
        I::store_word(10, ALLOWED + 16, 1),
        I::store_word(10, ALLOWED + 20, 1),
        I::store_word(10, ALLOWED + 24, 1),
        I::load_half(1, 7, KIND),
        I::store_word(10, ALLOWED + 8, 1),
        // The frame's length, of which the packet has a part.
        I::load_word(4, 6, LEN),
    ]);
    code.jump(I::skip_if_is(1, IPV6, 0), Label::Whole6);
    code.jump(I::skip_if_is_not(1, IPV4, 0), Label::Slow);
    packet(code);
    transport(code);
    code.label(Label::Ports);
    code.put([I::load_word(1, 10, CHECKS)]);
    code.jump(I::skip_if_is(1, CHECK_TRANSPORT, 0), Label::Unchecked);
    code.with_map(LOOKUP, &of.allowed, ALLOWED);
    code.jump(I::skip_if_zero(0, 0), Label::Slow);
    code.label(Label::Unchecked);
}

/// Finds the transport header of the packet: `r1`; `r2`: the packet's bytes from there, `r4`: the frame's; `r5`: the protocol.
fn packet(code: &mut Code) {
    code.put([I::load_byte(1, 7, V4_START)]);
    code.jump(I::skip_if_is_not(1, V4_PLAIN, 0), Label::Slow);
    code.put([
        I::load_half(1, 7, V4_FRAGMENT),
        I::and_immediate(1, FRAGMENT),
    ]);
    code.jump(I::skip_if_is_not(1, 0, 0), Label::Slow);
    code.put([
        I::load_word(1, 7, V4_SOURCE),
        I::store_word(10, ALLOWED + 12, 1),
        I::load_byte(5, 7, V4_PROTOCOL),
        I::load_half(2, 7, V4_LENGTH),
        I::from_be_half(2),
        I::move_immediate(1, i32::from(V4_END) - HEADER + UDP_HEADER),
    ]);
    code.jump(I::skip_if_greater(1, 2, 0), Label::Slow);
    code.put([
        I::add_immediate(2, HEADER - i32::from(V4_END)),
        I::add_immediate(4, -i32::from(V4_END)),
        I::move_register(1, 7),
        I::add_immediate(1, V4_END.into()),
    ]);
    code.jump(I::skip(0), Label::Transport);
    code.label(Label::Whole6);
    reaches(code, V6_END - 1);
    code.put([I::load_byte(1, 7, V4_START), I::and_immediate(1, 0xf0)]);
    code.jump(I::skip_if_is_not(1, V6_VERSION, 0), Label::Slow);
    for word in 0..4 {
        code.put([
            I::load_word(1, 7, V6_SOURCE + 4 * word),
            I::store_word(10, ALLOWED + 12 + 4 * word, 1),
        ]);
    }
    code.put([
        I::load_byte(5, 7, V6_NEXT),
        I::load_half(2, 7, V6_LENGTH),
        I::from_be_half(2),
        I::move_immediate(1, UDP_HEADER),
    ]);
    code.jump(I::skip_if_greater(1, 2, 0), Label::Slow);
    code.put([
        I::add_immediate(4, -i32::from(V6_END)),
        I::move_register(1, 7),
        I::add_immediate(1, V6_END.into()),
    ]);
}

/// To [`Label::Slow`] unless what [`packet`] has found is whole.
fn transport(code: &mut Code) {
    code.label(Label::Transport);
    code.jump(I::skip_if_greater(2, 4, 0), Label::Slow);
    code.put([I::move_register(3, 1), I::add_immediate(3, UDP_HEADER)]);
    code.jump(I::skip_if_greater(3, 8, 0), Label::Slow);
    code.jump(I::skip_if_is(5, UDP, 0), Label::Datagram);
    code.jump(I::skip_if_is_not(5, TCP, 0), Label::Slow);
    code.put([I::add_immediate(3, TCP_LENGTH + 1 - UDP_HEADER)]);
    code.jump(I::skip_if_greater(3, 8, 0), Label::Slow);
    code.put([
        I::load_byte(3, 1, TCP_LENGTH as i16),
        I::and_immediate(3, 0xf0),
        I::shift_right(3, 2),
        I::move_immediate(4, TCP_HEADER),
    ]);
    code.jump(I::skip_if_greater(4, 3, 0), Label::Slow);
    code.jump(I::skip_if_greater(3, 2, 0), Label::Slow);
    code.jump(I::skip(0), Label::Ports);
    code.label(Label::Datagram);
    code.put([
        I::load_half(3, 1, UDP_LENGTH),
        I::from_be_half(3),
        I::move_immediate(4, UDP_HEADER),
    ]);
    code.jump(I::skip_if_greater(4, 3, 0), Label::Slow);
    code.jump(I::skip_if_greater(3, 2, 0), Label::Slow);
    code.put([I::load_half(3, 1, TO_PORT), I::from_be_half(3)]);
    for port in DHCP_PORTS {
        code.jump(I::skip_if_is(3, port, 0), Label::Slow);
    }
}

/// To [`Label::Slow`] if the frame is longer than `r9`, or its segments will be.
fn fits(code: &mut Code) {
    code.put([I::load_word(1, 6, LEN), I::add_immediate(1, -HEADER)]);
    code.put([I::skip_if_greater(1, 9, 1)]);
    code.jump(I::skip(0), Label::Fits);
    code.put([I::load_word(2, 6, GSO_SIZE)]);
    code.jump(I::skip_if_zero(2, 0), Label::Slow);
    code.put([I::load_half(1, 7, KIND)]);
    code.jump(I::skip_if_is(1, IPV6, 0), Label::Segment6);
    code.put([I::load_byte(1, 7, V4_START)]);
    code.jump(I::skip_if_is_not(1, V4_PLAIN, 0), Label::Slow);
    reaches(code, V4_OFFSET);
    code.put([
        I::add_immediate(2, 20),
        I::load_byte(1, 7, V4_PROTOCOL),
        I::load_byte(3, 7, V4_OFFSET),
    ]);
    code.jump(I::skip(0), Label::Segment);
    code.label(Label::Segment6);
    reaches(code, V6_OFFSET);
    code.put([
        I::add_immediate(2, 40),
        I::load_byte(1, 7, V6_NEXT),
        I::load_byte(3, 7, V6_OFFSET),
    ]);
    code.label(Label::Segment);
    code.put([I::and_immediate(3, 0xf0), I::shift_right(3, 2)]);
    code.jump(I::skip_if_is(1, TCP, 0), Label::Total);
    code.jump(I::skip_if_is_not(1, UDP, 0), Label::Slow);
    code.put([I::move_immediate(3, 8)]);
    code.label(Label::Total);
    code.put([I::add_register(2, 3)]);
    code.jump(I::skip_if_greater(2, 9, 0), Label::Slow);
    code.label(Label::Fits);
}

/// To [`Label::Slow`] if the frame at `r7` ends, or its first piece does, before the byte at `offset`. Headers are in the first piece,
/// and often nothing else.
fn reaches(code: &mut Code, offset: i16) {
    code.put([
        I::move_register(1, 7),
        I::add_immediate(1, i32::from(offset) + 1),
    ]);
    code.jump(I::skip_if_greater(1, 8, 0), Label::Slow);
}

/// To [`Label::Slow`] if frames of the pair are on that way.
fn order(code: &mut Code, of: &Maps) {
    code.with_map(LOOKUP, &of.pairs, PAIR);
    code.jump(I::skip_if_zero(0, 0), Label::Take);
    code.put([I::load_long(1, 0, 0), I::load_long(2, 0, 8)]);
    code.jump(I::skip_if_equal(1, 2, 0), Label::Take);
    code.put([
        I::load_long(9, 0, 16),
        I::call(KTIME_NS),
        I::subtract_register(0, 9),
        I::move_word(1, QUIET_NS.cast_unsigned()),
    ]);
    code.put([I::skip_if_greater(0, 1, 1)]);
    code.jump(I::skip(0), Label::Slow);
    code.with_map(DELETE, &of.pairs, PAIR);
}

/// Notes a frame of a pair of members, and falls through to the TAP.
fn slow(code: &mut Code, of: &Maps) {
    code.label(Label::Slow);
    code.with_map(LOOKUP, &of.known, TARGET);
    code.jump(I::skip_if_is_not(0, 0, 0), Label::Known);
    code.jump(I::skip(0), Label::Tap);
    code.label(Label::Known);
    code.put([I::call(KTIME_NS), I::move_register(9, 0)]);
    code.with_map(LOOKUP, &of.pairs, PAIR);
    code.jump(I::skip_if_is_not(0, 0, 0), Label::Add);
    code.put([
        I::move_immediate(1, 0),
        I::store_long(10, NEW_PAIR, 1),
        I::store_long(10, NEW_PAIR + 8, 1),
        I::store_long(10, NEW_PAIR + 16, 9),
        I::move_register(3, 10),
        I::add_immediate(3, NEW_PAIR.into()),
        I::move_immediate(4, ONLY_IF_NEW),
    ]);
    code.with_map(UPDATE, &of.pairs, PAIR);
    // Made here, or by another processor meanwhile.
    code.with_map(LOOKUP, &of.pairs, PAIR);
    code.jump(I::skip_if_zero(0, 0), Label::Tap);
    code.label(Label::Add);
    code.put([
        I::move_immediate(1, 1),
        I::add_atomically(0, 0, 1),
        I::store_long(0, 16, 9),
    ]);
}

/// See [`Slot::arrive`]. Registers as in [`leave`].
pub(super) fn arrive(of: &Maps) -> Vec<I> {
    let mut code = Code::default();
    code.put([I::move_register(6, 1)]);
    whose(&mut code, of);
    bytes(&mut code, HEADER, Label::Veth);
    pair(&mut code);
    code.with_map(LOOKUP, &of.pairs, PAIR);
    code.jump(I::skip_if_zero(0, 0), Label::Ok);
    code.put([I::move_immediate(1, 1), I::add_atomically(0, 8, 1)]);
    code.label(Label::Ok);
    // What is for another address goes by way of the veth: the peer is to see that it is.
    own(&mut code, 0, Label::Veth);
    cross(&mut code, REDIRECT_PEER);
    code.label(Label::Veth);
    cross(&mut code, REDIRECT);
    stray(&mut code);
    code.finish()
}

/// See [`Slot::quiet`].
pub(super) fn only_redirected() -> Vec<I> {
    let mut code = Code::default();
    code.put([
        I::load_word(1, 1, INGRESS_INDEX),
        I::move_immediate(0, PASS),
    ]);
    code.jump(I::skip_if_is_not(1, 0, 0), Label::Ok);
    code.put([I::move_immediate(0, DROP)]);
    code.label(Label::Ok);
    code.put([I::exit()]);
    code.finish()
}
