//! Completions for bash, zsh and fish.
//!
//! # Model
//! clap writes the static part. Names of live objects, properties and attachments come from `windlass __complete KIND WORD --
//! LINE...`: an argument whose identifier is a kind of object, or one whose value is called like one or like those of [`TITLES`],
//! is completed so. Each shell gets that in its own way; that every place was found is asserted here.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use clap::{Arg, Command};
use clap_complete::Shell;

use super::Page;
use super::manual::leaves;

const KINDS: [&str; 9] = [
    "zone",
    "bridge",
    "uplink",
    "vnic",
    "member",
    "flow",
    "vnd",
    "program",
    "inspection",
];

/// Titles of values that are words of another kind.
const TITLES: [(&str, &str); 4] = [
    ("ATTRIBUTE=VALUE,...", "attr"),
    ("KEY=VALUE", "setting"),
    ("KIND,KEY=VALUE,...", "attach"),
    ("PROPERTY", "property"),
];

/// The three files.
pub(crate) fn pages() -> Result<Vec<Page>> {
    let mut command = windlass_command::command();
    command.build();
    let page = |name: &str, text| Page {
        path: Path::new("completions").join(name),
        text,
    };
    Ok(vec![
        page("windlass.bash", bash(&command)?),
        page("_windlass", zsh(&command)?),
        page("windlass.fish", fish(&command)?),
    ])
}

fn static_part(shell: Shell) -> Result<String> {
    let mut text = Vec::new();
    clap_complete::generate(
        shell,
        &mut windlass_command::command(),
        "windlass",
        &mut text,
    );
    String::from_utf8(text).context("a completion is text")
}

/// The kind of object that an argument names, or of its words.
fn kind(arg: &Arg) -> Option<&'static str> {
    let title = arg.get_value_names().and_then(|names| names.first());
    let of_title = TITLES
        .into_iter()
        .find(|(name, _)| title.is_some_and(|title| title == name));
    if let Some((_, kind)) = of_title {
        return Some(kind);
    }
    let word = if arg.is_positional() {
        arg.get_id().to_string()
    } else {
        title.map(|title| title.to_lowercase()).unwrap_or_default()
    };
    KINDS.into_iter().find(|kind| *kind == word)
}

/// Every positional argument that names an object: the words before it, how many words come before, and
/// whether more of it may follow.
fn named(command: &Command) -> Vec<(String, usize, bool, &'static str)> {
    let mut found = Vec::new();
    for object in command.get_subcommands() {
        for (path, leaf) in leaves(object, object.get_name()) {
            let words = path.split(' ').count();
            for (index, arg) in leaf.get_positionals().enumerate() {
                if let Some(kind) = kind(arg) {
                    let many = arg
                        .get_num_args()
                        .is_some_and(|range| range.max_values() > 1);
                    found.push((path.clone(), words + index, many, kind));
                }
            }
        }
    }
    found
}

/// Options that name an object, each once.
fn options(command: &Command) -> Vec<(String, &'static str)> {
    let mut found: Vec<_> = command
        .get_subcommands()
        .flat_map(|object| leaves(object, object.get_name()))
        .flat_map(|(_, leaf)| leaf.get_opts())
        .filter_map(|arg| Some((arg.get_long()?.to_owned(), kind(arg)?)))
        .collect();
    found.sort();
    found.dedup();
    found
}

/// Options, short and long, after which a value comes.
fn with_value(command: &Command) -> Vec<String> {
    let leaves = command
        .get_subcommands()
        .flat_map(|object| leaves(object, object.get_name()));
    let mut found: Vec<_> = leaves
        .flat_map(|(_, leaf)| leaf.get_opts())
        .chain(command.get_opts())
        .filter(|arg| arg.get_action().takes_values())
        .flat_map(|arg| {
            let long = arg.get_long().map(|long| format!("--{long}"));
            long.into_iter()
                .chain(arg.get_short().map(|short| format!("-{short}")))
        })
        .collect();
    found.sort();
    found.dedup();
    found
}

