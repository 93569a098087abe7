//! Sizes and members as the compilers' own programs print them.

#[allow(dead_code)]
mod common;

use common::{Fixtures, debug, output, types};
use windlass_types::{Kind, TypeId, Types};

fn ty(types: &Types<'_>, name: &str) -> TypeId {
    let found = match name.split_once(' ') {
        Some(("struct", name)) => types.named(Kind::Struct, name),
        Some(("enum", name)) => types.named(Kind::Enum, name),
        _ => types.named(Kind::Typedef, name),
    };
    found.unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Compares each line that a program prints of its types. Returns how many there were.
fn compare(types: &Types<'_>, printed: &str) -> usize {
    let mut count = 0;
    for line in printed.lines() {
        let (what, number) = line.rsplit_once(' ').expect("words");
        if let Some(name) = what.strip_prefix("sizeof ") {
            let size = types.size(ty(types, name));
            assert_eq!(size, number.parse().ok(), "{line}");
        } else if let Some(what) = what.strip_prefix("member ") {
            let (name, member) = what.rsplit_once(' ').expect("a member");
            let path = types.member(ty(types, name), member).expect(line);
            assert_eq!(Some(path.bit_offset()), number.parse().ok(), "{line}");
        } else {
            continue;
        }
        count += 1;
    }
    count
}

/// Every size and offset of the C fixture is what the program itself prints, for each compiler, version of DWARF and optimization.
#[test]
fn layouts_are_the_compilers() {
    let fixtures = Fixtures::new();
    for compiler in ["gcc", "clang"] {
        for version in ["-gdwarf-2", "-gdwarf-3", "-gdwarf-4", "-gdwarf-5"] {
            for level in ["-O0", "-O2"] {
                let arguments = ["-g", version, level];
                let Some(program) = fixtures.build(compiler, &arguments, "server.c") else {
                    continue;
                };
                let debug = debug(&program);
                let types = types(&debug);
                assert_eq!(
                    compare(&types, &output(&program)),
                    24,
                    "{compiler} {arguments:?}"
                );
                assert_eq!(types.skipped(), 0);
            }
        }
    }
}
