//! What a clause says, before anything is known of types.

use crate::Span;

/// A filter, and what is done where it holds.
#[derive(Debug, Clone, PartialEq)]
pub struct Clause {
    /// What must hold; without it, nothing.
    pub filter: Option<Expr>,
    /// What is done.
    pub statements: Vec<Statement>,
}

/// One thing that is done at a hit.
#[derive(Debug, Clone, PartialEq)]
pub enum Statement {
    /// `print(a, b)`: a record with these values.
    Print(Vec<Expr>),
    /// `@name[keys] = aggregate`.
    Aggregate {
        /// Without the `@`; may be empty.
        name: String,
        /// What tells its lines apart.
        keys: Vec<Expr>,
        /// What is kept of each.
        how: Aggregate,
        /// Of what; `None` for a count.
        of: Option<Expr>,
        /// Where it stands.
        span: Span,
    },
}

/// What is kept of values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Aggregate {
    /// How many there are.
    Count,
    /// What they are together.
    Sum,
    /// The mean.
    Avg,
    /// The least.
    Min,
    /// The greatest.
    Max,
    /// How many there are of each power of two.
    Quantize,
}

impl Aggregate {
    /// All, with their names.
    pub const ALL: [(&'static str, Self); 6] = [
        ("count", Self::Count),
        ("sum", Self::Sum),
        ("avg", Self::Avg),
        ("min", Self::Min),
        ("max", Self::Max),
        ("quantize", Self::Quantize),
    ];
}

/// An expression, and where it stands.
#[derive(Debug, Clone, PartialEq)]
pub struct Expr {
    /// What it is.
    pub kind: ExprKind,
    /// In the text.
    pub span: Span,
}

/// What an expression is.
#[derive(Debug, Clone, PartialEq)]
pub enum ExprKind {
    /// A number.
    Integer(u64),
    /// A text.
    Text(String),
    /// An argument, or a word of the language's own.
    Name(String),
    /// `a.b` and `a->b`, which are one.
    Member(Box<Expr>, String),
    /// `a[b]`
    Index(Box<Expr>, Box<Expr>),
    /// `*a`
    Deref(Box<Expr>),
    /// `&a`
    Address(Box<Expr>),
    /// `-a`
    Negate(Box<Expr>),
    /// `!a`
    Not(Box<Expr>),
    /// `~a`
    Complement(Box<Expr>),
    /// `a + b` and so on.
    Binary(Binary, Box<Expr>, Box<Expr>),
    /// `a ? b : c`
    Choose(Box<Expr>, Box<Expr>, Box<Expr>),
    /// `(type) a`
    Cast(TypeName, Box<Expr>),
    /// `sizeof (type)`
    SizeOfType(TypeName),
    /// `sizeof a`
    SizeOf(Box<Expr>),
    /// `str(a)`, `str(a, bytes)`: the text that a pointer is of.
    Str(Box<Expr>, Option<u64>),
}

/// Operations on two numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Binary {
    Or,
    And,
    BitOr,
    BitXor,
    BitAnd,
    Equal,
    Differ,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    ShiftLeft,
    ShiftRight,
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
}

/// A type by its name: `struct conn *`, `unsigned long`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TypeName {
    /// `struct`, `union` or `enum`, if it was said.
    pub kind: Option<Kind>,
    /// Its name, one space between the words; the file or library that it is of before a backquote.
    pub name: String,
    /// How many `*` follow.
    pub pointers: u32,
    /// Where it stands.
    pub span: Span,
}

/// What a type with a name is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Kind {
    Struct,
    Union,
    Enum,
}
