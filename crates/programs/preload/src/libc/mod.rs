//! The names that programs call.
//!
//! Each function here has the name, the arguments and the meaning of libc's. It looks the number up in
//! [`crate::fd::table`]; what is not ours goes straight on to libc, by a jump. What is ours goes to
//! [`crate::dispatch`] with the program's own call in its hand ([`crate::fd::call::Own`]).
//!
//! *Rules.* Functions are `C-unwind` and keep nothing with a destructor across a call that may block:
//! libc ends a cancelled thread by unwinding through them. No memory is allocated and none of libc's
//! locks is taken. `errno` is what the kernel or the library left.
//!
//! *Left to the kernel unseen*, and why that is right: what libc does inside itself (resolver, `syslog`,
//! `forkpty`) works on descriptors of its own; stdio on a socket is told by `fdopen`.

/// Defines functions under libc's names, once a file. In unit tests they keep their own.
///
/// One has a body, or `=> |sock, own| ...`, what is done where its first argument is a tracked socket, with the program's own call;
/// on any other descriptor it is that call. `=> first ..., |sock, own| ...` asks first for an answer that may not come.
macro_rules! interpose {
    ($(fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(-> $result:ty)? $($body:block)?
        $(=> $(first $first:expr,)? |$sock:ident, $own:ident| $with:expr;)?)*) => {
        /// libc's functions of these names.
        pub(super) mod own {
            #[allow(unused_imports, reason = "what their signatures name is among these")]
            use super::*;

            crate::sys::real::real! { $($name($($arg: $type),*) $(-> $result)?;)* }
        }

        $(
            #[cfg_attr(not(test), unsafe(no_mangle))]
            #[allow(clippy::too_many_arguments, non_snake_case, reason = "libc's own signatures")]
            pub unsafe extern "C-unwind" fn $name($($arg: $type),*) $(-> $result)? {
                interpose!(@body $name [$($arg),*] $($result)?, $($body)?
                    $($(first $first,)? |$sock, $own| $with)?)
            }
        )*
    };
    (@body $name:ident [$($arg:ident),*] $($result:ty)?, $body:block) => { $body };
    (@body $name:ident [$fd:ident $(, $arg:ident)*] $result:ty,
        $(first $first:expr,)? |$sock:ident, $own:ident| $with:expr) => {{
        $(if let Some(answer) = $first {
            return answer;
        })?
        match crate::fd::table::tracked($fd) {
            None => pass!($name($fd $(, $arg)*)),
            Some($sock) => {
                let arguments = crate::fd::call::six([$fd as usize $(, $arg as usize)*]);
                let $own = crate::fd::call::Own::of::<$result>(&own::slot::$name, arguments);
                let answer = $with;
                answer as $result
            }
        }
    }};
}

/// Other names of functions of this library, which go on to them by a jump.
macro_rules! alias {
    ($($name:ident = $target:path;)*) => {
        $(
            #[cfg_attr(not(test), unsafe(no_mangle))]
            #[unsafe(naked)]
            #[allow(non_snake_case, reason = "libc's own name")]
            pub unsafe extern "C-unwind" fn $name() {
                jump!($target)
            }
        )*
    };
}

/// The body of a function that first compares `bytes` with the `room` that the compiler knew, as libc does, and then is another one.
macro_rules! checked {
    ($bytes:expr, $room:expr, $name:ident($($arg:expr),*) => $target:ident($($given:expr),*)) => {
        if $bytes > $room {
            pass!($name($($arg),*))
        } else {
            // SAFETY: the same function once the check was made.
            unsafe { $target($($given),*) }
        }
    };
}

/// The program's own call, as it made it.
macro_rules! pass {
    ($name:ident($($arg:expr),* $(,)?)) => {{
        // SAFETY: the program's own arguments go on unchanged; it keeps libc's conditions.
        unsafe { own::$name($($arg),*) }
    }};
}

/// The program's own call, of a function that gives `ssize_t`.
macro_rules! own {
    ($name:ident($($arg:expr),*)) => {
        crate::fd::call::Own::of::<isize>(&own::slot::$name, crate::fd::call::six([$($arg as usize),*]))
    };
}

/// The same of a function that gives `int`.
macro_rules! own_int {
    ($name:ident($($arg:expr),*)) => {
        crate::fd::call::Own::of::<c_int>(&own::slot::$name, crate::fd::call::six([$($arg as usize),*]))
    };
}

mod data;
mod exec;
mod files;
mod handlers;
pub mod message;
mod names;
mod number;
mod opens;
mod options;
mod process;
mod stdio;
mod wait;

/// Looks up what is interposed. Called once, by the constructor.
pub fn resolve() {
    data::own::resolve();
    exec::own::resolve();
    files::own::resolve();
    handlers::own::resolve();
    message::own::resolve();
    names::own::resolve();
    number::own::resolve();
    opens::own::resolve();
    options::own::resolve();
    process::own::resolve();
    stdio::own::resolve();
    wait::own::resolve();
}
