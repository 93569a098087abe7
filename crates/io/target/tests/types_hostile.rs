//! Debug data that lies: nothing panics, nothing goes on for ever.

#[allow(dead_code)]
mod common;
mod questions;

use std::path::Path;

use windlass_types::{Part, Types};

use common::{Fixtures, debug};
use questions::{NAMES, Sections, ask, parse};

fn sections(program: &Path) -> Sections {
    let debug = debug(program);
    let skeletons = windlass_types::skeletons(&|part, name| debug.part(part, name));
    let split = skeletons.first().map(|skeleton| Part::Split(skeleton.id));
    let content = |name| {
        let own = debug.part(Part::Own, name);
        let section = match split.map(|split| debug.part(split, name)) {
            Some(apart) if own.bytes.is_empty() => apart,
            _ => own,
        };
        (name, (section.address, section.bytes.to_vec()))
    };
    NAMES
        .into_iter()
        .map(content)
        .filter(|(_, (_, bytes))| !bytes.is_empty())
        .collect()
}

/// Bytes of each section in turn are made anything, a few at a time, and sections end early.
#[test]
fn changed_sections_are_survived() {
    let fixtures = Fixtures::new();
    let cases = [
        ("gcc", vec!["-g", "-O2", "-gdwarf-5"], "server.c"),
        ("gcc", vec!["-g", "-O2", "-gdwarf-4"], "server.c"),
        ("g++", vec!["-g", "-O0"], "pool.cc"),
        ("clang", vec!["-g", "-O2", "-gdwarf-5"], "server.c"),
        ("gcc", vec!["-g", "-O2", "-gsplit-dwarf"], "server.c"),
        ("gcc", vec!["-gbtf"], "server.c"),
        ("gcc", vec!["-gctf", "-rdynamic"], "server.c"),
    ];
    for (compiler, arguments, source) in cases {
        let Some(program) = fixtures.build(compiler, &arguments, source) else {
            continue;
        };
        let whole = sections(&program);
        let is_table = arguments
            .iter()
            .any(|argument| ["-gbtf", "-gctf"].contains(argument));
        assert!(is_table || ask(&whole) > 2);
        let most = [
            ".debug_info",
            ".debug_abbrev",
            ".debug_info.dwo",
            ".BTF",
            ".ctf",
        ];
        let most = most.into_iter().filter(|name| whole.contains_key(name));
        let most: Vec<_> = most.collect();
        let mut random = 88_172_645_463_325_252_u64;
        let mut next = |below: usize| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            (random >> 20) as usize % below
        };
        for round in 0..ROUNDS {
            let mut changed = whole.clone();
            let names: Vec<_> = changed.keys().copied().collect();
            // Half of the changes where most is said.
            let name = match next(2) {
                0 => most[next(most.len())],
                _ => names[next(names.len())],
            };
            let (_, bytes) = changed.get_mut(name).expect("there");
            if round % 8 == 0 {
                bytes.truncate(next(bytes.len()));
            }
            for _ in 0..=next(6) {
                if !bytes.is_empty() {
                    let at = next(bytes.len());
                    bytes[at] = match next(3) {
                        0 => 0xff,
                        1 => bytes[at] ^ (1 << next(8)),
                        _ => next(256) as u8,
                    };
                }
            }
            ask(&changed);
        }
    }
}

/// The same for declarations that a person writes: pieces of them in any order.
#[test]
fn changed_declarations_are_survived() {
    const PIECES: [&str; 24] = [
        "struct",
        "union",
        "enum",
        "typedef",
        "a",
        "b",
        "{",
        "}",
        ";",
        ",",
        "*",
        "(",
        ")",
        "[",
        "]",
        ":",
        "=",
        "3",
        "int",
        "unsigned long",
        "uint8_t",
        "...",
        "__attribute__((packed))",
        "/*",
    ];
    let mut random = 88_172_645_463_325_252_u64;
    let mut next = |below: usize| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (random >> 33) as usize % below
    };
    for _ in 0..20_000 {
        let pieces: Vec<_> = (0..next(40)).map(|_| PIECES[next(PIECES.len())]).collect();
        let text = format!("struct a {{ int x; }}; {}", pieces.join(" "));
        let types = Types::default();
        let _ = types.declare(&text);
        for found in types.search("*", &|_| true).expect("names") {
            let ty = types.named(found.kind, &found.name).expect("declared");
            assert!(types.definition(ty, true).len() < 1 << 20);
        }
    }
}

/// Changes of each fixture.
const ROUNDS: usize = 250;

/// The inputs of the fuzz target `types`: those that it starts from are debug data of four compilers, and have functions.
#[test]
fn kept_inputs_are_survived() {
    let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus/types");
    let mut with_functions = 0;
    for file in std::fs::read_dir(place).expect("the directory") {
        let bytes = std::fs::read(file.expect("a file").path()).expect("readable");
        with_functions += usize::from(ask(&parse(&bytes)) > 1);
    }
    assert!(with_functions >= 4);
}
