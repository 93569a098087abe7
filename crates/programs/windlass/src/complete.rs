//! What shells offer at the cursor: names of objects, properties, what `--attach` takes.
//!
//! # Model
//! A completion asks with the kind of word, the word as far as it is typed, and the words before it. The answer is whole words,
//! one a line; one that ends in `=` or `,` goes on. Nobody wants to read an error then: there is none.

use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Duration;

use windlass_api::{
    AUTO, Attachment, Bridge, Flow, OptionSpec, Overlay, Scope, Uplink, ValueKind, Vnic, Zone,
    known_keys, properties,
};

use crate::failure::Failure;
use crate::objects::names;
use crate::options::{CompleteArgs, Global};
use crate::{connect, property, vnd};

/// A completion waits so long for the daemon.
const PATIENCE: Duration = Duration::from_secs(2);

/// Where `ip netns` keeps namespaces with a name.
const NAMESPACES: &str = "/run/netns";

/// Writes what can stand at the cursor.
pub(crate) fn run(
    global: &Global,
    args: &CompleteArgs,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let found = match args.kind.as_str() {
        "attr" => attributes(&args.word),
        "attach" => attachments(scope(&args.line), &args.word),
        "setting" => settings(scope(&args.line), &args.word),
        "property" => properties_of(&args.line),
        "program" => programs(&args.word),
        "inspection" => crate::inspect::completions(&args.line, &args.word),
        kind => objects(global, kind, &args.line),
    };
    for word in found.iter().filter(|word| word.starts_with(&args.word)) {
        writeln!(out, "{word}")?;
    }
    Ok(())
}

/// Own processes, the daemon, and files.
fn programs(word: &str) -> Vec<String> {
    let own = std::fs::metadata("/proc/self").ok();
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let mine = entries.filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        name.parse::<u32>().ok()?;
        let uid = entry.metadata().ok()?.uid();
        let own = own.as_ref()?.uid();
        (own == 0 || uid == own).then_some(name)
    });
    let (directory, _) = word.rsplit_once('/').map_or((".", word), |(d, f)| {
        (if d.is_empty() { "/" } else { d }, f)
    });
    let files = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let files = files.filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let name = match word.rsplit_once('/') {
            Some((before, _)) => format!("{before}/{name}"),
            None => name,
        };
        (!word.is_empty()).then_some(name)
    });
    let daemon = ["windlass".to_owned()];
    let mut all: Vec<_> = mine.chain(files).chain(daemon).collect();
    all.sort();
    all
}

fn scope(line: &[String]) -> Option<Scope> {
    line.iter().find_map(|word| match word.as_str() {
        "zone" => Some(Scope::Zone),
        "bridge" => Some(Scope::Bridge),
        "uplink" => Some(Scope::Uplink),
        "overlay" => Some(Scope::Overlay),
        "vnic" => Some(Scope::Vnic),
        "flow" => Some(Scope::Flow),
        "vnd" => Some(Scope::Vnd),
        _ => None,
    })
}

fn properties_of(line: &[String]) -> Vec<String> {
    let names = line.iter().find_map(|word| match word.as_str() {
        "zone" => Some(property::names::<Zone>()),
        "bridge" => Some(property::names::<Bridge>()),
        "uplink" => Some(property::names::<Uplink>()),
        "overlay" => Some(property::names::<Overlay>()),
        "vnic" => Some(property::names::<Vnic>()),
        "flow" => Some(property::names::<Flow>()),
        "vnd" => Some(vnd::property_names().collect()),
        _ => None,
    });
    let names = names.unwrap_or_default().into_iter();
    names.map(str::to_owned).collect()
}

fn objects(global: &Global, kind: &str, line: &[String]) -> Vec<String> {
    let mut words = line.iter().skip_while(|word| *word != "--socket").skip(1);
    let options = Global {
        timeout: Some(global.timeout.unwrap_or(PATIENCE).min(PATIENCE)),
        socket: words.next().map(PathBuf::from).or(global.socket.clone()),
        fields: None,
        ..*global
    };
    let Ok(client) = connect(&options) else {
        return Vec::new();
    };
    let found = match kind {
        "zone" => names::<Zone>(&client),
        "bridge" => names::<Bridge>(&client),
        "uplink" => names::<Uplink>(&client),
        "overlay" => names::<Overlay>(&client),
        "vnic" => names::<Vnic>(&client),
        "flow" => names::<Flow>(&client),
        "vnd" => client.vnds().map(|views| {
            let names = views.into_iter().filter_map(|view| view.name);
            names.map(String::from).collect()
        }),
        "member" => names::<Uplink>(&client).and_then(|mut uplinks| {
            uplinks.extend(names::<Overlay>(&client)?);
            uplinks.extend(names::<Vnic>(&client)?);
            Ok(uplinks)
        }),
        _ => return Vec::new(),
    };
    found.unwrap_or_default()
}

/// `KEY=`, and behind it the values that a key has.
fn settings(scope: Option<Scope>, word: &str) -> Vec<String> {
    let specs = scope
        .into_iter()
        .flat_map(properties)
        .map(|row| &row.option);
    let Some((key, _)) = word.split_once('=') else {
        return specs.map(|spec| format!("{}=", spec.name)).collect();
    };
    let spec = specs.filter(|spec| spec.name == key);
    let values = spec.flat_map(values_of);
    values.map(|value| format!("{key}={value}")).collect()
}

