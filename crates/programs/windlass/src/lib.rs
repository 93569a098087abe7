//! The command `windlass`: what a person or a script types to make, see and remove the objects of a
//! daemon.
//!
//! # Purpose
//! Everything that `windlassd` can be asked, in words, with answers for people (tables), for the shell
//! (`-p -o`) and for programs (`--json`).
//!
//! # Where it sits
//! ```text
//! person or script -> windlass -> windlass-client --HTTP over a Unix socket--> windlassd
//!                        |------> libwindlass: `gen`, `sink` -----------------> device of windlassd
//!                        |------> windlass-channel's client ----------------> broker of accelerated sockets
//!                        |------> status files and memory of processes on windlass's allocator
//!                        |------> memory, threads and files of any process, core files: `inspect`
//!                        |------> probes in the kernel on functions of a process: `trace`
//!                        '------> becomes the program of `windlass run`
//! ```
//! A library, so that the manual pages and the completions are made from the very same command line.
//!
//! # Model
//! `windlass OBJECT VERB [NAME] [OPTIONS]`. The command line is parsed at the edge; each verb is one or a
//! few calls to the daemon; an answer is rows of JSON, which [`table`] writes in the form that was asked
//! for. Names, attachments, addresses and properties are checked here by the types and the table of
//! [`windlass_api`], so that a mistake is told before anything is sent.
//!
//! # Failure modes
//! One line on stderr says what failed, why and what to do; with `--json` the same as an
//! [`ErrorBody`](windlass_api::ErrorBody). The exit code is [`ErrorCode::exit_code`]. A reader of stdout
//! that goes away ends the command quietly.
//!
//! # Not done
//! Several commands in one transaction; colours beyond the state of a member.

#![forbid(unsafe_code)]

mod accounts;
mod complete;
mod create;
mod document;
mod ending;
mod extcap;
mod failure;
mod fdb;
mod fields;
mod generate;
mod guest;
mod inspect;
mod mdb;
mod memory;
mod metrics;
mod monitor;
mod objects;
mod options;
mod overlay;
mod ports;
mod program;
mod property;
mod run;
mod sent;
mod sink;
mod snoop;
mod sockets;
mod stackdump;
mod statistics;
mod status;
mod suggest;
mod table;
mod trace;
mod traffic;
mod unlisted;
mod vnd;

use std::ffi::OsString;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use clap::FromArgMatches;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use windlass_api::{Applied, WorkerMove};
use windlass_client::{Client, socket};

use failure::Failure;
use options::{Command, Global, Options};
use table::{Chosen, Form};

pub use fields::{FieldRow, fields};
pub use options::{EXIT_CODES, TIMEOUT_S};

#[cfg(doc)]
use windlass_api::ErrorCode;

/// The command line, for whoever makes pages or completions of it.
pub fn command() -> clap::Command {
    options::command()
}

/// The program.
pub fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().collect();
    let stdout = io::stdout();
    let terminal = stdout.is_terminal();
    let mut out = BufWriter::new(stdout.lock());
    let (json, done) = run(&args, terminal, &mut out);
    let done = done.and_then(|()| Ok(out.flush()?));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let told = failure.tell(json, &mut io::stderr().lock());
            ExitCode::from(if told.is_ok() { failure.exit_code() } else { 1 })
        }
    }
}

/// Does what the arguments say. With the result comes whether a failure is told as JSON.
fn run(args: &[OsString], terminal: bool, out: &mut dyn Write) -> (bool, Result<(), Failure>) {
    let parsed = command()
        .try_get_matches_from(args)
        .and_then(|matches| Options::from_arg_matches(&matches));
    match parsed {
        Ok(options) => (options.global.json, dispatch(options, terminal, out)),
        Err(error) => (wants_json(args), misread(&error, args, out)),
    }
}

/// Whether the arguments that could not be parsed ask for JSON.
fn wants_json(args: &[OsString]) -> bool {
    let options = args.iter().take_while(|arg| *arg != "--");
    options
        .into_iter()
        .any(|arg| arg == "--json" || arg == "-j")
}

fn misread(error: &clap::Error, args: &[OsString], out: &mut dyn Write) -> Result<(), Failure> {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            write!(out, "{}", error.render())?;
            Ok(())
        }
        // The second kind comes where an environment variable counts as an argument.
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::MissingSubcommand => {
            let mut meant = meant(args);
            if !wants_json(args) {
                let told = writeln!(io::stderr().lock(), "{}", meant.render_help());
                told.map_err(Failure::from)?;
            }
            Err(missing(&meant))
        }
        _ => {
            let meant = meant(args);
            let name = meant.get_bin_name().unwrap_or("windlass");
            let verb = match error.get(ContextKind::InvalidSubcommand) {
                Some(ContextValue::String(word)) => suggest::verb(word),
                _ => None,
            };
            let failure = failure::misread(error, name);
            Err(
                match verb.filter(|verb| meant.find_subcommand(verb).is_some()) {
                    Some(verb) => failure.advise(format!("did you mean \"{name} {verb}\"?")),
                    None => failure,
                },
            )
        }
    }
}

/// What is missing behind a command that was given alone.
fn missing(meant: &clap::Command) -> Failure {
    if meant.get_name() == "run" {
        return Failure::usage("no program is named", "as in: windlass run -- redis-server");
    }
    if meant.has_subcommands() {
        let todo = "the commands above are those that there are";
        return Failure::usage("a word is missing", todo);
    }
    Failure::usage("an argument is missing", "the usage above names it")
}

