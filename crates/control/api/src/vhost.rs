//! The attachment of a virtual machine, and whose socket it is.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::attach::{AttachError, Role};
use crate::name::SocketPath;

/// Queue pairs of one device: what vhost-user devices of windlass have at most.
pub const VHOST_QUEUES_MAX: u16 = 16;

fn one() -> u16 {
    1
}

fn is_one(queues: &u16) -> bool {
    *queues == one()
}

/// A virtio network device of a virtual machine, by the vhost-user protocol.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VhostUser {
    /// The control socket.
    pub socket: SocketPath,
    /// Which end of the socket windlass is. As client it connects again whenever the other end comes back.
    pub role: Role,
    /// Queue pairs at most, 1 to [`VHOST_QUEUES_MAX`].
    #[serde(default = "one", skip_serializing_if = "is_one")]
    #[schemars(range(min = 1, max = 16))]
    pub queues: u16,
    /// Permission bits of the socket; for the server. Without it only the owner may connect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<SocketMode>,
    /// Owner of the socket; for the server, and in the global zone. Without it the daemon's own user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<SocketOwner>,
}

impl VhostUser {
    /// Checks what JSON could have brought.
    ///
    /// # Errors
    /// The first value that is outside its limits, or has no meaning in this role.
    pub fn check(&self) -> Result<(), AttachError> {
        if !(1..=VHOST_QUEUES_MAX).contains(&self.queues) {
            return Err(AttachError::Range {
                key: "queues",
                value: self.queues.into(),
                min: 1,
                max: VHOST_QUEUES_MAX.into(),
            });
        }
        let key = match (self.role, self.mode, self.owner) {
            (Role::Client, Some(_), _) => "mode",
            (Role::Client, _, Some(_)) => "owner",
            _ => return Ok(()),
        };
        Err(AttachError::Value {
            key: key.into(),
            reason: "the socket is the other end's: only with role=server".into(),
        })
    }
}

/// Permission bits of a socket, as octal digits: `0660`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SocketMode(u32);

impl SocketMode {
    /// The bits, at most `0o777`.
    pub fn bits(self) -> u32 {
        self.0
    }
}

impl FromStr for SocketMode {
    type Err = AttachError;

    fn from_str(text: &str) -> Result<Self, AttachError> {
        let digits = (3..=4).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
        let bits = u32::from_str_radix(text, 8).ok().filter(|b| *b <= 0o777);
        let bits = bits.filter(|_| digits);
        bits.map(Self).ok_or_else(|| AttachError::Value {
            key: "mode".into(),
            reason: format!("\"{text}\" is not of the form 0660"),
        })
    }
}

impl fmt::Display for SocketMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04o}", self.0)
    }
}

/// User and group of a socket, as numbers: `UID:GID`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SocketOwner {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

impl FromStr for SocketOwner {
    type Err = AttachError;

    fn from_str(text: &str) -> Result<Self, AttachError> {
        let number = |text: &str| -> Option<u32> {
            let digits = text.bytes().all(|b| b.is_ascii_digit());
            // The highest number means "leave it as it is" to the kernel.
            text.parse().ok().filter(|id| digits && *id != u32::MAX)
        };
        let parts = text.split_once(':');
        let ids = parts.and_then(|(uid, gid)| Some((number(uid)?, number(gid)?)));
        let (uid, gid) = ids.ok_or_else(|| AttachError::Value {
            key: "owner".into(),
            reason: format!("\"{text}\" is not of the form UID:GID, two numbers"),
        })?;
        Ok(Self { uid, gid })
    }
}

impl fmt::Display for SocketOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.uid, self.gid)
    }
}

macro_rules! text_of {
    ($type:ident, $schema:literal, $pattern:literal, $about:literal) => {
        impl TryFrom<String> for $type {
            type Error = AttachError;
            fn try_from(text: String) -> Result<Self, AttachError> {
                text.parse()
            }
        }
        impl From<$type> for String {
            fn from(value: $type) -> String {
                value.to_string()
            }
        }
        impl JsonSchema for $type {
            fn schema_name() -> Cow<'static, str> {
                $schema.into()
            }
            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({"type": "string", "description": $about, "pattern": $pattern})
            }
        }
    };
}

text_of!(
    SocketMode,
    "SocketMode",
    "^0?[0-7]{3}$",
    "Permission bits of a socket, as octal digits"
);
text_of!(
    SocketOwner,
    "SocketOwner",
    "^[0-9]+:[0-9]+$",
    "User and group of a socket, as numbers"
);

#[cfg(test)]
mod tests {
    use super::*;

    /// Modes are octal and of one length, owners two numbers; nothing else is read as one.
    #[test]
    fn modes_and_owners() {
        let mode: SocketMode = "660".parse().expect("a mode");
        assert_eq!((mode.bits(), mode.to_string()), (0o660, "0660".into()));
        for bad in ["", "66", "0888", "1660", "00660", "rw", "+660", "-660"] {
            assert!(bad.parse::<SocketMode>().is_err(), "{bad}");
        }
        let owner: SocketOwner = "64055:994".parse().expect("an owner");
        assert_eq!((owner.uid, owner.gid), (64055, 994));
        for bad in [
            "",
            "1",
            "1:",
            ":1",
            "1:2:3",
            "root:root",
            "4294967295:0",
            "+1:1",
        ] {
            assert!(bad.parse::<SocketOwner>().is_err(), "{bad}");
        }
    }

    /// What concerns a socket that windlass does not make is refused.
    #[test]
    fn a_client_has_no_say_about_the_socket() {
        use crate::attach::Attachment;
        let read = |text: &str| text.parse::<Attachment>();
        assert!(read("vhost-user,socket=/s/a,role=server,mode=0660,owner=1:1,queues=16").is_ok());
        assert!(read("vhost-user,socket=/s/a,role=server,queues=17").is_err());
        assert!(read("vhost-user,socket=/s/a,role=client,mode=0660").is_err());
        assert!(read("vhost-user,socket=/s/a,role=client,owner=1:1").is_err());
    }
}
