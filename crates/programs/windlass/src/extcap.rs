//! `extcap`: what Wireshark asks of a program that captures for it (extcap(4)).
//!
//! # Model
//! Wireshark starts every program in its extcap directory once for each question: which interfaces there are, of which link type, with which options; and
//! then to capture, into a named pipe. A link stands there as [`PREFIX`] and its name, so that no interface of the host has its name.
//!
//! ```text
//! #!/bin/sh
//! exec windlass extcap "$@"
//! ```
//! Over ssh the script is `exec ssh -x root@HOST windlass extcap "$@"` for the questions; a capture goes `ssh HOST windlass snoop -w - | wireshark -k -i -`.

use windlass_api::{Bridge, Name, Overlay, Uplink, Vnic};

use crate::Session;
use crate::failure::Failure;
use crate::options::{ExtcapArgs, SnoopArgs};
use crate::snoop;

/// What stands before a link's name.
const PREFIX: &str = "windlass-";

/// Answers one question.
pub(crate) fn run(session: &mut Session<'_>, args: ExtcapArgs) -> Result<(), Failure> {
    if args.interfaces {
        return interfaces(session);
    }
    let todo = "Wireshark calls this command by itself, see extcap(4)";
    let Some(interface) = args.interface else {
        return Err(Failure::usage("no interface is named", todo));
    };
    if args.dlts {
        writeln!(
            session.out,
            "dlt {{number=1}}{{name=EN10MB}}{{display=Ethernet}}"
        )?;
        return Ok(());
    }
    if args.config {
        session.out.write_all(CONFIG.as_bytes())?;
        return Ok(());
    }
    let words: Vec<String> = args.filter.into_iter().collect();
    if !args.capture {
        // Wireshark asks whether the filter is one, and takes what is written for what is wrong.
        return snoop::check(&words);
    }
    let Some(fifo) = args.fifo else {
        return Err(Failure::usage("no pipe is named", todo));
    };
    let link = interface.strip_prefix(PREFIX).unwrap_or(&interface);
    let link = link.parse::<Name>();
    let link = link.map_err(|error| Failure::usage(error.to_string(), "name a link"))?;
    let args = SnoopArgs {
        link,
        zone: None,
        write: Some(fifo),
        count: None,
        length: args.length,
        file_size: None,
        file_count: None,
        direction: args.direction,
        drops: args.drops,
        verbose: false,
        bytes: false,
        buffer: args.buffer,
        filter: words,
    };
    snoop::run(session, &args, false)
}

/// Options that Wireshark shows.
const CONFIG: &str = "\
arg {number=0}{call=--length}{display=Bytes of each frame}{tooltip=0 is all of them}{type=unsigned}{default=0}{range=0,262144}
arg {number=1}{call=--direction}{display=Which frames}{type=selector}
value {arg=1}{value=inout}{display=all}{default=true}
value {arg=1}{value=in}{display=those that it receives}{default=false}
value {arg=1}{value=out}{display=those that it sends}{default=false}
arg {number=2}{call=--drops}{display=Frames that died, with the reason}{type=boolflag}{default=false}
arg {number=3}{call=--buffer}{display=Buffer in KiB}{type=unsigned}{default=4096}{range=64,65536}
";

fn interfaces(session: &mut Session<'_>) -> Result<(), Failure> {
    let version = env!("CARGO_PKG_VERSION");
    writeln!(
        session.out,
        "extcap {{version={version}}}{{display=windlass}}"
    )?;
    let what = "list links";
    let client = session.client(what)?;
    let failed = |error| Failure::of(what, error);
    let vnics = client.list::<Vnic>().map_err(failed)?;
    let uplinks = client.list::<Uplink>().map_err(failed)?;
    let overlays = client.list::<Overlay>().map_err(failed)?;
    let bridges = client.list::<Bridge>().map_err(failed)?;
    let vnics = vnics.iter().map(|vnic| {
        let zone = vnic.config.zone.name();
        let zone = zone.map_or_else(String::new, |zone| format!(" of zone {zone}"));
        (&vnic.config.name, format!("VNIC{zone}"))
    });
    let uplinks = uplinks
        .iter()
        .map(|uplink| (&uplink.config.name, "uplink".to_owned()));
    let overlays = overlays
        .iter()
        .map(|overlay| (&overlay.config.name, "overlay".to_owned()));
    let bridges = bridges
        .iter()
        .map(|bridge| (&bridge.config.name, "bridge".to_owned()));
    for (name, kind) in vnics.chain(uplinks).chain(overlays).chain(bridges) {
        writeln!(
            session.out,
            "interface {{value={PREFIX}{name}}}{{display=windlass {kind}: {name}}}"
        )?;
    }
    Ok(())
}
