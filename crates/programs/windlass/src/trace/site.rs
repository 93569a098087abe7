//! Which places of a program a probe names, and what is known at each.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::Range;

use windlass_script::Code;
use windlass_script::lower::{Location, Names};
use windlass_target::demangle;
use windlass_target::instructions::{self, Spot};
use windlass_types::{Encoding, FunctionRef, Node, Parameter, Place, TypeId, Types, fits};

use crate::suggest;

use super::module::Module;
use super::place::{self, At};
use super::probe::{FunctionProbe, Probe};
use super::sdt;

/// Places of one probe at most.
pub(super) const SITES_MAX: usize = 10_000;
/// Bytes of an instruction at most.
const INSTRUCTION_MAX: u64 = 15;

/// Where a function is entered, to pair it with its return.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Entered {
    /// Which of the modules.
    pub(super) module: usize,
    /// Where in the file.
    pub(super) offset: u64,
    /// The canonical frame address there.
    pub(super) frame: Code,
}

/// One place that a probe is put on.
#[derive(Debug, Clone)]
pub(super) struct Site {
    /// What it is of.
    pub(super) probe: Probe,
    /// Which of the modules; the one behind the last where it is in none.
    pub(super) module: usize,
    /// `module:function`
    pub(super) name: String,
    /// Where in the file.
    pub(super) offset: u64,
    /// Where in the file the number is that says how many look at a static probe; 0: there is none.
    pub(super) semaphore: u64,
    /// A hit costs little.
    pub(super) is_emulated: bool,
    /// The function is left there by a jump to another one: what is returned is not known yet.
    pub(super) leaves_by_jump: bool,
    /// It is a copy in another function.
    pub(super) is_inline: bool,
    /// At a return: where the function is entered, and the frame as it is here.
    entered: Option<(Entered, Code)>,
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
    /// One that is in no file.
    pub(super) fn elsewhere(probe: Probe, module: usize) -> Self {
        Self {
            name: probe.name(),
            probe,
            module,
            offset: 0,
            semaphore: 0,
            is_emulated: true,
            leaves_by_jump: false,
            is_inline: false,
            entered: None,
            arguments: Vec::new(),
            locations: Vec::new(),
            returns: None,
            has_types: true,
            source: String::new(),
        }
    }

    /// It is an instruction of a program, whose registers are there.
    pub(super) fn is_instruction(&self) -> bool {
        self.probe.is_instruction()
    }

    /// Gives an event of the kernel its arguments: their names and types as its debug data has them, the first of which is of its own.
    pub(super) fn of_event(mut self, types: &Types<'_>) -> Self {
        let Probe::Kernel(event) = &self.probe else {
            return self;
        };
        let signature = types.signature(&format!("__probestub_{event}"));
        let parameters = signature.map_or(Vec::new(), |found| found.parameters);
        for (number, (name, ty)) in (0_u8..).zip(parameters.into_iter().skip(1)) {
            let place = Place::Absent("told by the kernel");
            self.arguments.push(Parameter { name, ty, place });
            self.locations.push(Location::Value(Code::Argument(number)));
        }
        self
    }

