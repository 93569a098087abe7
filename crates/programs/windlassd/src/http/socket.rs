//! The path of the control socket: its lock, who listens on it, and what a dead daemon left there.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tokio::net::UnixListener;
use windlass_api::CAPTURE_SUFFIX;
use windlass_attach::endpoint::Handed;
use windlass_sys::unix;

use crate::handover::{Listener, Successor};

/// The path of the control socket, held: another daemon cannot take it while this lives.
#[derive(Debug)]
pub struct SocketLock {
    path: PathBuf,
    /// The socket, once somebody listens on it.
    listener: Option<Listener>,
    /// A successor has it.
    is_handed_over: bool,
    _lock: File,
}

/// How long a lock is tried for: a process that is just being started holds a copy of every descriptor of its parent's until
/// it executes its program, so the lock of a daemon that has ended may live on for a moment.
const LOCK_PATIENCE: Duration = Duration::from_millis(300);

/// Locks a file, and tries again for [`LOCK_PATIENCE`] if somebody has it.
fn patiently(lock: &File) -> Result<(), TryLockError> {
    let until = Instant::now() + LOCK_PATIENCE;
    loop {
        match lock.try_lock() {
            Err(TryLockError::WouldBlock) if Instant::now() < until => {
                thread::sleep(Duration::from_millis(5))
            }
            other => return other,
        }
    }
}

impl SocketLock {
    /// Locks the file `PATH.lock` beside the socket; `inherited`: the predecessor's socket, which is of no use on another path.
    ///
    /// # Errors
    /// If another daemon has it, or the directory does not exist.
    pub fn take(path: &Path, inherited: Option<Listener>) -> Result<Self> {
        let mut lock_path = path.as_os_str().to_owned();
        lock_path.push(".lock");
        let lock_path = PathBuf::from(lock_path);
        let flags = i32::try_from(rustix::fs::OFlags::NOFOLLOW.bits()).unwrap_or(0);
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .custom_flags(flags)
            .open(&lock_path)
            .with_context(|| {
                let lock = lock_path.display();
                format!("cannot make {lock}, which locks the control socket: see that its directory is there and yours")
            })?;
        match patiently(&lock) {
            Ok(()) => Ok(Self {
                path: path.into(),
                listener: match inherited.filter(|listener| is_at(&listener.socket, path)) {
                    Some(listener) => Some(listener),
                    None => activated(path)?,
                },
                is_handed_over: false,
                _lock: lock,
            }),
            Err(TryLockError::WouldBlock) => {
                bail!(
                    "{} is served by another windlassd: give this one its own --socket",
                    path.display()
                )
            }
            Err(TryLockError::Error(error)) => {
                bail!("cannot lock {}: {error}", lock_path.display())
            }
        }
    }

    /// Listens on the socket, that of the service manager or the predecessor if they gave one; one that a dead daemon left is
    /// replaced. Root's can be connected to by anyone, another user's only by himself and root. Peers cannot send descriptors to
    /// it, from Linux 6.16.
    ///
    /// # Errors
    /// If something that is no socket lies there, or the system refuses.
    pub fn listen(&mut self) -> Result<UnixListener> {
        let listener = match &self.listener {
            Some(given) => given.socket.try_clone()?,
            None => {
                let socket = bind(&self.path)?;
                let listener = socket.try_clone()?;
                let is_managed = false;
                self.listener = Some(Listener { socket, is_managed });
                listener
            }
        };
        refuse_fds(&listener);
        listener.set_nonblocking(true)?;
        Ok(UnixListener::from_std(listener)?)
    }

    /// Listens on the socket of captures beside it; one that a daemon before this one has left is replaced.
    ///
    /// # Errors
    /// If something that is no socket lies there, or the system refuses.
    pub fn listen_captures(&self) -> Result<net::UnixListener> {
        bind(&captures_path(&self.path))
    }

    /// Gives the socket to a successor, with members.
    ///
    /// # Errors
    /// If the successor has ended.
    pub fn hand_over(&self, successor: &Successor, members: &[Handed]) -> Result<()> {
        let listener = self.listener.as_ref().context("nobody listens")?;
        successor.hand_over(listener, members)
    }

    /// The successor serves: the path stays when this is dropped.
    pub fn is_another_daemons(&mut self) {
        self.is_handed_over = true;
    }
}

/// Where the socket of captures lies.
fn captures_path(control: &Path) -> PathBuf {
    let mut path = control.as_os_str().to_owned();
    path.push(CAPTURE_SUFFIX);
    path.into()
}

/// Makes a socket in the place of a dead daemon's.
fn bind(path: &Path) -> Result<net::UnixListener> {
    match fs::symlink_metadata(path) {
        Ok(meta) if meta.file_type().is_socket() => fs::remove_file(path)?,
        Ok(_) => bail!("{} is there and is not a socket", path.display()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => bail!("{}: {error}", path.display()),
    }
    let listener = net::UnixListener::bind(path)
        .with_context(|| format!("cannot listen on {}", path.display()))?;
    refuse_fds(&listener);
    let mode = if rustix::process::geteuid().is_root() {
        0o666
    } else {
        0o600
    };
    fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    Ok(listener)
}

fn is_at(listener: &net::UnixListener, path: &Path) -> bool {
    let address = listener.local_addr();
    address.is_ok_and(|address| address.as_pathname() == Some(path))
}

fn refuse_fds(listener: &impl AsFd) {
    if let Err(errno) = unix::set_accepts_fds(listener, false) {
        tracing::debug!("descriptors are read and closed by threads: {errno}");
    }
}

/// The listening socket that the service manager handed over (`LISTEN_FDS`, sd_listen_fds(3)), if it did.
fn activated(path: &Path) -> Result<Option<Listener>> {
    let mut fds = sd_notify::listen_fds().context("LISTEN_FDS")?;
    let Some(fd) = fds.next() else {
        return Ok(None);
    };
    if fds.len() > 0 {
        bail!("the service manager gave several sockets: windlassd takes one");
    }
    let socket = windlass_sys::unix::inherited(fd).context("the socket of the service manager")?;
    let listener = net::UnixListener::from(socket);
    if !is_at(&listener, path) {
        bail!(
            "the service manager listens on {:?}, not on {}: let --socket name the same",
            listener.local_addr(),
            path.display()
        );
    }
    Ok(Some(Listener {
        socket: listener,
        is_managed: true,
    }))
}

impl Drop for SocketLock {
    fn drop(&mut self) {
        let is_managed = self
            .listener
            .as_ref()
            .is_some_and(|listener| listener.is_managed);
        if self.is_handed_over {
            return;
        }
        remove(&captures_path(&self.path));
        if !is_managed {
            remove(&self.path);
        }
    }
}

fn remove(path: &Path) {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket());
    if is_socket && let Err(error) = fs::remove_file(path) {
        tracing::warn!("{} stays: {error}", path.display());
    }
}
