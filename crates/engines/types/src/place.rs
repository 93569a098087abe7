//! Where a value is.

use std::rc::Rc;

use gimli::{
    AttributeValue, BaseAddresses, CfaRule, DebugFrame, EhFrame, EhFrameHdr, EndianSlice,
    FrameDescriptionEntry, LittleEndian, Operation, UnwindContext, UnwindSection,
};

use crate::dwarf::{Dwarf, Entry, Reader, Unit, Value};
use crate::graph::Types;
use crate::split::{Load, Part};
use crate::{STEPS_MAX, Section};

/// Where a value is at one instruction. Registers have DWARF's numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// It is what the register has.
    Register(u16),
    /// In memory, at what the register has plus `offset`.
    Memory {
        /// The register.
        register: u16,
        /// What is added.
        offset: i64,
    },
    /// In memory, so far from the canonical frame address; [`Types::cfa`] says where that is.
    Cfa(i64),
    /// In memory, at this address of the file.
    Address(u64),
    /// In memory, at the word that lies at `base`, plus `offset`.
    Indirect {
        /// Where the word is; never a constant.
        base: Box<Place>,
        /// What is added.
        offset: i64,
    },
    /// It is an address: that of what lies at this place.
    AddressOf(Box<Place>),
    /// It is this number.
    Constant(u64),
    /// It is these bytes.
    Bytes(Rc<[u8]>),
    /// It consists of parts, one behind the other.
    Pieces(Vec<Piece>),
    /// It is nowhere; the text says why.
    Absent(&'static str),
}

impl Place {
    /// Whether the value is not there yet, in the prologue of its function, and is behind it.
    pub fn is_later(&self) -> bool {
        *self == LATER
    }
}

/// A part of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// Where it is.
    pub place: Place,
    /// How many bytes it has.
    pub bytes: u32,
}

/// Why a value that the compiler dropped is not there.
pub(crate) const OPTIMIZED: Place = Place::Absent("optimized out");
/// Why a value is not there before the function has stored it.
const LATER: Place = Place::Absent("not stored before the end of the prologue");
/// Why a variable of a table of types is not there.
pub(crate) const BY_SYMBOL: Place = Place::Absent("only the table of symbols has its address");
const BROKEN: Place = Place::Absent("a broken location");
const COMPUTED: Place = Place::Absent("computed by a program");

/// What says where frames begin.
#[derive(Default)]
pub(crate) struct Tables<'a> {
    eh: Section<'a>,
    eh_header: Section<'a>,
    debug: Section<'a>,
    text: u64,
}

impl<'a> Tables<'a> {
    pub(crate) fn of(load: Load<'_, 'a>) -> Self {
        let load = |name| load(Part::Own, name);
        Self {
            eh: load(".eh_frame"),
            eh_header: load(".eh_frame_hdr"),
            debug: load(".debug_frame"),
            text: load(".text").address,
        }
    }

    fn bases(&self) -> BaseAddresses {
        BaseAddresses::default()
            .set_eh_frame(self.eh.address)
            .set_eh_frame_hdr(self.eh_header.address)
            .set_text(self.text)
    }

    /// The entry of `.eh_frame` that an instruction unwinds by, found by its table if there is one.
    fn entry(&self, pc: u64) -> Option<FrameDescriptionEntry<EndianSlice<'a, LittleEndian>>> {
        let bases = self.bases();
        let eh = EhFrame::new(self.eh.bytes, LittleEndian);
        let header = EhFrameHdr::new(self.eh_header.bytes, LittleEndian).parse(&bases, 8);
        let table = header.as_ref().ok().and_then(|header| header.table());
        let from = EhFrame::cie_from_offset;
        let found = match table {
            Some(table) => table.fde_for_address(&eh, &bases, pc, from),
            None => eh.fde_for_address(&bases, pc, from),
        };
        found.ok()
    }

    fn cfa(&self, pc: u64) -> Option<(u16, i64)> {
        let bases = self.bases();
        if let Some(entry) = self.entry(pc) {
            let eh = EhFrame::new(self.eh.bytes, LittleEndian);
            let mut context = UnwindContext::new();
            if let Ok(row) = entry.unwind_info_for_address(&eh, &bases, &mut context, pc) {
                return rule(row.cfa());
            }
        }
        let debug = DebugFrame::new(self.debug.bytes, LittleEndian);
        let mut context = UnwindContext::new();
        let from = DebugFrame::cie_from_offset;
        let row = debug.unwind_info_for_address(&bases, &mut context, pc, from);
        rule(row.ok()?.cfa())
    }
}

