//! Which places of a program a probe names, and what is known at each.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};

use windlass_script::lower::{Location, Names};
use windlass_target::debug::Debug;
use windlass_target::elf::Functions;
use windlass_target::instructions::{self, Spot};
use windlass_target::maps::{self, Mapping};
use windlass_target::{Elf, demangle};
use windlass_types::{FunctionRef, Parameter, Place, TypeId, Types, fits};

use crate::suggest;

use super::place::{self, At};

/// Places of one probe at most.
pub(super) const SITES_MAX: usize = 10_000;
/// Bytes of a function that are decoded at most.
const CODE_MAX: u64 = 1 << 20;
/// Bytes of an instruction at most.
const INSTRUCTION_MAX: u64 = 15;
/// Execute, of a segment's flags.
const EXECUTE: u32 = 1;

/// Which functions, and where in them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Probe {
    /// The last part of a file's path, with `*`; without one, the program itself.
    pub(super) module: Option<String>,
    /// A function's name, with `*`.
    pub(super) function: String,
    /// Where the function returns, instead of where it is entered.
    pub(super) is_return: bool,
}

impl Probe {
    /// `[MODULE:]FUNCTION[:entry|:return]`
    pub(super) fn parse(text: &str) -> Result<Self, String> {
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
        match parts.as_slice() {
            [function] if !function.is_empty() => Ok(Self {
                module: None,
                function: (*function).to_owned(),
                is_return,
            }),
            [module, function] if !module.is_empty() && !function.is_empty() => Ok(Self {
                module: Some((*module).to_owned()),
                function: (*function).to_owned(),
                is_return,
            }),
            _ => Err(format!(
                "{text} is not [MODULE:]FUNCTION, with :entry or :return behind it"
            )),
        }
    }
}

fn single_colon(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let is_colon = |at: usize| bytes.get(at) == Some(&b':');
    (0..bytes.len()).find(|&at| is_colon(at) && !is_colon(at + 1) && !(at > 0 && is_colon(at - 1)))
}

/// A file that a program has mapped.
pub(super) struct Module {
    /// The last part of its path.
    pub(super) name: String,
    path: PathBuf,
    /// What is opened for it: also of a file that was removed, or is in another root.
    pub(super) file: PathBuf,
    pub(super) bias: u64,
    elf: Elf,
    functions: Functions,
    debug: Debug,
}

impl Module {
    /// The files of a process that a pattern names; without one, its program.
    pub(super) fn find(pid: u32, pattern: Option<&str>) -> Result<Vec<Self>, String> {
        let mappings = maps::of(pid).map_err(|error| error.to_string())?;
        let program = std::fs::read_link(format!("/proc/{pid}/exe"));
        let program = program.map_err(|error| error.to_string())?;
        let code = mappings.iter().filter(|mapping| mapping.is_executable);
        let mut found: Vec<Self> = Vec::new();
        let mut names = Vec::new();
        for mapping in code {
            let Some(path) = mapping.path() else {
                continue;
            };
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let name = name.trim_end_matches(" (deleted)").to_owned();
            names.push(name.clone());
            let is_wanted = match pattern {
                Some(pattern) => fits(pattern, &name),
                None => path == program,
            };
            if is_wanted && !found.iter().any(|module| module.path == path) {
                found.push(Self::open(pid, mapping, &path, name)?);
            }
        }
        if found.is_empty() {
            names.sort_unstable();
            names.dedup();
            let pattern = pattern.unwrap_or("its program");
            return Err(format!(
                "it has not mapped {pattern}; it has {}",
                names.join(", ")
            ));
        }
        Ok(found)
    }

    fn open(pid: u32, mapping: &Mapping, path: &Path, name: String) -> Result<Self, String> {
        let (start, end) = (mapping.start, mapping.end);
        let file = PathBuf::from(format!("/proc/{pid}/map_files/{start:x}-{end:x}"));
        let why = |error: std::io::Error| format!("{}: {error}", path.display());
        let elf = Elf::new(File::open(&file).map_err(why)?).map_err(why)?;
        let debug = Debug::of(&elf, path, Path::new(&format!("/proc/{pid}/root")));
        let bias = elf.bias(start, mapping.offset);
        let bias = bias.ok_or_else(|| format!("{} is not as it is mapped", path.display()))?;
        Ok(Self {
            name,
            path: path.to_owned(),
            file,
            bias,
            functions: elf.functions(),
            elf,
            debug,
        })
    }

