//! Sections 1 and 8: the programs, and a page for each object and command of `windlass`.

use anyhow::{Context, Result};
use clap::{Arg, ArgAction, Command, CommandFactory};
use clap_mangen::Man;
use windlass_api::{DAEMON_OPTIONS, OptionSpec, Scope, properties};
use windlass_channel::Reason;
use windlassd::metrics;

use super::Page;
use super::documents;
use super::examples;
use super::roff::{DATE, MANUAL, Roff, SOURCE};

const EVERYWHERE: &[&str] = &[
    "windlass.8",
    "windlassd.8",
    "windlass-document.5",
    "windlass.toml.5",
    "windlass-drops.7",
];

/// Every page of the section.
pub(crate) fn pages() -> Result<Vec<Page>> {
    let mut command = windlass_command::command();
    command.build();
    let mut pages = vec![program(&command)?, daemon()?, broker()?, cni()];
    for object in command
        .get_subcommands()
        .filter(|command| !command.is_hide_set())
    {
        pages.push(of_object(&command, object));
    }
    Ok(pages)
}

/// The beginning of a program's page, as clap's own generator writes it.
fn beginning(command: &Command) -> Result<String> {
    let man = Man::new(command.clone())
        .section("8")
        .source(SOURCE)
        .manual(MANUAL)
        .title(command.get_name().to_uppercase())
        .date(DATE);
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut text)?;
    }
    String::from_utf8(text).context("a page is text")
}

fn program(command: &Command) -> Result<Page> {
    let mut page = Roff::continued("windlass", 8, beginning(command)?);
    page.heading("OUTPUT");
    page.paragraph(
        "Data goes to stdout, everything else to stderr. Without an option it is a table for people: \
         it may change. -p -o is for scripts: fields between colons, with a colon or a backslash in a \
         value preceded by a backslash unless there is one field only. --json is for programs: an array \
         of objects, to which keys may be added, but none is removed or changes its type; gen and sink \
         write one array a line, monitor one object a line. A missing value is --, one that is not known ?.",
    );
    page.paragraph(
        "A failure is one line on stderr: what failed, why, and what to do. With --json it is an object \
         with the keys code, message and details.",
    );
    exit_status(&mut page);
    page.heading("ENVIRONMENT");
    page.term("WINDLASS_SOCKET", "The control socket, as --socket.");
    page.term(
        "NO_COLOR",
        "If it is set and not empty, no colours are written.",
    );
    page.heading("FILES");
    page.paragraph(
        "Without --socket the first of these that is there is the control socket; the one in /tmp only if its \
         directory is the caller's own and private.",
    );
    page.term("$XDG_RUNTIME_DIR/windlass/control.sock", "A user's daemon.");
    page.term(
        "/tmp/windlass-UID/control.sock",
        "A user's daemon without that directory.",
    );
    page.term(
        "/run/windlass/control.sock",
        "The system's daemon; for root it is the first.",
    );
    examples(&mut page, "windlass");
    page.heading("INTERFACE STABILITY");
    page.paragraph(
        "Commands, options, exit codes, field names of -o and keys of --json are committed within \
         version 1 of the API. The wording of tables and messages is not.",
    );
    see_also(&mut page, command);
    Ok(page.done())
}

fn daemon() -> Result<Page> {
    let command = windlassd::options::Args::command();
    let mut page = Roff::continued("windlassd", 8, beginning(&command)?);
    page.heading("SIGNALS");
    page.term(
        "SIGTERM, SIGINT",
        "Ends the daemon in order. TAPs, and what else persists, stay.",
    );
    page.term("SIGHUP", &reload());
    page.term(
        "SIGUSR2",
        "Upgrades the daemon under traffic: it starts the program that lies at its path now, serves until that one is ready, \
         hands its control socket, TAPs, guests and counters over, and ends. If that one does not take them, the daemon serves on.",
    );
    page.see_also(EVERYWHERE);
    Ok(page.done())
}

