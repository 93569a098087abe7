//! `exec*` and `posix_spawn*`.
//!
//! Before the program is replaced, the engine learns whether the new one will have this library, so
//! that what it inherits is in order. `execl` and its like come here with their arguments on the stack
//! and leave as `execv`.

use std::ffi::{c_char, c_int};

use libc::{pid_t, posix_spawn_file_actions_t, posix_spawnattr_t};

use super::process::environment;
use crate::handed::Environment;
use crate::record::flag;
use crate::target::{self, Target};
use crate::{engine, start, table};

type Args = *const *const c_char;
type MutArgs = *const *mut c_char;

/// What was done before an exec.
struct Before {
    /// The engine was told.
    told: bool,
    /// The environment with what is handed on.
    handed: Option<Environment>,
    environment: Args,
}

impl Before {
    /// The environment of the new program.
    fn environment(&self) -> Args {
        let handed = self.handed.as_ref().and_then(Environment::list);
        handed.unwrap_or(self.environment)
    }
}

/// Tells the engine.
fn before(target: Target, environment: Args) -> Before {
    let told = target != Target::Missing && table::exists();
    let mut handed = None;
    if told {
        if target == Target::Accelerated && table::ours() {
            // SAFETY: the list was read by who judged the target.
            handed = unsafe { Environment::over(environment) };
        }
        engine::before_exec(target, false, handed.as_mut());
        table::before_exec(false);
    }
    if target != Target::Missing {
        start::before_exec();
    }
    Before {
        told,
        handed,
        environment,
    }
}

/// A child that libc makes by itself will execute a file.
pub(super) fn before_spawn(target: Target) {
    if target != Target::Missing && table::exists() {
        let error = crate::real::errno();
        engine::before_exec(target, true, None);
        table::before_exec(true);
        crate::real::set_errno(error);
    }
}

/// The call came back: it failed.
fn failed(before: &Before, result: c_int) -> c_int {
    if before.told {
        let error = crate::real::errno();
        if table::ours() {
            engine::exec_failed();
        }
        table::exec_failed();
        crate::real::set_errno(error);
    }
    result
}

fn judge(path: *const c_char, environment: Args) -> Target {
    if !start::matters_to_exec() {
        return Target::Missing;
    }
    // SAFETY: both are as for execve.
    unsafe { target::judge(libc::AT_FDCWD, path, environment) }
}

fn judge_search(file: *const c_char, environment: Args) -> Target {
    if !start::matters_to_exec() {
        return Target::Missing;
    }
    // SAFETY: both are as for execvpe.
    unsafe { target::judge_search(file, environment) }
}

interpose! {
    fn execve(path: *const c_char, arguments: Args, environment: Args) -> c_int {
        let before = before(judge(path, environment), environment);
        failed(&before, pass!(execve(path, arguments, before.environment())))
    }

    fn execv(path: *const c_char, arguments: Args) -> c_int {
        let before = before(judge(path, environment()), environment());
        failed(&before, pass!(execve(path, arguments, before.environment())))
    }

    fn execvp(file: *const c_char, arguments: Args) -> c_int {
        let before = before(judge_search(file, environment()), environment());
        failed(&before, pass!(execvpe(file, arguments, before.environment())))
    }

    fn execvpe(file: *const c_char, arguments: Args, environment: Args) -> c_int {
        let before = before(judge_search(file, environment), environment);
        failed(&before, pass!(execvpe(file, arguments, before.environment())))
    }

    fn fexecve(fd: c_int, arguments: Args, environment: Args) -> c_int {
        // SAFETY: an empty path names the descriptor itself.
        let before = before(unsafe { judge_at(fd, c"".as_ptr(), environment) }, environment);
        failed(&before, pass!(fexecve(fd, arguments, before.environment())))
    }

    fn execveat(at: c_int, path: *const c_char, arguments: Args, environment: Args, flags: c_int)
        -> c_int {
        // SAFETY: as for execveat.
        let before = before(unsafe { judge_at(at, path, environment) }, environment);
        failed(&before, pass!(execveat(at, path, arguments, before.environment(), flags)))
    }

    fn posix_spawn_file_actions_adddup2(actions: *mut posix_spawn_file_actions_t, fd: c_int,
        number: c_int) -> c_int {
        if let Some(sock) = table::any(fd) {
            sock.record.set(flag::INHERITED);
        }
        pass!(posix_spawn_file_actions_adddup2(actions, fd, number))
    }

    fn posix_spawn(pid: *mut pid_t, path: *const c_char,
        actions: *const posix_spawn_file_actions_t, attributes: *const posix_spawnattr_t,
        arguments: MutArgs, environment: MutArgs) -> c_int {
        let target = judge(path, environment.cast());
        before_spawn(target);
        pass!(posix_spawn(pid, path, actions, attributes, arguments, environment))
    }

    fn posix_spawnp(pid: *mut pid_t, file: *const c_char,
        actions: *const posix_spawn_file_actions_t, attributes: *const posix_spawnattr_t,
        arguments: MutArgs, environment: MutArgs) -> c_int {
        let target = judge_search(file, environment.cast());
        before_spawn(target);
        pass!(posix_spawnp(pid, file, actions, attributes, arguments, environment))
    }
}

/// Judges what a directory and a path name; an empty path names the descriptor.
///
/// # Safety
/// As `execveat`.
unsafe fn judge_at(at: c_int, path: *const c_char, environment: Args) -> Target {
    if !start::matters_to_exec() {
        return Target::Missing;
    }
    // SAFETY: the caller's path is a C string or null.
    let empty = path.is_null() || unsafe { *path } == 0;
    if !empty {
        // SAFETY: as the caller says.
        return unsafe { target::judge(at, path, environment) };
    }
    // SAFETY: as the caller says.
    unsafe { target::judge_open(at, environment) }
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

/// Defines a function with its arguments one by one that goes on to one that takes a list: the words in
/// registers are pushed below those on the stack, over the return address, which goes beneath.
macro_rules! listed {
    ($($name:ident => $target:path;)*) => {
        $(
            #[cfg_attr(not(test), unsafe(no_mangle))]
            #[unsafe(naked)]
            pub unsafe extern "C-unwind" fn $name() {
                std::arch::naked_asm!(
                    "pop rax",
                    "push r9",
                    "push r8",
                    "push rcx",
                    "push rdx",
                    "push rsi",
                    "mov rsi, rsp",
                    "push rax",
                    "call {target}",
                    "pop rcx",
                    "add rsp, 40",
                    "push rcx",
                    "ret",
                    target = sym $target,
                )
            }
        )*
    };
}

listed! {
    execl => execv;
    execlp => execvp;
    execle => execle_list;
}
