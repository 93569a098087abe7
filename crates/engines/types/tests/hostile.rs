//! Debug data that lies: nothing panics, nothing goes on for ever.

#[allow(dead_code)]
mod common;

use std::collections::BTreeMap;
use std::path::Path;

use common::{Fixtures, debug};
use windlass_types::print::{Limits, Nothing, VALUE_MAX};
use windlass_types::{Node, Section, TypeId, Types};

const NAMES: [&str; 13] = [
    ".debug_abbrev",
    ".debug_addr",
    ".debug_aranges",
    ".debug_info",
    ".debug_line",
    ".debug_line_str",
    ".debug_loc",
    ".debug_loclists",
    ".debug_ranges",
    ".debug_rnglists",
    ".debug_str",
    ".debug_str_offsets",
    ".eh_frame",
];

type Sections = BTreeMap<&'static str, (u64, Vec<u8>)>;

fn sections(program: &Path) -> Sections {
    let debug = debug(program);
    let content = |name| {
        let (address, bytes) = debug.section(name);
        (name, (address, bytes.to_vec()))
    };
    NAMES
        .into_iter()
        .map(content)
        .filter(|(_, (_, bytes))| !bytes.is_empty())
        .collect()
}

/// Asks everything that can be asked. Returns how many functions there were.
fn ask(sections: &Sections) -> usize {
    let types = Types::open(&|name| match sections.get(name) {
        Some((address, bytes)) => Section {
            address: *address,
            bytes,
        },
        None => Section::default(),
    });
    let functions = types.functions("*").expect("not interrupted");
    let mut seen: Vec<TypeId> = Vec::new();
    for reference in functions.iter().take(20) {
        let middle = reference
            .ranges
            .first()
            .map_or(0, |range| range.start / 2 + range.end / 2);
        for pc in [reference.low_pc, middle] {
            let _ = (types.line(pc), types.cfa(pc));
            let here = [types.at(pc), types.function(reference, pc)];
            for function in here.into_iter().flatten() {
                seen.push(function.returns);
                let all = function.parameters.iter().chain(&function.locals);
                seen.extend(all.map(|parameter| parameter.ty));
            }
        }
    }
    for found in types
        .search("*", &|_| true)
        .expect("not interrupted")
        .iter()
        .take(40)
    {
        if found.kind.is_type() {
            seen.extend(types.named(found.kind, &found.name));
        } else {
            seen.extend(types.variable(&found.name).map(|(ty, _)| ty));
        }
    }
    let bytes = [0x5a; 256];
    for at in 0..seen.len().min(60) {
        let ty = seen[at];
        let _ = (types.size(ty), types.name(ty), types.member(ty, "name"));
        assert!(types.show(ty, &bytes, &Nothing, Limits::default()).len() < VALUE_MAX as usize);
        assert!(types.definition(ty, true).len() < 64 << 20);
        if let Node::Pointer { to, .. } = types.bare(ty) {
            seen.push(to);
        }
    }
    functions.len()
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
    ];
    for (compiler, arguments, source) in cases {
        let Some(program) = fixtures.build(compiler, &arguments, source) else {
            continue;
        };
        let whole = sections(&program);
        assert!(ask(&whole) > 2);
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
                0 => [".debug_info", ".debug_abbrev"][next(2)],
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

/// Changes of each fixture.
const ROUNDS: usize = 700;
