//! Commands, in windlass' and in mdb's spelling.

use std::io::Write as _;
use std::process::{Command as Process, Stdio};

use serde_json::{Value as Json, json};
use windlass_script::Code;
use windlass_script::lower::Location;
use windlass_target::demangle::demangle;
use windlass_types::Kind;
use windlass_views::cursor::Takes;
use windlass_views::line::{Stage, line as parts, type_first};

use crate::Session;
use crate::failure::Failure;
use crate::suggest;
use crate::table::{Chosen, Column, Form, clean};

use super::target::Target;
use super::value::{self, Value};
use super::{daemon, fields, heap, interrupt, memory, pipe, show, stack};

/// Names that `symbols` lists at most.
const SYMBOLS_MAX: usize = 100_000;
/// Bytes that `dump` shows if it is not told how many.
const DUMP: u64 = 64;

type Writes = fn(&mut Session<'_>, &Target<'_>, &Call<'_>) -> Result<(), Failure>;
type Gives = fn(&mut Session<'_>, &Target<'_>, &Call<'_>) -> Result<Vec<Value>, Failure>;

/// What a command does.
#[derive(Clone, Copy)]
enum Run {
    /// Writes text; behind a pipe once for each element, whose address stands before it.
    Each(Writes),
    /// Writes text about all elements.
    All(Writes),
    /// Gives elements.
    Gives(Gives),
    /// Writes text at the end of a line, and gives elements elsewhere.
    Both(Writes, Gives),
}

/// A command: its name, its arguments, and what it does.
pub(super) struct Command {
    pub(super) name: &'static str,
    arguments: &'static str,
    about: &'static str,
    takes: Takes,
    run: Run,
}

/// How a command was called.
pub(super) struct Call<'c> {
    /// The address before mdb's `::`.
    pub(super) address: Option<u64>,
    /// What follows the name.
    pub(super) rest: &'c str,
    /// What the command before gives.
    pub(super) input: Option<&'c [Value]>,
}

impl Call<'_> {
    /// The address before `::`, or the expression that is the argument.
    pub(super) fn address(&self, target: &Target<'_>, argument: &str) -> Result<u64, Failure> {
        match self.address {
            Some(address) => Ok(address),
            None if argument.is_empty() => Err(wanting("an address")),
            None => value::number(target, argument),
        }
    }
}

/// Makes the table.
macro_rules! commands {
    ($($name:literal $arguments:literal $takes:ident $about:literal $run:expr;)*) => {
        pub(super) const COMMANDS: &[Command] = &[$(Command {
            name: $name,
            arguments: $arguments,
            about: $about,
            takes: Takes::$takes,
            run: $run,
        }),*];
    };
}