fn broker() -> Result<Page> {
    let command = windlass_broker::options::Args::command();
    let mut page = Roff::continued("windlass-broker", 8, beginning(&command)?);
    page.heading("SIGNALS");
    page.term(
        "SIGTERM, SIGINT",
        "Ends the broker. Connections that are joined go on; new ones are joined by the next broker.",
    );
    page.term(
        "SIGHUP",
        "Reads /etc/windlass/sockets.conf again. A file that is bad changes nothing.",
    );
    page.heading("FILES");
    page.term("/run/windlass/sockets.sock", "The socket of root's broker.");
    page.term(
        "$XDG_RUNTIME_DIR/windlass/sockets.sock",
        "The socket of a user's broker; without that directory, /tmp/windlass-UID/sockets.sock.",
    );
    page.see_also(&["windlass-run.1", "windlass-sockets.1", "windlass.8"]);
    Ok(page.done())
}

fn cni() -> Page {
    let about = "give containers a VNIC, as a plugin of the Container Network Interface";
    let mut page = Roff::page("windlass-cni", 8, about);
    page.heading("DESCRIPTION");
    page.paragraph(
        "A container runtime runs windlass-cni, with a command in CNI_COMMAND (ADD, DEL, CHECK, GC, STATUS or VERSION) and the \
         configuration of a network on stdin. It speaks versions 0.3.1, 0.4.0, 1.0.0 and 1.1.0 of the specification. The container's \
         interface is one end of a veth, or a TAP, whose other end is a VNIC of windlassd.",
    );
    page.paragraph(
        "cni.md in the documentation has the keys of the configuration and the codes of errors.",
    );
    page.heading("FILES");
    page.term(
        "/var/lib/windlass/cni/NETWORK.json",
        "What was given to whom. Entries go with DEL and GC, and after a reboot.",
    );
    page.see_also(&["windlass-vnic.8", "windlassd.8"]);
    page.done()
}

/// What a reload changes and what not, as the table of options has it.
fn reload() -> String {
    let names = |restart: bool| {
        let rows = DAEMON_OPTIONS
            .iter()
            .filter(|row| row.sentence.ends_with("Needs a restart.") == restart);
        rows.map(|row| row.name).collect::<Vec<_>>().join(", ")
    };
    format!(
        "Reads the options again and tries again to make what could not be made. New values of {} hold from then \
         on; a connection that is open keeps the time it was accepted with. New values of {} need a restart, since \
         guests, rings and locks depend on them: the log names those that differ, with the reason. A file that is bad \
         changes nothing.",
        names(false),
        names(true)
    )
}

fn exit_status(page: &mut Roff) {
    page.heading("EXIT STATUS");
    for (code, text) in [
        ("0", "Done."),
        ("1", "Refused."),
        ("2", "Wrong usage."),
        ("3", "The daemon cannot be reached."),
        ("4", "There is no such object."),
        ("5", "It exists already."),
        ("6", "No permission."),
        ("124", "Not in time; it may still be done."),
    ] {
        page.term(code, text);
    }
}

fn examples(page: &mut Roff, command: &str) {
    let examples = examples::of(command);
    if !examples.is_empty() {
        page.heading("EXAMPLES");
    }
    for (sentence, lines) in examples {
        page.paragraph(sentence);
        page.literal(lines);
    }
}

fn see_also(page: &mut Roff, command: &Command) {
    let objects: Vec<String> = command
        .get_subcommands()
        .filter(|object| !object.is_hide_set())
        .map(|object| {
            let name = object.get_name();
            format!("windlass-{name}.{}", section(name))
        })
        .collect();
    let pages: Vec<&str> = EVERYWHERE
        .iter()
        .copied()
        .chain(objects.iter().map(String::as_str))
        .collect();
    page.see_also(&pages);
}

/// The section of a command's page: programs that any user runs are in section 1, the others in 8.
fn section(name: &str) -> u8 {
    match name {
        "run" | "sockets" | "memory" => 1,
        _ => 8,
    }
}

