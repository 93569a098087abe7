//! Values and definitions as text: C, C++ and Rust.

#[allow(dead_code)]
mod common;

use std::fs::File;
use std::path::Path;

use common::{Fixtures, debug, output, types};
use windlass_target::Elf;
use windlass_types::print::{Limits, World};
use windlass_types::{Kind, Place, Types};

/// The memory of a program that did not start: what its file loads.
struct Image(Elf);

impl Image {
    fn of(program: &Path) -> Self {
        let file = File::open(program).expect("there");
        Self(Elf::new(file).expect("an ELF file"))
    }
}

impl World for Image {
    fn read(&self, at: u64, into: &mut [u8]) -> usize {
        for segment in self.0.segments().iter().filter(|segment| segment.kind == 1) {
            if (segment.address..segment.address + segment.memory_len).contains(&at) {
                let inner = at - segment.address;
                let there = segment.file_len.saturating_sub(inner) as usize;
                let there = there.min(into.len());
                // What the file does not have is zero.
                into[there..].fill(0);
                self.0.read(segment.offset + inner, &mut into[..there]);
                return into.len();
            }
        }
        0
    }
}

fn show(types: &Types<'_>, image: &Image, name: &str, limits: Limits) -> String {
    let (ty, place) = types
        .variable(name)
        .unwrap_or_else(|error| panic!("{error}"));
    let Place::Address(at) = place else {
        panic!("{name}: {place:?}");
    };
    let mut bytes = vec![0; types.size(ty).expect("a size") as usize];
    image.read(at, &mut bytes);
    hide_addresses(&types.show(ty, &bytes, image, limits))
}

/// Every hexadecimal number but 0x0 as `0x*`.
fn hide_addresses(text: &str) -> String {
    let mut parts = text.split("0x");
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part
            .find(|c: char| !c.is_ascii_hexdigit())
            .unwrap_or(part.len());
        out.push_str(if &part[..end] == "0" { "0x0" } else { "0x*" });
        out.push_str(&part[end..]);
    }
    out
}

/// A C object: bit-fields, an anonymous union, an array of arrays, text that is escaped, a pointer that is followed, and a list that is not.
#[test]
fn c_values() {
    let fixtures = Fixtures::new();
    for (compiler, options) in [
        ("gcc", ["-gdwarf-5", "-O0"]),
        ("gcc", ["-gdwarf-2", "-O2"]),
        ("clang", ["-gdwarf-4", "-O2"]),
    ] {
        let arguments = ["-g", "-no-pie", options[0], options[1]];
        let Some(program) = fixtures.build(compiler, &arguments, "server.c") else {
            continue;
        };
        let debug = debug(&program);
        let types = types(&debug);
        let image = Image::of(&program);
        assert_eq!(
            show(&types, &image, "all", Limits::default()),
            "struct conn { id = 7, addr = 0x* -> { ip = 16777343, port = 6379, name = \"localhost\" }, bytes = 1402, \
             state = BUSY, secure = 1, small = -3, { ratio = 2.1218338965e-314, { low = 2, high = -5 } }, grid = [[1, 2, 3], [4, 5, 6]], next = 0x*, \
             handler = 0x0, tag = 0x* \"a\\u{1b}[31mb\", wide = 737894404660, tail = [] }"
        );
        assert_eq!(
            show(&types, &image, "last", Limits::default())
                .split(", bytes")
                .next(),
            Some("struct conn { id = 9, addr = 0x0")
        );
        let none = Limits {
            pointers: 0,
            ..Limits::default()
        };
        assert!(
            show(&types, &image, "all", none)
                .starts_with("struct conn { id = 7, addr = 0x*, bytes")
        );
        assert!(show(&types, &image, "hidden", none).starts_with("0x0"));
    }
}