commands! {
    "print" "EXPR, ..." Expression "values: expressions of C, FILE`VARIABLE; also ADDRESS::print TYPE [MEMBER ...]; behind a pipe .MEMBER ..."
        Run::Both(show::print, show::printed);
    "walk" "WALKER|EXPR [ADDRESS]" Walker "what a walker or a container's view visits" Run::Gives(pipe::walk);
    "list" "TYPE MEMBER ADDRESS" TypeMember "a list's nodes" Run::Gives(pipe::list);
    "where" "EXPR" Expression "those of which it holds" Run::Gives(pipe::filter);
    "head" "[N]" Nothing "the first ones" Run::Gives(pipe::head);
    "tail" "[N]" Nothing "the last ones" Run::Gives(pipe::tail);
    "sort" "[-r] EXPR" Expression "by a value; -r: the greatest first" Run::Gives(pipe::sort);
    "uniq" "[EXPR]" Expression "the first one of each value" Run::Gives(pipe::uniq);
    "count" "" Nothing "how many there are" Run::All(pipe::count);
    "sum" "[EXPR]" Expression "their sum" Run::All(pipe::sum);
    "group" "EXPR" Expression "how many have each value" Run::All(pipe::group);
    "type" "[-l] TYPE" Type "its definition; -l: offsets, sizes, holes, cache lines" Run::All(definition);
    "sizeof" "TYPE" Type "its bytes" Run::All(sizeof);
    "offsetof" "TYPE MEMBER" TypeMember "where the member begins; a bit-field's with :BIT" Run::All(offsetof);
    "symbols" "GLOB" Symbol "types, functions and variables; * stands for any letters, ? for one" Run::All(symbols);
    "walkers" "[TYPE]" Type "walkers" Run::All(|session, target, call| pipe::definitions(session, target, call, true));
    "views" "[TYPE]" Type "types that are shown by a view" Run::All(|session, target, call| pipe::definitions(session, target, call, false));
    "dump" "ADDRESS [BYTES]" Expression "memory as numbers and text" Run::Each(dump);
    "whatis" "ADDRESS" Expression "object of the allocator, function, variable or mapping" Run::Each(whatis);
    "find" "VALUE" Expression "addresses of words in writable memory that have this value" Run::Gives(memory::find);
    "refs" "ADDRESS" Expression "addresses of words that point into the allocator's object at an address" Run::Gives(heap::references);
    "line" "ADDRESS" Expression "function, file and line" Run::Each(line);
    "maps" "" Nothing "what is mapped" Run::All(|session, target, _| rows(session, &memory::mappings(target), fields::MAPS));
    "modules" "" Nothing "files with code, and whether they have debug data" Run::All(modules);
    "threads" "" Nothing "the threads" Run::All(|session, target, _| rows(session, &stack::threads(target), fields::THREADS));
    "stack" "[TID]" Nothing "stack of a thread, or of all; a live one stands still for it" Run::All(stacks);
    "umastat" "" Nothing "caches of windlass's allocator" Run::All(heap::caches);
    "magazines" "" Nothing "what each thread's magazines hold" Run::All(heap::magazines);
    "bufs" "CACHE" Nothing "buffers of a cache that the program has" Run::Gives(heap::buffers);
    "bufctl" "ADDRESS" Expression "as whatis, with the stack that allocated it, if that was recorded" Run::Each(whatis);
    "findleaks" "" Nothing "buffers that nothing points to; stops the process for it" Run::All(heap::leaks);
    "fdb" "BRIDGE" Nothing "the daemon: addresses of a bridge" Run::All(|session, _, call| daemon::ask(session, &["fdb", "show"], call));
    "rings" "" Nothing "the daemon: workers and the rings that they visit" Run::All(|session, _, call| daemon::ask(session, &["worker", "show"], call));
    "topology" "" Nothing "the daemon: zones, bridges and members" Run::All(|session, _, call| daemon::ask(session, &["status"], call));
    "drops" "[MEMBER]" Nothing "the daemon: dropped frames by reason" Run::All(|session, _, call| daemon::ask(session, &["stat", "--drops"], call));
    "slabs" "[MEMBER]" Nothing "the daemon: memory that it forwards through" Run::All(|session, _, call| daemon::ask(session, &["memory", "--regions"], call));
    "sockets" "" Nothing "sockets of accelerated programs" Run::All(|session, _, call| daemon::ask(session, &["sockets"], call));
    "channels" "PID|all" Nothing "words of the channels of accelerated programs" Run::All(|session, _, call| daemon::ask(session, &["stackdump"], call));
    "source" "FILE" Nothing "runs the commands of a file" Run::All(source);
    "quit" "" Nothing "ends the shell" Run::All(|_, _, _| Ok(()));
    "help" "[COMMAND]" Command "this list" Run::All(help);
}

impl Command {
    /// Whether it takes what a pipe carries.
    pub(super) fn is_piped(&self) -> bool {
        const TAKE: [&str; 13] = [
            "print", "walk", "list", "where", "head", "tail", "sort", "uniq", "count", "sum",
            "group", "refs", "find",
        ];
        TAKE.contains(&self.name) || matches!(self.run, Run::Each(_))
    }
}

/// What mdb calls commands that have another name here.
const ALIASES: [(&str, &str); 8] = [
    ("exit", "quit"),
    ("$q", "quit"),
    ("grep", "where"),
    ("wc", "count"),
    ("mappings", "maps"),
    ("objects", "modules"),
    ("typedef", "type"),
    ("kmastat", "umastat"),
];

/// The command that a word means.
pub(super) fn command(word: &str) -> Option<&'static Command> {
    let alias = ALIASES.iter().find(|(alias, _)| *alias == word);
    let name = alias.map_or(word, |(_, name)| name);
    COMMANDS.iter().find(|command| command.name == name)
}

/// What the arguments of a command are.
pub(super) fn takes(word: &str) -> Option<Takes> {
    command(word).map(|command| command.takes)
}

/// Files of commands within files of commands.
const SOURCES: usize = 8;
/// Bytes of a file of commands at most.
const SOURCE_MAX: u64 = 1 << 20;

/// Runs a line: `COMMAND ARGUMENTS`, `::COMMAND ARGUMENTS`, `ADDRESS::COMMAND ARGUMENTS`, and such behind `|`; `! COMMAND` at its end is the shell's.
pub(super) fn run(
    session: &mut Session<'_>,
    target: &Target<'_>,
    text: &str,
) -> Result<(), Failure> {
    if text.trim().is_empty() || text.trim().starts_with('#') {
        return Ok(());
    }
    target.refresh();
    interrupt::forget();
    let line = parts(text, &is_command);
    let Some(shell) = line.shell else {
        return stages(session, target, &line.stages);
    };
    let mut out = Vec::new();
    let mut inner = Session {
        options: session.options.clone(),
        form: session.form,
        client: None,
        out: &mut out,
    };
    stages(&mut inner, target, &line.stages)?;
    session.out.flush()?;
    let child = Process::new("sh")
        .args(["-c", shell])
        .stdin(Stdio::piped())
        .spawn();
    let mut child = child.map_err(Failure::from)?;
    if let Some(mut stdin) = child.stdin.take() {
        // It may end without reading all.
        let _ = stdin.write_all(&out);
    }
    child.wait()?;
    Ok(())
}

