//! Starting a program with less than this process has.
//!
//! # Model
//! The program gets a socket under the number [`SOCKET`], no other descriptor but `/dev/null` as its standard streams, an
//! empty environment but for `PATH`, another user if one is given, no capability, and no way to get any (`no_new_privs`). It
//! is killed when the thread that started it ends.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// The number of the socket in the program that was started.
pub const SOCKET: i32 = 3;

/// `_LINUX_CAPABILITY_VERSION_3` of `linux/capability.h`.
const CAPABILITIES_VERSION: u32 = 0x2008_0522;

/// Starts `program` with `words`, as `user` (user id, group id) if one is given, with `socket`, blocking, for its own.
///
/// # Errors
/// If there is no process for it, or it cannot be confined, or the program cannot be executed.
pub fn spawn(
    program: &Path,
    words: &[String],
    user: Option<(u32, u32)>,
    socket: OwnedFd,
) -> io::Result<Child> {
    rustix::io::ioctl_fionbio(&socket, false)?;
    // While this lives nothing else has the number, as the pipe that tells of a failed exec could.
    let _place = rustix::io::fcntl_dupfd_cloexec(&socket, SOCKET)?;
    let mut command = Command::new(program);
    command.args(words).current_dir("/");
    command
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let from = socket.as_raw_fd();
    // SAFETY: what runs between fork and exec are system calls, which take numbers and memory of their own alone.
    unsafe { command.pre_exec(move || confine(from, user)) };
    command.spawn()
}

/// What the child does before it becomes the program.
fn confine(socket: i32, user: Option<(u32, u32)>) -> io::Result<()> {
    // By number: the C library's own calls would look for the parent's other threads.
    let call = |number, a: i64, b: i64, c: i64| {
        // SAFETY: each call below takes numbers, or points to memory that lives until it returns.
        match unsafe { libc::syscall(number, a, b, c, 0, 0) } {
            -1 => Err(io::Error::last_os_error()),
            done => Ok(done),
        }
    };
    if socket == SOCKET {
        call(libc::SYS_fcntl, SOCKET.into(), libc::F_SETFD.into(), 0)?;
    } else {
        call(libc::SYS_dup3, socket.into(), SOCKET.into(), 0)?;
    }
    // Whatever this process was started with. Closed by the exec, which tells of its failure through one of them.
    let (from, most) = (i64::from(SOCKET) + 1, i64::from(u32::MAX));
    let flags = i64::from(libc::CLOSE_RANGE_CLOEXEC);
    call(libc::SYS_close_range, from, most, flags)?;
    if let Some((uid, gid)) = user {
        let (uid, gid) = (i64::from(uid), i64::from(gid));
        call(libc::SYS_setgroups, 0, 0, 0)?;
        call(libc::SYS_setresgid, gid, gid, gid)?;
        call(libc::SYS_setresuid, uid, uid, uid)?;
    }
    call(libc::SYS_prctl, libc::PR_SET_NO_NEW_PRIVS.into(), 1, 0)?;
    let header = [CAPABILITIES_VERSION, 0];
    let none = [0_u32; 6];
    let (header, none) = (header.as_ptr() as i64, none.as_ptr() as i64);
    call(libc::SYS_capset, header, none, 0)?;
    // Last: a change of ids takes it back.
    let kill = i64::from(libc::SIGKILL);
    call(libc::SYS_prctl, libc::PR_SET_PDEATHSIG.into(), kill, 0).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unix::{self, SocketKind};
    use std::io::Read;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    /// The program has the socket, nothing else that was open, no capability, and the user that was asked for.
    #[test]
    fn a_program_has_what_it_was_given() -> io::Result<()> {
        let (ours, theirs) = unix::pair(SocketKind::Stream)?;
        let is_root = rustix::process::geteuid().is_root();
        let user = is_root.then_some((65_533, 65_532));
        // As one that this process was started with.
        let open = std::fs::File::open("/")?;
        rustix::io::fcntl_setfd(&open, rustix::io::FdFlags::empty())?;
        let script = "exec >&3; grep -E '^(Uid|Gid|Groups|Cap[EPIA]|NoNewPrivs)' /proc/self/status; \
            ls /proc/$$/fd; env; echo $1";
        let words = ["-c", script, "sh", "word"].map(str::to_owned);
        let mut child = spawn(Path::new("/bin/sh"), &words, user, theirs)?;
        let mut stream = UnixStream::from(ours);
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        let mut said = String::new();
        stream.read_to_string(&mut said)?;
        assert!(child.wait()?.success());
        let own = (
            rustix::process::geteuid().as_raw(),
            rustix::process::getegid().as_raw(),
        );
        let (uid, gid) = user.unwrap_or(own);
        let lines: Vec<_> = said.lines().map(|line| line.replace('\t', " ")).collect();
        let has = |line: &str| lines.iter().any(|one| one.trim() == line);
        assert!(has(&format!("Uid: {uid} {uid} {uid} {uid}")), "{said}");
        assert!(has(&format!("Gid: {gid} {gid} {gid} {gid}")), "{said}");
        for set in ["CapEff", "CapPrm", "CapInh", "CapAmb"] {
            assert!(has(&format!("{set}: 0000000000000000")), "{said}");
        }
        assert!(has("NoNewPrivs: 1") && has("word"), "{said}");
        assert!(!is_root || has("Groups:"), "{said}");
        let fds: Vec<_> = lines
            .iter()
            .filter_map(|line| line.parse::<i32>().ok())
            .collect();
        assert_eq!(fds, [0, 1, 2, 3]);
        assert!(
            !lines.iter().any(|line| line.starts_with("HOME=")),
            "{said}"
        );
        Ok(())
    }

    /// A program that is not there is told as such.
    #[test]
    fn what_is_not_there_is_not_started() -> io::Result<()> {
        let (_ours, theirs) = unix::pair(SocketKind::Stream)?;
        let failed = spawn(Path::new("/nowhere/program"), &[], None, theirs);
        assert_eq!(
            failed.map(drop).map_err(|e| e.kind()),
            Err(io::ErrorKind::NotFound)
        );
        Ok(())
    }
}