    /// The types that its debug data has.
    pub(super) fn types(&self) -> Types<'_> {
        self.debug.types()
    }

    /// Where debug data was looked for, if there is none.
    pub(super) fn without_debug(&self) -> Option<String> {
        let places = self.debug.looked_in().join(", ");
        (!self.debug.has_types()).then(|| format!("{}: no debug data in {places}", self.name))
    }

    /// Where an address of code lies in the file.
    fn offset(&self, address: u64) -> Option<u64> {
        let holds = |segment: &&windlass_target::elf::Segment| {
            let end = segment.address.saturating_add(segment.file_len);
            segment.kind == 1
                && segment.flags & EXECUTE != 0
                && (segment.address..end).contains(&address)
        };
        let segment = self.elf.segments().iter().find(holds)?;
        (address - segment.address).checked_add(segment.offset)
    }

    fn code(&self, range: std::ops::Range<u64>) -> Vec<u8> {
        let len = range.end.saturating_sub(range.start).min(CODE_MAX);
        let offset = self.offset(range.start);
        offset.map_or(Vec::new(), |offset| self.elf.bytes(offset, len))
    }
}

/// One place that a probe is put on.
#[derive(Debug, Clone)]
pub(super) struct Site {
    /// Which of the modules.
    pub(super) module: usize,
    /// `module:function`
    pub(super) name: String,
    /// Where in the file.
    pub(super) offset: u64,
    /// A hit costs little.
    pub(super) is_emulated: bool,
    /// The function is left there by a jump to another one: what is returned is not known yet.
    pub(super) leaves_by_jump: bool,
    /// It is a copy in another function.
    pub(super) is_inline: bool,
    /// The arguments, with where they are at the place.
    pub(super) arguments: Vec<Parameter>,
    locations: Vec<Location>,
    returns: Option<TypeId>,
    /// Without debug data: integers, by their numbers.
    has_types: bool,
    /// File and line of the function.
    pub(super) source: String,
}

impl Site {
    /// The arguments as a person reads them.
    pub(super) fn described(&self, types: &Types<'_>) -> String {
        if !self.has_types {
            return "not known: arg0 to arg5 are integers".to_owned();
        }
        let described = self.arguments.iter().map(|argument| {
            let declared = types.declaration(argument.ty, &argument.name);
            format!("{declared} {}", place::shown(&argument.place))
        });
        let described: Vec<String> = described.collect();
        described.join(", ")
    }
}

/// What has a name at a place.
pub(super) struct SiteNames<'s, 't, 'a> {
    pub(super) site: &'s Site,
    pub(super) types: &'t Types<'a>,
    pub(super) bias: u64,
    /// The type of what is known as a number alone.
    pub(super) long: TypeId,
}

/// The registers of the first six arguments (System V ABI for x86-64, 3.2.3), and that of what is returned.
const ARGUMENTS: [u16; 6] = [5, 4, 1, 2, 8, 9];
const RETURNED: u16 = 0;

impl Names for SiteNames<'_, '_, '_> {
    fn find(&self, name: &str) -> Option<(Location, TypeId)> {
        let site = self.site;
        let own = site.arguments.iter().zip(&site.locations);
        for (argument, location) in own {
            if *argument.name == *name {
                return Some((location.clone(), argument.ty));
            }
        }
        let register = |number| Location::Value(windlass_script::Code::Register(number));
        match (name, site.returns) {
            ("retval", Some(TypeId::VOID)) if site.has_types => {
                let why = "nothing: the function returns no value".to_owned();
                return Some((Location::Absent(why), TypeId::VOID));
            }
            ("retval", Some(ty)) if site.leaves_by_jump => {
                let why = "not known yet: the function is left by a jump to another one";
                return Some((Location::Absent(why.to_owned()), ty));
            }
            ("retval", Some(ty)) => return Some((register(RETURNED), ty)),
            _ => {}
        }
        let number = name
            .strip_prefix("arg")
            .and_then(|rest| rest.parse::<usize>().ok());
        if let (Some(number), None) = (number, site.returns) {
            return Some((register(*ARGUMENTS.get(number)?), self.long));
        }
        let (ty, place) = self.types.variable(name).ok()?;
        let types = self.types;
        let at = At {
            types,
            pc: 0,
            bias: self.bias,
        };
        Some((at.location(&place), ty))
    }

    fn missing(&self, name: &str) -> String {
        let own = self.site.arguments.iter();
        let own = own.map(|argument| argument.name.to_string());
        let returned = self.site.returns.map(|_| "retval".to_owned());
        let all = own.filter(|name| !name.is_empty()).chain(returned);
        let all: Vec<_> = all.collect();
        let rest = match all.is_empty() {
            true => String::new(),
            false => format!("; there are {}", all.join(", ")),
        };
        format!("nothing here is named {name}{rest}")
    }

    fn near<'n>(&self, name: &str, all: &[&'n str]) -> Option<&'n str> {
        suggest::nearest(name, all.iter().copied())
    }
}

