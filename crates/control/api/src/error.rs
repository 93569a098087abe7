//! The one form of an error: a closed code, a sentence, and details for programs.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::vnd::VndErrno;

/// What went wrong, as a program is told it. Closed: a client can match on all of them.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// The command line is wrong. Never sent by the daemon.
    Usage,
    /// The daemon cannot be reached. Never sent by the daemon.
    Unreachable,
    /// The request is not HTTP or JSON of the expected form, or has an unknown key.
    Malformed,
    /// Well formed, but the objects would contradict each other or a limit.
    Invalid,
    /// There is no such object, or it is another zone's.
    NotFound,
    /// An object of this name exists already.
    Exists,
    /// Others still refer to the object.
    InUse,
    /// The document has changed since the revision that the request names.
    Conflict,
    /// The peer may not do this.
    Forbidden,
    /// The body is larger than the limit.
    TooLarge,
    /// The resource knows no such method.
    Method,
    /// Too many connections or requests at once: try again.
    Busy,
    /// This daemon, kernel or privilege cannot do it.
    Unsupported,
    /// The host refused: an interface, a socket or a namespace could not be made as asked.
    Host,
    /// The configuration could not be stored (disk full, read-only): nothing was changed.
    Storage,
    /// Not done in time.
    Timeout,
    /// A defect of the daemon.
    Internal,
}

impl ErrorCode {
    /// All of them, in the order of their declaration.
    pub const ALL: &'static [ErrorCode] = &[
        Self::Usage,
        Self::Unreachable,
        Self::Malformed,
        Self::Invalid,
        Self::NotFound,
        Self::Exists,
        Self::InUse,
        Self::Conflict,
        Self::Forbidden,
        Self::TooLarge,
        Self::Method,
        Self::Busy,
        Self::Unsupported,
        Self::Host,
        Self::Storage,
        Self::Timeout,
        Self::Internal,
    ];

    /// The exit code of a command that failed with it: 1 refused, 2 usage, 3 daemon unreachable, 4 no
    /// such object, 5 exists already, 6 no permission, 124 not in time.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Usage => 2,
            Self::Unreachable => 3,
            Self::NotFound => 4,
            Self::Exists => 5,
            Self::Forbidden => 6,
            Self::Timeout => 124,
            Self::Malformed
            | Self::Invalid
            | Self::InUse
            | Self::Conflict
            | Self::TooLarge
            | Self::Method
            | Self::Busy
            | Self::Unsupported
            | Self::Host
            | Self::Storage
            | Self::Internal => 1,
        }
    }

    /// The HTTP status of a response with it (RFC 9110 section 15; 507 is RFC 4918).
    pub fn http_status(self) -> u16 {
        match self {
            Self::Usage | Self::Malformed => 400,
            Self::Forbidden => 403,
            Self::NotFound => 404,
            Self::Method => 405,
            Self::Timeout => 408,
            Self::Exists | Self::InUse => 409,
            Self::Conflict => 412,
            Self::TooLarge => 413,
            Self::Invalid => 422,
            Self::Internal => 500,
            Self::Unsupported => 501,
            Self::Host => 502,
            Self::Busy | Self::Unreachable => 503,
            Self::Storage => 507,
        }
    }

    /// The code as it is written in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Usage => "usage",
            Self::Unreachable => "unreachable",
            Self::Malformed => "malformed",
            Self::Invalid => "invalid",
            Self::NotFound => "not_found",
            Self::Exists => "exists",
            Self::InUse => "in_use",
            Self::Conflict => "conflict",
            Self::Forbidden => "forbidden",
            Self::TooLarge => "too_large",
            Self::Method => "method",
            Self::Busy => "busy",
            Self::Unsupported => "unsupported",
            Self::Host => "host",
            Self::Storage => "storage",
            Self::Timeout => "timeout",
            Self::Internal => "internal",
        }
    }
}

/// The body of every response that is not a success, and what `--json` prints to stderr.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema, thiserror::Error)]
#[error("{message}")]
pub struct ErrorBody {
    /// What went wrong.
    pub code: ErrorCode,
    /// One sentence for a person: what failed, with which value, and what to do next.
    pub message: String,
    /// Where, for a program: the key or the object concerned; more lines for several defects.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub details: Vec<Detail>,
}

/// One place that an [`ErrorBody`] speaks of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Detail {
    /// The path of the key in the request or the document: `vnics[2].attach.socket`, `vnics.v0`.
    pub path: String,
    /// What is wrong with it.
    pub message: String,
    /// Of a vnd device: what libvnd calls the failure, without its `VND_E_`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub errno: Option<VndErrno>,
}

impl ErrorBody {
    /// An error without details.
    pub fn plain(code: ErrorCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            details: Vec::new(),
        }
    }

    /// The same error, with one more place.
    #[must_use]
    pub fn at(mut self, path: impl Into<String>, message: impl Into<String>) -> Self {
        self.details.push(Detail {
            path: path.into(),
            message: message.into(),
            errno: None,
        });
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The name in JSON, the name in the table and the list of all agree.
    #[test]
    fn every_code_has_its_name() {
        for code in ErrorCode::ALL {
            let json = serde_json::to_value(code).expect("a code is a string");
            assert_eq!(json, code.name());
            assert!((400..600).contains(&code.http_status()));
        }
    }
}
