//! Programs that execute themselves with open connections: the new image joins them like any program. `sockets/renew.c` is a
//! server and its client; of `sockets/again.c` both ends execute themselves over and over.

#[path = "sockets/place.rs"]
mod place;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use place::{One, PATIENCE, Place, seed, soaks};
use windlass_tests::program;

/// Exchanges on each connection, and the bytes of one, each way.
const ROUNDS: u64 = 3_000;
const MESSAGE: u64 = 32;
/// How often it is tried until the ring has served all images: whether both ends are awake is up to the machine.
const TRIES: u32 = 10;

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

/// Every answer is right before and after, on the connection that goes through the exec and on a new one; and the ring serves
/// connections of both images, of the second one both.
#[test]
fn a_new_image_joins_like_any_program() {
    let name = "a_new_image_joins_like_any_program";
    let Some(place) = Place::new(name) else {
        return;
    };
    compile(&place, "renew");
    for attempt in 1..=TRIES {
        let directory = place.room();
        let mut ends =
            [("serve", None), ("ask", Some(ROUNDS.to_string()))].map(|(role, rounds)| {
                start(&place, &directory, "renew", role, &Vec::from_iter(rounds))
            });
        let done = ends.each_mut().map(One::end);
        let said = |role: &str| fs::read_to_string(directory.join(role)).unwrap_or_default();
        let served = images(&directory.join("serve.counters"));
        let text = format!("{:?} {:?} {served:?}", said("serve"), said("ask"));
        assert_eq!(done, [true, true], "{text}");
        assert!(
            said("serve") == "done\n" && said("ask") == "done\n",
            "{text}"
        );
        // `windlass run` itself has not the library: the two images are all.
        let [first, second] = served.as_slice() else {
            panic!("{text}");
        };
        let is_served = count(first, "joined") == 1
            && count(first, "ring_rx_bytes") > 0
            && count(second, "joined") == 2
            && count(second, "ring_rx_bytes") > ROUNDS * MESSAGE;
        if is_served {
            return;
        }
        println!("attempt {attempt}: {text}");
    }
    panic!("the ring has not served both images");
}

fn again(place: &Place, directory: &Path, way: &str) -> [One; 2] {
    let words = [BYTES.to_string(), IMAGES.to_string(), way.to_owned()];
    ["accept", "connect"].map(|role| start(place, directory, "again", role, &words))
}

/// Two streams in both directions come whole though both ends execute themselves in the middle of them seven times, and the
/// ring carries most of them.
#[test]
fn streams_go_on_over_many_execs() {
    let Some(place) = Place::new("streams_go_on_over_many_execs") else {
        return;
    };
    compile(&place, "again");
    let ways = ["block", "poll", "epoll", "edge"];
    for way in ways.repeat(if soaks() { 20 } else { 1 }) {
        let is_served = (0..TRIES).any(|_| {
            let directory = place.room();
            let mut ends = again(&place, &directory, way);
            let done = ends.each_mut().map(One::end);
            ["accept", "connect"].iter().zip(done).all(|(role, done)| {
                let said = fs::read_to_string(directory.join(role)).unwrap_or_default();
                let counted = images(&directory.join(format!("{role}.counters")));
                let text = format!("{way} {role}: {said:?} {counted:?}");
                assert!(done && said == "done\n", "{text}");
                assert_eq!(counted.len() as u64, IMAGES, "{text}");
                let sum = |name| counted.iter().map(|image| count(image, name)).sum::<u64>();
                let is_most = sum("joined") > IMAGES / 2 && sum("ring_rx_bytes") > BYTES / 2;
                if !is_most {
                    println!("{text}");
                }
                is_most
            })
        });
        assert!(is_served, "{way}: the ring has not carried most of it");
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

/// Every answer is right, whoever goes on with a connection: the server itself or a child of it. It is joined anew where nobody
/// else has it, in a program that was told so; and never where a sibling has it, the exec has failed, the parent that had joined
/// it lives on, or the peer has threads.
#[test]
fn a_connection_has_one_heir() {
    let Some(place) = Place::new("a_connection_has_one_heir") else {
        return;
    };
    compile(&place, "heir");
    let cases = [
        ("exec", false, true),
        ("inetd", false, true),
        ("exec", true, false),
        ("fail", false, false),
        ("fork", false, false),
        ("sibling", false, false),
    ];
    for (how, has_threads, is_renewed) in cases {
        let mut renewed = 0;
        for _ in 0..TRIES {
            let directory = place.room();
            let mut asks = vec![ROUNDS.to_string()];
            asks.extend(has_threads.then(|| "threads".to_owned()));
            let mut server = start(&place, &directory, "heir", "serve", &[how.to_owned()]);
            let mut client = start(&place, &directory, "heir", "ask", &asks);
            let done = [client.end(), server.end()];
            let said = ["ask", "serve"]
                .map(|role| fs::read_to_string(directory.join(role)).expect("a log"));
            let counted = images(&directory.join("ask.counters"));
            let text = format!("{how}, threads: {has_threads}: {said:?} {counted:?}");
            assert_eq!(done, [true, true], "{text}");
            assert_eq!(said, ["done\n", ""], "{text}");
            renewed = counted
                .iter()
                .map(|image| count(image, "joins_renewed"))
                .sum();
            assert!(is_renewed || renewed == 0, "{text}");
            if renewed != 0
                || !is_renewed && counted.iter().any(|image| count(image, "joined") != 0)
            {
                break;
            }
            println!("{text}");
        }
        assert_eq!(renewed != 0, is_renewed, "{how}, threads: {has_threads}");
    }
}
