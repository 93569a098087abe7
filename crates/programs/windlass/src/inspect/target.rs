//! A program that is looked into: its memory, its files, and their types.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::fs::File;
use std::rc::Rc;

use windlass_api::ErrorCode;
use windlass_target::maps::{self, Mapping};
use windlass_target::{Core, Memory, Module, Modules, Process};
use windlass_types::print::World;
use windlass_types::{Kind, LookupError, Node, Place, TypeId, Types};
use windlass_views::Definition;

use crate::failure::Failure;
use crate::suggest;
use crate::table::clean;

use super::view::{self, Shape};
use super::{WHAT, absent, interrupt};

/// Names that are compared with one that is not there.
const NEAR_MAX: usize = 200_000;
/// Bytes that are read at once, and are kept while a command runs.
const PAGE: u64 = 4096;
/// Pages that are kept at most.
const PAGES_MAX: usize = 16_384;

/// Where memory comes from.
pub(super) enum Program {
    Process { pid: u32, memory: Process },
    Core(Core),
}

/// A program and its files.
pub(super) struct Opened {
    pub(super) program: Program,
    pub(super) mappings: Vec<Mapping>,
    pub(super) modules: Modules,
    /// Of a core, its file.
    pub(super) path: String,
}

impl Opened {
    /// A process by its id, or a core by its path.
    pub(super) fn of(name: &str) -> Result<Self, Failure> {
        match name.parse() {
            Ok(pid) => Self::process(pid),
            Err(_) => Self::core(name),
        }
    }

    pub(super) fn process(pid: u32) -> Result<Self, Failure> {
        let refused = |error: std::io::Error| {
            let code = match error.kind() {
                std::io::ErrorKind::PermissionDenied => ErrorCode::Forbidden,
                _ => ErrorCode::NotFound,
            };
            let todo = match code {
                ErrorCode::Forbidden => "act as its user or as root",
                _ => "name a running process, or a core file",
            };
            Failure::new(code, WHAT, format!("process {pid}: {error}"), todo)
        };
        let memory = Process::open(pid).map_err(refused)?;
        let mappings = maps::of(pid).map_err(refused)?;
        Ok(Self {
            modules: Modules::of_process(pid, &mappings),
            program: Program::Process { pid, memory },
            mappings,
            path: String::new(),
        })
    }

    fn core(path: &str) -> Result<Self, Failure> {
        let opened = File::open(path).and_then(Core::open);
        let core = opened.map_err(|error| {
            let why = format!("{}: {error}", clean(path));
            absent(why, "name a process id, or a core file")
        })?;
        let mappings = core.mappings();
        Ok(Self {
            modules: Modules::of_core(&core, &mappings),
            program: Program::Core(core),
            mappings,
            path: path.to_owned(),
        })
    }
}

impl Memory for Opened {
    fn read(&self, at: u64, into: &mut [u8]) -> usize {
        match &self.program {
            Program::Process { memory, .. } => memory.read(at, into),
            // A core leaves out what files have.
            Program::Core(core) => match core.read(at, into) {
                0 => self.modules.read(at, into),
                len => len,
            },
        }
    }
}

/// A type of one of the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Typed {
    /// Number of the file.
    pub(super) module: usize,
    pub(super) ty: TypeId,
}

/// A program, and the types of its files as far as they were read.
pub(super) struct Target<'a> {
    pub(super) opened: &'a Opened,
    types: Vec<OnceCell<Types<'a>>>,
    /// Memory as this command saw it first; a page may end early.
    pages: RefCell<HashMap<u64, Vec<u8>>>,
    /// Views and walkers.
    pub(super) definitions: Vec<Definition>,
    /// How types are shown, of those that were looked for.
    pub(super) shapes: RefCell<HashMap<Typed, Option<Rc<Shape>>>>,
    /// Views within views that are being shown, and items that may still be.
    pub(super) depth: Cell<usize>,
    pub(super) budget: Cell<usize>,
    /// Files of commands that are being run.
    pub(super) sources: Cell<usize>,
    /// Pointers that views follow.
    pub(super) followed: Cell<usize>,
}

/// A program as types of one of its files see it.
pub(super) struct Looking<'t, 'a> {
    pub(super) target: &'t Target<'a>,
    pub(super) module: usize,
}

impl World for Looking<'_, '_> {
    fn read(&self, at: u64, into: &mut [u8]) -> usize {
        self.target.read(at, into)
    }

    fn symbol(&self, at: u64) -> Option<String> {
        let symbol = self.target.opened.modules.symbol(at)?;
        symbol.function.is_some().then(|| symbol.to_string())
    }

    fn view(&self, record: TypeId, at: u64) -> Option<String> {
        let of = Typed {
            module: self.module,
            ty: record,
        };
        view::shown(self.target, of, at)
    }
}

impl Memory for Target<'_> {
    fn read(&self, at: u64, into: &mut [u8]) -> usize {
        let mut done = 0;
        while let Some(rest) = into.get_mut(done..).filter(|rest| !rest.is_empty())
            && let Some(from) = at.checked_add(done as u64)
        {
            let copied = self.copy(from, rest);
            if copied == 0 {
                break;
            }
            done += copied;
        }
        done
    }
}

