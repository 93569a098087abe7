//! What a probe's text names.

use std::time::Duration;

use windlass_types::fits;

/// Samples of a second at most.
const SAMPLES_MAX: u32 = 10_000;
/// A tick's time at least.
const TICK_MIN: Duration = Duration::from_millis(1);

/// Where, or when, a clause is done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Probe {
    /// At functions.
    Function(FunctionProbe),
    /// Before everything else.
    Begin,
    /// After everything else.
    End,
    /// At each so much time.
    Tick(Duration),
    /// So often a second, wherever the process runs.
    Profile(u32),
    /// Where a line of a file begins: the module, the end of the file's path, and the number.
    Line(Option<String>, String, u32),
    /// Static probes: provider and name.
    Static(String, String),
    /// An event of the kernel.
    Kernel(String),
}

/// Which functions, and where in them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FunctionProbe {
    /// The last part of a file's path, with `*`; without one, the program itself.
    pub(super) module: Option<String>,
    /// A function's name, with `*`.
    pub(super) function: String,
    /// Where the function returns, instead of where it is entered.
    pub(super) is_return: bool,
}

impl Probe {
    /// The probes of a text, with commas between them.
    pub(super) fn all(text: &str) -> Result<Vec<Self>, String> {
        let mut depth = 0_i32;
        let parts = text.split(|c| {
            depth += match c {
                '<' | '(' => 1,
                '>' | ')' => -1,
                _ => 0,
            };
            c == ',' && depth <= 0
        });
        parts.map(|part| Self::parse(part.trim())).collect()
    }

    fn parse(text: &str) -> Result<Self, String> {
        match text.split_once(':').unwrap_or((text, "")) {
            ("begin" | "BEGIN", "") => Ok(Self::Begin),
            ("end" | "END", "") => Ok(Self::End),
            ("tick", every) => match crate::options::interval(every.trim_end_matches('s')) {
                Ok(every) if every >= TICK_MIN => Ok(Self::Tick(every)),
                _ => Err(format!(
                    "{text} is not tick:SECONDS, as tick:1s or tick:0.1"
                )),
            },
            ("profile", rate) => {
                let rate = rate.trim_end_matches("hz").parse().ok();
                let rate = rate.filter(|rate| (1..=SAMPLES_MAX).contains(rate));
                let rate = rate.ok_or_else(|| {
                    format!("{text} is not profile:RATE, 1 to {SAMPLES_MAX} a second")
                });
                rate.map(Self::Profile)
            }
            ("kernel", event) if !event.is_empty() => Ok(Self::Kernel(event.to_owned())),
            ("sdt", rest) => match rest.split_once(':') {
                Some((provider, name)) if !provider.is_empty() && !name.is_empty() => {
                    Ok(Self::Static(provider.to_owned(), name.to_owned()))
                }
                _ => Err(format!("{text} is not sdt:PROVIDER:NAME")),
            },
            _ => match Self::line(text) {
                Some(line) => Ok(line),
                None => FunctionProbe::parse(text).map(Self::Function),
            },
        }
    }

    /// `[MODULE:]FILE:LINE`
    fn line(text: &str) -> Option<Self> {
        let (file, line) = text.rsplit_once(':')?;
        let line = line.parse().ok().filter(|line| *line > 0)?;
        let (module, file) = match file.rsplit_once(':') {
            Some((module, file)) => (Some(module.to_owned()), file),
            None => (None, file),
        };
        file.contains('.')
            .then(|| Self::Line(module, file.to_owned(), line))
    }

    /// It is at instructions of files.
    pub(super) fn is_instruction(&self) -> bool {
        matches!(self, Self::Function(_) | Self::Line(..) | Self::Static(..))
    }

    /// The files that it looks into: a pattern, or the program itself; nothing if it is in no file.
    pub(super) fn pattern(&self) -> Option<Option<&str>> {
        match self {
            Self::Function(function) => Some(function.module.as_deref()),
            Self::Line(module, ..) => Some(module.as_deref()),
            Self::Static(..) => Some(Some("*")),
            _ => None,
        }
    }