fn bash(command: &Command) -> Result<String> {
    let mut text = static_part(Shell::Bash)?;
    let places = text.matches("complete -F _windlass ").count();
    ensure!(
        places == 2,
        "bash: the completion is registered {places} times"
    );
    text = text.replace("complete -F _windlass ", "complete -F _windlass_live ");
    let mut live = String::from(
        "# Live names, properties and attachments; everything else is left to _windlass.\n\
         _windlass_live() {\n    local line=\"${COMP_LINE:0:COMP_POINT}\" kind=\"\" i\n    \
         local full=\"${line##*[[:space:]]}\" option\n    local -a typed words=()\n    \
         read -ra typed <<< \"$line\"\n    [[ -z \"$full\" ]] || unset \"typed[-1]\"\n    option=\"${typed[-1]}\"\n    \
         if [[ \"$full\" == --*=* ]]; then\n        option=\"${full%%=*}\"\n        full=\"${full#*=}\"\n    fi\n",
    );
    live.push_str("    case \"$option\" in\n");
    for (option, kind) in options(command) {
        writeln!(live, "        --{option}) kind={kind} ;;")?;
    }
    live.push_str(
        "    esac\n    if [[ -z \"$kind\" && \"$full\" != -* ]]; then\n        \
         for ((i = 1; i < ${#typed[@]}; i++)); do\n            case \"${typed[i]}\" in\n",
    );
    writeln!(
        live,
        "                {}) ((i++)) ;;",
        with_value(command).join("|")
    )?;
    live.push_str(
        "                -*) ;;\n                *) words+=(\"${typed[i]}\") ;;\n            esac\n        \
         done\n        case \"${#words[@]} ${words[*]}\" in\n",
    );
    for (path, count, many, kind) in named(command) {
        let count = if many { "*".into() } else { count.to_string() };
        writeln!(
            live,
            "            {count}\" {path}\"|{count}\" {path} \"*) kind={kind} ;;"
        )?;
    }
    live.push_str(
        "        esac\n    fi\n    if [[ -z \"$kind\" ]]; then\n        _windlass \"$@\"\n        return\n    fi\n    \
         mapfile -t COMPREPLY < <(windlass __complete \"$kind\" \"$full\" -- \"${typed[@]:1}\" 2>/dev/null)\n    \
         # What is replaced begins behind the last of the characters at which bash breaks words.\n    \
         local breaks=\"${COMP_WORDBREAKS//[^=:]/}\" keep=\"\"\n    \
         [[ -z \"$breaks\" || \"$full\" != *[$breaks]* ]] || keep=\"${full%\"${full##*[$breaks]}\"}\"\n    \
         COMPREPLY=(\"${COMPREPLY[@]#\"$keep\"}\")\n    \
         [[ ${#COMPREPLY[@]} -ne 1 || \"${COMPREPLY[0]}\" != *[=,] ]] || compopt -o nospace 2>/dev/null\n    \
         return 0\n}\n\n",
    );
    let end = text
        .find("if [[ \"${BASH_VERSINFO[0]}\" -eq 4")
        .context("bash: no registration")?;
    text.insert_str(end, &live);
    Ok(text)
}

fn zsh(command: &Command) -> Result<String> {
    let mut found = 0;
    let mut lines = Vec::new();
    for line in static_part(Shell::Zsh)?.lines() {
        let by_name = KINDS.into_iter().find(|kind| {
            let positional = line.contains(&format!(":{kind} -- "));
            let option = line.contains(&format!(":{}:_default", kind.to_uppercase()));
            line.ends_with(":_default' \\") && (positional || option)
        });
        let by_title = TITLES.into_iter().find(|(title, kind)| {
            let positional = match *kind {
                "setting" => line.contains("::settings -- "),
                "property" => line.contains("::properties -- "),
                _ => false,
            };
            line.ends_with(":' \\") && (positional || line.ends_with(&format!("]:{title}:' \\")))
        });
        lines.push(match by_name.or(by_title.map(|(_, kind)| kind)) {
            Some(kind) => {
                found += 1;
                let line = line.trim_end_matches("' \\").trim_end_matches("_default");
                format!("{line}_windlass_words {kind}' \\")
            }
            None => line.to_owned(),
        });
    }
    let wanted = named(command).len();
    ensure!(
        found >= wanted,
        "zsh: {found} of {wanted} places were found"
    );
    let mut text = lines.join("\n") + "\n";
    let names = "# Live names, properties and attachments: the kind is the last argument.\n\
                 _windlass_words() {\n    local -a found open\n    found=(${(f)\"$(windlass __complete \
                 ${@[-1]} \"$PREFIX\" -- ${(z)BUFFER} 2>/dev/null)\"})\n    open=(${(M)found:#*[=,]})\n    \
                 found=(${found:#*[=,]})\n    compadd \"${@[1,-2]}\" -Q -S '' -a open\n    \
                 compadd \"${@[1,-2]}\" -Q -a found\n}\n\n";
    let start = text.find("_windlass() {").context("zsh: no function")?;
    text.insert_str(start, names);
    Ok(text)
}

fn fish(command: &Command) -> Result<String> {
    let mut text = static_part(Shell::Fish)?;
    text.push_str("# Live names, properties and attachments.\n");
    for (path, _, _, kind) in named(command) {
        let condition = fish_condition(&path);
        writeln!(
            text,
            "complete -c windlass -n \"{condition}\" -f -a \"{}\"",
            fish_names(kind)
        )?;
    }
    for object in command.get_subcommands() {
        for (path, leaf) in leaves(object, object.get_name()) {
            let condition = fish_condition(&path);
            for arg in leaf.get_opts() {
                if let (Some(long), Some(kind)) = (arg.get_long(), kind(arg)) {
                    let names = fish_names(kind);
                    writeln!(
                        text,
                        "complete -c windlass -n \"{condition}\" -l {long} -x -a \"{names}\""
                    )?;
                }
            }
        }
    }
    Ok(text)
}

