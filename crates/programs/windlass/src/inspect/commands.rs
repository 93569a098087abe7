//! Commands, in windlass' and in mdb's spelling.

use serde_json::{Value as Json, json};
use windlass_script::Code;
use windlass_script::lower::Location;
use windlass_target::demangle::demangle;
use windlass_types::print::{Limits, quoted};
use windlass_types::{Kind, Node};

use crate::Session;
use crate::failure::Failure;
use crate::suggest;
use crate::table::{Chosen, Column, Form, clean};

use super::target::{Target, Typed};
use super::value::{self, Value};
use super::{fields, memory, stack};

/// Names that `symbols` lists at most.
const SYMBOLS_MAX: usize = 100_000;
/// Bytes that `dump` shows if it is not told how many.
const DUMP: u64 = 64;

/// A command: its name, its arguments, and what it does.
struct Command {
    name: &'static str,
    arguments: &'static str,
    about: &'static str,
    run: fn(&mut Session<'_>, &Target<'_>, &Call<'_>) -> Result<(), Failure>,
}

/// How a command was called.
struct Call<'c> {
    /// The address before mdb's `::`.
    address: Option<u64>,
    /// What follows the name.
    rest: &'c str,
}

const COMMANDS: [Command; 14] = [
    Command {
        name: "print",
        arguments: "EXPR, ...",
        about: "values: expressions of C, FILE`VARIABLE; also ADDRESS::print TYPE [MEMBER ...]",
        run: print,
    },
    Command {
        name: "type",
        arguments: "[-l] TYPE",
        about: "its definition; -l: offsets, sizes, holes, cache lines",
        run: definition,
    },
    Command {
        name: "sizeof",
        arguments: "TYPE",
        about: "its bytes",
        run: sizeof,
    },
    Command {
        name: "offsetof",
        arguments: "TYPE MEMBER",
        about: "where the member begins; a bit-field's with :BIT",
        run: offsetof,
    },
    Command {
        name: "symbols",
        arguments: "GLOB",
        about: "types, functions and variables; * stands for any letters, ? for one",
        run: symbols,
    },
    Command {
        name: "list",
        arguments: "TYPE MEMBER ADDRESS",
        about: "addresses of a list's nodes",
        run: list,
    },
    Command {
        name: "dump",
        arguments: "ADDRESS [BYTES]",
        about: "memory as numbers and text",
        run: dump,
    },
    Command {
        name: "whatis",
        arguments: "ADDRESS",
        about: "object of the allocator, function or mapping",
        run: whatis,
    },
    Command {
        name: "line",
        arguments: "ADDRESS",
        about: "function, file and line",
        run: line,
    },
    Command {
        name: "maps",
        arguments: "",
        about: "what is mapped",
        run: |session, target, _| rows(session, &memory::mappings(target), fields::MAPS),
    },
    Command {
        name: "modules",
        arguments: "",
        about: "files with code, and whether they have debug data",
        run: modules,
    },
    Command {
        name: "threads",
        arguments: "",
        about: "the threads",
        run: |session, target, _| rows(session, &stack::threads(target), fields::THREADS),
    },
    Command {
        name: "stack",
        arguments: "[TID]",
        about: "stack of a thread, or of all; a live one stands still for it",
        run: stacks,
    },
    Command {
        name: "help",
        arguments: "",
        about: "this list",
        run: help,
    },
];

