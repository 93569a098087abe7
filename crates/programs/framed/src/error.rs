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
    /// The device has another consumer; what the server said of it.
    #[error("{0}: {1}")]
    Busy(PathBuf, String),
    /// The daemon refused, or would.
    #[error("{message}")]
    Refused {
        /// Its number.
        code: Code,
        /// What it said.
        message: String,
    },
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
    /// There is no such VNIC in the zone.
    NoDatalink = 2,
    /// [`Error::NoDevice`].
    NoDevice = 13,
    /// [`Error::BadName`].
    BadName = 18,
    /// [`Error::Permission`].
    Permission = 19,
    /// There is no such zone.
    NoZone = 20,
    /// Another device of the zone has the name.
    LinkExists = 24,
    /// A buffer is to be larger than `maxsize`.
    BufTooBig = 26,
    /// A buffer is to be smaller than `maxtu`.
    BufTooSmall = 27,
    /// [`Error::Busy`], and a VNIC that has an attachment or a device.
    Busy = 28,
    /// There is no such property.
    BadProperty = 31,
    /// The property cannot be set.
    ReadOnly = 32,
    /// [`Error::System`]: `errno` tells which.
    System = 33,
}

impl Code {
    /// Every number, and what `windlass_strerror()` says of it.
    pub const ALL: &[(Code, &core::ffi::CStr)] = &[
        (Code::Success, c"no error"),
        (Code::NoDatalink, c"no such VNIC"),
        (Code::NoDevice, c"no such device"),
        (Code::BadName, c"not a name of a device"),
        (Code::Permission, c"permission denied"),
        (Code::NoZone, c"no such zone"),
        (Code::LinkExists, c"the zone has a device of this name"),
        (Code::BufTooBig, c"buffer larger than maxsize"),
        (Code::BufTooSmall, c"buffer smaller than maxtu"),
        (Code::Busy, c"device or VNIC in use"),
        (Code::BadProperty, c"no such property"),
        (Code::ReadOnly, c"property cannot be set"),
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
            Error::Busy(..) => Code::Busy,
            Error::Refused { code, .. } => *code,
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
            Error::Busy(..) => Errno::BUSY,
            Error::Refused { code, .. } => match code {
                Code::NoDatalink | Code::NoDevice | Code::NoZone => Errno::NOENT,
                Code::Permission => Errno::ACCESS,
                Code::LinkExists => Errno::EXIST,
                Code::Busy => Errno::BUSY,
                _ => Errno::INVAL,
            },
            Error::System(errno) => *errno,
        }
    }
}