fn fish_names(kind: &str) -> String {
    format!("(windlass __complete {kind} (commandline -ct) -- (commandline -opc) 2>/dev/null)")
}

/// What holds in fish once these words were typed.
fn fish_condition(path: &str) -> String {
    let mut words = path.split(' ');
    let object = words.next().unwrap_or_default();
    let mut condition = format!("__fish_windlass_using_subcommand {object}");
    for word in words {
        condition.push_str(&format!("; and __fish_seen_subcommand_from {word}"));
    }
    condition
}

#[cfg(test)]
mod tests {
    use std::process::Command as Process;

    use super::*;

    /// Every verb that takes a name offers names.
    #[test]
    fn every_name_is_completed() {
        let mut command = windlass_command::command();
        command.build();
        let named = named(&command);
        for (path, count, kind) in [
            ("vnic delete", 2, "vnic"),
            ("zone set", 2, "zone"),
            ("fdb add", 2, "bridge"),
            ("fdb add", 4, "member"),
            ("bridge fdb flush", 3, "bridge"),
            ("inspect", 1, "program"),
            ("inspect", 2, "inspection"),
        ] {
            let found =
                |(p, c, _, k): &(String, usize, bool, &str)| p == path && *c == count && *k == kind;
            assert!(named.iter().any(found), "{path}: {named:?}");
        }
        let options = options(&command);
        for pair in [("bridge", "bridge"), ("zone", "zone"), ("member", "member")] {
            assert!(
                options.contains(&(pair.0.to_owned(), pair.1)),
                "{options:?}"
            );
        }
    }

    /// What a bash with a script offers at the end of a command line.
    fn offered(script: &str, words: &[&str]) -> String {
        let (last, before) = words.split_last().expect("words");
        let line = words.join(" ");
        let run = format!(
            "windlass() {{ printf '%s\\n' \"$2-1\" \"$2-2\"; }}\n{script}\nCOMP_LINE='{line}'\n\
             COMP_POINT={}\nCOMP_WORDS=({})\nCOMP_CWORD={}\n\
             _windlass_live windlass '{last}' '{}'\necho \"${{COMPREPLY[*]}}\"\n",
            line.len(),
            words
                .iter()
                .map(|word| format!("'{word}' "))
                .collect::<String>(),
            words.len() - 1,
            before.last().expect("words"),
        );
        // Longer than one argument may be.
        let file = std::env::temp_dir().join(format!("completion-{}", std::process::id()));
        std::fs::write(&file, run).expect("a file");
        let output = Process::new("bash").arg("--norc").arg(&file).output();
        let output = std::fs::remove_file(&file).and(output).expect("bash");
        assert!(
            output.stderr.is_empty(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// In a real bash, verbs come from the command line, and names from a windlass that has some.
    #[test]
    fn bash_offers_words_and_names() {
        if Process::new("bash").arg("--version").output().is_err() {
            println!("skipped: there is no bash");
            return;
        }
        let mut command = windlass_command::command();
        command.build();
        let script = bash(&command).expect("completion");
        let offered = |words: &[&str]| offered(&script, words);
        for (words, wanted) in [
            (&["windlass", "vnic", "de"][..], "delete"),
            (&["windlass", "vnic", "delete", ""][..], "vnic-1 vnic-2"),
            (
                &["windlass", "--timeout", "3", "vnic", "set", "v"][..],
                "vnic-1 vnic-2",
            ),
            (
                &["windlass", "vnic", "set", "web", "mtu=9000", ""][..],
                "setting-1 setting-2",
            ),
            (
                &["windlass", "bridge", "get", "br0", ""][..],
                "property-1 property-2",
            ),
            (
                &["windlass", "vnic", "show", "vnic-1", ""][..],
                "vnic-1 vnic-2",
            ),
            (
                &["windlass", "vnic", "create", "v0", "--bridge", ""][..],
                "bridge-1 bridge-2",
            ),
            (&["windlass", "inspect", "4"][..], "program-1 program-2"),
            (
                &["windlass", "inspect", "42", "--", "print", "al"][..],
                "inspection-1 inspection-2",
            ),
            (
                &["windlass", "fdb", "add", "br0", "02:", "m"][..],
                "member-1 member-2",
            ),
        ] {
            assert_eq!(offered(words), wanted);
        }
        for words in [&["--attach", "t"][..], &["--attach=t"]] {
            let line = [&["windlass", "vnic", "create", "v0"], words].concat();
            assert_eq!(offered(&line), "attach-1 attach-2");
        }
    }
}