/// The definition of a record with its layout: offsets, holes and lines of the cache.
#[test]
fn definitions() {
    let fixtures = Fixtures::new();
    let Some(program) = fixtures.build("gcc", &["-g"], "server.c") else {
        return;
    };
    let debug = debug(&program);
    let types = types(&debug);
    let conn = types.named(Kind::Typedef, "conn_t").expect("a type");
    assert_eq!(
        types.definition(conn, true),
        "\
typedef struct conn conn_t;
struct conn {
    int id;                                  //     0        4
    // hole of 4 bytes
    struct addr *addr;                       //     8        8
    long unsigned int bytes;                 //    16        8
    enum state state : 8;                    //    24:0      4:8
    unsigned int secure : 1;                 //    25:0      4:1
    int small : 5;                           //    25:1      4:5
    // hole of 50 bits
    union {
        double ratio;                        //    32        8
        struct {
            short int low;                   //    32        2
            short int high;                  //    34        2
        };                                   //    32        4
    };                                       //    32        8
    int grid[2][3];                          //    40       24
    // cache line 1
    conn_t *next;                            //    64        8
    int (*handler)(conn_t *, const char *, ...); //    72        8
    volatile const char *const tag;          //    80        8
    uint64_t wide : 40;                      //    88:0      8:40
    char tail[];                             //    93        0
    // hole of 3 bytes
};
// 96 bytes, 2 cache lines
"
    );
}

/// Classes with bases, templates, references, scoped enums, nested and hidden types: sizes and offsets as the program prints them, and values.
#[test]
fn cpp_values() {
    let fixtures = Fixtures::new();
    for (compiler, level) in [("g++", "-O0"), ("g++", "-O2"), ("clang++", "-O2")] {
        let Some(program) = fixtures.build(compiler, &["-g", "-no-pie", level], "pool.cc") else {
            continue;
        };
        let debug = debug(&program);
        let types = types(&debug);
        compare(&types, &output(&program), 9);
        let hidden = show(
            &types,
            &Image::of(&program),
            "(anonymous)::hidden",
            Limits::default(),
        );
        assert!(hidden.ends_with("{ c = 120 'x', l = -2 }"), "{hidden}");
        let shared = show(
            &types,
            &Image::of(&program),
            "net::Other::shared",
            Limits::default(),
        );
        assert_eq!(shared, "12");
        let get = types.functions("net::Pool<int, 2>::get").expect("an index");
        let get = get.iter().find(|get| !get.is_inline).expect("a function");
        let function = types.at(get.low_pc).expect("at its entry");
        let names: Vec<_> = function
            .parameters
            .iter()
            .map(|p| (&*p.name, types.name(p.ty)))
            .collect();
        assert_eq!(
            names.iter().map(|(name, _)| *name).collect::<Vec<_>>(),
            ["this", "at"],
            "{names:?}"
        );
        assert_eq!(types.name(function.returns), "int");
        assert!(
            get.linkage_name
                .as_ref()
                .is_some_and(|name| name.starts_with("_ZN"))
        );
    }
}

fn compare(types: &Types<'_>, printed: &str, wanted: usize) {
    let mut count = 0;
    for line in printed.lines() {
        let (what, number) = line.rsplit_once(' ').expect("words");
        let found = if let Some(name) = what.strip_prefix("sizeof ") {
            let ty = types
                .spelled(name)
                .unwrap_or_else(|error| panic!("{error}"));
            types.size(ty)
        } else if let Some((name, member)) = what
            .strip_prefix("member ")
            .and_then(|what| what.rsplit_once(' '))
        {
            let ty = types
                .spelled(name)
                .unwrap_or_else(|error| panic!("{error}"));
            types.member(ty, member).map(|path| path.bit_offset())
        } else {
            continue;
        };
        assert_eq!(found, number.parse().ok(), "{line}");
        count += 1;
    }
    assert_eq!(count, wanted);
}

