//! Who may be accelerated, and with whom: `/etc/windlass/sockets.conf`.
//!
//! # Model
//! One rule a line; `#` begins a comment. Users are names of `/etc/passwd` or numbers.
//!
//! ```text
//! join app redis               # processes of these two users may be joined with each other
//! deny backup                  # processes of this user stay on the kernel
//! plain /usr/sbin/ntpd         # processes of this program stay on the kernel
//! accounting ignore            # rules, queues and programs that count or limit packets on lo do not matter
//! ```
//!
//! Without a rule, processes of one user are joined with each other, and those of two users only if both were started
//! with `--share`. Where something counts, limits or copies the packets of `lo`, nobody is joined unless `accounting
//! ignore` says that it does not matter.
//!
//! # Failure modes
//! A file that others than root can change, and one with a line that is not understood, is refused as a whole, with the
//! number of the line: half a policy is none.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};

/// Where root's broker reads its policy.
pub const CONFIG_PATH: &str = "/etc/windlass/sockets.conf";

/// What the file says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Policy {
    joined: BTreeSet<(u32, u32)>,
    /// The lowest user of those that rules join with each, over any number of steps.
    groups: BTreeMap<u32, u32>,
    denied: BTreeSet<u32>,
    plain: BTreeSet<PathBuf>,
    ignores_accounting: bool,
}

impl Policy {
    /// The policy in a file; an empty one if there is no file.
    ///
    /// # Errors
    /// It cannot be read, others than root can change it, or a line is not understood.
    pub fn load(path: &Path) -> Result<Self> {
        let shown = path.display();
        let file = match File::open(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Self::default()),
            file => file.with_context(|| shown.to_string())?,
        };
        let meta = file.metadata().with_context(|| shown.to_string())?;
        if meta.uid() != 0 || meta.mode() & 0o022 != 0 || !meta.is_file() {
            bail!("{shown}: others than root can change it: chown root and chmod go-w it");
        }
        let text = std::io::read_to_string(file).with_context(|| shown.to_string())?;
        let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
        Self::parse(&text, &passwd).map_err(|(line, what)| anyhow!("{shown}:{line}: {what}"))
    }

    /// The policy in a text, with the users of this `/etc/passwd` (passwd(5)); else the number of the wrong line and what is wrong with it.
    ///
    /// # Errors
    /// The first line that is not understood.
    pub fn parse(text: &str, passwd: &str) -> Result<Self, (usize, String)> {
        let mut policy = Self::default();
        for (index, line) in text.lines().enumerate() {
            let rule = line.split('#').next().unwrap_or_default();
            let words: Vec<&str> = rule.split_whitespace().collect();
            let understood = policy.rule(&words, passwd);
            understood.map_err(|what| (index + 1, what))?;
        }
        Ok(policy)
    }

    fn rule(&mut self, words: &[&str], passwd: &str) -> Result<(), String> {
        let user = |name: &str| {
            let uid = |line: &str| {
                let (_, fields) = line.split_once(':').filter(|(its, _)| *its == name)?;
                fields.split(':').nth(1)?.parse().ok()
            };
            let number = || name.parse().ok().filter(|uid: &u32| *uid != u32::MAX);
            let found = passwd.lines().find_map(uid).or_else(number);
            found.ok_or_else(|| format!("there is no user \"{name}\""))
        };
        match *words {
            [] => {}
            ["join", a, b] => {
                let (a, b) = (user(a)?, user(b)?);
                if a == b {
                    return Err("a user is joined with itself always: name two".into());
                }
                self.joined.insert((a.min(b), a.max(b)));
                let groups = [a, b].map(|uid| self.group(uid));
                let one = groups[0].min(groups[1]);
                self.groups.extend([(a, one), (b, one)]);
                let its = self.groups.values_mut();
                its.filter(|it| groups.contains(it))
                    .for_each(|it| *it = one);
            }
            ["deny", name] => drop(self.denied.insert(user(name)?)),
            ["plain", path] if path.starts_with('/') => drop(self.plain.insert(path.into())),
            ["accounting", "ignore"] => self.ignores_accounting = true,
            ["accounting", ..] => return Err("accounting can only be ignored".into()),
            ["join", ..] => return Err("join names two users".into()),
            ["deny", ..] => return Err("deny names one user".into()),
            ["plain", ..] => return Err("plain names one program by its whole path".into()),
            [word, ..] => return Err(format!("\"{word}\" is not join, deny, plain or accounting")),
        }
        Ok(())
    }

    /// Whether processes of the user, of this program, may be accelerated at all.
    pub fn admits(&self, uid: u32, program: &Path) -> bool {
        !self.denied.contains(&uid) && !self.plain.contains(program)
    }

    /// Whether processes of two users may be joined although neither asked for it.
    pub fn joins(&self, a: u32, b: u32) -> bool {
        self.joined.contains(&(a.min(b), a.max(b)))
    }

    /// Whether what counts or limits packets on `lo` does not matter.
    pub fn ignores_accounting(&self) -> bool {
        self.ignores_accounting
    }

    /// The lowest user of those that rules join with this one, over any number of steps: they use one directory.
    pub fn group(&self, uid: u32) -> u32 {
        self.groups.get(&uid).copied().unwrap_or(uid)
    }
}
