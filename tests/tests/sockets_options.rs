//! Options, messages, files and rings of io_uring on connections that have joined: `sockets/options.c` prints the same with and
//! without the library.

#[path = "sockets/place.rs"]
mod place;

use place::Place;

fn compare(test: &str, cases: &[&str], joins: Option<bool>) {
    if let Some(place) = Place::compiled(test, "options.c", &[]) {
        place.compare(cases, joins);
    }
}

/// What an accepted socket has from its listener counts, also from one that an earlier program has made.
#[test]
fn options_of_a_listener_are_inherited() {
    let cases = ["lowat", "lowat-late", "lowat-exec", "stamp", "inq"];
    compare("options_of_a_listener_are_inherited", &cases, Some(false));
}

/// Options that are set on a connection that has joined.
#[test]
fn options_set_late_are_carried_out() {
    let cases = ["stamp-after", "inq-after", "ulp"];
    compare("options_set_late_are_carried_out", &cases, Some(true));
}

/// Control data, memory that is not there, time limits, and bytes that wait for more.
#[test]
fn messages_are_the_kernels() {
    let cases = ["unknown-control", "bad-buffer", "many", "more"];
    compare("messages_are_the_kernels", &cases, Some(true));
}

/// Bytes that wait for more keep a connection on the kernel that has not joined yet: those after them would overtake them.
#[test]
fn bytes_that_wait_for_more_keep_off_the_ring() {
    let (name, cases) = (
        "bytes_that_wait_for_more_keep_off_the_ring",
        ["more-early", "more-spliced"],
    );
    compare(name, &cases, Some(false));
}

/// Pointers to nothing, lengths below zero, lists that are too long: what each call says, leaves and moves.
#[test]
fn wrong_arguments_are_the_kernels() {
    if let Some(place) = Place::compiled("wrong_arguments_are_the_kernels", "wrong.c", &["-w"]) {
        place.compare(&["tcp", "unix"], Some(true));
    }
}

/// Files and pipes go out between messages, in order.
#[test]
fn files_and_pipes_keep_their_place() {
    let cases = ["files", "splice"];
    compare("files_and_pipes_keep_their_place", &cases, Some(true));
}

/// A file has Nagle's algorithm where the program has left it on: without, it leaves in smaller segments.
#[test]
fn files_leave_in_large_segments() {
    compare("files_leave_in_large_segments", &["delay"], Some(true));
}

/// A handler on a stack of 8 KB may do all of it.
#[test]
fn a_small_stack_suffices() {
    compare("a_small_stack_suffices", &["stack"], Some(true));
}

/// A ring of io_uring that only changes an epoll instance, as libuv has one in each loop, keeps nothing off the ring; members
/// that were added by it are woken.
#[test]
fn rings_that_register_sockets_are_followed() {
    let cases = ["loop", "loop-late"];
    compare(
        "rings_that_register_sockets_are_followed",
        &cases,
        Some(true),
    );
}

/// A ring that sends keeps its process on the kernel, and the order of the bytes.
#[test]
fn rings_that_send_are_the_kernels() {
    compare("rings_that_send_are_the_kernels", &["ring-sends"], None);
}

/// One that was made where no library saw it is found when a connection is about to join.
#[test]
fn hidden_rings_are_found() {
    compare("hidden_rings_are_found", &["ring-hidden"], Some(false));
}

/// One that is made after the join, or has a number far above the others, is not: what has joined stays joined.
#[test]
fn rings_made_late_are_not_found() {
    let cases = ["hidden-late", "hidden-far"];
    compare("rings_made_late_are_not_found", &cases, Some(true));
}