/// The variables of the Rust fixture.
fn rust_objects(types: &Types<'_>, image: &Image) {
    let all = show(types, image, "states::ALL", Limits::default());
    assert_eq!(
        all,
        "states::Conn { id = 7, state = Busy { since = 3, name = \"a\\u{1b}b\" }, next = Some(0x*), tag = None, \
     pair = (7, -7), small = Some(false), big = -3, letter = 'ß', ratio = 0.5, order = Less }"
    );
    let idle = show(types, image, "states::IDLE", Limits::default());
    assert!(
        idle.contains("state = Idle, next = None, tag = Some(\"tag\")"),
        "{idle}"
    );
    assert!(idle.contains("small = Some(true)"), "{idle}");
    let last = show(types, image, "states::LAST", Limits::default());
    assert!(
        last.contains("state = Lost(-4, 1099511627776), next = None"),
        "{last}"
    );
    assert!(last.contains("small = None"), "{last}");
}

/// The stripped program shows the same with a type file beside it, and nothing with that of another build.
fn installed(full: &Path) {
    let program = full.with_extension("stripped");
    let stripped = std::process::Command::new("strip")
        .args(["-g", "-o"])
        .args([&program, full])
        .status();
    assert!(stripped.is_ok_and(|done| done.success()));
    let whole = windlass_target::debug::type_file(full, &program).expect("a type file");
    let id = windlass_types::build_id(&whole).map(<[u8]>::to_vec);
    let mut beside = program.clone().into_os_string();
    beside.push(".types");
    std::fs::write(&beside, &whole).expect("written");
    println!(
        "{} bytes of types, {:?} of debug data",
        whole.len(),
        std::fs::metadata(full).map(|file| file.len())
    );
    {
        let debug = debug(&program);
        let types = types(&debug);
        compare(&types, &output(full), 7);
        rust_objects(&types, &Image::of(&program));
    }
    let mut other = whole.clone();
    other[9] ^= 1;
    assert_ne!(windlass_types::build_id(&other), id.as_deref());
    std::fs::write(&beside, &other).expect("written");
    let other = debug(&program);
    assert!(types(&other).variable("states::ALL").is_err());
    // Whatever is in it, nothing panics.
    let mut random = 88_172_645_463_325_252_u64;
    for round in 0..200 {
        let mut changed = whole.clone();
        for _ in 0..8 {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let at = (random >> 33) as usize % changed.len();
            changed[at] = (random >> 20) as u8;
        }
        if round % 4 == 0 {
            changed.truncate((random >> 33) as usize % whole.len());
        }
        let types = Types::open(&|name| windlass_types::Section {
            address: 0,
            bytes: if name == windlass_types::TYPE_FILE {
                &changed
            } else {
                &[]
            },
        });
        for found in types
            .search("*Conn*", &|kind| kind.is_type())
            .expect("names")
        {
            if let Ok(ty) = types.named(found.kind, &found.name) {
                assert!(types.definition(ty, true).len() < 64 << 20);
            }
        }
    }
}

/// Rust enums by their arms, with niches; text, tuples, references; sizes and offsets as the program prints them.
#[test]
fn rust_values() {
    let fixtures = Fixtures::new();
    for level in ["opt-level=0", "opt-level=2"] {
        let arguments = [
            "--edition=2024",
            "-g",
            "-C",
            "relocation-model=static",
            "-C",
            level,
        ];
        let Some(program) = fixtures.build("rustc", &arguments, "states.rs") else {
            continue;
        };
        let debug = debug(&program);
        let types = types(&debug);
        compare(&types, &output(&program), 7);
        let image = Image::of(&program);
        rust_objects(&types, &image);
        installed(&program);
        let weigh = types.functions("states::weigh").expect("an index");
        let weigh = types
            .at(weigh.first().expect("a function").low_pc)
            .expect("at its entry");
        let names: Vec<_> = weigh
            .parameters
            .iter()
            .map(|p| (&*p.name, types.name(p.ty)))
            .collect();
        assert_eq!(
            names,
            [
                ("conn", "states::Conn *".to_owned()),
                ("more", "&str".to_owned())
            ]
        );
    }
}