fn rule(rule: &CfaRule<usize>) -> Option<(u16, i64)> {
    match rule {
        CfaRule::RegisterAndOffset { register, offset } => Some((register.0, *offset)),
        CfaRule::Expression(_) => None,
    }
}

impl Types<'_> {
    /// Where the canonical frame address is at an instruction: in which register, and what is added.
    pub fn cfa(&self, pc: u64) -> Option<(u16, i64)> {
        self.tables.cfa(pc)
    }

    /// Where the code begins that an instruction unwinds with: a function, or a part of one. The table that says so is what the program
    /// itself unwinds by.
    pub fn frame_start(&self, pc: u64) -> Option<u64> {
        Some(self.tables.entry(pc)?.initial_address())
    }
}

/// What locations in a function need.
pub(crate) struct Frame<'d, 'a> {
    pub(crate) dwarf: &'d Dwarf<'a>,
    pub(crate) unit: Rc<Unit<'a>>,
    /// The instruction.
    pub(crate) pc: u64,
    /// Where the function is entered.
    pub(crate) low_pc: u64,
    /// Where its prologue ends.
    pub(crate) body_pc: u64,
    /// Where the canonical frame address is at an instruction.
    pub(crate) cfa: &'d dyn Fn(u64) -> Option<(u16, i64)>,
    /// The location of its frame base.
    pub(crate) base: Option<Value<'a>>,
}

/// An intermediate result: an address of this place, or a number.
#[derive(Debug, Clone)]
enum Step {
    At(Place),
    Number(u64),
}

impl Step {
    fn plus(self, more: i64) -> Option<Self> {
        Some(match self {
            Self::Number(value) => Self::Number(value.wrapping_add_signed(more)),
            Self::At(place) => Self::At(match place {
                Place::Memory { register, offset } => Place::Memory {
                    register,
                    offset: offset.wrapping_add(more),
                },
                Place::Cfa(offset) => Place::Cfa(offset.wrapping_add(more)),
                Place::Address(address) => Place::Address(address.wrapping_add_signed(more)),
                Place::Indirect { base, offset } => Place::Indirect {
                    base,
                    offset: offset.wrapping_add(more),
                },
                _ => return None,
            }),
        })
    }
}