/// What only the page of this command has.
fn own(page: &mut Roff, name: &str) {
    match name {
        "run" => {
            page.heading("ENVIRONMENT");
            for (name, text) in [
                ("WINDLASS_SPIN", "As --spin."),
                ("WINDLASS_SHARE", "1: as --share."),
                ("WINDLASS_UNIX", "0: as --no-unix."),
                (
                    "WINDLASS_SUMMARY",
                    "1: each process says at its end what its connections did, as -v.",
                ),
                (
                    "WINDLASS_SOCKETS",
                    "The socket of the broker to use, and of no other.",
                ),
                (
                    "WINDLASS_PROMOTE",
                    "CALLS,BYTES: a connection joins after so many calls each way, or so many bytes one way; default: 2,65536.",
                ),
                (
                    "WINDLASS_REFRESH",
                    "Milliseconds after which one message of a connection that connection tracking follows goes by the kernel; default: 30000.",
                ),
                (
                    "WINDLASS_LOG",
                    "A file to which is appended why connections stay on the kernel.",
                ),
                (
                    "WINDLASS_COUNTERS",
                    "A file to which each process appends its counters at its end, one a line.",
                ),
            ] {
                page.term(name, text);
            }
        }
        "sockets" => {
            page.heading("REASONS");
            page.paragraph("Why a connection is carried by the kernel:");
            for reason in Reason::ALL {
                page.term(reason.word(), &format!("{}.", reason.text()));
            }
        }
        "vnic" => {
            documents::attachments(page);
            page.heading("DETAILS");
            page.paragraph("What show says of a VNIC with several rings towards its peer, while that is attached:");
            page.term("rss-hash", "What a frame's ring is found by.");
            page.term(
                "rss-table",
                "How many of the 128 entries of the table that the hash leads to each ring has, ring 0 first. If workers have different \
                 rings, a table for each of them. Set by rss-weights.",
            );
        }
        "metrics" => {
            page.heading("METRICS");
            for metric in metrics::all() {
                let term = match metric.labels {
                    [] => metric.name,
                    labels => format!("{}{{{}}}", metric.name, labels.join(",")),
                };
                page.term(&term, metric.help);
            }
        }
        _ => {}
    }
}

/// The page of an object with its verbs, or of a command without.
fn of_object(command: &Command, object: &Command) -> Page {
    let name = object.get_name();
    let about = object
        .get_about()
        .map(ToString::to_string)
        .unwrap_or_default();
    let mut page = Roff::page(&format!("windlass-{name}"), section(name), &about);
    let verbs = leaves(object, &format!("windlass {name}"));
    page.heading("SYNOPSIS");
    let lines: Vec<_> = verbs
        .iter()
        .map(|(path, verb)| synopsis(path, verb))
        .collect();
    page.literal(&lines.join("\n"));
    page.heading("DESCRIPTION");
    for (path, verb) in &verbs {
        if object.has_subcommands() {
            page.subheading(&synopsis(path, verb));
        }
        page.paragraph(
            &verb
                .get_about()
                .map(ToString::to_string)
                .unwrap_or_default(),
        );
        for arg in verb.get_arguments().filter(|arg| is_own(arg)) {
            page.term(&term(arg), &help(arg));
        }
    }
    page.paragraph("Options that every command takes are in windlass(8).");
    let scope = match name {
        "zone" => Some(Scope::Zone),
        "bridge" => Some(Scope::Bridge),
        "uplink" => Some(Scope::Uplink),
        "overlay" => Some(Scope::Overlay),
        "vnic" => Some(Scope::Vnic),
        "flow" => Some(Scope::Flow),
        "vnd" => Some(Scope::Vnd),
        _ => None,
    };
    if let Some(scope) = scope {
        page.heading("PROPERTIES");
        for row in properties(scope) {
            page.term(row.option.name, &property(&row.option));
        }
    }
    own(&mut page, name);
    fields(&mut page, name);
    examples(&mut page, name);
    see_also(&mut page, command);
    page.done()
}

