//! Places of arguments, compared with what registers and memory have at that instruction.

#[allow(dead_code)]
mod common;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use common::{Fixtures, debug, types};
use windlass_types::{Function, Place, Types};

/// A program that stands at an instruction.
struct Stop {
    /// Registers by DWARF's number.
    registers: BTreeMap<u16, u64>,
    /// Words, from the red zone below the stack pointer on.
    stack: Vec<u64>,
}

const REGISTERS: [&str; 16] = [
    "rax", "rdx", "rcx", "rbx", "rsi", "rdi", "rbp", "rsp", "r8", "r9", "r10", "r11", "r12", "r13",
    "r14", "r15",
];

/// Runs a program until it is at an instruction; `None` if there is no gdb.
fn stop(program: &Path, pc: u64) -> Option<Stop> {
    let mut gdb = Command::new("gdb");
    gdb.args([
        "-nx",
        "-batch",
        "-ex",
        &format!("break *{pc:#x}"),
        "-ex",
        "run",
    ]);
    for (number, name) in REGISTERS.iter().enumerate() {
        gdb.args([
            "-ex",
            &format!("printf \"register {number} %lu\\n\", ${name}"),
        ]);
    }
    for at in 0..64 {
        gdb.args([
            "-ex",
            &format!("printf \"stack {at} %lu\\n\", ((unsigned long *)($rsp-128))[{at}]"),
        ]);
    }
    let done = match gdb.arg(program).output() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            common::skip("gdb is not installed");
            return None;
        }
        done => done.expect("started"),
    };
    let text = String::from_utf8_lossy(&done.stdout);
    let words = |kind: &'static str| {
        let lines = text.lines().filter_map(move |line| line.strip_prefix(kind));
        lines.filter_map(|line| {
            let (number, value) = line.trim().split_once(' ')?;
            Some((number.parse::<u16>().ok()?, value.parse::<u64>().ok()?))
        })
    };
    let registers: BTreeMap<_, _> = words("register").collect();
    assert_eq!(
        registers.len(),
        16,
        "{text}{}",
        String::from_utf8_lossy(&done.stderr)
    );
    let stack = words("stack").map(|(_, value)| value).collect();
    Some(Stop { registers, stack })
}

impl Stop {
    fn word(&self, address: u64) -> u64 {
        let at = address
            .checked_sub(self.registers[&7] - 128)
            .expect("on the stack");
        let at = usize::try_from(at).expect("small");
        let bytes: Vec<u8> = self
            .stack
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect();
        u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
    }

    /// The first word of a value; `None` if it is absent.
    fn value(&self, types: &Types<'_>, pc: u64, place: &Place) -> Option<u64> {
        Some(match place {
            Place::Register(number) => *self.registers.get(number)?,
            Place::Memory { register, offset } => {
                self.word(self.registers[register].wrapping_add_signed(*offset))
            }
            Place::Cfa(offset) => {
                let (register, more) = types.cfa(pc).expect("a frame");
                self.word(self.registers[&register].wrapping_add_signed(offset + more))
            }
            Place::Constant(value) => *value,
            _ => return None,
        })
    }
}

/// What was found of arguments.
#[derive(Debug, Default, PartialEq)]
struct Count {
    right: usize,
    absent: usize,
}

/// Compares the arguments of a function at an instruction. Names and values, each with its bits.
fn compare(
    types: &Types<'_>,
    program: &Path,
    function: &Function,
    pc: u64,
    known: &[(&str, u64, u32)],
    count: &mut Count,
) {
    let Some(stop) = stop(program, pc) else {
        return;
    };
    for parameter in function.parameters.iter().chain(&function.locals) {
        let Some((name, value, bits)) = known.iter().find(|(name, ..)| *name == &*parameter.name)
        else {
            continue;
        };
        match stop.value(types, pc, &parameter.place) {
            Some(found) => {
                let mask = u64::MAX >> (64 - bits);
                let what = (program, &function.reference.name, name, &parameter.place);
                assert_eq!(found & mask, *value, "{what:?} at {pc:#x}");
                count.right += 1;
            }
            None => {
                assert!(matches!(
                    parameter.place,
                    Place::Absent(_) | Place::Register(17..)
                ));
                count.absent += 1;
            }
        }
    }
}

/// The arguments of plain functions, clones and inlined copies are where they are said to be, at the entry and behind the prologue; gcc and
/// clang, with and without optimization. None is wrong, and behind the prologue none of a plain function is absent.
#[test]
fn arguments_are_where_they_are_said_to_be() {
    let fixtures = Fixtures::new();
    for compiler in ["gcc", "clang"] {
        for (version, level) in [
            ("-gdwarf-5", "-O0"),
            ("-gdwarf-4", "-O2"),
            ("-gdwarf-5", "-O2"),
            ("-gsplit-dwarf", "-O2"),
        ] {
            let arguments = ["-g", "-no-pie", version, level];
            let Some(program) = fixtures.build(compiler, &arguments, "server.c") else {
                continue;
            };
            let debug = debug(&program);
            let types = types(&debug);
            let Ok((_, Place::Address(all))) = types.variable("all") else {
                panic!("a variable");
            };
            let known = [
                ("r", all, 64),
                ("c", all, 64),
                ("b", 1, 64),
                ("s", 11, 16),
                ("v", 11, 16),
                ("unused", 1, 32),
                ("k", 42, 32),
                ("w", 2.5_f64.to_bits(), 64),
            ];
            let mut seen = Vec::new();
            for pattern in ["handle", "inner", "twice"] {
                for reference in types.functions(pattern).expect("functions") {
                    let entry = reference.low_pc;
                    let function = types.function(&reference, entry).expect("at its entry");
                    assert!(
                        function
                            .reference
                            .file
                            .as_ref()
                            .is_some_and(|f| f.ends_with("server.c"))
                    );
                    let mut at_entry = Count::default();
                    compare(&types, &program, &function, entry, &known, &mut at_entry);
                    let body = function.body_pc;
                    let function = types.function(&reference, body).expect("in its body");
                    let mut in_body = Count::default();
                    compare(&types, &program, &function, body, &known, &mut in_body);
                    // Without optimization everything is stored; with it, only the value in a floating-point register is not read here.
                    match level {
                        "-O0" => assert_eq!(in_body.absent, 0, "{function:?}"),
                        _ if pattern == "handle" => assert_eq!(at_entry.absent, 1),
                        _ => {}
                    }
                    seen.push((reference.name, reference.is_inline, at_entry, in_body));
                }
            }
            println!("{compiler} {version} {level}: {seen:?}");
            assert!(seen.len() >= 2);
        }
    }
}
