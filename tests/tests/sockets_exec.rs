//! A server executes itself: the new image joins its connections like any program. `sockets/renew.c` plays both ends.

#[path = "sockets/place.rs"]
mod place;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use place::{One, Place};
use windlass_tests::program;

const ROUNDS: u64 = 3_000;
/// How often it is tried until the ring has served both images: whether both ends are awake is up to the machine.
const TRIES: u32 = 10;

/// What each image of a program has counted: `processes` is the last line of each.
fn images(path: &Path) -> Vec<BTreeMap<String, u64>> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let mut images = vec![BTreeMap::new()];
    for (name, value) in text.lines().filter_map(|line| line.split_once(' ')) {
        if name == "processes" {
            images.push(BTreeMap::new());
        } else if let Some(image) = images.last_mut() {
            image.insert(name.to_owned(), value.parse().expect("a number"));
        }
    }
    images.pop();
    images
}

/// Every answer is right before and after, on the connection that goes through the exec and on a new one; and the ring serves
/// connections of both images.
#[test]
fn a_new_image_joins_like_any_program() {
    let name = "a_new_image_joins_like_any_program";
    let Some(place) = Place::new(name) else {
        return;
    };
    let own = place.directory.path();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sockets/renew.c");
    let mut compiler = Command::new("cc");
    let compiled = compiler
        .args(["-O2", "-o"])
        .arg(own.join("renew"))
        .arg(source)
        .status();
    assert!(
        compiled.is_ok_and(|status| status.success()),
        "renew.c does not compile"
    );
    for attempt in 1..=TRIES {
        let directory = place.room();
        let counters = |role: &str| directory.join(format!("{role}.counters"));
        let mut ends = ["serve", "ask"].map(|role| {
            let log = fs::File::create(directory.join(role)).expect("a log");
            let mut command = Command::new(program("windlass"));
            command
                .args(["run", "--spin", "50", "--"])
                .arg(own.join("renew"));
            command.arg(role).arg(directory.join("port"));
            command.args((role == "ask").then(|| ROUNDS.to_string()));
            command.env("WINDLASS_SOCKETS", place.daemon());
            command.env("WINDLASS_COUNTERS", counters(role));
            command
                .stdin(Stdio::null())
                .stderr(log.try_clone().expect("a log"))
                .stdout(log);
            One(command.spawn().expect("windlass"))
        });
        let done = ends.each_mut().map(One::end);
        let said = |role: &str| fs::read_to_string(directory.join(role)).unwrap_or_default();
        let served = images(&counters("serve"));
        let text = format!("{:?} {:?} {served:?}", said("serve"), said("ask"));
        assert_eq!(done, [true, true], "{text}");
        assert!(
            said("serve") == "done\n" && said("ask") == "done\n",
            "{text}"
        );
        // `windlass run` itself has not the library: the two images are all.
        assert_eq!(served.len(), 2, "{text}");
        let by_ring = |image: &BTreeMap<String, u64>| {
            let of = |name: &str| image.get(name).copied().unwrap_or(0);
            of("joined") > 0 && of("ring_rx_bytes") > 0
        };
        if served.iter().all(by_ring) {
            return;
        }
        println!("attempt {attempt}: {text}");
    }
    panic!("the ring has not served both images");
}