/// Runs a line: `COMMAND ARGUMENTS`, `::COMMAND ARGUMENTS` or `ADDRESS::COMMAND ARGUMENTS`.
pub(super) fn run(
    session: &mut Session<'_>,
    target: &Target<'_>,
    line: &str,
) -> Result<(), Failure> {
    let line = line.trim();
    if line.is_empty() || line.starts_with('#') {
        return Ok(());
    }
    let (address, line) = match line.split_once("::") {
        Some(("", rest)) => (None, rest),
        // The colons of a name such as net::all come behind a word.
        Some((before, rest)) if !before.contains(char::is_whitespace) && is_command(rest) => {
            (Some(value::number(target, before)?), rest)
        }
        _ => (None, line),
    };
    let (name, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let call = Call {
        address,
        rest: rest.trim(),
    };
    match COMMANDS.iter().find(|command| command.name == name) {
        Some(command) => (command.run)(session, target, &call),
        None => {
            let near = suggest::nearest(name, COMMANDS.iter().map(|command| command.name));
            let todo = near.map_or("\"help\" lists them".to_owned(), |near| {
                format!("did you mean \"{near}\"?")
            });
            Err(Failure::usage(
                format!("there is no command \"{}\"", clean(name)),
                todo,
            ))
        }
    }
}

fn is_command(line: &str) -> bool {
    let name = line.split_whitespace().next();
    COMMANDS.iter().any(|command| Some(command.name) == name)
}

/// Writes text for a person, or a row for a program.
fn answer(session: &mut Session<'_>, text: &str, row: Json) -> Result<(), Failure> {
    if session.form == Form::Json {
        return session.rows(&[row], &Chosen::new());
    }
    writeln!(session.out, "{}", text.trim_end())?;
    Ok(())
}

fn rows(
    session: &mut Session<'_>,
    rows: &[Json],
    columns: &'static [Column],
) -> Result<(), Failure> {
    match session.choose(columns)? {
        Some(chosen) => session.rows(rows, &chosen),
        None => Ok(()),
    }
}

fn help(session: &mut Session<'_>, _: &Target<'_>, _: &Call<'_>) -> Result<(), Failure> {
    for command in &COMMANDS {
        let left = format!("{} {}", command.name, command.arguments);
        writeln!(session.out, "{left:<28} {}", command.about)?;
    }
    Ok(())
}

fn wanting(what: &str) -> Failure {
    Failure::usage(
        format!("{what} is missing"),
        "\"help\" shows the arguments of each command",
    )
}

/// The address before `::`, or the expression that is the argument.
fn address(target: &Target<'_>, call: &Call<'_>, argument: &str) -> Result<u64, Failure> {
    match call.address {
        Some(address) => Ok(address),
        None if argument.is_empty() => Err(wanting("an address")),
        None => value::number(target, argument),
    }
}

/// Words that go on as a type.
const KEYWORDS: [&str; 6] = ["struct", "union", "enum", "class", "const", "unsigned"];

/// A type's name at the start of a line, and what follows it: `struct conn *` and `next`.
fn type_first(line: &str) -> (&str, &str) {
    let mut end = 0;
    let mut is_open = true;
    let mut brackets = 0_usize;
    for word in line.split_inclusive(char::is_whitespace) {
        let plain = word.trim();
        let is_stars = !plain.is_empty() && plain.bytes().all(|letter| letter == b'*');
        if !is_open && !is_stars && brackets == 0 {
            break;
        }
        is_open = KEYWORDS.contains(&plain);
        let opened = brackets + plain.matches('<').count();
        brackets = opened.saturating_sub(plain.matches('>').count());
        end += word.len();
    }
    let (name, rest) = line.split_at(end);
    (name.trim(), rest.trim())
}

/// A value as text.
fn shown(target: &Target<'_>, value: &Value) -> Result<(String, Typed), Failure> {
    let limits = Limits::default();
    match value {
        Value::Object { of, at } => {
            let full = target.complete(*of);
            let types = target.types(full.module);
            let text = match types.node(full.ty) {
                // Without a length, or not all there: what is there of its text.
                Node::Array { of, count }
                    if types.size(of) == Some(1)
                        && count.is_none_or(|count| target.bytes(*at, count).is_err()) =>
                {
                    target.bytes(*at, 1)?;
                    let mut bytes = vec![0; limits.string];
                    let len = windlass_target::Memory::read(target.opened, *at, &mut bytes);
                    bytes.truncate(len);
                    quoted(&bytes)
                }
                Node::Array { count: None, .. } | Node::Function { .. } | Node::Void => {
                    format!("{at:#x}")
                }
                _ => {
                    let bytes = target.bytes(*at, target.size(full)?)?;
                    types.show(full.ty, &bytes, target, limits)
                }
            };
            Ok((text, *of))
        }
        Value::Number { of, value } => {
            let types = target.types(of.module);
            let text = match types.bare(of.ty) {
                Node::Void => format!("{value:#x}"),
                _ => types.show(of.ty, &value.to_le_bytes(), target, limits),
            };
            Ok((text, *of))
        }
    }
}

fn print(session: &mut Session<'_>, target: &Target<'_>, call: &Call<'_>) -> Result<(), Failure> {
    let mut values: Vec<(String, Value)> = Vec::new();
    if let Some(at) = call.address {
        let (name, members) = type_first(call.rest);
        if name.is_empty() {
            return Err(wanting("a type"));
        }
        let of = target.spelled(name)?;
        for member in members.split_whitespace() {
            let value = value::member(target, of, member)?.at(target, at)?;
            values.push((member.to_owned(), value));
        }
        if values.is_empty() {
            values.push((name.to_owned(), Value::Object { of, at }));
        }
    } else {
        if call.rest.is_empty() {
            return Err(wanting("an expression"));
        }
        for expr in value::expressions(call.rest)? {
            let name = call.rest.get(expr.span.clone()).unwrap_or_default();
            let value = value::value(target, call.rest, &expr)?;
            values.push((name.to_owned(), value));
        }
    }
    let is_one = values.len() == 1;
    for (name, value) in &values {
        let (text, of) = shown(target, value)?;
        let at = match value {
            Value::Object { at, .. } => Some(format!("{at:#x}")),
            Value::Number { .. } => None,
        };
        let ty = target.name(of);
        let line = match is_one {
            true => text.clone(),
            false => format!("{name} = {text}"),
        };
        let row = json!({ "expression": name, "type": ty, "address": at, "value": text });
        answer(session, &line, row)?;
    }
    Ok(())
}

fn definition(
    session: &mut Session<'_>,
    target: &Target<'_>,
    call: &Call<'_>,
) -> Result<(), Failure> {
    let (is_layout, name) = match call.rest.strip_prefix("-l ") {
        Some(rest) => (true, rest.trim()),
        None => (false, call.rest),
    };
    if name.is_empty() {
        return Err(wanting("a type"));
    }
    let of = target.spelled(name)?;
    let text = target.types(of.module).definition(of.ty, is_layout);
    answer(session, &text, json!({ "type": name, "definition": text }))
}

fn sizeof(session: &mut Session<'_>, target: &Target<'_>, call: &Call<'_>) -> Result<(), Failure> {
    if call.rest.is_empty() {
        return Err(wanting("a type"));
    }
    let size = target.size(target.spelled(call.rest)?)?;
    answer(
        session,
        &size.to_string(),
        json!({ "type": call.rest, "size": size }),
    )
}

fn offsetof(
    session: &mut Session<'_>,
    target: &Target<'_>,
    call: &Call<'_>,
) -> Result<(), Failure> {
    let (name, member) = type_first(call.rest);
    if name.is_empty() || member.is_empty() {
        return Err(wanting("a type or a member"));
    }
    // A record at address 0: the address of its member is the offset. Nothing is read, unless the path follows a pointer.
    let of = target.spelled(name)?;
    let (code, bit) = match value::member(target, of, member)?.location {
        Location::Memory(code) => (code, None),
        Location::Value(Code::Load { address, bits, .. }) => (*address, Some(bits.0)),
        _ => return Err(wanting("a member")),
    };
    let bytes = value::computed(target, 0, &code)? + u64::from(bit.unwrap_or(0) / 8);
    let bit = bit.map(|bit| bit % 8);
    let text = match bit {
        Some(bit) => format!("{bytes}:{bit}"),
        None => bytes.to_string(),
    };
    answer(
        session,
        &text,
        json!({ "type": name, "member": member, "offset": bytes, "bit": bit }),
    )
}

fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Typedef | Kind::Base => "type",
        Kind::Function => "function",
        Kind::Variable => "variable",
        kind => kind.word(),
    }
}

