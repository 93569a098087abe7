//! The start of the process, the end of a thread, and fork.

use core::ffi::{c_char, c_int, c_void};
use core::ptr;
use core::sync::atomic::{AtomicU32, Ordering::*};

use std::boxed::Box;

use crate::cache::{self, Cache, DEAD, EMPTY};
use crate::debug;
use crate::heap;
use crate::options;
use crate::pages;
use crate::report;
use crate::sample;
use crate::status;
use crate::umem;

/// No key yet.
const NONE: u32 = u32::MAX;
static KEY: AtomicU32 = AtomicU32::new(NONE);

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn(c_int, *const *const c_char, *const *const c_char) = start;

#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;

/// The process ends. What was freed twice, and has not come back to its slab since, is found now.
extern "C" fn end() {
    report::process_ends();
    if let Some(cache) = cache::own() {
        cache.flush_all();
        heap::drain();
    }
    status::end();
}

/// Runs before the program's constructors. What allocates earlier is the first thread, which needs nothing of this.
extern "C" fn start(_: c_int, _: *const *const c_char, environment: *const *const c_char) {
    // A closure without captures: nothing is allocated.
    std::panic::set_hook(Box::new(|info| match info.location() {
        Some(place) => report::die(format_args!("a bug in the allocator, {place}")),
        None => report::die(format_args!("a bug in the allocator")),
    }));
    let mut key = 0;
    // SAFETY: the destructor stays loaded.
    if unsafe { libc::pthread_key_create(&mut key, Some(thread_ends)) } == 0 {
        KEY.store(key, Release);
    }
    // SAFETY: the handlers stay loaded.
    unsafe {
        libc::pthread_atfork(
            Some(before_fork),
            Some(after_fork_parent),
            Some(after_fork_child),
        )
    };
    options::read_anyway();
    let cache = cache::current();
    if !ptr::eq(cache, &EMPTY) && !ptr::eq(cache, &DEAD) {
        thread_begins(cache);
    }
    status::start(environment);
}

/// Sees to it that [`thread_ends`] is called for this thread. May allocate.
pub fn thread_begins(cache: &'static Cache) {
    let key = KEY.load(Acquire);
    if key != NONE {
        // SAFETY: a key of ours; the value is for our destructor.
        unsafe { libc::pthread_setspecific(key, ptr::from_ref(cache).cast()) };
    }
}

unsafe extern "C" fn thread_ends(cache: *mut c_void) {
    // SAFETY: what `thread_begins` left: a cache, which is never unmapped.
    let cache = unsafe { &*cache.cast::<Cache>() };
    cache.retire();
    umem::tidy_numbered();
}

unsafe extern "C" fn before_fork() {
    umem::hold_all();
    status::hold();
    cache::hold_all();
    heap::hold_all();
    debug::hold_all();
    pages::before_fork();
    sample::hold();
}

unsafe extern "C" fn after_fork_parent() {
    sample::release();
    debug::release_all();
    heap::release_all();
    cache::release_all(false);
    umem::release_all(false);
    status::release();
}

unsafe extern "C" fn after_fork_child() {
    sample::release();
    debug::release_all();
    pages::after_fork_child();
    heap::release_all();
    cache::release_all(true);
    umem::release_all(true);
    status::release();
}