impl<'a> Frame<'_, 'a> {
    /// Where a variable or parameter is.
    pub(crate) fn place(&self, entry: &Entry<'a>) -> Place {
        if let Some(value) = entry.attr_value(gimli::DW_AT_const_value) {
            return constant(&self.unit, &value);
        }
        match entry.attr_value(gimli::DW_AT_location) {
            Some(value) => {
                let place = self.located(&value, true);
                // A list says for which instructions it holds; one location holds when the prologue has stored the value.
                let is_list = !matches!(value, AttributeValue::Exprloc(_));
                if is_list || !(self.low_pc..self.body_pc).contains(&self.pc) {
                    return place;
                }
                self.in_prologue(place)
            }
            None => OPTIMIZED,
        }
    }

    /// A place that holds behind the prologue, in the prologue. What lies in the frame is not stored yet; above it, the caller stored it.
    fn in_prologue(&self, place: Place) -> Place {
        let later = LATER;
        match place {
            Place::Cfa(offset) if offset < 0 => later,
            Place::Memory { register, offset } => match (self.cfa)(self.body_pc) {
                Some((base, above)) if base == register && offset >= above => {
                    Place::Cfa(offset.wrapping_sub(above))
                }
                _ => later,
            },
            Place::Indirect { .. } | Place::AddressOf(_) => later,
            Place::Pieces(pieces) => Place::Pieces(
                pieces
                    .into_iter()
                    .map(|piece| Piece {
                        place: match piece.place {
                            Place::Pieces(_) => later.clone(),
                            place => self.in_prologue(place),
                        },
                        ..piece
                    })
                    .collect(),
            ),
            place => place,
        }
    }

    /// The place that a location says, or the entry of a list of locations for this instruction.
    fn located(&self, value: &Value<'a>, may_use_base: bool) -> Place {
        if let AttributeValue::Exprloc(expression) = value {
            return self.evaluate(*expression, may_use_base);
        }
        let list = self.unit.sections.attr_locations(&self.unit, *value);
        let Ok(Some(mut list)) = list else {
            return BROKEN;
        };
        for _ in 0..STEPS_MAX {
            match list.next() {
                Ok(Some(found)) if (found.range.begin..found.range.end).contains(&self.pc) => {
                    return self.evaluate(found.data, may_use_base);
                }
                Ok(Some(_)) => {}
                Ok(None) => return OPTIMIZED,
                Err(_) => return BROKEN,
            }
        }
        BROKEN
    }

    /// Address of the frame base.
    fn base(&self) -> Option<Place> {
        match self.located(self.base.as_ref()?, false) {
            Place::Register(register) => Some(Place::Memory {
                register,
                offset: 0,
            }),
            // A frame base is an address: DW_OP_call_frame_cfa is the CFA itself.
            place @ (Place::Cfa(_) | Place::Memory { .. }) => Some(place),
            _ => None,
        }
    }

    fn evaluate(&self, expression: gimli::Expression<Reader<'a>>, may_use_base: bool) -> Place {
        if expression.0.is_empty() {
            return OPTIMIZED;
        }
        let mut operations = expression.operations(self.unit.encoding());
        let mut stack: Vec<Step> = Vec::new();
        // What is complete already: the location of the piece that follows.
        let mut whole: Option<Place> = None;
        let mut pieces = Vec::new();
        for _ in 0..STEPS_MAX {
            let operation = match operations.next() {
                Ok(Some(operation)) => operation,
                Ok(None) => {
                    let place = whole.or_else(|| stack.pop().map(memory));
                    return match (pieces.is_empty(), place) {
                        (true, Some(place)) => place,
                        (true, None) => BROKEN,
                        (false, _) => Place::Pieces(pieces),
                    };
                }
                Err(_) => return BROKEN,
            };
            if let Operation::Piece {
                size_in_bits,
                bit_offset,
            } = operation
            {
                let bytes = u32::try_from(size_in_bits / 8).unwrap_or(u32::MAX);
                if !size_in_bits.is_multiple_of(8) || bit_offset.is_some_and(|at| at != 0) {
                    return COMPUTED;
                }
                let place = whole.take().or_else(|| stack.pop().map(memory));
                pieces.push(Piece {
                    place: place.unwrap_or(OPTIMIZED),
                    bytes,
                });
                continue;
            }
            match self.step(operation, &mut stack, may_use_base) {
                Ok(Some(place)) => whole = Some(place),
                Ok(None) => {}
                Err(why) => return why,
            }
        }
        BROKEN
    }

    /// Does one operation. Returns a location that it completes.
    fn step(
        &self,
        operation: Operation<Reader<'a>>,
        stack: &mut Vec<Step>,
        may_use_base: bool,
    ) -> Result<Option<Place>, Place> {
        let push = |stack: &mut Vec<Step>, step| {
            stack.push(step);
            Ok(None)
        };
        match operation {
            Operation::Register { register } => Ok(Some(Place::Register(register.0))),
            Operation::RegisterOffset {
                register, offset, ..
            } => {
                let register = register.0;
                push(stack, Step::At(Place::Memory { register, offset }))
            }
            Operation::FrameOffset { offset } => {
                let base = if may_use_base { self.base() } else { None };
                let base = base.ok_or(Place::Absent("no frame base"))?;
                let step = Step::At(base).plus(offset).ok_or(COMPUTED)?;
                push(stack, step)
            }
            Operation::CallFrameCFA => push(stack, Step::At(Place::Cfa(0))),
            Operation::Address { address } => push(stack, Step::At(Place::Address(address))),
            Operation::AddressIndex { index } => {
                let address = self.unit.sections.address(&self.unit, index);
                let address = address.map_err(|_| BROKEN)?;
                push(stack, Step::At(Place::Address(address)))
            }
            Operation::UnsignedConstant { value } => push(stack, Step::Number(value)),
            Operation::SignedConstant { value } => push(stack, Step::Number(value.cast_unsigned())),
            Operation::PlusConstant { .. }
            | Operation::Plus
            | Operation::Minus
            | Operation::Deref {
                size: 8,
                space: false,
                ..
            } => {
                let step = combine(&operation, stack)?;
                push(stack, step)
            }
            Operation::StackValue => match stack.pop().ok_or(BROKEN)? {
                Step::Number(value) => Ok(Some(Place::Constant(value))),
                // A register and nothing added, as a value.
                Step::At(Place::Memory {
                    register,
                    offset: 0,
                }) => Ok(Some(Place::Register(register))),
                Step::At(Place::Indirect { base, offset: 0 }) => Ok(Some(*base)),
                Step::At(place) => Ok(Some(Place::AddressOf(Box::new(place)))),
            },
            Operation::ImplicitValue { data } => Ok(Some(bytes(data.slice()))),
            Operation::EntryValue { expression } => self.entry_value(expression).map(|step| {
                stack.push(step);
                None
            }),
            Operation::Nop => Ok(None),
            Operation::TLS => Err(Place::Absent("a variable of its thread")),
            Operation::ImplicitPointer { .. } => {
                Err(Place::Absent("a pointer to what was optimized out"))
            }
            Operation::ParameterRef { .. } => Err(Place::Absent("known to the caller only")),
            _ => Err(COMPUTED),
        }
    }

    /// What a register had when the function was entered: known where it is entered.
    fn entry_value(&self, expression: Reader<'a>) -> Result<Step, Place> {
        if self.pc != self.low_pc {
            return Err(Place::Absent("known at entry only"));
        }
        let expression = gimli::Expression(expression);
        let mut operations = expression.operations(self.unit.encoding());
        match operations.next() {
            Ok(Some(Operation::Register { register })) => Ok(Step::At(Place::Memory {
                register: register.0,
                offset: 0,
            })),
            _ => Err(COMPUTED),
        }
    }
}