fn symbols(session: &mut Session<'_>, target: &Target<'_>, call: &Call<'_>) -> Result<(), Failure> {
    if call.rest.is_empty() {
        return Err(wanting("a pattern"));
    }
    let (places, pattern) = target.places(call.rest);
    let mut found = Vec::new();
    for number in places {
        let module = &target.modules()[number];
        let types = target.types(number);
        let row = |kind: &str, address: Option<u64>, name: &str, line: Option<String>| {
            let address = address.map(|at| format!("{:#x}", at.wrapping_add(module.bias())));
            json!({ "kind": kind, "address": address, "module": clean(module.name()), "name": clean(name), "line": line })
        };
        if types.is_empty() {
            let all = module
                .functions()
                .iter()
                .map(|(name, at, _)| (demangle(name), at));
            let fitting = all.filter(|(name, _)| windlass_types::fits(pattern, name));
            found.extend(fitting.map(|(name, at)| row("function", Some(at), &name, None)));
            continue;
        }
        let others = types.search(pattern, &|kind| kind != Kind::Function);
        for other in others.unwrap_or_default() {
            let at = match types.variable(&other.name) {
                Ok((_, windlass_types::Place::Address(at))) if other.kind == Kind::Variable => {
                    Some(at)
                }
                _ => None,
            };
            found.push(row(kind_name(other.kind), at, &other.name, None));
        }
        for function in types.functions(pattern).unwrap_or_default() {
            let kind = if function.is_inline {
                "inlined"
            } else {
                "function"
            };
            let line = function
                .file
                .map(|file| format!("{}:{}", clean(&file), function.line));
            found.push(row(kind, Some(function.low_pc), &function.name, line));
        }
        if found.len() > SYMBOLS_MAX {
            found.truncate(SYMBOLS_MAX);
            eprintln!("windlass: more than {SYMBOLS_MAX} names; the rest is left out");
            break;
        }
    }
    match found.is_empty() {
        true => Err(target.missing("name", call.rest, &|_| true)),
        false => rows(session, &found, fields::SYMBOLS),
    }
}

