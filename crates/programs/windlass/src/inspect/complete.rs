//! What Tab offers: in the shell, and in bash, zsh and fish through `windlass __complete`.
//!
//! # Limits
//! [`OFFERED_MAX`] names. Nothing of the program's memory is read but where a walker or a view needs it.

use std::collections::BTreeSet;

use windlass_types::{Kind, Node, TypeId};
use windlass_views::cursor::{Wanted, cursor};
use windlass_views::line::line as parts;

use super::commands::{self, COMMANDS};
use super::pipe::item_type;
use super::target::{Opened, Target, Typed};
use super::value::{Bound, THIS, Within, expression_in};
use super::view;

/// Names that are offered at most.
const OFFERED_MAX: usize = 200;
/// Names of a file that are looked at.
const LOOKED_MAX: usize = 4_000;
/// Anonymous members and bases within one another.
const NESTED: usize = 16;

/// What can stand at the end of a line.
#[derive(Debug, Default)]
pub(super) struct Offers {
    /// Where the word begins that each name replaces.
    pub(super) start: usize,
    /// Whole words.
    pub(super) names: Vec<String>,
    /// There are more.
    pub(super) is_cut: bool,
}

/// What can stand at the end of a line.
pub(super) fn offers(target: &Target<'_>, line: &str) -> Offers {
    let cursor = cursor(line, &commands::takes);
    let start = cursor.start;
    let word = line.get(start..).unwrap_or_default();
    let element = || element(target, cursor.before);
    let names = match cursor.wanted {
        Wanted::Nothing => BTreeSet::new(),
        Wanted::Command(is_piped) => commands_of(is_piped),
        Wanted::Walker => {
            let walkers = target.definitions.iter();
            let walkers = walkers.filter_map(|definition| definition.name.clone());
            let variables = names(target, word, &|kind| kind == Kind::Variable);
            walkers.chain(variables).collect()
        }
        Wanted::Type(keyword) => names(target, word, &|kind| match keyword {
            "" => kind.is_type(),
            "class" => kind == Kind::Struct,
            keyword => kind.word() == keyword,
        }),
        Wanted::Name => {
            let mut all = names(target, word, &|kind| kind == Kind::Variable);
            all.extend(element().into_iter().flat_map(|of| members(target, of)));
            all
        }
        Wanted::Symbol => names(target, word, &|kind| kind != Kind::Namespace),
        Wanted::Element => element().map(|of| members(target, of)).unwrap_or_default(),
        Wanted::Member(owner) => {
            let of = typed(target, element(), owner);
            of.map(|of| members(target, of)).unwrap_or_default()
        }
        Wanted::TypeMember(name, path) => {
            let of = target.find_type(name).ok().flatten();
            let of = match path {
                "" => of,
                path => of.and_then(|of| typed(target, Some(of), &format!("{THIS}.{path}"))),
            };
            of.map(|of| members(target, of)).unwrap_or_default()
        }
    };
    // A name without its scopes can be completed to the whole.
    let last = |name: &str| {
        name.rsplit("::")
            .next()
            .is_some_and(|last| last.starts_with(word))
    };
    // Names are the program's: one that would steer the terminal, or be another line of an answer, is not offered.
    let is_plain = |name: &String| !name.chars().any(char::is_control);
    let mut fitting = names
        .into_iter()
        .filter(|name| is_plain(name) && (name.starts_with(word) || last(name)));
    let names: Vec<_> = fitting.by_ref().take(OFFERED_MAX).collect();
    let is_cut = fitting.next().is_some();
    Offers {
        start,
        names,
        is_cut,
    }
}

/// Commands; behind a pipe those that take what it carries, and `print`.
fn commands_of(is_piped: bool) -> BTreeSet<String> {
    let fitting = COMMANDS
        .iter()
        .filter(|command| !is_piped || command.is_piped());
    fitting.map(|command| command.name.to_owned()).collect()
}

