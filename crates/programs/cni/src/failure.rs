//! Why a call failed, as the runtime is told it.

use serde_json::{Value, json};
use windlass_api::ErrorCode;
use windlass_client::Error;

/// Codes of errors (CNI specification, "Error"); from 100 on they are the plugin's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    /// The configuration has a version that the plugin does not know.
    Version = 1,
    /// The configuration has a field that the plugin does not know.
    Field = 2,
    /// The container does not exist.
    Container = 3,
    /// The environment is not as it must be.
    Environment = 4,
    /// The system refused.
    Io = 5,
    /// The configuration is no JSON.
    Decode = 6,
    /// The configuration is not valid.
    Config = 7,
    /// Something is missing for the moment: the daemon, or a free address.
    Again = 11,
    /// STATUS: an ADD would fail.
    Unavailable = 50,
    /// STATUS: and the containers that there are may not reach each other.
    Limited = 51,
    /// windlassd refused.
    Refused = 100,
    /// CHECK: the interface is not as it was made.
    Differs = 101,
}

/// What is printed instead of a result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// One of [`Code`], or that of another plugin.
    pub code: u64,
    /// A sentence.
    pub message: String,
    /// More of it.
    pub details: String,
}

impl Failure {
    /// A failure without details.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code: code as u64,
            message: message.into(),
            details: String::new(),
        }
    }

    /// The same with another code.
    #[must_use]
    pub fn with(mut self, code: Code) -> Self {
        self.code = code as u64;
        self
    }

    /// What another plugin has printed.
    pub fn of_delegate(plugin: &str, output: &[u8]) -> Self {
        let json: Value = serde_json::from_slice(output).unwrap_or_default();
        let text = |key: &str| json.get(key).and_then(Value::as_str).unwrap_or_default();
        Self {
            code: json
                .get("code")
                .and_then(Value::as_u64)
                .unwrap_or(Code::Io as u64),
            message: format!("{plugin}: {}", text("msg")),
            details: text("details").into(),
        }
    }

    /// As it is printed.
    pub fn json(&self, version: &str) -> Value {
        let mut json = json!({"cniVersion": version, "code": self.code, "msg": self.message});
        if let (false, Some(object)) = (self.details.is_empty(), json.as_object_mut()) {
            object.insert("details".into(), json!(self.details));
        }
        json
    }
}

/// Whether the daemon could not be asked; it is not known whether it has done it then.
pub fn is_unreachable(error: &Error) -> bool {
    matches!(error.code(), ErrorCode::Unreachable | ErrorCode::Timeout) || is_busy(error)
}

/// Whether the daemon has too much to do at the moment.
pub fn is_busy(error: &Error) -> bool {
    matches!(error, Error::Refused(body) if body.code == ErrorCode::Busy)
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let code = match is_unreachable(&error) {
            true => Code::Again,
            false => Code::Refused,
        };
        Self::new(code, format!("windlassd: {error}"))
    }
}