fn list(session: &mut Session<'_>, target: &Target<'_>, call: &Call<'_>) -> Result<(), Failure> {
    let (name, rest) = type_first(call.rest);
    let (member, at) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    if name.is_empty() || member.is_empty() {
        return Err(wanting("a type or a member"));
    }
    let of = target.spelled(name)?;
    let first = address(target, call, at.trim())?;
    let all = memory::list(target, of, member, first)?;
    if session.form == Form::Json {
        let rows: Vec<_> = all
            .iter()
            .map(|at| json!({ "address": format!("{at:#x}") }))
            .collect();
        return session.rows(&rows, &Chosen::new());
    }
    for at in all {
        writeln!(session.out, "{at:#x}")?;
    }
    Ok(())
}

fn dump(session: &mut Session<'_>, target: &Target<'_>, call: &Call<'_>) -> Result<(), Failure> {
    let (at, len) = match call.address {
        Some(_) => ("", call.rest),
        None => call
            .rest
            .split_once(char::is_whitespace)
            .unwrap_or((call.rest, "")),
    };
    let at = address(target, call, at)?;
    let len = match len.trim() {
        "" => DUMP,
        len => value::number(target, len)?,
    };
    let text = memory::dump(target, at, len)?;
    answer(
        session,
        &text,
        json!({ "address": format!("{at:#x}"), "text": text }),
    )
}

fn whatis(session: &mut Session<'_>, target: &Target<'_>, call: &Call<'_>) -> Result<(), Failure> {
    let at = address(target, call, call.rest)?;
    let text = clean(&memory::whatis(target, at));
    answer(
        session,
        &text,
        json!({ "address": format!("{at:#x}"), "text": text }),
    )
}

fn line(session: &mut Session<'_>, target: &Target<'_>, call: &Call<'_>) -> Result<(), Failure> {
    let at = address(target, call, call.rest)?;
    let name = clean(&target.opened.modules.name(at));
    let line = target.line(at);
    let text = match &line {
        Some(line) => format!("{name} {line}"),
        None => name.clone(),
    };
    answer(
        session,
        &text,
        json!({ "address": format!("{at:#x}"), "function": name, "line": line }),
    )
}

fn modules(session: &mut Session<'_>, target: &Target<'_>, _: &Call<'_>) -> Result<(), Failure> {
    let row = |module: &windlass_target::Module| {
        json!({
            "name": clean(module.name()), "base": format!("{:#x}", module.bias()), "types": module.debug().has_types(),
            "path": clean(&module.path().display().to_string()),
        })
    };
    let all: Vec<_> = target.modules().iter().map(row).collect();
    rows(session, &all, fields::MODULES)
}

fn stacks(session: &mut Session<'_>, target: &Target<'_>, call: &Call<'_>) -> Result<(), Failure> {
    let tid = match call.rest {
        "" => None,
        tid => Some(tid.parse().map_err(|_| {
            Failure::usage(
                format!("\"{}\" is no thread id", clean(tid)),
                "\"threads\" lists them",
            )
        })?),
    };
    rows(session, &stack::stacks(target, tid)?, fields::STACK)
}
