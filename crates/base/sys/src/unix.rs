//! UNIX sockets that pass descriptors.
//!
//! # Purpose
//! The control channels of memif (SEQPACKET) and vhost-user (STREAM), and windlass's own API
//! socket: making the listening socket safely, knowing the peer, sending and receiving descriptors.
//!
//! # Ownership and lifetime
//! A received descriptor belongs to the [`ReceivedMessage`] and is close-on-exec from the start. A
//! peer that sends more of them than expected leaks nothing into this process: the surplus is
//! closed before the call returns.
//!
//! # Failure modes
//! [`bind_socket`] works on one directory, held open, and one name in it. It takes the place of a
//! socket on which nobody listens, and of nothing else: not of a file, a directory, a
//! symbolic link, or a socket that answers. Whoever may write to the directory can still put
//! something in its place later; two daemons that start at once need a lock of their own.
//!
//! Where the directory is another user's, he can put symbolic links on the way, and would so have a privileged process
//! make, remove or open a socket elsewhere. [`bind_socket`] with an owner and [`connect_unlinked`] therefore follow none
//! (`RESOLVE_NO_SYMLINKS`, openat2(2)).

#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::arithmetic_side_effects,
    clippy::panic
)]

use std::ffi::{OsStr, OsString};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::{Errno, IoSlice, IoSliceMut};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    sockopt,
};

/// Most descriptors that the kernel lets one message carry (`SCM_MAX_FD`).
pub const FDS_MAX: usize = 253;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 64;

/// Longest file name in the directory, so that its address fits (`sun_path` has 108 bytes, and the
/// directory's path in `/proc` takes up to 26).
pub const SOCKET_NAME_BYTES_MAX: usize = 80;

/// What a socket carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketKind {
    /// A stream of bytes.
    Stream,
    /// Messages, in order.
    SeqPacket,
}

impl SocketKind {
    fn kind(self) -> SocketType {
        match self {
            Self::Stream => SocketType::STREAM,
            Self::SeqPacket => SocketType::SEQPACKET,
        }
    }

    fn open(self) -> Result<OwnedFd, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        rustix::net::socket_with(AddressFamily::UNIX, self.kind(), flags, None)
    }
}

/// Who is at the other end, as the kernel saw it when the connection was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// Process id in our PID namespace; `None` if it is not visible there.
    pub pid: Option<u32>,
    /// Effective user id in our user namespace; the overflow id if it has none there.
    pub uid: u32,
    /// Effective group id, likewise.
    pub gid: u32,
}

/// Why a listening socket could not be made.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The path has no file name, or one that is too long.
    #[error("{0}: not a socket path (the last part: 1 to {SOCKET_NAME_BYTES_MAX} bytes)")]
    BadPath(PathBuf),
    /// The directory cannot be opened.
    #[error("open directory of socket {path}: {errno}")]
    Directory {
        /// The socket's path.
        path: PathBuf,
        /// The kernel's answer.
        errno: Errno,
    },
    /// A part of the path is a symbolic link, which is not followed where the socket is another user's.
    #[error("{0}: a symbolic link on the way is not followed in the directory of another user")]
    Link(PathBuf),
    /// Something that is no socket is there; it was left alone.
    #[error("{0} exists and is not a socket")]
    NotSocket(PathBuf),
    /// Somebody listens there.
    #[error("{0} is in use: another process listens on it")]
    InUse(PathBuf),
    /// The kernel refused.
    #[error("{operation} socket {path}: {errno}")]
    Kernel {
        /// The call.
        operation: &'static str,
        /// The socket's path.
        path: PathBuf,
        /// The kernel's answer.
        errno: Errno,
    },
}

/// A socket that listens at a path. Dropping it leaves the path; see [`Listener::unlink`].
#[derive(Debug)]
pub struct Listener {
    fd: OwnedFd,
    directory: OwnedFd,
    name: OsString,
    inode: (u64, u64),
}

/// The way to `name` in an open directory, however the directory's own path may change.
fn address(directory: &OwnedFd, name: &OsStr) -> Result<SocketAddrUnix, Errno> {
    let path = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd())).join(name);
    SocketAddrUnix::new(path)
}

/// The path of an open file itself.
fn magic_path(file: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

/// What a directory has under a name.
enum Occupant {
    Nothing,
    StaleSocket { inode: (u64, u64) },
    LiveSocket,
    Other,
}

fn inspect(directory: &OwnedFd, name: &OsStr, kind: SocketKind) -> Result<Occupant, Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = match rustix::fs::openat(directory, name, flags, Mode::empty()) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(Occupant::Nothing),
        Err(errno) => return Err(errno),
    };
    let stat = rustix::fs::fstat(&file)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Socket {
        return Ok(Occupant::Other);
    }
    let probe = kind.open()?;
    // Whoever listens could send one before this is closed. Before Linux 6.16 he can.
    let _ = set_accepts_fds(&probe, false);
    // Only a refusal proves that nobody listens. Success, a full backlog (EAGAIN) and a socket of
    // another type (EPROTOTYPE) say that somebody does, or might.
    match rustix::net::connect(&probe, &SocketAddrUnix::new(magic_path(&file))?) {
        Err(Errno::CONNREFUSED) => Ok(Occupant::StaleSocket {
            inode: (stat.st_dev, stat.st_ino),
        }),
        _ => Ok(Occupant::LiveSocket),
    }
}

