//! Where programs keep what is one user's, as the XDG Base Directory Specification has it.
//!
//! # Failure modes
//! Root can have the home of another user, as under sudo. Who owns a directory can put links in it, which would lead what root makes and
//! writes there anywhere. So only directories that belong to this user, and that nobody else can write to, count.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// The directory that a variable such as `XDG_STATE_HOME` names; else the one of this name under `HOME`. `None` if there is neither, or if
/// what the variable names is not this user's alone.
pub fn directory(variable: &str, under_home: &str) -> Option<PathBuf> {
    let set = |name| {
        let path = std::env::var_os(name).map(PathBuf::from)?;
        let is_there = path.is_absolute() && is_own(&std::fs::metadata(&path).ok()?);
        is_there.then_some(path)
    };
    set(variable).or_else(|| Some(set("HOME")?.join(under_home)))
}

/// Whether nobody but this user can write to it.
pub fn is_own(found: &Metadata) -> bool {
    found.uid() == rustix::process::geteuid().as_raw() && found.mode() & 0o022 == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// A directory of this user counts; not one that others can write to, nor one that is not there.
    #[test]
    fn only_own_directories_count() {
        let path = std::env::temp_dir().join(format!("windlass-own-{}", std::process::id()));
        std::fs::create_dir(&path).expect("a directory");
        let is = |mode| {
            let set = std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode));
            set.expect("its owner");
            is_own(&std::fs::metadata(&path).expect("there"))
        };
        assert!(is(0o700) && is(0o755));
        assert!(!is(0o775) && !is(0o707));
        std::fs::remove_dir(&path).expect("empty");
        let under_home = directory("WINDLASS_TESTS_NEVER_SET", "a/b");
        assert!(under_home.is_none_or(|path| path.ends_with("a/b")));
    }
}