/// What an operation makes of the results before.
fn combine(operation: &Operation<Reader<'_>>, stack: &mut Vec<Step>) -> Result<Step, Place> {
    let right = stack.pop().ok_or(BROKEN)?;
    let combined = match (operation, right) {
        (Operation::PlusConstant { value }, step) => step.plus(value.cast_signed()),
        (Operation::Deref { .. }, Step::At(place)) => Some(Step::At(Place::Indirect {
            base: Box::new(place),
            offset: 0,
        })),
        (Operation::Plus | Operation::Minus, right) => {
            let left = stack.pop().ok_or(BROKEN)?;
            match (left, right, operation) {
                (left, Step::Number(right), Operation::Minus) => {
                    left.plus(right.cast_signed().wrapping_neg())
                }
                (left, Step::Number(right), _) => left.plus(right.cast_signed()),
                (Step::Number(left), right, Operation::Plus) => right.plus(left.cast_signed()),
                _ => None,
            }
        }
        _ => None,
    };
    combined.ok_or(COMPUTED)
}

/// The location that an address is of. A number is an address of the program, which is none of the file.
fn memory(step: Step) -> Place {
    match step {
        Step::At(place) => place,
        Step::Number(_) => COMPUTED,
    }
}

fn bytes(bytes: &[u8]) -> Place {
    match bytes.len() {
        0 => OPTIMIZED,
        1..=8 => {
            let mut word = [0; 8];
            for (into, from) in word.iter_mut().zip(bytes) {
                *into = *from;
            }
            Place::Constant(u64::from_le_bytes(word))
        }
        _ => Place::Bytes(bytes.into()),
    }
}

fn constant<'a>(unit: &Unit<'a>, value: &Value<'a>) -> Place {
    match value {
        AttributeValue::Block(block) => bytes(block.slice()),
        AttributeValue::Sdata(value) => Place::Constant(value.cast_unsigned()),
        value => match value.udata_value() {
            Some(value) => Place::Constant(value),
            None => match unit.sections.attr_string(unit, *value) {
                Ok(text) => Place::Bytes(text.slice().into()),
                Err(_) => BROKEN,
            },
        },
    }
}

/// A location outside of every function, such as that of a global variable.
pub(crate) fn fixed<'a>(dwarf: &Dwarf<'a>, unit: Rc<Unit<'a>>, entry: &Entry<'a>) -> Place {
    let frame = Frame {
        dwarf,
        unit,
        pc: 0,
        low_pc: 1,
        body_pc: 1,
        cfa: &|_| None,
        base: None,
    };
    frame.place(entry)
}
