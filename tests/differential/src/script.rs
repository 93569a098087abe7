//! Scripts: steps as text, one on a line, which is what a person reads, keeps and replays.
//!
//! `A.1 recv c 100 peek|dontwait`: process A, thread 1, verb, words. `A` alone is thread 0, and for the
//! verbs of [`PROCESS_VERBS`] the process itself. `#` starts a comment. Descriptors have names of the
//! script's own. A last word `!` says that the call ends by itself. [`VERBS`] says what there is.

use std::fmt;

/// A thread of a process; `x` is the one that takes commands for the process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Who {
    /// `A`, `B`, or `C`, which is a child of one of them.
    pub process: char,
    /// `0` to `2`: a worker; `x`: the process; `s`: its signal handler.
    pub thread: char,
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.thread {
            '0' | 'x' => write!(f, "{}", self.process),
            thread => write!(f, "{}.{thread}", self.process),
        }
    }
}

/// One call, or one thing that happens to a process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Step {
    /// Who does it.
    pub who: Who,
    /// The verb and its arguments.
    pub words: Vec<String>,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.who, self.words.join(" "))
    }
}

/// Verbs that concern a process and not one of its threads.
pub const PROCESS_VERBS: &[&str] = &["fork", "exec", "tkill", "exit", "kill", "stop", "cont"];

/// Verbs whose call may sleep for ever. A close sleeps as long as it lingers.
const SLEEPING_VERBS: &[&str] = &[
    "connect",
    "accept",
    "accept4",
    "send",
    "sendto",
    "write",
    "writev",
    "sendmsg",
    "sendmmsg",
    "recv",
    "recvfrom",
    "recvname",
    "read",
    "readv",
    "recvmsg",
    "recvmmsg",
    "give",
    "take",
    "drain",
    "sendfile",
    "splicein",
    "spliceout",
    "stdiowrite",
    "stdioread",
    "sendfd",
    "recvfd",
];

