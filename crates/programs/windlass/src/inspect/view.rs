//! How values are shown and walked by views and walkers: `windlass-views` on a program's types and memory.
//!
//! # Limits
//! Every loop ends: at [`NODES_MAX`] items, where a list comes back, where memory cannot be read, at [`TREE_DEPTH`] nodes below one another.

use std::collections::HashSet;
use std::path::PathBuf;
use std::rc::Rc;

use windlass_script::Code;
use windlass_target::Memory;
use windlass_types::print::{Limits, quoted};
use windlass_types::{Encoding, Node};
use windlass_views::{Body, Definition, SHIPPED, pattern};

use crate::failure::Failure;
use crate::table::clean;

use super::interrupt;
use super::show;
use super::target::{Target, Typed};
use super::value::{self, Bound, Located, THIS, Value, Within};

/// Items of a list, a tree or a sequence at most.
pub(super) const NODES_MAX: usize = 1_000_000;
/// Items of one that are shown within a value.
const SHOWN: usize = 64;
/// Items that are shown of all views of a value.
pub(super) const BUDGET: usize = 1_000;
/// Views within one another.
const DEPTH: usize = 8;
/// Nodes of a tree below one another.
const TREE_DEPTH: usize = 128;
/// Bytes of a file of views at most.
const FILE_MAX: u64 = 1 << 20;

/// How a type is shown, or walked.
#[derive(Debug)]
pub(super) struct Shape {
    /// Whether there is anything, and the word for nothing.
    condition: Option<(Code, String)>,
    form: Form,
}

#[derive(Debug)]
enum Form {
    Is(Located),
    Follow(Typed, Code),
    Text(Code, Option<Code>),
    Items(Box<Items>),
}

/// A list, a tree or a sequence.
#[derive(Debug)]
pub(super) struct Items {
    walk: Walk,
    /// Which ones count.
    filter: Option<Code>,
    item: Option<Located>,
    key: Option<Located>,
    value: Option<Located>,
}

#[derive(Debug)]
enum Walk {
    /// So many.
    Sequence(Code),
    List {
        from: Code,
        next: Code,
        until: Option<Code>,
    },
    Tree {
        from: Code,
        height: Option<Code>,
        count: Option<Code>,
        child: Code,
    },
}

/// One of what a walk visits.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) key: Option<Value>,
    pub(super) value: Value,
    /// Key and value together, if they lie together.
    pub(super) whole: Option<Value>,
}

/// How a walk ended.
#[derive(Debug, PartialEq)]
pub(super) enum End {
    /// There is no more.
    All,
    /// The visitor wanted no more.
    Enough,
    /// There may be more; why it is not visited.
    Cut(String),
}

/// The registers of a shape's names: `this`, `node`, `index`, `item`.
type Registers = [u64; 4];
const NODE: usize = 1;
const INDEX: usize = 2;
const ITEM: usize = 3;

/// The views and walkers that there are: those of the user first. A file that cannot be read is told and left out.
pub(super) fn definitions() -> Vec<Definition> {
    let mut all = Vec::new();
    for path in own_files() {
        let text = std::fs::metadata(&path)
            .ok()
            .filter(|about| about.is_file() && about.len() <= FILE_MAX)
            .and_then(|_| std::fs::read_to_string(&path).ok());
        let read = text.ok_or_else(|| "cannot be read".to_owned());
        match read.and_then(|text| windlass_views::definitions(&text).map_err(|e| e.to_string())) {
            Ok(own) => all.extend(own),
            Err(why) => eprintln!("windlass: {}: {}", path.display(), clean(&why)),
        }
    }
    for (_, text) in SHIPPED {
        // A test reads them.
        all.extend(windlass_views::definitions(text).unwrap_or_default());
    }
    all
}

fn own_files() -> Vec<PathBuf> {
    let Some(directory) = windlass_sys::own::directory("XDG_CONFIG_HOME", ".config") else {
        return Vec::new();
    };
    let entries = std::fs::read_dir(directory.join("windlass/views"));
    let paths = entries
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path());
    let mut paths: Vec<_> = paths
        .filter(|path| path.extension().is_some_and(|end| end == "view"))
        .collect();
    paths.sort();
    paths
}