/// Removes `name` if it is still the file `inode`.
fn unlink_same(directory: &OwnedFd, name: &OsStr, inode: (u64, u64)) -> Result<(), Errno> {
    match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) if (stat.st_dev, stat.st_ino) == inode => {
            rustix::fs::unlinkat(directory, name, AtFlags::empty())
        }
        Ok(_) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Makes a socket that listens at `path` with exactly the permission bits `mode`, and the owner
/// (user id, group id) if one is given.
///
/// Takes the place of a stale socket only (see the module). With an owner, no symbolic link on the way is followed:
/// [`BindError::Link`]. Nobody can connect before mode and
/// owner are set. Both the listening and the accepted sockets are non-blocking.
pub fn bind_socket(
    path: &Path,
    kind: SocketKind,
    mode: u32,
    owner: Option<(u32, u32)>,
) -> Result<Listener, BindError> {
    let refused = |operation| {
        move |errno| BindError::Kernel {
            operation,
            path: path.to_owned(),
            errno,
        }
    };
    let name = path
        .file_name()
        .filter(|name| (1..=SOCKET_NAME_BYTES_MAX).contains(&name.len()))
        .ok_or_else(|| BindError::BadPath(path.to_owned()))?
        .to_owned();
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = match owner {
        None => rustix::fs::open(parent, flags, Mode::empty()),
        Some(_) => open_unlinked(parent, flags),
    };
    let directory = opened.map_err(|errno| match errno {
        Errno::LOOP if owner.is_some() => BindError::Link(path.to_owned()),
        errno => BindError::Directory {
            path: path.to_owned(),
            errno,
        },
    })?;

    match inspect(&directory, &name, kind).map_err(refused("inspect"))? {
        Occupant::Nothing => {}
        Occupant::StaleSocket { inode } => {
            unlink_same(&directory, &name, inode).map_err(refused("remove stale"))?;
        }
        Occupant::LiveSocket => return Err(BindError::InUse(path.to_owned())),
        Occupant::Other => return Err(BindError::NotSocket(path.to_owned())),
    }

    let fd = kind.open().map_err(refused("open"))?;
    let mode = Mode::from_raw_mode(mode & 0o777);
    // The file gets these bits without those of the umask.
    rustix::fs::fchmod(&fd, mode).map_err(refused("set mode of"))?;
    let at = address(&directory, &name).map_err(refused("name"))?;
    match rustix::net::bind(&fd, &at) {
        Ok(()) => {}
        Err(Errno::ADDRINUSE) => return Err(BindError::InUse(path.to_owned())),
        Err(errno) => return Err(refused("bind")(errno)),
    }
    let mut listener = Listener {
        fd,
        directory,
        name,
        inode: (0, 0),
    };
    if let Err(errno) = listener.publish(mode, owner) {
        // Ours, bound above; nothing else is to be done about a failure to remove it.
        let _ = listener.unlink();
        return Err(refused("set owner and mode of")(errno));
    }
    Ok(listener)
}