impl<'a> Target<'a> {
    pub(super) fn of(opened: &'a Opened) -> Self {
        let modules = opened.modules.list().iter();
        // One more, without types, for numbers where no file can be read.
        let types = modules.map(|_| OnceCell::new());
        Self {
            opened,
            types: types.chain([OnceCell::new()]).collect(),
            pages: RefCell::default(),
            definitions: view::definitions(),
            shapes: RefCell::default(),
            depth: Cell::new(0),
            budget: Cell::new(0),
            sources: Cell::new(0),
            followed: Cell::new(0),
        }
    }

    /// Copies what one page has of an address.
    fn copy(&self, at: u64, into: &mut [u8]) -> usize {
        let (start, offset) = (at - at % PAGE, (at % PAGE) as usize);
        let mut pages = self.pages.borrow_mut();
        if pages.len() >= PAGES_MAX {
            pages.clear();
        }
        let page = pages.entry(start).or_insert_with(|| {
            let mut page = vec![0; PAGE as usize];
            let len = self.opened.read(start, &mut page);
            page.truncate(len);
            page
        });
        let from = page.get(offset..).unwrap_or_default();
        if from.is_empty() {
            // A core has parts of pages.
            let len = into.len().min(PAGE as usize - offset);
            return self.opened.read(at, &mut into[..len]);
        }
        let len = from.len().min(into.len());
        into[..len].copy_from_slice(&from[..len]);
        len
    }

    /// Forgets what memory had: a command begins.
    pub(super) fn refresh(&self) {
        self.pages.take();
    }

    /// The type of a file that has exactly this name, as compilers write it.
    pub(super) fn exact(&self, module: usize, name: &str, depth: usize) -> Option<Typed> {
        if depth > windlass_types::DEPTH_MAX {
            return None;
        }
        let types = self.types(module);
        let name = name.trim();
        let kinds = [
            Kind::Base,
            Kind::Struct,
            Kind::Enum,
            Kind::Union,
            Kind::Typedef,
        ];
        let found = kinds
            .into_iter()
            .find_map(|kind| types.named(kind, name).ok());
        if let Some(ty) = found {
            return Some(Typed { module, ty });
        }
        let plain = name
            .strip_prefix("const ")
            .or_else(|| name.strip_suffix(" const"));
        if let Some(plain) = plain {
            return self.exact(module, plain, depth + 1);
        }
        let prefixes = ["&mut ", "*const ", "*mut ", "&"];
        let to = (prefixes.iter().find_map(|prefix| name.strip_prefix(prefix)))
            .or_else(|| name.strip_suffix('*'))?;
        let to = match to.trim() {
            "void" | "()" => TypeId::VOID,
            to => self.exact(module, to, depth + 1)?.ty,
        };
        let ty = types.pointer_to(to);
        Some(Typed { module, ty })
    }

    /// The type of what is not known.
    pub(super) fn void(&self) -> Typed {
        Typed {
            module: self.types.len() - 1,
            ty: TypeId::VOID,
        }
    }