    /// The arguments as a person reads them.
    pub(super) fn described(&self, types: &Types<'_>) -> String {
        if !self.has_types {
            return "not known: arg0 to arg5 are integers".to_owned();
        }
        let described = self.arguments.iter().map(|argument| {
            if !matches!(self.probe, Probe::Function(_) | Probe::Line(..)) {
                return types.declaration(argument.ty, &argument.name);
            }
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
    /// How far its file was moved, where that is the same for all who run it.
    pub(super) bias: Option<u64>,
    /// The file's name.
    pub(super) module: &'s str,
    /// The process, if there is just one.
    pub(super) pid: Option<u32>,
    /// Where functions are entered that are paired with their returns, by their numbers.
    pub(super) entries: &'s RefCell<Vec<Entered>>,
    /// The type of what is known as a number alone.
    pub(super) long: TypeId,
}

/// The registers of the first six arguments (System V ABI for x86-64, 3.2.3), and that of what is returned.
const ARGUMENTS: [u16; 6] = [5, 4, 1, 2, 8, 9];
const RETURNED: u16 = 0;
/// Arguments of an event of the kernel at most.
const EVENT_ARGUMENTS: u8 = 12;

impl Names for SiteNames<'_, '_, '_> {
    fn find(&self, name: &str) -> Option<(Location, TypeId)> {
        let site = self.site;
        let own = site.arguments.iter().zip(&site.locations);
        for (argument, location) in own {
            if *argument.name == *name {
                return Some((location.clone(), argument.ty));
            }
        }
        if matches!(site.probe, Probe::Kernel(_)) {
            let number = name.strip_prefix("arg")?.parse().ok()?;
            let is_there = (0..EVENT_ARGUMENTS).contains(&number);
            return is_there.then_some((Location::Value(Code::Argument(number)), self.long));
        }
        if !site.is_instruction() {
            return None;
        }
        let register = |number| Location::Value(Code::Register(number));
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
        let is_function = matches!(site.probe, Probe::Function(_));
        if let (Some(number), None, true) = (number, site.returns, is_function) {
            return Some((register(*ARGUMENTS.get(number)?), self.long));
        }
        let (ty, place) = self.types.variable(name).ok()?;
        let types = self.types;
        let Some(bias) = self.bias else {
            let why = "a variable of the program, which lies elsewhere in each process";
            return Some((Location::Absent(why.to_owned()), ty));
        };
        let at = At { types, pc: 0, bias };
        Some((at.location(&place), ty))
    }

    fn process(&self) -> Option<u32> {
        self.pid
    }

    fn entered(&self) -> Result<(Code, u32), String> {
        if self.site.returns.is_none() {
            return Err("known only where a function returns".to_owned());
        }
        let Some((entered, frame)) = &self.site.entered else {
            return Err(
                "not known: the function's frame is not known here, or is moved".to_owned(),
            );
        };
        let mut entries = self.entries.borrow_mut();
        let number = entries.iter().position(|other| other == entered);
        let number = number.unwrap_or_else(|| {
            entries.push(entered.clone());
            entries.len() - 1
        });
        Ok((frame.clone(), u32::try_from(number).unwrap_or(u32::MAX)))
    }

    fn type_named(&self, spelled: &str) -> Option<TypeId> {
        // A library is named as the file is whose types these are.
        let (keyword, name) = match spelled.rsplit_once(' ') {
            Some((keyword, name)) => (format!("{keyword} "), name),
            None => (String::new(), spelled),
        };
        let (module, name) = name.split_once('`')?;
        let is_own = module == self.module;
        let found = self.types.spelled(&format!("{keyword}{name}"));
        found.ok().filter(|_| is_own)
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
    pub(super) probe: &'m FunctionProbe,
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
                    let mut site = self.site(&shown, spot, &range)?;
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

    fn site(&self, function: &str, spot: Spot, whole: &Range<u64>) -> Option<Site> {
        let entered = match self.probe.is_return {
            true => self.entered(whole, spot.address),
            false => None,
        };
        Some(Site {
            probe: Probe::Function(self.probe.clone()),
            entered,
            module: self.number,
            semaphore: 0,
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

    /// Where a function is entered, and its frame at one of its returns.
    fn entered(&self, whole: &Range<u64>, at: u64) -> Option<(Entered, Code)> {
        // Go moves its stacks: a frame that returns is not where it was entered.
        if self.module.elf.has_section(".gopclntab") {
            return None;
        }
        let frame = |pc| {
            let (register, offset) = self.types.cfa(pc)?;
            Some(Code::Register(register).plus(offset))
        };
        let code = self.module.code(whole.clone());
        let spot = instructions::entry(&code, whole.start, |pc| frame(pc).is_some());
        let entered = Entered {
            module: self.number,
            offset: self.module.offset(spot.address)?,
            frame: frame(spot.address)?,
        };
        Some((entered, frame(at)?))
    }

    fn spots(
        &self,
        range: &Range<u64>,
        whole: &[Range<u64>],
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
        let whole = function
            .ranges
            .iter()
            .find(|range| range.contains(&function.low_pc));
        let whole = whole.map_or(function.low_pc..function.low_pc, |range| {
            function.low_pc..range.end
        });
        let mut sites = Vec::new();
        for range in ranges {
            let may_be = |pc| self.has_all(function, at_entry.as_ref(), pc);
            let all = self.spots(&range, &function.ranges, may_be)?;
            for spot in all {
                let here = self.types.function(function, spot.address);
                let Some(here) = here.or_else(|| at_entry.clone()) else {
                    continue;
                };
                let Some(mut site) = self.site(&function.name, spot, &whole) else {
                    continue;
                };
                let at = At {
                    types: self.types,
                    pc: spot.address,
                    bias: self.module.bias.unwrap_or(0),
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

/// The places of what is in a file, but no function.
pub(super) struct Places<'m, 't, 'a> {
    pub(super) number: usize,
    pub(super) module: &'m Module,
    pub(super) types: &'t Types<'a>,
    pub(super) probe: &'m Probe,
}

impl Places<'_, '_, '_> {
    /// Where a line begins: once in each function, and in each copy of one in another.
    pub(super) fn of_line(&self, file: &str, line: u32) -> Vec<Site> {
        let mut sites: Vec<Site> = Vec::new();
        let mut seen = BTreeSet::new();
        for pc in self.types.addresses(file, line) {
            let Some(here) = self.types.at(pc) else {
                continue;
            };
            let copies: Vec<_> = here
                .inlined
                .iter()
                .map(|copy| (copy.name.clone(), copy.line))
                .collect();
            if !seen.insert((here.reference.low_pc, copies)) {
                continue;
            }
            let start = self.types.frame_start(pc).unwrap_or(here.reference.low_pc);
            let code = self.module.code(start..pc.saturating_add(INSTRUCTION_MAX));
            if !instructions::is_start(&code, start, pc) {
                continue;
            }
            let at = At {
                types: self.types,
                pc,
                bias: self.module.bias.unwrap_or(0),
            };
            // What is declared further in hides what is further out.
            let own = here.locals.into_iter().rev().chain(here.parameters);
            let arguments: Vec<Parameter> = own.collect();
            let locations = arguments
                .iter()
                .map(|argument| at.location(&argument.place));
            let locations = locations.collect();
            let inner = usize::try_from(pc - start).unwrap_or(usize::MAX);
            let one = instructions::entry(code.get(inner..).unwrap_or_default(), pc, |at| at == pc);
            let source = format!("{} in {}", self.probe.name(), here.reference.name);
            sites.extend(self.site(pc, arguments, locations).map(|site| Site {
                is_emulated: one.is_emulated,
                source,
                ..site
            }));
        }
        sites
    }

    /// Static probes of a provider and a name, both with `*`.
    pub(super) fn of_static(&self, provider: &str, name: &str) -> Vec<Site> {
        let all = sdt::of(self.module).into_iter();
        let own = all.filter(|probe| fits(provider, &probe.provider) && fits(name, &probe.name));
        let sites = own.filter_map(|probe| {
            let (mut arguments, mut locations, mut texts) = (Vec::new(), Vec::new(), Vec::new());
            for (number, argument) in probe.arguments.into_iter().enumerate() {
                let encoding = match argument.is_signed {
                    true => Encoding::Signed,
                    false => Encoding::Unsigned,
                };
                let sign = if argument.is_signed { "int" } else { "uint" };
                let ty = self.types.add(Node::Int {
                    name: format!("{sign}{}_t", 8 * u32::from(argument.bytes)).into(),
                    size: argument.bytes.into(),
                    encoding,
                });
                let place = Place::Absent("told by a note");
                let name = format!("arg{number}").into();
                arguments.push(Parameter { name, ty, place });
                locations.push(argument.location);
                texts.push(argument.text);
            }
            let semaphore = match probe.semaphore {
                0 => 0,
                address => self.module.offset_of_data(address)?,
            };
            let site = self.site(probe.address, arguments, locations)?;
            Some(Site {
                name: format!("{}:{}:{}", self.module.name, probe.provider, probe.name),
                semaphore,
                source: texts.join(" "),
                ..site
            })
        });
        sites.collect()
    }

    fn site(&self, pc: u64, arguments: Vec<Parameter>, locations: Vec<Location>) -> Option<Site> {
        let site = Site::elsewhere(self.probe.clone(), self.number);
        Some(Site {
            name: format!("{}:{}", self.module.name, self.probe.name()),
            offset: self.module.offset(pc)?,
            arguments,
            locations,
            ..site
        })
    }
}