fn values_of(spec: &OptionSpec) -> Vec<&'static str> {
    let mut values = vec![AUTO];
    match spec.kind {
        ValueKind::Flag => values.extend(["on", "off"]),
        ValueKind::Words(words) | ValueKind::Set(words) => values.extend(words),
        _ if spec.default.is_empty() || spec.default == AUTO => {}
        _ => values.push(spec.default),
    }
    values
}

/// The attributes of a flow: what can stand first, behind a transport, and as a transport.
fn attributes(word: &str) -> Vec<String> {
    let transports = || windlass_rules::TRANSPORTS.iter().map(|(name, _)| *name);
    let Some((before, last)) = word.rsplit_once(',') else {
        let first = ["local_ip=", "remote_ip=", "dsfield="]
            .into_iter()
            .map(str::to_owned);
        return first
            .chain(transports().map(|name| format!("transport={name}")))
            .collect();
    };
    let keys = match before.starts_with("transport=") && !last.contains('=') {
        true => ["local_port=", "remote_port="].as_slice(),
        false => &[],
    };
    keys.iter().map(|key| format!("{before},{key}")).collect()
}

/// Kinds that such an object takes, then their keys that are not there yet, then the values of some keys.
fn attachments(scope: Option<Scope>, word: &str) -> Vec<String> {
    let Some((before, last)) = word.rsplit_once(',') else {
        let is_uplink = scope == Some(Scope::Uplink);
        let kinds = Attachment::KINDS.iter();
        let kinds = kinds.filter(|kind| Attachment::UPLINK_KINDS.contains(kind) == is_uplink);
        let kinds = kinds.flat_map(|kind| match *kind {
            "tap" => vec!["tap".to_owned(), "tap,".to_owned()],
            // They need a socket and a role, or a namespace.
            "memif" | "vhost-user" | "veth" => vec![format!("{kind},")],
            kind => vec![kind.to_owned()],
        });
        return kinds.collect();
    };
    let mut parts = before.split(',');
    let kind = parts.next().unwrap_or_default();
    let Some((_, known)) = known_keys(kind).filter(|_| kind != "none") else {
        return Vec::new();
    };
    if let Some((key, _)) = last.split_once('=') {
        let values = attach_values(key).into_iter();
        return values
            .map(|value| format!("{before},{key}={value}"))
            .collect();
    }
    let given: Vec<_> = parts.filter_map(|part| part.split('=').next()).collect();
    let keys = known.split(", ");
    let keys = keys.filter(|key| *key == "address" || !given.contains(key));
    keys.map(|key| format!("{before},{key}=")).collect()
}

fn attach_values(key: &str) -> Vec<String> {
    match key {
        "role" => vec!["server".into(), "client".into()],
        "netns" => {
            let entries = std::fs::read_dir(NAMESPACES)
                .into_iter()
                .flatten()
                .flatten();
            let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
            let mut names: Vec<_> = names.collect();
            names.sort();
            names
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offered(found: Vec<String>, word: &str) -> Vec<String> {
        found
            .into_iter()
            .filter(|found| found.starts_with(word))
            .collect()
    }

    /// Every key of every kind is offered, once, and each word that is offered can go on to an attachment.
    #[test]
    fn attachments_are_offered() {
        let with_v = offered(attachments(None, "v"), "v");
        assert_eq!(with_v, ["veth,", "vhost-user,"]);
        for kind in Attachment::KINDS.iter().filter(|kind| **kind != "none") {
            let (_, known) = known_keys(kind).expect("a kind");
            let word = format!("{kind},");
            let keys: Vec<_> = known
                .split(", ")
                .map(|key| format!("{word}{key}="))
                .collect();
            assert_eq!(attachments(None, &word), keys);
        }
        let word = "memif,socket=/x,role=";
        assert_eq!(offered(attachments(None, word), word).len(), 2);
        let word = "tap,queues=2,qu";
        assert!(offered(attachments(None, word), word).is_empty());
        assert!(attachments(None, "none,").is_empty());
        let uplinks = attachments(Some(Scope::Uplink), "");
        let vnics = attachments(Some(Scope::Vnic), "");
        assert_eq!(uplinks, ["packet", "xdp"]);
        assert!(
            vnics.len() > 3 && !vnics.contains(&"packet".to_owned()),
            "{vnics:?}"
        );
    }

    /// What is offered of a flow's attributes goes on to attributes.
    #[test]
    fn attributes_are_offered() {
        for word in attributes("") {
            let is_whole = word.starts_with("transport=");
            assert_eq!(
                word.parse::<windlass_api::FlowAttributes>().is_ok(),
                is_whole,
                "{word}"
            );
        }
        let word = "transport=tcp,";
        let ports = ["transport=tcp,local_port=", "transport=tcp,remote_port="];
        assert_eq!(attributes(word), ports);
        assert!(attributes("local_ip=10.0.0.1,").is_empty());
    }

    /// Every value that is offered is one.
    #[test]
    fn settings_are_offered() {
        assert_eq!(
            offered(settings(Some(Scope::Bridge), "ag"), "ag"),
            ["ageing="]
        );
        for scope in [
            Scope::Zone,
            Scope::Bridge,
            Scope::Uplink,
            Scope::Vnic,
            Scope::Flow,
            Scope::Vnd,
        ] {
            for row in properties(scope) {
                let word = format!("{}=", row.option.name);
                for setting in settings(Some(scope), &word) {
                    let value = setting.strip_prefix(&word).expect("of this property");
                    assert!(
                        value == AUTO || row.option.parse(value).is_ok(),
                        "{setting}"
                    );
                }
            }
        }
    }
}
