//! From text to [`Clause`].
//!
//! ```text
//! clause := ["/" expr "/"] ["{"] statement {";" statement} ["}"]
//! statement := "print" "(" expr {"," expr} ")" | "printf" "(" text {"," expr} ")" | "@" name ["[" expr {"," expr} "]"] "=" aggregate "(" [expr] ")"
//!            | ("self" | "this") "->" name "=" expr | "if" "(" expr ")" block ["else" block] | ("stop" | "exit") "(" [number] ")"
//! block := statement | "{" {statement ";"} "}"
//! ```
//! Expressions are C's, with its precedence, without assignments to memory, calls and `++`. In a filter that is not in brackets, `/` ends it.

mod statement;

use crate::syntax::{Binary, Clause, Expr, ExprKind, Kind, Stack, TypeName};
use crate::token::{Token, tokens};
use crate::{ScriptError, Span};

/// How deep expressions may be nested.
const DEPTH_MAX: u32 = 64;

/// Words that only a type's name begins with.
const TYPE_WORDS: [&str; 17] = [
    "char", "short", "int", "long", "signed", "unsigned", "float", "double", "_Bool", "void",
    "struct", "union", "enum", "class", "const", "volatile", "userland",
];

/// What `.member` with nothing before it is a member of.
const THIS: &str = "this";

/// Operators on two numbers, by precedence, the loosest first.
const LEVELS: [&[(&str, Binary)]; 10] = [
    &[("||", Binary::Or)],
    &[("&&", Binary::And)],
    &[("|", Binary::BitOr)],
    &[("^", Binary::BitXor)],
    &[("&", Binary::BitAnd)],
    &[("==", Binary::Equal), ("!=", Binary::Differ)],
    &[
        ("<", Binary::Less),
        ("<=", Binary::LessOrEqual),
        (">", Binary::Greater),
        (">=", Binary::GreaterOrEqual),
    ],
    &[("<<", Binary::ShiftLeft), (">>", Binary::ShiftRight)],
    &[("+", Binary::Add), ("-", Binary::Subtract)],
    &[
        ("*", Binary::Multiply),
        ("/", Binary::Divide),
        ("%", Binary::Remainder),
    ],
];

/// What a text says.
///
/// # Errors
/// Where it is wrong, and what was expected there.
pub fn clause(text: &str) -> Result<Clause, ScriptError> {
    let mut parser = Parser::new(text)?;
    let clause = parser.clause()?;
    parser.end()?;
    Ok(clause)
}

/// The expression that a text is.
///
/// # Errors
/// As [`clause`].
pub fn expression(text: &str) -> Result<Expr, ScriptError> {
    let mut parser = Parser::new(text)?;
    let expr = parser.expr()?;
    parser.end()?;
    Ok(expr)
}

/// The expressions that a text has between commas.
///
/// # Errors
/// As [`clause`].
pub fn expressions(text: &str) -> Result<Vec<Expr>, ScriptError> {
    let mut parser = Parser::new(text)?;
    let mut all = vec![parser.expr()?];
    while parser.take(",") {
        all.push(parser.expr()?);
    }
    parser.end()?;
    Ok(all)
}

/// The type that a text names, as `struct conn *`.
///
/// # Errors
/// As [`clause`].
pub fn type_name(text: &str) -> Result<TypeName, ScriptError> {
    let mut parser = Parser::new(text)?;
    let name = parser.type_name()?;
    parser.end()?;
    Ok(name)
}

/// What an operator before a value makes of it.
type Make = fn(Box<Expr>) -> ExprKind;

struct Parser {
    tokens: Vec<(Token, Span)>,
    at: usize,
    len: usize,
    depth: u32,
    /// `/` ends the expression.
    is_filter: bool,
}

type Parsed<T> = Result<T, ScriptError>;