/// The places of a probe in one file.
pub(super) struct Sites<'m, 't, 'a> {
    pub(super) number: usize,
    pub(super) module: &'m Module,
    pub(super) types: &'t Types<'a>,
    pub(super) probe: &'m Probe,
}

impl Sites<'_, '_, '_> {
    /// All of them, and what was left out, each with the reason.
    pub(super) fn find(&self) -> Result<(Vec<Site>, Vec<String>), String> {
        let (mut sites, mut refused) = (Vec::new(), Vec::new());
        let pattern = &self.probe.function;
        let functions = self
            .types
            .functions(pattern)
            .map_err(|error| error.to_string())?;
        // Where functions begin that were found, or left out.
        let mut seen = BTreeSet::new();
        for function in &functions {
            if function.is_inline && self.probe.is_return {
                continue;
            }
            if !function.is_inline {
                seen.insert(function.low_pc);
            }
            match self.of_function(function) {
                Ok(found) => sites.extend(found),
                Err(why) => refused.push(format!("{}: {why}", function.name)),
            }
        }
        let symbols = &self.module.functions;
        for (name, start, len) in symbols.iter() {
            let range = start..start.saturating_add(len.max(1));
            let shown = demangle::demangle(name);
            // A part of a function that lies apart is none of its own.
            let is_part = name.contains(".cold");
            let is_wanted = fits(pattern, name) || fits(pattern, &shown);
            if is_part || !is_wanted || seen.range(range.clone()).next().is_some() {
                continue;
            }
            seen.insert(start);
            if symbols.is_indirect(start) {
                let why = "it chooses another function as the program is started: name that one";
                refused.push(format!("{shown}: {why}"));
                continue;
            }
            let spots = self.spots(&range, std::slice::from_ref(&range), |_| true);
            match spots {
                Ok(spots) => sites.extend(spots.into_iter().filter_map(|spot| {
                    let mut site = self.site(&shown, spot)?;
                    site.has_types = false;
                    Some(site)
                })),
                Err(why) => refused.push(format!("{shown}: {why}")),
            }
        }
        if sites.len() > SITES_MAX {
            return Err(format!(
                "more than {SITES_MAX} places: name fewer functions"
            ));
        }
        Ok((sites, refused))
    }

    /// Names of functions that are like the one that is not there.
    pub(super) fn names(&self) -> Vec<String> {
        let all = self.module.functions.iter();
        let all = all.map(|(name, ..)| demangle::demangle(name));
        all.collect()
    }

    fn site(&self, function: &str, spot: Spot) -> Option<Site> {
        Some(Site {
            module: self.number,
            name: format!("{}:{function}", self.module.name),
            offset: self.module.offset(spot.address)?,
            is_emulated: spot.is_emulated,
            leaves_by_jump: spot.leaves_by_jump,
            is_inline: false,
            arguments: Vec::new(),
            locations: Vec::new(),
            returns: self.probe.is_return.then_some(TypeId::VOID),
            has_types: true,
            source: String::new(),
        })
    }

    fn spots(
        &self,
        range: &std::ops::Range<u64>,
        whole: &[std::ops::Range<u64>],
        may_be: impl Fn(u64) -> bool,
    ) -> Result<Vec<Spot>, String> {
        if !self.is_code(range.start) {
            let at = range.start;
            return Err(format!("no instruction is known to begin at {at:#x}"));
        }
        let code = self.module.code(range.clone());
        match self.probe.is_return {
            false => Ok(vec![instructions::entry(&code, range.start, may_be)]),
            true => {
                let is_all = code.len() as u64 == range.end.saturating_sub(range.start);
                let is_own = |to: u64| whole.iter().any(|range| range.contains(&to));
                let found = instructions::returns(&code, range.start, is_own);
                let found = found.filter(|_| is_all);
                found.ok_or_else(|| {
                    "where it returns is not known: its code is not understood to the end"
                        .to_owned()
                })
            }
        }
    }

    /// Whether an instruction begins there: what debug data and symbols say may be of another program, and a probe in the middle of an instruction
    /// destroys it. The program unwinds by its table of frames; where that has nothing, a symbol is believed.
    fn is_code(&self, pc: u64) -> bool {
        match self.types.frame_start(pc) {
            Some(start) => {
                let code = self.module.code(start..pc.saturating_add(INSTRUCTION_MAX));
                instructions::is_start(&code, start, pc)
            }
            None => self
                .module
                .functions
                .iter()
                .any(|(_, start, _)| start == pc),
        }
    }

    fn of_function(&self, function: &FunctionRef) -> Result<Vec<Site>, String> {
        let here = function.ranges.iter();
        let here = here.filter(|range| range.contains(&function.low_pc));
        // Cold parts lie apart, and return, too.
        let ranges: Vec<_> = match self.probe.is_return {
            true => function.ranges.clone(),
            false => here.map(|range| function.low_pc..range.end).collect(),
        };
        let at_entry = self.types.function(function, function.low_pc);
        let mut sites = Vec::new();
        for range in ranges {
            let may_be = |pc| self.has_all(function, at_entry.as_ref(), pc);
            let all = self.spots(&range, &function.ranges, may_be)?;
            for spot in all {
                let here = self.types.function(function, spot.address);
                let Some(here) = here.or_else(|| at_entry.clone()) else {
                    continue;
                };
                let Some(mut site) = self.site(&function.name, spot) else {
                    continue;
                };
                let at = At {
                    types: self.types,
                    pc: spot.address,
                    bias: self.module.bias,
                };
                site.is_inline = function.is_inline;
                site.arguments = here.parameters;
                let locations = site.arguments.iter();
                let locations = locations.map(|argument| at.location(&argument.place));
                site.locations = locations.collect();
                site.returns = self.probe.is_return.then_some(here.returns);
                site.source = source(function);
                sites.push(site);
            }
        }
        Ok(sites)
    }

    /// Whether each argument that is there at the entry is there at another instruction, too.
    fn has_all(
        &self,
        function: &FunctionRef,
        entry: Option<&windlass_types::Function>,
        pc: u64,
    ) -> bool {
        let is_there = |argument: &Parameter| !matches!(argument.place, Place::Absent(_));
        let comes = |argument: &Parameter| argument.place.is_later();
        let (Some(entry), Some(here)) = (entry, self.types.function(function, pc)) else {
            return true;
        };
        let both = entry.parameters.iter().zip(&here.parameters);
        { both }.all(|(entry, here)| is_there(here) || !(is_there(entry) || comes(entry)))
    }
}

fn source(function: &FunctionRef) -> String {
    let file = function.file.as_deref().unwrap_or_default();
    let file = file.rsplit('/').next().unwrap_or_default();
    match (file.is_empty(), function.line) {
        (true, _) => String::new(),
        (false, 0) => file.to_owned(),
        (false, line) => format!("{file}:{line}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_are_read() {
        let probe = |module: Option<&str>, function: &str, is_return| Probe {
            module: module.map(str::to_owned),
            function: function.to_owned(),
            is_return,
        };
        for (text, wanted) in [
            ("handle", probe(None, "handle", false)),
            ("server:handle*", probe(Some("server"), "handle*", false)),
            (
                "libc.so.6:malloc:return",
                probe(Some("libc.so.6"), "malloc", true),
            ),
            ("net::Pool<*>::get", probe(None, "net::Pool<*>::get", false)),
            ("x:net::get:entry", probe(Some("x"), "net::get", false)),
        ] {
            assert_eq!(Probe::parse(text), Ok(wanted), "{text}");
        }
        for text in ["", ":", "a:b:c", "a:", "return"] {
            assert!(Probe::parse(text).is_err(), "{text}");
        }
    }
}