impl Listener {
    /// Sets owner and mode of the file that bind made, then listens.
    fn publish(&mut self, mode: Mode, owner: Option<(u32, u32)>) -> Result<(), Errno> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.directory, &self.name, flags, Mode::empty())?;
        let stat = rustix::fs::fstat(&file)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Socket {
            return Err(Errno::NOTSOCK);
        }
        self.inode = (stat.st_dev, stat.st_ino);
        if let Some(owner) = owner {
            give(&file, owner)?;
        }
        // Last: a change of owner clears bits. An O_PATH descriptor takes no fchmod.
        rustix::fs::chmod(magic_path(&file), mode)?;
        rustix::net::listen(&self.fd, BACKLOG)
    }

    /// Takes the next connection, non-blocking; `EAGAIN` if there is none.
    pub fn accept(&self) -> Result<OwnedFd, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        rustix::net::accept_with(&self.fd, flags)
    }

    /// One that a service manager made at `path` and handed over as `fd` (see [`inherited`]). Its path is the manager's:
    /// [`Listener::unlink`] leaves it.
    ///
    /// # Errors
    /// `EINVAL` if it has another name, and what the kernel says.
    pub fn given(fd: OwnedFd, path: &Path) -> Result<Self, Errno> {
        let bound = SocketAddrUnix::try_from(rustix::net::getsockname(&fd)?);
        let is_there = bound.is_ok_and(|bound| {
            let name = bound.path_bytes().unwrap_or_default();
            name == path.as_os_str().as_encoded_bytes()
        });
        let (Some(name), Some(parent), true) = (path.file_name(), path.parent(), is_there) else {
            return Err(Errno::INVAL);
        };
        rustix::io::ioctl_fionbio(&fd, true)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self {
            fd,
            directory: rustix::fs::open(parent, flags, Mode::empty())?,
            name: name.to_owned(),
            inode: (0, 0),
        })
    }

    /// Whether the path still leads to this socket: else nobody can connect any more.
    pub fn is_in_place(&self) -> bool {
        rustix::fs::statat(&self.directory, &self.name, AtFlags::SYMLINK_NOFOLLOW)
            .is_ok_and(|stat| (stat.st_dev, stat.st_ino) == self.inode)
    }

    /// Gives the socket's file to a user and a group; false if the path does not lead to it any more. Connections that wait
    /// are still those of whoever could connect before.
    pub fn set_owner(&self, owner: (u32, u32)) -> Result<bool, Errno> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(&self.directory, &self.name, flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(false),
            opened => opened?,
        };
        let stat = rustix::fs::fstat(&file)?;
        let is_in_place = (stat.st_dev, stat.st_ino) == self.inode;
        if is_in_place {
            give(&file, owner)?;
        }
        Ok(is_in_place)
    }

    /// The connections that wait.
    pub fn waiting(&self) -> Vec<OwnedFd> {
        (0..=BACKLOG).map_while(|_| self.accept().ok()).collect()
    }

    /// Removes the path, if it is still this socket's.
    pub fn unlink(&self) -> Result<(), Errno> {
        unlink_same(&self.directory, &self.name, self.inode)
    }
}

/// Gives a file, which may be open as a path only, to a user and a group.
fn give(file: impl AsFd, (uid, gid): (u32, u32)) -> Result<(), Errno> {
    let uid = rustix::fs::Uid::from_raw(uid);
    let gid = rustix::fs::Gid::from_raw(gid);
    rustix::fs::chownat(file, "", Some(uid), Some(gid), AtFlags::EMPTY_PATH)
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Connects to the socket at `path`; non-blocking from then on.
///
/// # Errors
/// `ENOENT`, `ECONNREFUSED` if nobody listens, `EACCES`, `EAGAIN` if too many wait, `EPROTOTYPE` for
/// the other kind, `ENAMETOOLONG` above 107 bytes.
pub fn connect(path: &Path, kind: SocketKind) -> Result<OwnedFd, Errno> {
    let fd = kind.open()?;
    rustix::net::connect(&fd, &SocketAddrUnix::new(path)?)?;
    Ok(fd)
}

/// As [`connect`], but `ELOOP` if any part of the path is a symbolic link: for sockets in a directory of another user.
///
/// # Errors
/// As [`connect`], and `ELOOP`.
pub fn connect_unlinked(path: &Path, kind: SocketKind) -> Result<OwnedFd, Errno> {
    let file = open_unlinked(path, OFlags::PATH | OFlags::CLOEXEC)?;
    let fd = kind.open()?;
    rustix::net::connect(&fd, &SocketAddrUnix::new(magic_path(&file))?)?;
    Ok(fd)
}

/// Opens what lies at a path without a symbolic link in it; `ELOOP` if there is one.
fn open_unlinked(path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let how = ResolveFlags::NO_SYMLINKS;
    rustix::fs::openat2(rustix::fs::CWD, path, flags, Mode::empty(), how)
}

/// A copy of the descriptor that this process was started with under the number `fd`, as a service manager hands sockets
/// over (sd_listen_fds(3)); closed by exec. `EBADF` if there is none.
pub fn inherited(fd: i32) -> Result<OwnedFd, Errno> {
    // SAFETY: `F_DUPFD_CLOEXEC` takes numbers, touches no memory, and refuses one that is not open.
    let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) };
    if copy < 0 {
        return Err(crate::vectored::last_errno());
    }
    // SAFETY: the kernel has just made this descriptor for this call, so nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

/// A connected pair, non-blocking.
pub fn pair(kind: SocketKind) -> Result<(OwnedFd, OwnedFd), Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socketpair(AddressFamily::UNIX, kind.kind(), flags, None)
}