    /// The module and the name that it looks for in files.
    pub(super) fn function(&self) -> Option<&FunctionProbe> {
        match self {
            Self::Function(function) => Some(function),
            _ => None,
        }
    }

    /// Its name, where no function has one.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Function(function) => function.function.clone(),
            Self::Begin => "begin".to_owned(),
            Self::End => "end".to_owned(),
            Self::Tick(every) => format!("tick:{}s", every.as_secs_f64()),
            Self::Profile(rate) => format!("profile:{rate}"),
            Self::Line(_, file, line) => format!("{file}:{line}"),
            Self::Static(provider, name) => format!("sdt:{provider}:{name}"),
            Self::Kernel(event) => format!("kernel:{event}"),
        }
    }
}

impl FunctionProbe {
    /// `[MODULE:]FUNCTION[:entry|:return]`
    fn parse(text: &str) -> Result<Self, String> {
        let mut parts = Vec::new();
        let mut rest = text;
        // Two colons belong to a name.
        while let Some(at) = single_colon(rest) {
            let (part, after) = rest.split_at(at);
            parts.push(part);
            rest = after.get(1..).unwrap_or_default();
        }
        parts.push(rest);
        let is_return = match parts.last() {
            Some(&"return") => true,
            Some(&"entry") => false,
            _ => {
                parts.push("entry");
                false
            }
        };
        parts.pop();
        let (module, function) = match parts.as_slice() {
            [function] if !function.is_empty() => (None, *function),
            [module, function] if !module.is_empty() && !function.is_empty() => {
                (Some((*module).to_owned()), *function)
            }
            _ => {
                return Err(format!(
                    "{text} is not [MODULE:]FUNCTION, with :entry or :return behind it"
                ));
            }
        };
        Ok(Self {
            module,
            function: function.to_owned(),
            is_return,
        })
    }
}

/// Whether a pattern of [`Probe::pattern`] looks into a file.
pub(super) fn looks_into(pattern: Option<&str>, name: &str, is_program: bool) -> bool {
    match pattern {
        Some(pattern) => fits(pattern, name) || pattern.rsplit('/').next() == Some(name),
        None => is_program,
    }
}

fn single_colon(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let is_colon = |at: usize| bytes.get(at) == Some(&b':');
    (0..bytes.len()).find(|&at| is_colon(at) && !is_colon(at + 1) && !(at > 0 && is_colon(at - 1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_are_read() {
        let function = |module: Option<&str>, function: &str, is_return| {
            Probe::Function(FunctionProbe {
                module: module.map(str::to_owned),
                function: function.to_owned(),
                is_return,
            })
        };
        for (text, wanted) in [
            ("handle", function(None, "handle", false)),
            ("server:handle*", function(Some("server"), "handle*", false)),
            (
                "libc.so.6:malloc:return",
                function(Some("libc.so.6"), "malloc", true),
            ),
            (
                "net::Pool<*, int>::get",
                function(None, "net::Pool<*, int>::get", false),
            ),
            ("x:net::get:entry", function(Some("x"), "net::get", false)),
            ("begin", Probe::Begin),
            ("tick:1s", Probe::Tick(Duration::from_secs(1))),
            ("tick:0.25", Probe::Tick(Duration::from_millis(250))),
            ("profile:99hz", Probe::Profile(99)),
            ("src/f.c:12", Probe::Line(None, "src/f.c".into(), 12)),
            ("x:f.c:12", Probe::Line(Some("x".into()), "f.c".into(), 12)),
            ("sdt:a:b", Probe::Static("a".into(), "b".into())),
            ("kernel:sys_enter", Probe::Kernel("sys_enter".into())),
        ] {
            assert_eq!(Probe::all(text), Ok(vec![wanted]), "{text}");
        }
        assert_eq!(Probe::all("a, b:return").unwrap().len(), 2);
        for text in [
            "",
            ":",
            "a:b:c",
            "a:",
            "return",
            "tick:0",
            "profile:0",
            "a,",
        ] {
            assert!(Probe::all(text).is_err(), "{text}");
        }
    }
}
