//! Programs that execute themselves with open connections: those stay on the kernel, whole and in order, and new ones join.
//! `sockets/renew.c` is a server and its client; of `sockets/again.c` both ends execute themselves over and over.

#[path = "sockets/place.rs"]
mod place;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use place::{One, PATIENCE, Place, seed, soaks};
use windlass_tests::{program, until};

/// Exchanges on each connection, at least.
const ROUNDS: u64 = 3_000;
/// What the ring carries each way for each image, at least; the programs go on until it has. More than can be unread at once.
const BY_RING: u64 = 4_096;

/// Bytes of each stream, and the programs in a row that move them.
const BYTES: u64 = 2_000_000;
const IMAGES: u64 = 8;

type Counts = BTreeMap<String, u64>;

/// What each image of a program has counted: `processes` is the last line of each.
fn images(path: &Path) -> Vec<Counts> {
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

fn count(image: &Counts, name: &str) -> u64 {
    image.get(name).copied().unwrap_or(0)
}

fn compile(place: &Place, name: &str) {
    let source = format!("tests/sockets/{name}.c");
    let mut compiler = Command::new("cc");
    let compiled = compiler
        .args(["-O2", "-pthread", "-o"])
        .arg(place.directory.path().join(name))
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join(source))
        .status();
    assert!(
        compiled.is_ok_and(|status| status.success()),
        "{name}.c does not compile"
    );
}

/// Starts one end of a pair; what it says and counts is in files of the directory with its role as their name.
fn start(place: &Place, directory: &Path, name: &str, role: &str, words: &[String]) -> One {
    let log = fs::File::create(directory.join(role)).expect("a log");
    let mut command = Command::new(program("windlass"));
    command
        .args(["run", "--spin", "50", "--"])
        .arg(place.directory.path().join(name))
        .arg(role)
        .arg(directory.join("port"))
        .args(words)
        .env("WINDLASS_SOCKETS", place.daemon())
        .env(
            "WINDLASS_COUNTERS",
            directory.join(format!("{role}.counters")),
        )
        .stdin(Stdio::null())
        .stderr(log.try_clone().expect("a log"))
        .stdout(log);
    One(command.spawn().expect("windlass"))
}

/// Every answer is right before and after, on the connection that goes through the exec and on a new one; the ring serves the
/// first image's connection and the second image's new one, and no other.
#[test]
fn a_new_image_joins_new_connections() {
    let name = "a_new_image_joins_new_connections";
    let Some(place) = Place::new(name) else {
        return;
    };
    compile(&place, "renew");
    let directory = place.room();
    let mut ends = [("serve", None), ("ask", Some(ROUNDS.to_string()))]
        .map(|(role, rounds)| start(&place, &directory, "renew", role, &Vec::from_iter(rounds)));
    let said = |role: &str| fs::read_to_string(directory.join(role)).unwrap_or_default();
    let on_ring = || {
        place::until_rows(
            &place.daemon(),
            ends.each_ref().map(|end| &end.0),
            "bytes by the ring, both ways",
            |rows| place::has_rung(rows, [BY_RING; 2]),
            || format!("{:?} {:?}", said("serve"), said("ask")),
        );
    };
    let mark = |what: &str| fs::write(directory.join(what), "").expect("a file");
    on_ring();
    mark("port.renew");
    // The first image's connection is the kernel's from here on.
    let counters = directory.join("serve.counters");
    until("the second image", || counters.exists());
    on_ring();
    mark("port.end");
    let done = ends.each_mut().map(One::end);
    let served = images(&counters);
    let text = format!("{:?} {:?} {served:?}", said("serve"), said("ask"));
    println!("{text}");
    assert_eq!(done, [true, true], "{text}");
    assert!(
        said("serve") == "done\n" && said("ask") == "done\n",
        "{text}"
    );
    // `windlass run` itself has not the library: the two images are all.
    let [first, second] = served.as_slice() else {
        panic!("{text}");
    };
    for image in [first, second] {
        assert_eq!(count(image, "joined"), 1, "{text}");
        assert!(count(image, "ring_rx_bytes") > 0, "{text}");
    }
}

fn again(place: &Place, directory: &Path, way: &str) -> [One; 2] {
    let words = [BYTES.to_string(), IMAGES.to_string(), way.to_owned()];
    ["accept", "connect"].map(|role| start(place, directory, "again", role, &words))
}

/// Two streams in both directions come whole though both ends execute themselves in the middle of them seven times.
#[test]
fn streams_go_on_over_many_execs() {
    let Some(place) = Place::new("streams_go_on_over_many_execs") else {
        return;
    };
    compile(&place, "again");
    let ways = ["block", "poll", "epoll", "edge"];
    for way in ways.repeat(if soaks() { 20 } else { 1 }) {
        let directory = place.room();
        let mut ends = again(&place, &directory, way);
        let done = ends.each_mut().map(One::end);
        for (role, done) in ["accept", "connect"].iter().zip(done) {
            let said = fs::read_to_string(directory.join(role)).unwrap_or_default();
            let counted = images(&directory.join(format!("{role}.counters")));
            let text = format!("{way} {role}: {said:?} {counted:?}");
            assert!(done && said == "done\n", "{text}");
            assert_eq!(counted.len() as u64, IMAGES, "{text}");
        }
    }
}

/// Where one end is killed meanwhile, the other one gets what was sent, in order, and then the end of the connection, or has
/// all; it never waits for ever.
#[test]
fn an_end_is_killed_between_execs() {
    let Some(place) = Place::new("an_end_is_killed_between_execs") else {
        return;
    };
    compile(&place, "again");
    let mut random = seed();
    for round in 0..if soaks() { 400 } else { 24 } {
        let way = ["block", "poll", "epoll", "edge"][round % 4];
        let directory = place.room();
        let mut ends = again(&place, &directory, way);
        let begun = Instant::now();
        while !directory.join("port.met").exists() {
            assert!(begun.elapsed() < PATIENCE, "the two ends have not met");
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_micros(random.below(100_000)));
        let victim = random.below(2) as usize;
        // It may have come to its end before.
        let _ = ends[victim].0.kill();
        let role = ["accept", "connect"][1 - victim];
        let done = ends[1 - victim].end();
        let said = fs::read_to_string(directory.join(role)).unwrap_or_default();
        let is_right = said == "done\n" || said.starts_with("ended ");
        assert!(
            done && is_right,
            "round {round}, {way}: {role}, within {PATIENCE:?}: {said:?}"
        );
    }
}
