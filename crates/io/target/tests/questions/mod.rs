//! Everything that can be asked of debug data. Shared with the fuzz target `types`.

use std::collections::BTreeMap;

use windlass_types::print::{Limits, Nothing, VALUE_MAX};
use windlass_types::{Kind, Node, Part, Section, TYPE_FILE, TypeId, Types};

/// The sections that are changed. New ones go behind the others: inputs that are kept have their numbers.
pub const NAMES: [&str; 25] = [
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
    ".BTF",
    ".ctf",
    ".dynsym",
    ".dynstr",
    TYPE_FILE,
    ".debug_types",
    ".debug_info.dwo",
    ".debug_abbrev.dwo",
    ".debug_str.dwo",
    ".debug_str_offsets.dwo",
    ".debug_cu_index",
    // Not a section: C's declarations.
    DECLARATIONS,
];

/// The name under which declarations are given.
const DECLARATIONS: &str = "declarations";

/// Sections by name: address and content.
pub type Sections = BTreeMap<&'static str, (u64, Vec<u8>)>;

/// The sections that bytes hold: each begins with its number and its length, two bytes.
pub fn parse(data: &[u8]) -> Sections {
    let mut sections = Sections::new();
    let mut rest = data;
    while let [number, low, high, after @ ..] = rest {
        let len = usize::from(u16::from_le_bytes([*low, *high])).min(after.len());
        let (content, after) = after.split_at(len);
        let name = NAMES[usize::from(*number) % NAMES.len()];
        sections.insert(name, (0, content.to_vec()));
        rest = after;
    }
    sections
}

/// Asks everything that can be asked. Returns how many functions there were.
pub fn ask(sections: &Sections) -> usize {
    // Units that lie apart, and what is shared, are the same sections: what refers to them goes in circles.
    let load = |_: Part, name: &'static str| match sections.get(name) {
        Some((address, bytes)) => Section {
            address: *address,
            bytes,
        },
        None => Section::default(),
    };
    assert!(windlass_types::skeletons(&load).len() <= 1 << 16);
    let types = Types::of_parts(&load);
    if let Some((_, text)) = sections.get(DECLARATIONS) {
        let _ = types.declare(&String::from_utf8_lossy(text));
    }
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
        } else if found.kind == Kind::Function {
            let signature = types.signature(&found.name).into_iter();
            seen.extend(
                signature
                    .flat_map(|signature| signature.parameters)
                    .map(|(_, ty)| ty),
            );
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