/// The shape of a record by its name: of the first view that makes sense.
pub(super) fn shape(target: &Target<'_>, of: Typed) -> Option<Rc<Shape>> {
    let of = target.complete(of);
    if let Some(known) = target.shapes.borrow().get(&of) {
        return known.clone();
    }
    let found = match target.node(of) {
        Node::Record {
            name: Some(name), ..
        } => {
            let views = target.definitions.iter().filter(|view| view.name.is_none());
            let mut shapes = views.filter_map(|view| {
                let captures = pattern::matches(&view.of, &name)?;
                compile(target, of, &captures, &view.body, true).ok()
            });
            shapes.next().map(Rc::new)
        }
        _ => None,
    };
    target.shapes.borrow_mut().insert(of, found.clone());
    found
}

/// The walker of a name; what it says, and the type that it begins at.
pub(super) fn walker(
    target: &Target<'_>,
    definition: &Definition,
) -> Result<(Shape, Typed), Failure> {
    let of = target.spelled(&definition.of)?;
    let shape = compile(target, of, &[], &definition.body, false)?;
    Ok((shape, of))
}

impl Shape {
    /// What it visits; `None` if it is no sequence.
    pub(super) fn items(&self) -> Option<&Items> {
        match &self.form {
            Form::Items(items) => Some(items),
            _ => None,
        }
    }

    /// What it stands for, if it is a wrapping of something else.
    pub(super) fn inner(&self, target: &Target<'_>, at: u64) -> Option<Value> {
        match &self.form {
            Form::Is(located) => located.at(target, &[at]).ok(),
            _ => None,
        }
    }

    /// The type of that.
    pub(super) fn inner_type(&self) -> Option<Typed> {
        match &self.form {
            Form::Is(located) => Some(located.of),
            _ => None,
        }
    }
}

impl Items {
    /// The type of what it visits.
    pub(super) fn of(&self) -> Option<Typed> {
        let visited = self.item.as_ref().or(self.value.as_ref());
        visited.map(|located| located.of)
    }

    /// The item that the registers are at; `None` if it does not count.
    fn one(&self, target: &Target<'_>, registers: &mut Registers) -> Result<Option<Item>, Failure> {
        if let Some(filter) = &self.filter
            && value::computed(target, registers, filter)? == 0
        {
            return Ok(None);
        }
        let mut whole = None;
        if let Some(item) = &self.item {
            let value = item.at(target, registers)?;
            registers[ITEM] = value.word();
            whole = Some(value);
        }
        let at = |located: &Option<Located>| {
            let located = located.as_ref();
            located
                .map(|located| located.at(target, registers))
                .transpose()
        };
        let key = at(&self.key)?;
        let value = at(&self.value)?.or(whole);
        Ok(value.map(|value| Item { key, value, whole }))
    }
}

/// Names that expressions of a shape have so far.
struct Names<'n> {
    bound: Vec<Bound>,
    within: Within<'n>,
}

impl Names<'_> {
    fn within(&self) -> Within<'_> {
        Within {
            bound: &self.bound,
            ..self.within
        }
    }

    fn number(&self, target: &Target<'_>, text: &str) -> Result<(Typed, Code), Failure> {
        value::number_in(target, &self.within(), text)
    }

    fn located(&self, target: &Target<'_>, text: &str) -> Result<Located, Failure> {
        value::expression_in(target, &self.within(), text)
    }
}

fn compile(
    target: &Target<'_>,
    of: Typed,
    captures: &[(char, &str)],
    body: &Body,
    is_quiet: bool,
) -> Result<Shape, Failure> {
    let captures: Vec<_> = captures
        .iter()
        .map(|(letter, text)| (*letter, (*text).to_owned()))
        .collect();
    let this = Bound {
        name: THIS,
        of,
        is_value: false,
    };
    let within = Within {
        bound: &[],
        captures: &captures,
        home: of.module,
        is_quiet,
    };
    let mut names = Names {
        bound: vec![this],
        within,
    };
    let condition = code(target, &names, body, "if")?.map(|code| {
        let word = body.get("else").unwrap_or("nothing");
        (code, word.to_owned())
    });
    let form = if let Some(text) = body.get("is") {
        Form::Is(names.located(target, text)?)
    } else if let Some(text) = body.get("follow") {
        let (of, code) = names.number(target, text)?;
        Form::Follow(of, code)
    } else if let Some(text) = body.get("text") {
        Form::Text(
            names.number(target, text)?.1,
            code(target, &names, body, "length")?,
        )
    } else {
        Form::Items(Box::new(items(target, &mut names, body)?))
    };
    Ok(Shape { condition, form })
}

