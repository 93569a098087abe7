//! Another plugin, which has the addresses.

use std::env;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::call::Call;
use crate::failure::{Code, Failure};

/// The plugin of this type, in the directories that the runtime names.
///
/// # Errors
/// [`Code::Config`].
pub fn find(kind: &str) -> Result<PathBuf, Failure> {
    if kind.contains('/') || kind.starts_with('.') {
        let why = format!("ipam.type: \"{kind}\" is not the name of a plugin");
        return Err(Failure::new(Code::Config, why));
    }
    let path = env::var_os("CNI_PATH").unwrap_or_default();
    let mut places = env::split_paths(&path).map(|directory| directory.join(kind));
    let missing = || {
        let why = format!("ipam.type: there is no plugin \"{kind}\" in CNI_PATH");
        Failure::new(Code::Config, why)
    };
    places.find(|place| place.is_file()).ok_or_else(missing)
}

/// Runs it with the same configuration; what it prints. `call`: whose interface it is about, if it is about one.
///
/// # Errors
/// Its own, or [`Code::Config`] if there is no such plugin, or [`Code::Io`].
pub fn run(kind: &str, verb: &str, call: Option<&Call>, config: &[u8]) -> Result<Value, Failure> {
    let plugin = find(kind)?;
    let mut command = Command::new(&plugin);
    command.env("CNI_COMMAND", verb);
    if let Some(call) = call {
        command
            .env("CNI_CONTAINERID", &call.container)
            .env("CNI_IFNAME", &call.interface)
            .env("CNI_NETNS", &call.netns);
    }
    let refused = |error| Failure::new(Code::Io, format!("{}: {error}", shown(&plugin)));
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().map_err(refused)?;
    if let Some(mut stdin) = child.stdin.take() {
        // One that does not read it says why.
        let _ = stdin.write_all(config);
    }
    let output = child.wait_with_output().map_err(refused)?;
    if !output.status.success() {
        return Err(Failure::of_delegate(kind, &output.stdout));
    }
    if output.stdout.iter().all(u8::is_ascii_whitespace) {
        return Ok(Value::Null);
    }
    let wrong = |error| Failure::new(Code::Decode, format!("{}: {error}", shown(&plugin)));
    serde_json::from_slice(&output.stdout).map_err(wrong)
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}
