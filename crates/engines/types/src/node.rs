//! What a type is.

use std::rc::Rc;

/// A type of one [`Types`](crate::Types). [`TypeId::VOID`] is in all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TypeId(pub(crate) u32);

impl TypeId {
    /// The type `void`.
    pub const VOID: Self = Self(0);
}

/// How the bits of a number are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// Two's complement.
    Signed,
    /// Unsigned.
    Unsigned,
    /// `false` or `true`.
    Bool,
    /// A byte of text, signed.
    SignedChar,
    /// A byte of text, unsigned.
    UnsignedChar,
    /// A character of Unicode: `char32_t`, Rust's `char`.
    Unicode,
}

impl Encoding {
    /// Whether a value is extended by its sign.
    pub fn is_signed(self) -> bool {
        matches!(self, Self::Signed | Self::SignedChar)
    }
}

/// How a pointer is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PointerKind {
    /// `T *`
    Pointer,
    /// `T &`
    Reference,
    /// `T &&`
    RvalueReference,
}

/// The keyword of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RecordKind {
    /// `struct`; in C++ also `class`.
    Struct,
    /// `union`
    Union,
}

/// A type. Names are qualified: `net::Pool<int>`.
#[derive(Debug, Clone, PartialEq)]
pub enum Node {
    /// No value.
    Void,
    /// A number or character.
    Int {
        /// Its name.
        name: Rc<str>,
        /// Bytes.
        size: u64,
        /// How its bits are read.
        encoding: Encoding,
    },
    /// A floating-point number.
    Float {
        /// Its name.
        name: Rc<str>,
        /// Bytes.
        size: u64,
    },
    /// An address of something.
    Pointer {
        /// Of what.
        to: TypeId,
        /// Bytes.
        size: u64,
        /// How it is written.
        kind: PointerKind,
    },
    /// Elements behind one another. One of several dimensions is an array of arrays.
    Array {
        /// What the elements are.
        of: TypeId,
        /// How many; `None` if the type does not say.
        count: Option<u64>,
    },
    /// A `struct`, `class` or `union`, a Rust struct, tuple or enum.
    Record {
        /// Its keyword.
        kind: RecordKind,
        /// Its name, if it has one.
        name: Option<Rc<str>>,
        /// Bytes.
        size: u64,
        /// Members and bases, as they are declared. Static members are not among them.
        members: Rc<[Member]>,
        /// The arms of a Rust enum.
        variants: Option<Rc<Variants>>,
    },
    /// Named numbers.
    Enum {
        /// Its name, if it has one.
        name: Option<Rc<str>>,
        /// Bytes.
        size: u64,
        /// Whether a value is extended by its sign.
        is_signed: bool,
        /// Names and their numbers, as they are declared.
        values: Rc<[(Rc<str>, i128)]>,
    },
    /// Another name.
    Typedef {
        /// The name.
        name: Rc<str>,
        /// Of what.
        to: TypeId,
    },
    /// `const`, `volatile`, `restrict` or `_Atomic`.
    Qualified {
        /// The keyword.
        qualifier: &'static str,
        /// Of what.
        to: TypeId,
    },
    /// A function's type.
    Function {
        /// Its parameters.
        parameters: Rc<[TypeId]>,
        /// What it returns.
        returns: TypeId,
        /// More arguments may follow.
        is_variadic: bool,
    },
    /// A record or enum that is declared only; [`Types::complete`](crate::Types::complete) looks for its definition.
    Forward {
        /// How it is looked up.
        kind: crate::Kind,
        /// Its name.
        name: Rc<str>,
    },
    /// Not understood, or broken. The text says what was found.
    Unknown(Rc<str>),
}

/// A member of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its name; `None` if it is anonymous: then its own members count as the record's. A base has its type's name.
    pub name: Option<Rc<str>>,
    /// What it is.
    pub ty: TypeId,
    /// Where it begins.
    pub bit_offset: u64,
    /// How many bits, of a bit-field.
    pub bit_size: Option<u64>,
    /// It is a C++ base: its members count as the record's.
    pub is_base: bool,
    /// The compiler made it, such as a pointer to a table of virtual functions.
    pub is_artificial: bool,
}

/// The arms of a Rust enum.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variants {
    /// The number that says which arm it is; `None` if there is one arm only.
    pub discriminant: Option<Member>,
    /// The arms.
    pub arms: Rc<[Arm]>,
}

/// An arm of a Rust enum.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arm {
    /// The discriminants that mean it, each from one to another, both included; none: all that no other arm has.
    pub values: Vec<(i128, i128)>,
    /// What it has: one member, named after the arm.
    pub members: Rc<[Member]>,
}
