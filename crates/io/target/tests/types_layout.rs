//! Sizes and members as the compilers' own programs print them.

#[allow(dead_code)]
mod common;

use std::path::Path;
use std::process::Command;

use common::{Fixtures, debug, output, skip, types};
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
        if what == "sizeof uint16_t" && types.is_empty() {
            continue;
        }
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

/// Sizes and offsets of BTF and CTF are what the program prints: as gcc writes them, and as pahole makes BTF of DWARF.
#[test]
fn layouts_of_btf_and_ctf() {
    let fixtures = Fixtures::new();
    let mut all = Vec::new();
    all.extend(fixtures.build("gcc", &["-gbtf", "-O2"], "server.c"));
    all.extend(fixtures.build("gcc", &["-gctf", "-O2"], "server.c"));
    // Functions and variables that the dynamic loader knows are described.
    let exported = ["-gctf", "-O1", "-rdynamic"];
    all.extend(fixtures.build("gcc", &exported, "server.c"));
    if let Some(program) = fixtures.build("gcc", &["-g", "-gdwarf-4"], "server.c") {
        match Command::new("pahole").arg("-J").arg(&program).status() {
            Ok(done) if done.success() => {
                let stripped = Command::new("strip")
                    .args(["-g", "--keep-section=.BTF"])
                    .arg(&program)
                    .status();
                assert!(stripped.is_ok_and(|done| done.success()));
                all.push(program);
            }
            _ => skip("pahole is not installed"),
        }
    }
    for program in &all {
        let debug = debug(program);
        let types = types(&debug);
        assert!(debug.section(".debug_info").1.is_empty() && debug.has_types());
        assert_eq!(
            compare(&types, &output(program)),
            24,
            "{}",
            program.display()
        );
        let whole = types.definition(ty(&types, "struct conn"), false);
        assert!(
            whole.contains("int (*handler)(conn_t *, const char *, ...);"),
            "{whole}"
        );
        assert!(whole.contains("enum state state : 8;"), "{whole}");
        if program.to_string_lossy().contains("rdynamic") {
            let handle = types.signature("handle").expect("a function");
            assert_eq!(handle.parameters.len(), 6);
            assert_eq!(types.name(handle.parameters[3].1), "struct big");
            let (ty, place) = types.variable("all").expect("a variable");
            assert_eq!(types.name(ty), "struct conn");
            assert!(
                matches!(place, windlass_types::Place::Address(_)),
                "{place:?}"
            );
        }
    }
}

/// The kernel's types: the names that tracing needs, parameters of functions, and a module's types behind the kernel's.
#[test]
fn the_kernel_has_types() {
    let Ok(kernel) = windlass_target::debug::of_kernel("vmlinux") else {
        return skip("this kernel has no BTF");
    };
    let types = Types::of_btf(&kernel, None);
    let task = ty(&types, "struct task_struct");
    let comm = types.member(task, "comm").expect("a member");
    let comm = comm.member().expect("a member").ty;
    assert_eq!(types.name(comm), "char [16]");
    let signature = types.signature("vfs_read").expect("a function");
    let words = signature
        .parameters
        .iter()
        .map(|(name, ty)| types.declaration(*ty, name));
    let words: Vec<_> = words.collect();
    assert_eq!(words.first().map(String::as_str), Some("struct file *file"));
    assert_eq!(types.size(signature.returns), Some(8));
    let modules = std::fs::read_dir("/sys/kernel/btf").expect("the directory");
    let mut modules = modules.map(|entry| entry.expect("an entry").file_name());
    let Some(module) = modules.find(|name| Path::new(name) != Path::new("vmlinux")) else {
        return skip("this kernel has no modules");
    };
    let module = windlass_target::debug::of_kernel(&module.to_string_lossy()).expect("readable");
    let both = Types::of_btf(&module, Some(&kernel));
    assert_eq!(both.size(ty(&both, "struct task_struct")), types.size(task));
}

/// Runs a program of the toolchain; `false`, and a line, if this machine has none.
fn run(program: &str, arguments: &[&Path]) -> bool {
    match Command::new(program).args(arguments).output() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            skip(&format!("{program} is not installed"));
            false
        }
        done => {
            let done = done.expect("started");
            let why = String::from_utf8_lossy(&done.stderr);
            assert!(done.status.success(), "{program} {arguments:?}: {why}");
            true
        }
    }
}