/// The code of a key, if the body has it.
fn code(
    target: &Target<'_>,
    names: &Names<'_>,
    body: &Body,
    key: &str,
) -> Result<Option<Code>, Failure> {
    let text = body.get(key);
    text.map(|text| names.number(target, text).map(|(_, code)| code))
        .transpose()
}

fn missing(what: &str) -> Failure {
    super::absent(format!("the walker has no \"{what}\""), "")
}

/// How a body goes from item to item; `node` and `index` have a meaning then.
fn walk(target: &Target<'_>, names: &mut Names<'_>, body: &Body) -> Result<Walk, Failure> {
    let module = names.within.home;
    let ty = target.types(module).add(Node::Int {
        name: "long".into(),
        size: 8,
        encoding: Encoding::Signed,
    });
    let index = Typed { module, ty };
    let number = |name, of| Bound {
        name,
        of,
        is_value: true,
    };
    if let Some(count) = code(target, names, body, "index")? {
        let own = [number("node", index), number("index", index)];
        names.bound.extend(own);
        return Ok(Walk::Sequence(count));
    }
    let text = body.get("from").ok_or_else(|| missing("from"))?;
    let (node, from) = names.number(target, text)?;
    let until = code(target, names, body, "until")?;
    let height = code(target, names, body, "height")?;
    let own = [number("node", node), number("index", index)];
    names.bound.extend(own);
    if let Some(child) = code(target, names, body, "child")? {
        let count = code(target, names, body, "count")?;
        return Ok(Walk::Tree {
            from,
            height,
            count,
            child,
        });
    }
    let next = code(target, names, body, "next")?.ok_or_else(|| missing("next"))?;
    Ok(Walk::List { from, next, until })
}

/// The sequence that a body describes.
fn items(target: &Target<'_>, names: &mut Names<'_>, body: &Body) -> Result<Items, Failure> {
    let walk = walk(target, names, body)?;
    let filter = code(target, names, body, "where")?;
    let located = |names: &Names<'_>, key: &str| {
        let text = body.get(key);
        text.map(|text| names.located(target, text)).transpose()
    };
    let item = located(names, "item")?;
    if let Some(item) = &item {
        names.bound.push(item.bound("item"));
    }
    let (key, value) = (located(names, "key")?, located(names, "value")?);
    if item.is_none() && value.is_none() {
        return Err(missing("item"));
    }
    Ok(Items {
        walk,
        filter,
        item,
        key,
        value,
    })
}

/// Visits what a record has.
pub(super) fn each(
    target: &Target<'_>,
    items: &Items,
    this: u64,
    visit: &mut dyn FnMut(Item) -> bool,
) -> Result<End, Failure> {
    let mut registers: Registers = [this, 0, 0, 0];
    let mut visited = 0_usize;
    let mut one = |registers: &mut Registers| -> Result<Option<End>, Failure> {
        visited += 1;
        if visited > NODES_MAX {
            return Ok(Some(End::Cut(format!("after {NODES_MAX} items"))));
        }
        if visited.is_multiple_of(1024) && interrupt::has_come() {
            return Ok(Some(End::Cut("by an interrupt".to_owned())));
        }
        let item = items.one(target, registers)?;
        let is_enough = item.is_some_and(|item| !visit(item));
        Ok(is_enough.then_some(End::Enough))
    };
    match &items.walk {
        Walk::Sequence(count) => {
            let count = value::computed(target, &registers, count)?.cast_signed();
            for index in 0..count {
                registers[INDEX] = index.cast_unsigned();
                if let Some(end) = one(&mut registers)? {
                    return Ok(end);
                }
            }
            match count {
                0.. => Ok(End::All),
                _ => Ok(End::Cut(format!("{count} items make no sense"))),
            }
        }
        Walk::List { from, next, until } => list(
            target,
            [from, next],
            until.as_ref(),
            &mut registers,
            &mut one,
        ),
        Walk::Tree {
            from,
            height,
            count,
            child,
        } => {
            let tree = Tree {
                target,
                count: count.as_ref(),
                child,
            };
            let root = value::computed(target, &registers, from)?;
            let height = match height {
                Some(_) if root == 0 => 0,
                Some(height) => value::computed(target, &registers, height)?,
                None => u64::MAX,
            };
            tree.each((root, height), &mut registers, &mut one)
        }
    }
}