/// Who is at the other end of a connected socket (`SO_PEERCRED`).
pub fn peer_credentials(socket: impl AsFd) -> Result<Credentials, Errno> {
    // Read by hand: rustix takes the process id for non-zero, which it is not across namespaces.
    let mut words = [[0; 4]; 3];
    let space = words.as_flattened_mut();
    let len = crate::sockopt::get_bytes(socket, libc::SOL_SOCKET, libc::SO_PEERCRED, space)?;
    if len < 12 {
        return Err(Errno::INVAL);
    }
    let [pid, uid, gid] = words.map(u32::from_ne_bytes);
    Ok(Credentials {
        pid: Some(pid).filter(|&pid| pid != 0),
        uid,
        gid,
    })
}

/// `SO_PASSRIGHTS` (Linux 6.16, asm-generic/socket.h), which libc does not name yet.
const PASSRIGHTS: i32 = 83;

/// Whether peers may send descriptors to a socket: with `false` their `sendmsg` fails with `EPERM`. A listening socket
/// hands it on to those that connect from then on.
///
/// Reading without room for descriptors does not refuse them: the kernel closes what came, and what an unread message holds,
/// in the reader's own call, and the last close of a file may wait for as long as its file system or `SO_LINGER` says.
///
/// # Errors
/// `ENOPROTOOPT` before Linux 6.16.
pub fn set_accepts_fds(socket: impl AsFd, accepts: bool) -> Result<(), Errno> {
    crate::sockopt::set_int(socket, libc::SOL_SOCKET, PASSRIGHTS, i32::from(accepts))
}

/// Whether the kernel lets peers send descriptors to this socket; before Linux 6.16 it always does.
pub fn accepts_fds(socket: impl AsFd) -> bool {
    let mut value = [0; 4];
    let read = crate::sockopt::get_bytes(socket, libc::SOL_SOCKET, PASSRIGHTS, &mut value);
    read.is_err() || value != [0; 4]
}

/// The error that a non-blocking connect or an earlier send left.
pub fn take_error(socket: impl AsFd) -> Result<Option<Errno>, Errno> {
    Ok(sockopt::socket_error(socket)?.err())
}

/// Sends `parts` as one message with `fds` beside it. Returns the bytes sent: on a stream maybe
/// fewer than given, and then the descriptors went with them.
///
/// # Errors
/// As `sendmsg(2)`, without a signal on `EPIPE`; `EINVAL` above [`FDS_MAX`] descriptors or with
/// descriptors and no byte; `ETOOMANYREFS` if too many are in flight.
pub fn send_with_fds(
    socket: impl AsFd,
    parts: &[IoSlice<'_>],
    fds: &[BorrowedFd<'_>],
) -> Result<usize, Errno> {
    let empty = parts.iter().all(|part| part.is_empty());
    if fds.len() > FDS_MAX || (empty && !fds.is_empty()) {
        return Err(Errno::INVAL);
    }
    let mut space = [MaybeUninit::<u8>::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::INVAL);
    }
    rustix::net::sendmsg(socket, parts, &mut control, SendFlags::NOSIGNAL)
}

/// Sends what the socket takes at once, whatever its flags say; how many bytes that is.
///
/// # Errors
/// As `sendmsg(2)`, without a signal on `EPIPE`; `EAGAIN` if there is no room.
pub fn send_now(socket: impl AsFd, bytes: &[u8]) -> Result<usize, Errno> {
    rustix::net::send(socket, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
}

/// What one receive brought.
#[derive(Debug, Default)]
pub struct ReceivedMessage {
    /// Bytes written to the space that was given. Zero, with no descriptors: the peer closed.
    pub bytes: usize,
    /// At most as many as were asked for, in the order sent.
    pub fds: Vec<OwnedFd>,
    /// How many more there were; they are closed.
    pub surplus_fds: usize,
    /// The message, or its list of descriptors, did not fit and was cut.
    pub truncated: bool,
}

/// Receives into `space`, with at most `fds_max` descriptors. `EAGAIN` if nothing waits.
pub fn receive_with_fds(
    socket: impl AsFd,
    space: &mut [u8],
    fds_max: usize,
) -> Result<ReceivedMessage, Errno> {
    // Room for all that a message can carry, so that each is seen, and counted or closed.
    let mut room = [MaybeUninit::<u8>::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut room);
    let capacity = space.len();
    let received = rustix::net::recvmsg(
        socket,
        &mut [IoSliceMut::new(space)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    let cut = ReturnFlags::TRUNC | ReturnFlags::CTRUNC;
    let mut message = ReceivedMessage {
        bytes: received.bytes.min(capacity),
        truncated: received.flags.intersects(cut),
        ..ReceivedMessage::default()
    };
    for part in control.drain() {
        let RecvAncillaryMessage::ScmRights(fds) = part else {
            continue;
        };
        for fd in fds {
            if message.fds.len() < fds_max {
                message.fds.push(fd);
            } else {
                message.surplus_fds = message.surplus_fds.saturating_add(1);
            }
        }
    }
    Ok(message)
}