/// Every verb: what follows it, and what it does.
pub const VERBS: &[(&str, &str, &str)] = &[
    ("socket", "NAME tcp|tcp6|unix [nonblock|cloexec]", "socket"),
    ("pair", "NAME NAME KIND [FLAGS]", "socketpair"),
    ("pipe", "NAME NAME", "pipe2"),
    (
        "bind",
        "NAME here|here6|u:TEXT [PORT]",
        "bind; here is this run's own loopback address, port 0; the port is known as PORT from now on",
    ),
    (
        "listen",
        "NAME BACKLOG PORT",
        "listen; the port is known as PORT from now on",
    ),
    (
        "connect",
        "NAME PORT|6:PORT|u:TEXT|none",
        "connect; none ends the connection of a datagram socket (AF_UNSPEC)",
    ),
    ("accept", "NAME LISTENER", "accept"),
    ("accept4", "NAME LISTENER FLAGS", "accept4"),
    ("name", "NAME", "getsockname and getpeername"),
    ("shutdown", "NAME rd|wr|rdwr", "shutdown"),
    ("close", "NAME", "close; the name keeps its number"),
    ("closerange", "NAME", "close_range of this number alone"),
    ("dup", "NEW OLD", "dup"),
    ("dup2", "ONTO OLD", "dup2 onto the number that ONTO has"),
    ("dup3", "ONTO OLD cloexec", "dup3"),
    ("dupfd", "NEW OLD MINIMUM", "fcntl F_DUPFD"),
    ("dupfdc", "NEW OLD MINIMUM", "fcntl F_DUPFD_CLOEXEC"),
    ("getfl", "NAME", "fcntl F_GETFL"),
    ("setfl", "NAME nonblock|-", "fcntl F_SETFL"),
    ("getfd", "NAME", "fcntl F_GETFD"),
    ("setfd", "NAME 0|1", "fcntl F_SETFD"),
    ("fionbio", "NAME 0|1", "ioctl FIONBIO"),
    ("fionread", "NAME", "ioctl FIONREAD"),
    ("outq", "NAME", "ioctl SIOCOUTQ; only success is compared"),
    ("atmark", "NAME", "ioctl SIOCATMARK"),
    (
        "setopt",
        "NAME OPTION VALUE",
        "setsockopt; times in ms, linger in s or -1",
    ),
    ("getopt", "NAME OPTION", "getsockopt"),
    (
        "send",
        "NAME LENGTH TAG [FLAGS]",
        "send; byte i is a function of TAG + i",
    ),
    (
        "sendto",
        "NAME LENGTH TAG [FLAGS [PORT|u:TEXT]]",
        "sendto, without an address or with one",
    ),
    ("write", "NAME LENGTH TAG", "write"),
    ("writev", "NAME LENGTH TAG - PIECES", "writev"),
    ("sendmsg", "NAME LENGTH TAG FLAGS PIECES", "sendmsg"),
    (
        "sendmmsg",
        "NAME LENGTH TAG FLAGS MESSAGES",
        "sendmmsg of equal parts",
    ),
    ("recv", "NAME LENGTH [FLAGS]", "recv"),
    (
        "recvfrom",
        "NAME LENGTH [FLAGS]",
        "recvfrom that asks for no name",
    ),
    (
        "recvname",
        "NAME LENGTH [FLAGS]",
        "recvfrom, with the sender's name",
    ),
    ("read", "NAME LENGTH", "read"),
    ("readv", "NAME LENGTH - PIECES", "readv"),
    (
        "recvmsg",
        "NAME LENGTH FLAGS PIECES",
        "recvmsg, with its flags",
    ),
    (
        "recvmmsg",
        "NAME LENGTH FLAGS MESSAGES",
        "recvmmsg into equal parts",
    ),
    ("give", "NAME LENGTH TAG", "send until all is sent"),
    ("take", "NAME LENGTH", "recv until all came"),
    (
        "fill",
        "NAME TAG COUNT",
        "send until EAGAIN; how much is known as $COUNT",
    ),
    (
        "drain",
        "NAME $COUNT TAG",
        "recv what a fill sent, each byte checked",
    ),
    (
        "nowhere",
        "NAME send|recv LENGTH [FLAGS]",
        "send or recv with memory that is not mapped",
    ),
    ("sendfile", "NAME LENGTH TAG", "sendfile from a file"),
    (
        "splicein",
        "NAME LENGTH",
        "splice into a pipe, then read the pipe",
    ),
    (
        "spliceout",
        "NAME LENGTH TAG",
        "write a pipe, then splice from it",
    ),
    (
        "stdiowrite",
        "NAME LENGTH TAG",
        "fdopen of a copy, fwrite, fclose",
    ),
    (
        "stdioread",
        "NAME LENGTH",
        "fdopen of a copy, unbuffered fread, fclose",
    ),
    ("sendfd", "UNIX NAME LENGTH TAG", "sendmsg with SCM_RIGHTS"),
    (
        "recvfd",
        "UNIX NAME LENGTH [FLAGS]",
        "recvmsg; the descriptor that came gets the name",
    ),
    ("poll", "MS NAME:EVENTS ...", "poll; -1 waits for ever"),
    ("ppoll", "MS NAME:EVENTS ...", "ppoll"),
    (
        "select",
        "MS NAME:EVENTS ...",
        "select; in, out and pri are the three sets",
    ),
    ("pselect", "MS NAME:EVENTS ...", "pselect"),
    ("epoll", "NAME", "epoll_create1"),
    ("ctl", "SET add|mod|del NAME EVENTS LABEL", "epoll_ctl"),
    ("wait", "SET MAX MS", "epoll_wait; events sorted by label"),
    ("pwait", "SET MAX MS", "epoll_pwait"),
    (
        "handler",
        "restart|norestart [NAME TAG]",
        "what SIGUSR1 does: nothing, or send 5 bytes",
    ),
    ("sleep", "MS", "sleep"),
    ("fork", "", "C is a child of this process from now on"),
    (
        "exec",
        "accelerated|plain",
        "the actor again, with or without what is preloaded",
    ),
    ("tkill", "THREAD", "SIGUSR1 to that thread"),
    ("exit", "", "exit(0)"),
    ("kill", "", "SIGKILL"),
    ("stop", "", "SIGSTOP"),
    ("cont", "", "SIGCONT"),
];