type One<'o> = &'o mut dyn FnMut(&mut Registers) -> Result<Option<End>, Failure>;

fn list(
    target: &Target<'_>,
    [from, next]: [&Code; 2],
    until: Option<&Code>,
    registers: &mut Registers,
    one: One<'_>,
) -> Result<End, Failure> {
    let until = until
        .map(|until| value::computed(target, registers, until))
        .transpose()?;
    let mut seen = HashSet::new();
    let mut node = value::computed(target, registers, from)?;
    while node != 0 && Some(node) != until {
        if !seen.insert(node) {
            return Ok(End::Cut(format!("it comes back to {node:#x}")));
        }
        registers[NODE] = node;
        // A node that cannot be read is none.
        let next = match value::computed(target, registers, next) {
            Ok(next) => next,
            Err(failure) if seen.len() == 1 => return Err(failure),
            Err(_) => return Ok(End::Cut(format!("<fault {node:#x}>"))),
        };
        registers[INDEX] = (seen.len() - 1) as u64;
        if let Some(end) = one(registers)? {
            return Ok(end);
        }
        node = next;
    }
    Ok(End::All)
}

struct Tree<'t, 'a> {
    target: &'t Target<'a>,
    count: Option<&'t Code>,
    child: &'t Code,
}

impl Tree<'_, '_> {
    /// Visits in order: a child before each item, and one behind the last.
    fn each(
        &self,
        (root, height): (u64, u64),
        registers: &mut Registers,
        one: One<'_>,
    ) -> Result<End, Failure> {
        let mut seen = HashSet::new();
        // Nodes on the way: the next item, how many there are, levels below.
        let mut way: Vec<(u64, u64, u64, u64)> = Vec::new();
        let mut next = Some((root, height));
        loop {
            if let Some((node, height)) = next.take()
                && node != 0
            {
                if !seen.insert(node) {
                    return Ok(End::Cut(format!("it comes back to {node:#x}")));
                }
                if way.len() >= TREE_DEPTH || seen.len() > NODES_MAX {
                    return Ok(End::Cut("it is too deep".to_owned()));
                }
                registers[NODE] = node;
                let count = self
                    .count
                    .map(|count| value::computed(self.target, registers, count));
                way.push((node, 0, count.transpose()?.unwrap_or(1), height));
                next = self.below(registers, 0, height)?;
                continue;
            }
            let Some((node, index, count, height)) = way.last_mut() else {
                return Ok(End::All);
            };
            registers[NODE] = *node;
            if *index >= *count {
                way.pop();
                continue;
            }
            registers[INDEX] = *index;
            *index += 1;
            let (behind, height) = (*index, *height);
            if let Some(end) = one(registers)? {
                return Ok(end);
            }
            next = self.below(registers, behind, height)?;
        }
    }

    fn below(
        &self,
        registers: &mut Registers,
        index: u64,
        height: u64,
    ) -> Result<Option<(u64, u64)>, Failure> {
        let Some(height) = height.checked_sub(1) else {
            return Ok(None);
        };
        registers[INDEX] = index;
        let child = value::computed(self.target, registers, self.child)?;
        Ok(Some((child, height)))
    }
}

