//! What the environment says of a call.

use std::collections::BTreeMap;
use std::env;

use crate::failure::{Code, Failure};

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// Give a container an interface.
    Add,
    /// Take it away.
    Del,
    /// See whether it is as it was made.
    Check,
    /// Take away all that nobody has any more.
    Gc,
    /// See whether an ADD would succeed.
    Status,
    /// Say which versions there are.
    Version,
}

impl Verb {
    /// All of them, as they are written.
    pub const ALL: [(&'static str, Verb); 6] = [
        ("ADD", Verb::Add),
        ("DEL", Verb::Del),
        ("CHECK", Verb::Check),
        ("GC", Verb::Gc),
        ("STATUS", Verb::Status),
        ("VERSION", Verb::Version),
    ];

    /// The version of the specification that brought it, as two numbers.
    pub fn since(self) -> (u32, u32) {
        match self {
            Self::Check => (0, 4),
            Self::Gc | Self::Status => (1, 1),
            Self::Add | Self::Del | Self::Version => (0, 0),
        }
    }

    /// From the environment.
    ///
    /// # Errors
    /// [`Code::Environment`].
    pub fn of_environment() -> Result<Self, Failure> {
        let command = variable("CNI_COMMAND")?;
        let mut all = Self::ALL.into_iter();
        let found = all.find(|(word, _)| *word == command);
        found.map(|(_, verb)| verb).ok_or_else(|| {
            let why = format!("CNI_COMMAND is ADD, DEL, CHECK, GC, STATUS or VERSION, not \"{command}\": this program is run by a container runtime");
            Failure::new(Code::Environment, why)
        })
    }
}

/// Whose interface it is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// The container, in a runtime's own words.
    pub container: String,
    /// The interface in the container.
    pub interface: String,
    /// The path of the container's namespace; empty if it is gone.
    pub netns: String,
    /// `CNI_ARGS`: keys and values.
    pub args: BTreeMap<String, String>,
}

/// A variable; empty if it is not set.
fn variable(name: &str) -> Result<String, Failure> {
    match env::var(name) {
        Err(env::VarError::NotUnicode(_)) => {
            let why = format!("{name} is not UTF-8");
            Err(Failure::new(Code::Environment, why))
        }
        other => Ok(other.unwrap_or_default()),
    }
}

/// Whether a text is a name as the specification has it for networks and containers.
pub fn is_name(text: &str) -> bool {
    let is_inner = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
    text.starts_with(|c: char| c.is_ascii_alphanumeric()) && text.chars().all(is_inner)
}

impl Call {
    /// From the environment.
    ///
    /// # Errors
    /// [`Code::Environment`].
    pub fn of_environment(verb: Verb) -> Result<Self, Failure> {
        let call = Self {
            container: variable("CNI_CONTAINERID")?,
            interface: variable("CNI_IFNAME")?,
            netns: variable("CNI_NETNS")?,
            args: args(&variable("CNI_ARGS")?)?,
        };
        let wrong = |why: &str| Err(Failure::new(Code::Environment, why));
        if !is_name(&call.container) {
            return wrong("CNI_CONTAINERID is missing or not the name of a container");
        }
        if let Err(error) = windlass_sys::interface::check_name(&call.interface) {
            return wrong(&format!("CNI_IFNAME: {error}"));
        }
        if call.netns.is_empty() && verb != Verb::Del {
            return wrong("CNI_NETNS is missing");
        }
        Ok(call)
    }
}

/// Reads `KEY=VALUE;KEY=VALUE`.
fn args(text: &str) -> Result<BTreeMap<String, String>, Failure> {
    let parts = text.split(';').filter(|part| !part.is_empty());
    parts
        .map(|part| match part.split_once('=') {
            Some((key, value)) => Ok((key.to_owned(), value.to_owned())),
            None => {
                let why = format!("CNI_ARGS: \"{part}\" is not KEY=VALUE");
                Err(Failure::new(Code::Environment, why))
            }
        })
        .collect()
}
