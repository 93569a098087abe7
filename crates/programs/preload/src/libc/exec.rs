//! `exec*` and `posix_spawn*`.
//!
//! Before the program is replaced, the joined sockets that the next one inherits go back to the kernel. `execl` and its
//! like come here with their arguments on the stack and leave as `execv`.

use std::ffi::{c_char, c_int};

use libc::{pid_t, posix_spawn_file_actions_t, posix_spawnattr_t};

use crate::fd::{record::flag, table};
use crate::lifecycle;
use crate::sys::real;

type Args = *const *const c_char;
type MutArgs = *const *mut c_char;

fn failed(result: c_int) -> c_int {
    let error = real::errno();
    lifecycle::exec_failed();
    real::set_errno(error);
    result
}

/// Calls that replace the program, unless they fail, and those that have a child do so.
macro_rules! execs {
    ($(fn $name:ident($($arg:ident: $type:ty),*);)*
     spawns: $(fn $spawn:ident($($given:ident: $kind:ty),*);)*
     others: $($others:tt)*) => {
        interpose! {
            $(fn $name($($arg: $type),*) -> c_int {
                lifecycle::before_exec();
                failed(pass!($name($($arg),*)))
            })*

            $(fn $spawn($($given: $kind),*) -> c_int {
                lifecycle::before_spawn();
                pass!($spawn($($given),*))
            })*

            $($others)*
        }
    };
}

execs! {
    fn execve(path: *const c_char, arguments: Args, environment: Args);
    fn execv(path: *const c_char, arguments: Args);
    fn execvp(file: *const c_char, arguments: Args);
    fn execvpe(file: *const c_char, arguments: Args, environment: Args);
    fn fexecve(fd: c_int, arguments: Args, environment: Args);
    fn execveat(at: c_int, path: *const c_char, arguments: Args, environment: Args, flags: c_int);
    spawns:
    fn posix_spawn(pid: *mut pid_t, path: *const c_char, actions: *const posix_spawn_file_actions_t,
        attributes: *const posix_spawnattr_t, arguments: MutArgs, environment: MutArgs);
    fn posix_spawnp(pid: *mut pid_t, file: *const c_char, actions: *const posix_spawn_file_actions_t,
        attributes: *const posix_spawnattr_t, arguments: MutArgs, environment: MutArgs);
    others:
    fn posix_spawn_file_actions_adddup2(actions: *mut posix_spawn_file_actions_t, fd: c_int,
        number: c_int) -> c_int {
        if let Some(sock) = table::any(fd) {
            sock.record.set(flag::INHERITED);
        }
        pass!(posix_spawn_file_actions_adddup2(actions, fd, number))
    }
}

/// `execle`: the environment follows the null that ends the arguments.
///
/// # Safety
/// As `execle`, with the arguments as a list.
unsafe extern "C-unwind" fn execle_list(path: *const c_char, arguments: Args) -> c_int {
    let mut place = arguments;
    // SAFETY: the list ends with null, and we stop there.
    while !unsafe { *place }.is_null() {
        // SAFETY: not yet the end of the list.
        place = unsafe { place.add(1) };
    }
    // SAFETY: the environment follows.
    let next = unsafe { place.add(1) };
    // SAFETY: one word, the address of the environment.
    let environment = unsafe { *next.cast::<Args>() };
    // SAFETY: the program's own arguments.
    unsafe { execve(path, arguments, environment) }
}

/// Defines a function with its arguments one by one that goes on to one that takes a list.
macro_rules! listed {
    ($($name:ident => $target:path;)*) => {
        $(
            #[cfg_attr(not(test), unsafe(no_mangle))]
            #[unsafe(naked)]
            pub unsafe extern "C-unwind" fn $name() {
                list_and_call!($target)
            }
        )*
    };
}

listed! {
    execl => execv;
    execlp => execvp;
    execle => execle_list;
}