/// A record as its view has it; `None` if it has none, or the view cannot be used on it.
pub(super) fn shown(target: &Target<'_>, of: Typed, at: u64) -> Option<String> {
    let shape = shape(target, of)?;
    if target.depth.get() >= DEPTH || target.budget.get() == 0 {
        return Some("...".to_owned());
    }
    target.depth.set(target.depth.get() + 1);
    let text = text(target, &shape, at);
    target.depth.set(target.depth.get() - 1);
    text.ok()
}

fn text(target: &Target<'_>, shape: &Shape, at: u64) -> Result<String, Failure> {
    if let Some((condition, otherwise)) = &shape.condition
        && value::computed(target, &[at], condition)? == 0
    {
        return Ok(otherwise.clone());
    }
    match &shape.form {
        Form::Is(located) => show::inner(target, &located.at(target, &[at])?),
        Form::Follow(of, code) => {
            let pointer = value::computed(target, &[at], code)?;
            Ok(followed(target, *of, pointer))
        }
        Form::Text(code, length) => {
            let start = value::computed(target, &[at], code)?;
            let length = length
                .as_ref()
                .map(|length| value::computed(target, &[at], length));
            string(target, start, length.transpose()?)
        }
        Form::Items(items) => sequence(target, items, at),
    }
}

/// A pointer, and what it points to unless it was reached through another one.
fn followed(target: &Target<'_>, of: Typed, pointer: u64) -> String {
    let number = format!("{pointer:#x}");
    let Node::Pointer { to, .. } = target.node(target.complete(of)) else {
        return number;
    };
    if pointer == 0 || target.followed.get() > 0 {
        return number;
    }
    target.followed.set(1);
    let to = Value::Object {
        of: Typed { ty: to, ..of },
        at: pointer,
    };
    let text = show::inner(target, &to);
    target.followed.set(0);
    match text {
        Ok(text) => format!("{number} -> {text}"),
        Err(_) => format!("{number} -> <fault>"),
    }
}

fn string(target: &Target<'_>, at: u64, length: Option<u64>) -> Result<String, Failure> {
    let max = Limits::default().string;
    let len = length.map_or(max, |length| usize::try_from(length).unwrap_or(max));
    let mut bytes = vec![0; len.min(max)];
    let read = target.read(at, &mut bytes);
    if length.is_some() && read < bytes.len() || read == 0 && !bytes.is_empty() {
        target.bytes(at, bytes.len() as u64)?;
    }
    bytes.truncate(read);
    // With a length, a 0 is part of the text.
    let text = match length {
        Some(_) => quoted_whole(&bytes),
        None => quoted(&bytes),
    };
    Ok(if len > max {
        format!("{text}...")
    } else {
        text
    })
}

/// Text between quotes, with zeros in it.
fn quoted_whole(bytes: &[u8]) -> String {
    let parts = bytes.split(|byte| *byte == 0).map(quoted);
    let inner = parts.map(|part| {
        let inner = part
            .strip_prefix('"')
            .and_then(|part| part.strip_suffix('"'));
        inner.unwrap_or_default().to_owned()
    });
    format!("\"{}\"", inner.collect::<Vec<_>>().join("\\0"))
}

fn sequence(target: &Target<'_>, items: &Items, at: u64) -> Result<String, Failure> {
    let mut parts = Vec::new();
    let end = each(target, items, at, &mut |item| {
        if parts.len() >= SHOWN || target.budget.get() == 0 {
            parts.push("...".to_owned());
            return false;
        }
        target.budget.set(target.budget.get() - 1);
        let shown = |value: &Value| match show::inner(target, value) {
            Ok(text) => text,
            Err(_) => "<fault>".to_owned(),
        };
        // A set is a map to nothing.
        let has_value = target.size(item.value.of()).is_ok_and(|size| size > 0);
        parts.push(match &item.key {
            Some(key) if has_value => format!("{}: {}", shown(key), shown(&item.value)),
            Some(key) => shown(key),
            None => shown(&item.value),
        });
        true
    })?;
    if let End::Cut(why) = end {
        parts.push(format!("<{why}>"));
    }
    let (open, close) = match items.key {
        Some(_) => ("{", "}"),
        None => ("[", "]"),
    };
    Ok(format!("{open}{}{close}", parts.join(", ")))
}
