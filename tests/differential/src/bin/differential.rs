#![forbid(unsafe_code)]
//! The differential runner's command line: `differential run`, `differential replay`, `differential show`.

use std::path::PathBuf;
use std::process::ExitCode;

use windlass_differential::{
    Broken, Kind, Options, Preload, Summary, compare, generate, parse, print, replay,
};

const USAGE: &str = "\
differential run [--seeds N] [--from S] [--jobs N] [--preload PATH] [--bypass PERMILLE] [--raw PERMILLE]
                 [--raw-sockets N] [--kind KIND] [--cold] [--whole]
                 [--accelerated PERMILLE] [--env NAME=VALUE]...
differential replay FILE... [--trace] [--preload PATH] [--bypass PERMILLE] [--env NAME=VALUE]...
differential show SEED [--kind KIND] [--cold]

run     the scripts of N seeds (default 1000) from S (default 1): on the kernel, and on the subject, which is
        a preloaded library or, without --preload, the kernel again
replay  scripts from files
show    the script of a seed

--jobs N              scripts at a time (default 2)
--bypass PERMILLE     WINDLASS_BYPASS: this share of calls goes straight to the kernel
--raw PERMILLE        this share of calls, those that write excepted, by bare system calls
--raw-sockets N       every call on N of 1000 sockets by bare system calls
--kind KIND           every connection is tcp or unix
--cold                no messages on a connection before the script goes on
--whole               do not shrink what differs
--trace               print every answer as it comes
--accelerated N       fail unless N of 1000 connected sockets were accelerated
--env NAME=VALUE      for the actors of the subject
";

struct Command {
    words: Vec<String>,
    seeds: u64,
    from: u64,
    preload: Preload,
    options: Options,
}

fn command() -> Option<Command> {
    let actor = std::env::current_exe()
        .ok()?
        .with_file_name("differential-actor");
    let mut command = Command {
        words: Vec::new(),
        seeds: 1000,
        from: 1,
        preload: Preload::None,
        options: Options::new(actor),
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let options = &mut command.options;
        match word.as_str() {
            "--seeds" => command.seeds = words.next()?.parse().ok()?,
            "--from" => command.from = words.next()?.parse().ok()?,
            "--jobs" => options.jobs = words.next()?.parse().ok()?,
            "--preload" => command.preload = Preload::Library(PathBuf::from(words.next()?)),
            "--bypass" => options.bypass_permille = words.next()?.parse().ok()?,
            "--raw" => options.raw_permille[0] = words.next()?.parse().ok()?,
            "--raw-sockets" => options.raw_permille[1] = words.next()?.parse().ok()?,
            "--accelerated" => options.accelerated_permille_min = words.next()?.parse().ok()?,
            "--kind" => options.kind = Some(Kind::named(&words.next()?)?),
            "--cold" => options.warm_up = false,
            "--trace" => options.trace = true,
            "--whole" => options.shrink = false,
            "--env" => {
                let (name, value) = words
                    .next()?
                    .split_once('=')
                    .map(|(n, v)| (n.to_owned(), v.to_owned()))?;
                options.environment.push((name, value));
            }
            flag if flag.starts_with('-') => return None,
            _ => command.words.push(word),
        }
    }
    Some(command)
}

fn replay_files(command: &Command) -> Result<(), String> {
    for file in &command.words[1..] {
        let text = std::fs::read_to_string(file).map_err(|error| format!("{file}: {error}"))?;
        let script = parse(&text).map_err(|error| format!("{file}: {error}"))?;
        match replay(&command.preload, &script, &command.options) {
            Ok(tally) => {
                println!(
                    "{file}: same; {}",
                    Summary {
                        seeds: 1,
                        tally,
                        ..Summary::default()
                    }
                );
            }
            Err(Broken::Differs(difference)) => {
                return Err(format!("# {file} differs:\n{difference}"));
            }
            Err(Broken::Io(error)) => return Err(format!("{file}: {error}")),
        }
    }
    Ok(())
}

fn main() -> ExitCode {
    let Some(command) = command() else {
        eprint!("{USAGE}");
        return ExitCode::from(2);
    };
    let done = match command.words.first().map(String::as_str) {
        Some("run") => {
            let seeds = command.from..command.from + command.seeds;
            let result = compare(&command.preload, seeds, &command.options);
            result
                .map(|summary| println!("{summary}"))
                .map_err(|failure| failure.to_string())
        }
        Some("replay") if command.words.len() > 1 => replay_files(&command),
        Some("show") => {
            let seed = command
                .words
                .get(1)
                .and_then(|word| word.parse().ok())
                .unwrap_or(1);
            print!(
                "{}",
                print(&generate(
                    seed,
                    command.options.warm_up,
                    command.options.kind
                ))
            );
            Ok(())
        }
        _ => Err(USAGE.to_owned()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            println!("{text}");
            ExitCode::FAILURE
        }
    }
}