/// Why a line is not a step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NotAStep {
    /// From 1.
    pub line: usize,
    /// Its text.
    pub text: String,
}

impl fmt::Display for NotAStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "line {}: `{}` is not `WHO VERB WORDS` with a known verb",
            self.line, self.text
        )
    }
}

impl std::error::Error for NotAStep {}

impl Step {
    /// A step from its text, None where that is none.
    pub fn parse(text: &str) -> Option<Self> {
        let mut words = text.split_whitespace();
        let who = words.next()?;
        let words: Vec<String> = words.map(str::to_owned).collect();
        let verb = words.first()?;
        VERBS.iter().find(|(known, ..)| known == verb)?;
        let mut letters = who.chars();
        let process = letters
            .next()
            .filter(|letter| ('A'..='C').contains(letter))?;
        let thread = match (letters.next(), letters.next(), letters.next()) {
            _ if PROCESS_VERBS.contains(&verb.as_str()) => 'x',
            (None, None, None) => '0',
            (Some('.'), Some(thread @ '0'..='2'), None) => thread,
            _ => return None,
        };
        Some(Self {
            who: Who { process, thread },
            words,
        })
    }

    /// Whether the call ends by itself, so that nobody has to look whether it sleeps: it never sleeps
    /// for ever, has a limit of time, or the script says so by a last word `!`.
    pub fn ends(&self) -> bool {
        let limit = match self.verb() {
            "poll" | "ppoll" | "select" | "pselect" => self.word(1),
            "wait" | "pwait" => self.word(3),
            verb if SLEEPING_VERBS.contains(&verb) => "0",
            _ => return true,
        };
        limit.parse().is_ok_and(|limit: i64| limit > 0)
            || self.words.last().is_some_and(|word| word == "!")
    }

    /// The same look without sleeping; other calls as they are.
    pub fn at_once(&self) -> Self {
        let mut step = self.clone();
        let limit = match self.verb() {
            "poll" | "ppoll" | "select" | "pselect" => 1,
            "wait" | "pwait" => 3,
            _ => return step,
        };
        if let Some(word) = step.words.get_mut(limit) {
            "0".clone_into(word);
        }
        step
    }

    /// The verb.
    pub fn verb(&self) -> &str {
        self.words.first().map_or("", String::as_str)
    }

    /// Word `index` after the verb, which is word 0.
    pub fn word(&self, index: usize) -> &str {
        self.words.get(index).map_or("", String::as_str)
    }
}

/// Reads a script.
///
/// # Errors
/// The first line that is neither a step, nor empty, nor a comment.
pub fn parse(text: &str) -> Result<Vec<Step>, NotAStep> {
    let code = |line: &str| line.split('#').next().unwrap_or("").trim().to_owned();
    let lines = text
        .lines()
        .enumerate()
        .map(|(index, line)| (index + 1, code(line)));
    lines
        .filter(|(_, text)| !text.is_empty())
        .map(|(line, text)| Step::parse(&text).ok_or(NotAStep { line, text }))
        .collect()
}

/// The text of a script.
pub fn print(steps: &[Step]) -> String {
    steps.iter().map(|step| format!("{step}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::{Step, parse, print};
    use crate::generate;

    /// Proves that the text of a script is the script.
    #[test]
    fn text_and_steps_are_the_same() {
        for seed in 0..50 {
            let script = generate(seed, true, None);
            assert_eq!(parse(&print(&script)).as_ref(), Ok(&script));
            assert_eq!(script, generate(seed, true, None), "a seed is one script");
        }
    }

    /// Proves that what is no step is refused, with its line.
    #[test]
    fn what_is_no_step_is_refused() {
        for text in [
            "",
            "A",
            "A dance",
            "D send c 1 1",
            "A.7 send c 1 1",
            "A. send c 1 1",
        ] {
            assert_eq!(Step::parse(text), None, "{text}");
        }
        let error = parse("# comment\nA fork\nB nap 1\n").err();
        assert_eq!(error.map(|error| error.line), Some(3));
    }
}
