//! What a clause says, before anything is known of types.

use crate::Span;
use crate::format::Format;

/// A filter, and what is done where it holds.
#[derive(Debug, Clone, PartialEq)]
pub struct Clause {
    /// What must hold; without it, nothing.
    pub filter: Option<Expr>,
    /// What is done.
    pub statements: Vec<Statement>,
}

/// Who sees a variable of the language.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// `self->x`: every clause that runs in the same thread.
    Thread,
    /// `this->x`: the rest of the clause.
    Clause,
}

/// One thing that is done at a hit.
#[derive(Debug, Clone, PartialEq)]
pub enum Statement {
    /// `print(a, b)`: a record with these values.
    Print(Vec<Expr>),
    /// `printf("%d", a)`: a text with these values.
    Printf(Format, Vec<Expr>),
    /// `self->x = a`, `this->x = a`
    Set(Scope, String, Expr),
    /// `if (a) { } else { }`
    If(Expr, Vec<Statement>, Vec<Statement>),
    /// `stop(n)`: tracing ends when this was reached so often.
    Stop(u32),
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
    /// The standard deviation.
    Stddev,
    /// How many there are of each power of two.
    Quantize,
    /// How many there are in each step between two numbers.
    Linear {
        /// The first number of the first step.
        low: i32,
        /// How much a step is; at least 1.
        step: i32,
        /// How many steps there are.
        steps: u16,
    },
    /// How many there are of each magnitude, a quarter of a power of two, in each second.
    Heat,
    /// How many there are, or their weight, in each hundredth of each second.
    Subsecond,
}

impl Aggregate {
    /// All but `lquantize`, which takes more, with their names and whether they take a value.
    pub const ALL: [(&'static str, Self, Takes); 9] = [
        ("count", Self::Count, Takes::Nothing),
        ("sum", Self::Sum, Takes::Value),
        ("avg", Self::Avg, Takes::Value),
        ("min", Self::Min, Takes::Value),
        ("max", Self::Max, Takes::Value),
        ("stddev", Self::Stddev, Takes::Value),
        ("quantize", Self::Quantize, Takes::Value),
        ("heat", Self::Heat, Takes::Value),
        ("subsecond", Self::Subsecond, Takes::Either),
    ];

    /// It keeps when something was.
    #[must_use]
    pub fn is_timed(self) -> bool {
        matches!(self, Self::Heat | Self::Subsecond)
    }
}

/// What an aggregate is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Takes {
    /// `count()`
    Nothing,
    /// `sum(x)`
    Value,
    /// One value, or none.
    Either,
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
    /// `ustack(n)`, `kstack(n)`: who called, the last `n` of them.
    Stack(Stack, Option<u64>),
    /// `sym(a)`: the name of an address of code.
    Symbol(Box<Expr>),
}

/// Whose calls a stack has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stack {
    /// The program's.
    User,
    /// The kernel's.
    Kernel,
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
    /// The process that it is of, if that was said.
    pub pid: Option<u32>,
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