    pub(super) fn modules(&self) -> &'a [Module] {
        self.opened.modules.list()
    }

    /// The types of a file.
    pub(super) fn types(&self, module: usize) -> &Types<'a> {
        self.types[module].get_or_init(|| {
            let module = self.modules().get(module);
            let types = module.map_or_else(Types::default, |module| module.debug().types());
            types.interruptible(interrupt::flag())
        })
    }

    /// The files that a name may be in, and the name: all, or the one before a backquote.
    pub(super) fn places<'n>(&self, name: &'n str) -> (Vec<usize>, &'n str) {
        if let Some((file, plain)) = name.split_once('`') {
            let all = 0..self.modules().len();
            let named: Vec<_> = all
                .filter(|at| self.modules()[*at].name() == file)
                .collect();
            if !named.is_empty() {
                return (named, plain);
            }
        }
        ((0..self.modules().len()).collect(), name)
    }

    /// What the first file that has it makes of a name.
    fn first<T>(
        &self,
        name: &str,
        find: impl Fn(&Types<'a>, &str) -> Result<T, LookupError>,
    ) -> Result<Option<(usize, T)>, Failure> {
        let (places, plain) = self.places(name);
        for module in places {
            match find(self.types(module), plain) {
                Ok(found) => return Ok(Some((module, found))),
                Err(LookupError::Absent(_)) => {}
                Err(error @ (LookupError::Ambiguous { .. } | LookupError::Interrupted)) => {
                    let todo = "put one of the files before the name, as in conn.c`conn";
                    return Err(absent(clean(&error.to_string()), todo));
                }
            }
        }
        Ok(None)
    }

    /// The type that a name means.
    pub(super) fn spelled(&self, name: &str) -> Result<Typed, Failure> {
        match self.find_type(name)? {
            Some(found) => Ok(found),
            None => {
                let bare = name.trim_end_matches(['*', ' ']);
                let bare = bare.rsplit(' ').next().unwrap_or(bare);
                Err(self.missing("type", bare, &Kind::is_type))
            }
        }
    }

    /// The type that a name means, if there is one. The file before a backquote may follow a keyword.
    pub(super) fn find_type(&self, name: &str) -> Result<Option<Typed>, Failure> {
        let (keyword, plain) = match name.split_once(' ') {
            Some((keyword, plain)) if plain.contains('`') => (keyword, plain.trim_start()),
            _ => ("", name),
        };
        let find = |types: &Types<'a>, name: &str| match keyword {
            "" => types.spelled(name),
            keyword => types.spelled(&format!("{keyword} {name}")),
        };
        let found = self.first(plain, find)?;
        Ok(found.map(|(module, ty)| Typed { module, ty }))
    }

    /// A variable's type and address.
    pub(super) fn variable(&self, name: &str) -> Result<(Typed, u64), Failure> {
        let found = self.first(name, |types, name| types.variable(name))?;
        let Some((module, (ty, place))) = found else {
            let is_variable = |kind: Kind| kind == Kind::Variable;
            return Err(self.missing("variable", name, &is_variable));
        };
        match place {
            Place::Address(at) => {
                let at = at.wrapping_add(self.modules()[module].bias());
                Ok((Typed { module, ty }, at))
            }
            Place::Absent(why) => Err(absent(format!("{}: {why}", clean(name)), "")),
            _ => Err(absent(format!("{} is not in memory", clean(name)), "")),
        }
    }

    /// Why a name means nothing: the nearest, or that there is no debug data.
    pub(super) fn missing(
        &self,
        what: &str,
        name: &str,
        is_wanted: &dyn Fn(Kind) -> bool,
    ) -> Failure {
        let (places, plain) = self.places(name);
        let with_types = |module: &&usize| !self.types(**module).is_empty();
        if !places.iter().any(|module| with_types(&module)) {
            let Some(first) = places.first().map(|module| &self.modules()[*module]) else {
                return absent(
                    "no file of the program can be read",
                    "act as its user or as root",
                );
            };
            let looked_in = first.debug().looked_in().join(", ");
            let why = format!(
                "{} has no debug data; looked in {}",
                first.name(),
                clean(&looked_in)
            );
            let todo = "install its package of debug data, or compile it with -g";
            return absent(why, todo);
        }
        let found = places.iter().filter(with_types).flat_map(|module| {
            let found = self.types(*module).search("*", is_wanted);
            found.unwrap_or_default()
        });
        let names: Vec<_> = found.take(NEAR_MAX).map(|found| found.name).collect();
        let near = suggest::nearest(plain, names.iter().map(String::as_str));
        let why = format!("there is no {what} \"{}\"", clean(name));
        match near {
            Some(near) => absent(why, format!("did you mean \"{}\"?", clean(near))),
            None => absent(why, "\"symbols GLOB\" lists names"),
        }
    }

    /// A type behind typedefs and qualifiers; of a declaration the definition, in whichever file it is.
    pub(super) fn complete(&self, of: Typed) -> Typed {
        let own = Typed {
            ty: self.types(of.module).complete(of.ty),
            ..of
        };
        let Node::Forward { kind, name } = self.node(own) else {
            return own;
        };
        let all = (0..self.modules().len()).filter(|module| *module != of.module);
        let mut found = all.filter_map(|module| {
            let ty = self.types(module).named(kind, &name).ok()?;
            Some(Typed { module, ty })
        });
        found.next().unwrap_or(own)
    }

    pub(super) fn node(&self, of: Typed) -> Node {
        self.types(of.module).node(of.ty)
    }

    pub(super) fn name(&self, of: Typed) -> String {
        self.types(of.module).name(of.ty)
    }

    /// Bytes of a type.
    pub(super) fn size(&self, of: Typed) -> Result<u64, Failure> {
        let full = self.complete(of);
        let size = self.types(full.module).size(full.ty);
        size.ok_or_else(|| {
            let why = format!("the size of {} is not known", clean(&self.name(of)));
            absent(why, "its definition is in no file of the program")
        })
    }

    /// Copies bytes; all of them or a failure.
    pub(super) fn bytes(&self, at: u64, len: u64) -> Result<Vec<u8>, Failure> {
        let len = usize::try_from(len.min(windlass_types::print::VALUE_MAX)).unwrap_or(0);
        let mut bytes = vec![0; len];
        match self.read_all(at, &mut bytes) {
            true => Ok(bytes),
            false => Err(absent(
                format!("<fault {at:#x}>: {len} bytes cannot be read there"),
                "\"maps\" lists what is mapped",
            )),
        }
    }

    /// The function that an address is in, and the line.
    pub(super) fn line(&self, address: u64) -> Option<String> {
        let (module, inner) = self.opened.modules.at(address)?;
        let all = self.modules().iter();
        let number = all.into_iter().position(|own| std::ptr::eq(own, module))?;
        let line = self.types(number).line(inner)?;
        Some(format!("{}:{}", clean(&line.file), line.line))
    }
}