/// The innermost command that the arguments name.
fn meant(args: &[OsString]) -> clap::Command {
    let mut root = command();
    root.build();
    let mut meant = &root;
    for arg in args.iter().skip(1) {
        meant = meant.find_subcommand(arg).unwrap_or(meant);
    }
    meant.clone()
}

fn dispatch(options: Options, terminal: bool, out: &mut dyn Write) -> Result<(), Failure> {
    if let Command::Run(args) = &options.command
        && !args.check
    {
        return run::run(args);
    }
    if let Command::Complete(args) = &options.command {
        return complete::run(&options.global, args, out);
    }
    let form = table::form(&options.global, terminal)?;
    let mut session = Session {
        options: options.global,
        form,
        client: None,
        out,
    };
    match options.command {
        Command::Zone(verb) => create::zone(&mut session, verb),
        Command::Bridge(verb) => create::bridge(&mut session, verb),
        Command::Uplink(verb) => create::uplink(&mut session, verb),
        Command::Overlay(verb) => overlay::run(&mut session, verb),
        Command::Vnic(verb) => create::vnic(&mut session, verb),
        Command::Flow(verb) => create::flow(&mut session, verb),
        Command::Vnd(verb) => vnd::run(&mut session, verb),
        Command::Fdb(verb) => fdb::run(&mut session, verb),
        Command::Worker(options::WorkerVerb::Show(repeat)) => {
            statistics::workers(&mut session, &repeat)
        }
        Command::Worker(options::WorkerVerb::Move(args)) => worker_move(&mut session, args),
        Command::Stat(args) => statistics::members(&mut session, &args),
        Command::Apply(args) => document::apply(&mut session, &args),
        Command::Export => document::export(&mut session),
        Command::Monitor(args) => monitor::run(&mut session, &args),
        Command::Snoop(args) => snoop::run(&mut session, &args, true),
        Command::Gen(args) => generate::run(&mut session, &args),
        Command::Sink(args) => sink::run(&mut session, &args),
        Command::Extcap(args) => extcap::run(&mut session, args),
        Command::Sockets(repeat) => sockets::show(&mut session, &repeat),
        Command::Memory(args) => memory::run(&mut session, &args),
        Command::Trace(args) => trace::run(&mut session, &args),
        Command::Inspect(args) => inspect::run(&mut session, &args),
        Command::Status => status::show(&mut session),
        Command::Metrics(args) => metrics::run(&mut session, &args),
        Command::Stackdump(args) => stackdump::show(&mut session, args.process),
        Command::Run(args) => run::check(&mut session, &args),
        Command::Complete(_) => Ok(()),
    }
}

/// `windlass worker move`
fn worker_move(session: &mut Session<'_>, args: options::WorkerMoveArgs) -> Result<(), Failure> {
    let options::RingName { name, ring } = args.what;
    let doing = format!("move {name} to worker {}", args.worker);
    let (member, bridge) = match args.table {
        true => (None, Some(name)),
        false => (Some(name), None),
    };
    let what = WorkerMove {
        member,
        ring,
        bridge,
        worker: args.worker,
    };
    let moved = session.client(&doing)?.move_to_worker(&what);
    let moved = moved.map_err(|error| Failure::of(doing, error))?;
    if session.form == Form::Json {
        return session.rows(&[moved], &Chosen::new());
    }
    Ok(())
}

/// One run of the command: its options, the daemon, and where the answer goes.
struct Session<'a> {
    options: Global,
    form: Form,
    client: Option<Client>,
    out: &'a mut dyn Write,
}

impl Session<'_> {
    /// The daemon, found at first use; `what` is being done.
    fn client(&mut self, what: &str) -> Result<&Client, Failure> {
        if self.client.is_none() {
            let client = connect(&self.options).map_err(|error| Failure::of(what, error))?;
            self.client = Some(client);
        }
        self.client.as_ref().ok_or(Failure::Pipe)
    }

    /// The columns that were asked for; `None` if the question was which there are.
    fn choose(&mut self, columns: &'static [table::Column]) -> Result<Option<Chosen>, Failure> {
        table::choose(columns, self.options.fields.as_deref(), self.out)
    }

    /// Writes rows in the form that was asked for.
    fn rows<T: serde::Serialize>(&mut self, rows: &[T], chosen: &Chosen) -> Result<(), Failure> {
        self.write(&table::rows(rows)?, chosen, self.form, "")
    }

    /// Writes rows in a form, as [`table::write`].
    fn write(
        &mut self,
        rows: &[serde_json::Value],
        chosen: &Chosen,
        form: Form,
        unit: &str,
    ) -> Result<(), Failure> {
        if form == Form::Json && self.options.fields.is_some() && !chosen.is_empty() {
            return table::write(&table::only(rows, chosen), chosen, form, unit, self.out);
        }
        table::write(rows, chosen, form, unit, self.out)
    }

    /// What a change answers: nothing for a person, unless nothing was changed on purpose.
    fn applied(&mut self, applied: &Applied, loud: bool) -> Result<(), Failure> {
        for warning in &applied.warnings {
            eprintln!("windlass: {}", table::clean(warning));
        }
        match self.form {
            Form::Json => self.rows(std::slice::from_ref(applied), &Chosen::new()),
            _ if loud || applied.dry_run => {
                for change in &applied.changes {
                    writeln!(self.out, "{}", table::clean(&change.to_string()))?;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

fn connect(options: &Global) -> Result<Client, windlass_client::Error> {
    let path = socket::find(options.socket.clone())?;
    let timeout = options
        .timeout
        .unwrap_or(Duration::from_secs_f64(TIMEOUT_S));
    let timeout = Some(timeout).filter(|timeout| !timeout.is_zero());
    Ok(Client::new(path, timeout))
}