impl Parser {
    fn new(text: &str) -> Parsed<Self> {
        Ok(Self {
            tokens: tokens(text)?,
            at: 0,
            len: text.len(),
            depth: 0,
            is_filter: false,
        })
    }

    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at).map(|(token, _)| token)
    }

    fn span(&self) -> Span {
        let here = self.tokens.get(self.at);
        here.map_or(self.len..self.len + 1, |(_, span)| span.clone())
    }

    /// From a beginning to the last word that was taken.
    fn since(&self, start: usize) -> Span {
        let last = self.at.checked_sub(1).and_then(|at| self.tokens.get(at));
        start..last.map_or(start, |(_, span)| span.end)
    }

    fn fail<T>(&self, why: impl Into<String>) -> Parsed<T> {
        Err(ScriptError::at(self.span(), why))
    }

    fn is_mark(&self, wanted: &str) -> bool {
        matches!(self.peek(), Some(Token::Mark(mark)) if *mark == wanted)
    }

    fn take(&mut self, wanted: &str) -> bool {
        let is_it = self.is_mark(wanted);
        self.at += usize::from(is_it);
        is_it
    }

    fn expect(&mut self, wanted: &str) -> Parsed<()> {
        match self.take(wanted) {
            true => Ok(()),
            false => self.fail(format!("`{wanted}` is expected here")),
        }
    }

    fn name(&mut self, what: &str) -> Parsed<String> {
        let Some(Token::Name(name)) = self.peek() else {
            return self.fail(format!("{what} is expected here"));
        };
        let name = name.clone();
        self.at += 1;
        Ok(name)
    }

    fn end(&self) -> Parsed<()> {
        match self.peek() {
            None => Ok(()),
            Some(_) => self.fail("the text should end here"),
        }
    }

    fn clause(&mut self) -> Parsed<Clause> {
        let mut filter = None;
        if self.take("/") {
            self.is_filter = true;
            filter = Some(self.expr()?);
            self.is_filter = false;
            self.expect("/")?;
        }
        let is_braced = self.take("{");
        let statements = self.statements()?;
        if is_braced {
            self.expect("}")?;
        }
        Ok(Clause { filter, statements })
    }

    /// Expressions with commas, and what ends them.
    fn list(&mut self, end: &str) -> Parsed<Vec<Expr>> {
        let mut all = Vec::new();
        if self.take(end) {
            return Ok(all);
        }
        loop {
            all.push(self.in_brackets(Self::expr)?);
            if self.take(end) {
                return Ok(all);
            }
            self.expect(",")?;
        }
    }

    /// Where `/` is a division again.
    fn in_brackets<T>(&mut self, parse: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<T> {
        let was = std::mem::take(&mut self.is_filter);
        let parsed = parse(self);
        self.is_filter = was;
        parsed
    }

    fn expr(&mut self) -> Parsed<Expr> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return self.fail("this is nested too deep");
        }
        let start = self.span().start;
        let mut expr = self.binary(0)?;
        if self.take("?") {
            let one = self.expr()?;
            self.expect(":")?;
            let other = self.expr()?;
            let kind = ExprKind::Choose(Box::new(expr), Box::new(one), Box::new(other));
            let span = self.since(start);
            expr = Expr { kind, span };
        }
        self.depth -= 1;
        Ok(expr)
    }

    fn binary(&mut self, level: usize) -> Parsed<Expr> {
        let Some(operators) = LEVELS.get(level) else {
            return self.unary();
        };
        let start = self.span().start;
        let mut left = self.binary(level + 1)?;
        loop {
            let is_such = |(mark, _): &&(&str, Binary)| {
                self.is_mark(mark) && !(self.is_filter && *mark == "/")
            };
            let Some((mark, operator)) = operators.iter().find(is_such) else {
                return Ok(left);
            };
            self.expect(mark)?;
            let right = self.binary(level + 1)?;
            let kind = ExprKind::Binary(*operator, Box::new(left), Box::new(right));
            let span = self.since(start);
            left = Expr { kind, span };
        }
    }

    fn unary(&mut self) -> Parsed<Expr> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return self.fail("this is nested too deep");
        }
        let start = self.span().start;
        let makes: [(&str, Make); 5] = [
            ("*", ExprKind::Deref),
            ("&", ExprKind::Address),
            ("-", ExprKind::Negate),
            ("!", ExprKind::Not),
            ("~", ExprKind::Complement),
        ];
        let made = makes.iter().find(|(mark, _)| self.is_mark(mark));
        let parsed = if let Some((_, make)) = made {
            self.at += 1;
            let of = self.unary()?;
            let kind = make(Box::new(of));
            let span = self.since(start);
            Ok(Expr { kind, span })
        } else if self.is_mark("(") && self.type_begins(self.at + 1) {
            self.at += 1;
            let name = self.type_name()?;
            self.expect(")")?;
            let of = self.unary()?;
            let kind = ExprKind::Cast(name, Box::new(of));
            let span = self.since(start);
            Ok(Expr { kind, span })
        } else {
            self.postfix()
        };
        self.depth -= 1;
        parsed
    }

    /// Whether a type's name stands there: a word that only types begin with, or a name that ends with `*)`.
    fn type_begins(&self, at: usize) -> bool {
        match self.tokens.get(at) {
            Some((Token::Name(name), _)) => {
                TYPE_WORDS.contains(&name.as_str()) || self.is_pointer_type(at + 1)
            }
            _ => false,
        }
    }

    /// `*)`, or `)` followed by what begins a value.
    fn is_pointer_type(&self, mut at: usize) -> bool {
        let mark = |at: usize| match self.tokens.get(at) {
            Some((Token::Mark(mark), _)) => *mark,
            _ => "",
        };
        let mut stars = 0;
        while mark(at) == "*" {
            at += 1;
            stars += 1;
        }
        if mark(at) != ")" {
            return false;
        }
        let next = self.tokens.get(at + 1).map(|(token, _)| token);
        stars > 0 || matches!(next, Some(Token::Name(_) | Token::Integer(_)))
    }

    fn postfix(&mut self) -> Parsed<Expr> {
        let start = self.span().start;
        let mut expr = self.primary()?;
        loop {
            let kind = if self.take(".") || self.take("->") {
                ExprKind::Member(Box::new(expr), self.name("a member")?)
            } else if self.take("[") {
                let index = self.in_brackets(Self::expr)?;
                self.expect("]")?;
                ExprKind::Index(Box::new(expr), Box::new(index))
            } else {
                return Ok(expr);
            };
            let span = self.since(start);
            expr = Expr { kind, span };
        }
    }

    fn primary(&mut self) -> Parsed<Expr> {
        let start = self.span().start;
        if self.take("(") {
            let Expr { kind, .. } = self.in_brackets(Self::expr)?;
            self.expect(")")?;
            let span = self.since(start);
            return Ok(Expr { kind, span });
        }
        if self.is_mark(".") || self.is_mark("->") {
            // A member of what comes through a pipe.
            let kind = ExprKind::Name(THIS.to_owned());
            return Ok(Expr {
                kind,
                span: start..start,
            });
        }
        let Some(token) = self.peek().cloned() else {
            return self.fail("a value is expected here");
        };
        let kind = match token {
            Token::Integer(value) => {
                self.at += 1;
                ExprKind::Integer(value)
            }
            Token::Text(text) => {
                self.at += 1;
                ExprKind::Text(text)
            }
            Token::Name(name) => {
                self.at += 1;
                match name.as_str() {
                    "sizeof" => self.size_of()?,
                    "str" if self.is_mark("(") => self.str()?,
                    "ustack" => self.stack(Stack::User)?,
                    "kstack" => self.stack(Stack::Kernel)?,
                    "sym" if self.is_mark("(") => {
                        self.expect("(")?;
                        let of = self.in_brackets(Self::expr)?;
                        self.expect(")")?;
                        ExprKind::Symbol(Box::new(of))
                    }
                    _ => ExprKind::Name(name),
                }
            }
            Token::Mark(_) => return self.fail("a value is expected here"),
        };
        let span = self.since(start);
        Ok(Expr { kind, span })
    }

    fn size_of(&mut self) -> Parsed<ExprKind> {
        let is_type = self.is_mark("(") && self.type_begins(self.at + 1);
        if !is_type {
            return Ok(ExprKind::SizeOf(Box::new(self.unary()?)));
        }
        self.expect("(")?;
        let name = self.type_name()?;
        self.expect(")")?;
        Ok(ExprKind::SizeOfType(name))
    }

    fn str(&mut self) -> Parsed<ExprKind> {
        let start = self.span().start;
        self.expect("(")?;
        let mut values = self.list(")")?.into_iter();
        let made = match (values.next(), values.next(), values.next()) {
            (Some(of), None, None) => Some((of, None)),
            (
                Some(of),
                Some(Expr {
                    kind: ExprKind::Integer(bytes),
                    ..
                }),
                None,
            ) => Some((of, Some(bytes))),
            _ => None,
        };
        let wrong = || {
            ScriptError::at(
                self.since(start),
                "str takes a pointer, and a number of bytes",
            )
        };
        let (of, bytes) = made.ok_or_else(wrong)?;
        Ok(ExprKind::Str(Box::new(of), bytes))
    }

    /// What may be a word and a number between brackets.
    fn stack(&mut self, of: Stack) -> Parsed<ExprKind> {
        let mut depth = None;
        if self.take("(") && !self.take(")") {
            let Some(Token::Integer(count)) = self.peek() else {
                return self.fail("how many calls, a number");
            };
            depth = Some(*count);
            self.at += 1;
            self.expect(")")?;
        }
        Ok(ExprKind::Stack(of, depth))
    }

    /// ``[struct|union|enum|class] [userland] [pid[N]`][LMn`][module`]name {*}``, keywords in either order.
    fn type_name(&mut self) -> Parsed<TypeName> {
        let start = self.span().start;
        let (mut kind, mut words, mut pid) = (None, Vec::new(), None);
        while let Some(Token::Name(word)) = self.peek() {
            match word.as_str() {
                "struct" | "class" => kind = Some(Kind::Struct),
                "union" => kind = Some(Kind::Union),
                "enum" => kind = Some(Kind::Enum),
                "userland" | "const" | "volatile" => {}
                word => {
                    let (process, word) = without_process(word);
                    pid = pid.or(process);
                    words.push(word.to_owned());
                }
            }
            self.at += 1;
        }
        if words.is_empty() {
            return self.fail("a type's name is expected here");
        }
        let mut pointers = 0;
        while self.take("*") {
            pointers += 1;
        }
        Ok(TypeName {
            kind,
            name: words.join(" "),
            pid,
            pointers,
            span: self.since(start),
        })
    }
}

/// The process that a name begins with, and the name without it and its link map: ``pid8`LM0`libc.so.6`glob_t``, of which a Linux process has one
/// map.
fn without_process(name: &str) -> (Option<u32>, &str) {
    let of = |prefix: &str| {
        let (first, rest) = name.split_once('`')?;
        let number = first.strip_prefix(prefix)?;
        let is_number = number.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then_some((number.parse().ok(), rest))
    };
    match (of("pid"), of("LM")) {
        (Some((pid, rest)), _) => (pid, without_process(rest).1),
        (None, Some((_, rest))) => (None, rest),
        (None, None) => (None, name),
    }
}
