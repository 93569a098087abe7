//! Why a device could not be opened, and the numbers that C programs see.

use std::path::PathBuf;

use windlass_sys::Errno;

/// Why a call failed that has more to tell than an errno.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nothing is at the path, or the server there has no such interface.
    #[error("{0}: no such device")]
    NoDevice(PathBuf),
    /// A path that cannot be a socket's.
    #[error("{0}: not a name of a device")]
    BadName(PathBuf),
    /// The socket is another user's.
    #[error("{0}: permission denied")]
    Permission(PathBuf),
    /// The device has another consumer.
    #[error("{0}: in use by another program")]
    Busy(PathBuf),
    /// A system call failed, or the server did not keep to the protocol (`EPROTO`).
    #[error("{0}")]
    System(#[from] Errno),
}

/// The numbers of `windlass_errno()`: those of libvnd, as far as they have a meaning here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Code {
    /// No failure.
    Success = 0,
    /// [`Error::NoDevice`].
    NoDevice = 13,
    /// [`Error::BadName`].
    BadName = 18,
    /// [`Error::Permission`].
    Permission = 19,
    /// [`Error::Busy`].
    Busy = 28,
    /// [`Error::System`]: `errno` tells which.
    System = 33,
}

impl Code {
    /// Every number, and what `windlass_strerror()` says of it.
    pub const ALL: &[(Code, &core::ffi::CStr)] = &[
        (Code::Success, c"no error"),
        (Code::NoDevice, c"no such device"),
        (Code::BadName, c"not a name of a device"),
        (Code::Permission, c"permission denied"),
        (Code::Busy, c"device in use by another program"),
        (Code::System, c"a system call failed: see errno"),
    ];

    /// What is said of a number; of one that there is not, that.
    #[must_use]
    pub fn text(number: i32) -> &'static core::ffi::CStr {
        let mut all = Code::ALL.iter();
        let found = all.find(|(code, _)| *code as i32 == number);
        found.map_or(c"unknown error", |(_, text)| text)
    }
}

impl Error {
    /// Its number.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Error::NoDevice(_) => Code::NoDevice,
            Error::BadName(_) => Code::BadName,
            Error::Permission(_) => Code::Permission,
            Error::Busy(_) => Code::Busy,
            Error::System(_) => Code::System,
        }
    }

    /// The errno that goes with it.
    #[must_use]
    pub fn errno(&self) -> Errno {
        match self {
            Error::NoDevice(_) => Errno::NOENT,
            Error::BadName(_) => Errno::INVAL,
            Error::Permission(_) => Errno::ACCESS,
            Error::Busy(_) => Errno::BUSY,
            Error::System(errno) => *errno,
        }
    }
}