/// What a row of a table of options says.
pub(crate) fn property(option: &OptionSpec) -> String {
    let unit = if option.unit.is_empty() {
        String::new()
    } else {
        format!(" {}", option.unit)
    };
    let default = if option.default.is_empty() {
        "none"
    } else {
        option.default
    };
    format!(
        "{} Values: {}{unit}; default: {default}.",
        option.sentence,
        option.possible()
    )
}

fn fields(page: &mut Roff, object: &str) {
    let prefix = format!("{object} ");
    let tables = windlass_command::fields();
    let own = tables
        .iter()
        .filter(|(table, _)| *table == object || table.starts_with(&prefix));
    for (i, (table, rows)) in own.enumerate() {
        if i == 0 {
            page.heading("FIELDS");
        }
        page.subheading(&format!("windlass {table} -o"));
        for row in rows {
            page.term(row.name, row.about);
        }
    }
}

/// Every command without subcommands, with the words before it.
pub(crate) fn leaves<'a>(command: &'a Command, path: &str) -> Vec<(String, &'a Command)> {
    if !command.has_subcommands() {
        return vec![(path.to_owned(), command)];
    }
    let deeper = command
        .get_subcommands()
        .filter(|command| !command.is_hide_set())
        .flat_map(|command| leaves(command, &format!("{path} {}", command.get_name())));
    deeper.collect()
}

fn is_own(arg: &Arg) -> bool {
    !arg.is_global_set()
        && !arg.is_hide_set()
        && !["help", "version"].contains(&arg.get_id().as_str())
}

fn value_of(arg: &Arg) -> String {
    let names = arg.get_value_names().map(|names| names.join(" "));
    names
        .map(|name| name.to_string())
        .unwrap_or_else(|| arg.get_id().to_string().to_uppercase())
}

fn repeats(arg: &Arg) -> bool {
    let many = arg
        .get_num_args()
        .is_some_and(|range| range.max_values() > 1);
    many || matches!(arg.get_action(), ArgAction::Append | ArgAction::Count)
}

fn term(arg: &Arg) -> String {
    if arg.is_positional() {
        return value_of(arg);
    }
    let short = arg.get_short().map(|short| format!("-{short}"));
    let long = arg.get_long().map(|long| format!("--{long}"));
    let names: Vec<_> = short.into_iter().chain(long).collect();
    let value = if arg.get_action().takes_values() {
        format!(" {}", value_of(arg))
    } else {
        String::new()
    };
    format!("{}{value}", names.join(", "))
}

/// What an argument is, and the value that it has if it is not given.
fn help(arg: &Arg) -> String {
    let mut text = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let values = arg.get_default_values().iter();
    let values: Vec<_> = values.map(|value| value.to_string_lossy()).collect();
    let default = values.join(" ");
    if arg.get_action().takes_values() && !default.is_empty() {
        text.push_str(&format!(" [default: {default}]"));
    }
    text
}

fn synopsis(path: &str, command: &Command) -> String {
    let mut words = vec![path.to_owned()];
    for arg in command.get_arguments().filter(|arg| is_own(arg)) {
        let name = match (arg.get_long(), arg.get_short()) {
            _ if arg.is_positional() => value_of(arg),
            (_, Some(short)) if !arg.is_required_set() => format!("-{short}"),
            (Some(long), _) => format!("--{long}"),
            (None, Some(short)) => format!("-{short}"),
            (None, None) => continue,
        };
        let takes = !arg.is_positional() && arg.get_action().takes_values();
        let value = if takes {
            format!(" {}", value_of(arg))
        } else {
            String::new()
        };
        let more = if repeats(arg) { "..." } else { "" };
        words.push(if arg.is_required_set() {
            format!("{name}{value}{more}")
        } else {
            format!("[{name}{value}]{more}")
        });
    }
    words.join(" ")
}