/// Units that lie in files of their own, and in a package; without both the program says nothing, and nothing wrong.
#[test]
fn layouts_of_split_units() {
    let fixtures = Fixtures::new();
    let cases = [
        ("gcc", vec!["-gdwarf-4"]),
        ("gcc", vec!["-gdwarf-5", "-fdebug-types-section"]),
        ("clang", vec!["-gdwarf-5"]),
        ("clang", vec!["-gdwarf-4", "-fdebug-types-section"]),
    ];
    for (compiler, mut arguments) in cases {
        let version = arguments[0];
        arguments.extend(["-g", "-O2", "-gsplit-dwarf"]);
        let Some(program) = fixtures.build(compiler, &arguments, "server.c") else {
            continue;
        };
        let printed = output(&program);
        let check = |from: &str| {
            let debug = debug(&program);
            let types = types(&debug);
            let why = format!("{compiler} {arguments:?} {from}: {:?}", debug.looked_in());
            println!("{why}");
            assert_eq!(compare(&types, &printed), 24);
            assert_eq!(types.skipped(), 0);
            let handle = types.functions("handle").expect("not interrupted");
            let function = types.at(handle[0].low_pc).expect(&why);
            assert_eq!(function.parameters.len(), 6, "{why}");
            let line = types.line(handle[0].low_pc).expect(&why);
            assert!(line.file.ends_with("server.c") && line.line > 0, "{why}");
        };
        check("apart");
        let units = std::fs::read_dir(program.parent().expect("a directory")).expect("readable");
        let units = units.map(|entry| entry.expect("an entry").path());
        let units: Vec<_> = units
            .filter(|path| path.extension().is_some_and(|end| end == "dwo"))
            .collect();
        assert!(!units.is_empty());
        let package = program.with_extension("dwp");
        let arguments = [Path::new("-e"), &program, Path::new("-o"), &package];
        // llvm-dwp 14 does not end on gcc's units of one type in DWARF 5.
        let is_packed = (compiler, version) != ("gcc", "-gdwarf-5") && run("llvm-dwp", &arguments);
        for unit in units {
            std::fs::remove_file(unit).expect("there");
        }
        if is_packed {
            check("packed");
            std::fs::remove_file(package).expect("there");
        }
        let debug = debug(&program);
        let found = types(&debug).named(Kind::Struct, "conn");
        assert_eq!(
            found,
            Err(windlass_types::LookupError::Absent("conn".to_owned()))
        );
    }
}

/// What two programs share (dwz) is found by its name and build id, and not taken if that is another.
#[test]
fn layouts_of_shared_data() {
    let fixtures = Fixtures::new();
    for version in ["-gdwarf-4", "-gdwarf-5"] {
        let arguments = ["-g", "-O2", version];
        let Some(program) = fixtures.build("gcc", &arguments, "server.c") else {
            continue;
        };
        let other = program.with_extension("other");
        std::fs::copy(&program, &other).expect("copied");
        let shared = program.with_extension("shared");
        if !run("dwz", &[Path::new("-m"), &shared, &program, &other]) {
            return;
        }
        {
            let debug = debug(&program);
            let types = types(&debug);
            assert_eq!(compare(&types, &output(&program)), 24, "{version}");
            assert_eq!(types.skipped(), 0);
        }
        let mut bytes = std::fs::read(&shared).expect("there");
        let id = windlass_target::Elf::new(std::fs::File::open(&shared).expect("there"));
        let id = id.expect("an ELF file").build_id();
        let at = bytes.windows(id.len()).position(|part| part == id);
        bytes[at.expect("in it")] ^= 1;
        std::fs::write(&shared, bytes).expect("written");
        let debug = debug(&program);
        let types = types(&debug);
        assert!(types.named(Kind::Struct, "conn").is_err(), "{version}");
        assert!(
            debug
                .looked_in()
                .iter()
                .any(|place| place.ends_with(".shared"))
        );
    }
}

/// The types of the C fixture as a person writes them, without debug data: sizes and offsets are what the program prints; so are those of what
/// the preprocessor makes of its headers.
#[test]
fn layouts_of_declarations() {
    let fixtures = Fixtures::new();
    let Some(program) = fixtures.build("gcc", &["-O2"], "server.c") else {
        return;
    };
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/server.c");
    let text = std::fs::read_to_string(&source).expect("readable");
    let first = text.find("struct addr {").expect("the first type");
    let last = text.find("struct opaque;").expect("behind the last");
    let types = Types::default();
    let found = types.declare(&text[first..last]).expect("declarations");
    assert_eq!(found.len(), 5, "{found:?}");
    let printed = output(&program);
    assert_eq!(
        compare(&types, &printed),
        23,
        "all but uint16_t, which is C's"
    );
    let whole = types.definition(ty(&types, "struct conn"), false);
    assert!(
        whole.contains("int (*handler)(conn_t *, char *, ...);"),
        "{whole}"
    );
    types
        .declare("struct __attribute__((packed)) tight { char a; long b; short c : 3, d : 14; }; struct odd { char a; int : 0; char b; };")
        .expect("declarations");
    let (tight, odd) = (ty(&types, "struct tight"), ty(&types, "struct odd"));
    assert_eq!((types.size(tight), types.size(odd)), (Some(12), Some(5)));
    let bits = |name| types.member(tight, name).map(|path| path.bit_offset());
    assert_eq!(
        [bits("b"), bits("c"), bits("d")],
        [Some(8), Some(72), Some(75)]
    );
}