/// Names that begin so, of all files or of the one before a backquote.
fn names(target: &Target<'_>, word: &str, is_wanted: &dyn Fn(Kind) -> bool) -> BTreeSet<String> {
    let (places, plain) = target.places(word);
    let file = word.strip_suffix(plain).unwrap_or_default();
    let mut all = BTreeSet::new();
    for module in places {
        let found = target.types(module).beginning(plain, LOOKED_MAX);
        let found = found.unwrap_or_default().into_iter();
        let wanted = found.filter(|found| is_wanted(found.kind));
        all.extend(wanted.map(|found| format!("{file}{}", found.name)));
    }
    all
}

/// The members of a record, or of the one that a pointer points to; those of its bases and of anonymous members, too.
fn members(target: &Target<'_>, of: Typed) -> BTreeSet<String> {
    let mut full = target.complete(of);
    if let Node::Pointer { to, .. } = target.node(full) {
        full = target.complete(Typed { ty: to, ..full });
    }
    let mut all = BTreeSet::new();
    add_members(target, full.module, full.ty, 0, &mut all);
    all
}

fn add_members(
    target: &Target<'_>,
    module: usize,
    record: TypeId,
    depth: usize,
    all: &mut BTreeSet<String>,
) {
    if depth > NESTED {
        return;
    }
    for member in target.types(module).members(record).iter() {
        match &member.name {
            Some(name) if !member.is_base => {
                all.insert(name.to_string());
            }
            _ => add_members(target, module, member.ty, depth + 1, all),
        }
    }
}

/// The type of an expression, of an element of this type if there is one.
fn typed(target: &Target<'_>, element: Option<Typed>, text: &str) -> Option<Typed> {
    let bound = element.map(|of| Bound {
        name: THIS,
        of,
        is_value: false,
    });
    let within = Within {
        bound: bound.as_slice(),
        is_quiet: true,
        ..Within::default()
    };
    expression_in(target, &within, text)
        .ok()
        .map(|located| located.of)
}

/// The type of what comes through a pipe behind these commands.
fn element(target: &Target<'_>, before: &str) -> Option<Typed> {
    let line = parts(before, &|word| commands::command(word).is_some());
    let mut of: Option<Typed> = None;
    for stage in &line.stages {
        of = match commands::command(stage.name)?.name {
            "walk" if stage.rest.is_empty() => item_type(target, of?),
            "walk" => {
                let name = stage.rest.split_whitespace().next();
                let mut walkers = target.definitions.iter();
                match walkers.find(|own| own.name.is_some() && own.name.as_deref() == name) {
                    Some(own) => view::walker(target, own).ok()?.0.items()?.of(),
                    None => item_type(target, typed(target, of, stage.rest)?),
                }
            }
            "list" => {
                let (name, _) = windlass_views::line::type_first(stage.rest);
                target.find_type(name).ok().flatten()
            }
            "print" if stage.rest.is_empty() => of,
            "print" => typed(target, of, stage.rest),
            "where" | "head" | "tail" | "sort" | "uniq" => of,
            _ => None,
        };
    }
    of
}

/// What another shell offers: `words` stand before the cursor, `word` is typed so far. Words are whole.
pub(crate) fn line(words: &[String], word: &str) -> Vec<String> {
    let mut behind = words.iter().skip_while(|word| *word != "inspect").skip(1);
    let Some(name) = behind.find(|word| !word.starts_with('-')) else {
        return Vec::new();
    };
    let Ok(opened) = Opened::of(name) else {
        return Vec::new();
    };
    let typed: Vec<&str> = behind
        .filter(|word| *word != "--")
        .map(String::as_str)
        .collect();
    // Quotes are the other shell's.
    let typed = format!("{} {word}", typed.join(" ")).replace(['\'', '"'], " ");
    let skipped = typed.len() - typed.trim_start().len();
    let plain = typed.get(skipped..).unwrap_or_default();
    let found = offers(&Target::of(&opened), plain);
    let kept = (found.start + skipped).saturating_sub(typed.len() - word.len());
    let kept = word.get(..kept).unwrap_or_default();
    found
        .names
        .iter()
        .map(|name| format!("{kept}{name}"))
        .collect()
}