fn stages(
    session: &mut Session<'_>,
    target: &Target<'_>,
    stages: &[Stage<'_>],
) -> Result<(), Failure> {
    let mut elements: Option<Vec<Value>> = None;
    for (number, stage) in stages.iter().enumerate() {
        let is_last = number + 1 == stages.len();
        let command = command(stage.name).ok_or_else(|| unknown(stage.name))?;
        let address = stage
            .address
            .map(|address| value::number(target, address))
            .transpose()?;
        let input = elements.take();
        let call = Call {
            address,
            rest: stage.rest,
            input: input.as_deref(),
        };
        match command.run {
            Run::Each(run) if is_last => match &input {
                None => run(session, target, &call)?,
                Some(all) => {
                    for element in all {
                        let address = Some(element.word());
                        run(
                            session,
                            target,
                            &Call {
                                address,
                                rest: stage.rest,
                                input: None,
                            },
                        )?;
                    }
                }
            },
            Run::All(run) | Run::Both(run, _) if is_last => run(session, target, &call)?,
            Run::Gives(run) | Run::Both(_, run) => elements = Some(run(session, target, &call)?),
            Run::Each(_) | Run::All(_) => {
                let why = format!("\"{}\" writes text", stage.name);
                let todo = "nothing can follow it but ! and a command of the shell";
                return Err(Failure::usage(why, todo));
            }
        }
    }
    match elements {
        Some(all) => pipe::show(session, target, &all),
        None => Ok(()),
    }
}

fn unknown(name: &str) -> Failure {
    let near = suggest::nearest(name, COMMANDS.iter().map(|command| command.name));
    let todo = near.map_or("\"help\" lists them".to_owned(), |near| {
        format!("did you mean \"{near}\"?")
    });
    Failure::usage(format!("there is no command \"{}\"", clean(name)), todo)
}

fn is_command(word: &str) -> bool {
    command(word).is_some()
}

/// `source FILE`
fn source(session: &mut Session<'_>, target: &Target<'_>, call: &Call<'_>) -> Result<(), Failure> {
    let depth = target.sources.get();
    if call.rest.is_empty() || depth >= SOURCES {
        return Err(wanting("a file that does not run itself"));
    }
    let failed = |error: std::io::Error| {
        let why = format!("{}: {error}", clean(call.rest));
        super::absent(why, "name a file of commands, one a line")
    };
    let file = std::fs::File::open(call.rest).map_err(failed)?;
    let mut text = String::new();
    std::io::Read::read_to_string(&mut std::io::Read::take(file, SOURCE_MAX), &mut text)
        .map_err(failed)?;
    target.sources.set(depth + 1);
    let mut lines = text.lines();
    let done = lines.try_for_each(|line| run(session, target, line));
    target.sources.set(depth);
    done
}

/// Writes text for a person, or a row for a program.
pub(super) fn answer(session: &mut Session<'_>, text: &str, row: Json) -> Result<(), Failure> {
    if session.form == Form::Json {
        return session.rows(&[row], &Chosen::new());
    }
    writeln!(session.out, "{}", text.trim_end())?;
    Ok(())
}

pub(super) fn rows(
    session: &mut Session<'_>,
    rows: &[Json],
    columns: &'static [Column],
) -> Result<(), Failure> {
    match session.choose(columns)? {
        Some(chosen) => session.rows(rows, &chosen),
        None => Ok(()),
    }
}

fn help(session: &mut Session<'_>, _: &Target<'_>, call: &Call<'_>) -> Result<(), Failure> {
    let wanted = match call.rest {
        "" => None,
        word => Some(command(word).ok_or_else(|| unknown(word))?.name),
    };
    for command in COMMANDS {
        if wanted.is_none_or(|wanted| wanted == command.name) {
            let left = format!("{} {}", command.name, command.arguments);
            writeln!(session.out, "{left:<28} {}", command.about)?;
        }
    }
    Ok(())
}

pub(super) fn wanting(what: &str) -> Failure {
    Failure::usage(
        format!("{what} is missing"),
        "\"help\" shows the arguments of each command",
    )
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
    let bytes = value::computed(target, &[0], &code)? + u64::from(bit.unwrap_or(0) / 8);
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

fn dump(session: &mut Session<'_>, target: &Target<'_>, call: &Call<'_>) -> Result<(), Failure> {
    let (at, len) = match call.address {
        Some(_) => ("", call.rest),
        None => call
            .rest
            .split_once(char::is_whitespace)
            .unwrap_or((call.rest, "")),
    };
    let at = call.address(target, at)?;
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
    let at = call.address(target, call.rest)?;
    let text = clean(&memory::whatis(target, at));
    answer(
        session,
        &text,
        json!({ "address": format!("{at:#x}"), "text": text }),
    )
}

fn line(session: &mut Session<'_>, target: &Target<'_>, call: &Call<'_>) -> Result<(), Failure> {
    let at = call.address(target, call.rest)?;
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
