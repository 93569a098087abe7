//! Statements.

use super::{Parsed, Parser};
use crate::ScriptError;
use crate::format::Format;
use crate::syntax::{Aggregate, Expr, ExprKind, Scope, Statement, Takes};
use crate::token::Token;

/// Steps of `lquantize` at most: with what is below and above, as many as words of a line.
const STEPS_MAX: i64 = 126;

impl Parser {
    /// Statements with `;` between them, up to an end or `}`.
    pub(super) fn statements(&mut self) -> Parsed<Vec<Statement>> {
        let mut statements: Vec<Statement> = Vec::new();
        while self.peek().is_some() && !self.is_mark("}") {
            let statement = self.statement()?;
            // Behind a block, it may be left out.
            let is_block = matches!(statement, Statement::If(..));
            statements.push(statement);
            if !self.take(";") && !is_block {
                break;
            }
        }
        Ok(statements)
    }

    fn statement(&mut self) -> Parsed<Statement> {
        self.depth += 1;
        if self.depth > super::DEPTH_MAX {
            return self.fail("this is nested too deep");
        }
        let statement = self.one();
        self.depth -= 1;
        statement
    }

    fn one(&mut self) -> Parsed<Statement> {
        let start = self.span().start;
        if self.take("@") {
            return self.aggregation(start);
        }
        let word = match self.peek() {
            Some(Token::Name(name)) => name.clone(),
            _ => String::new(),
        };
        let at = self.at;
        self.at += 1;
        match word.as_str() {
            "print" => {
                self.expect("(")?;
                let values = self.list(")")?;
                match values.is_empty() {
                    true => self.fail("print what?"),
                    false => Ok(Statement::Print(values)),
                }
            }
            "printf" => self.printf(),
            "if" => self.condition(),
            "stop" | "exit" => {
                self.expect("(")?;
                let count = match self.peek() {
                    Some(Token::Integer(count)) => {
                        let count = u32::try_from(*count).ok().filter(|count| *count > 0);
                        self.at += 1;
                        count
                    }
                    _ => Some(1),
                };
                let Some(count) = count else {
                    return self.fail("how often this is reached, at least 1");
                };
                self.expect(")")?;
                Ok(Statement::Stop(count))
            }
            "self" | "this" if self.take("->") || self.take(".") => {
                let scope = match word.as_str() {
                    "self" => Scope::Thread,
                    _ => Scope::Clause,
                };
                let name = self.name("a variable's name")?;
                self.expect("=")?;
                let value = self.in_brackets(Self::expr)?;
                Ok(Statement::Set(scope, name, value))
            }
            _ => {
                self.at = at;
                self.fail("print(...), printf(...), @name[...] = ..., self->x = ..., if (...) or stop() is expected here")
            }
        }
    }

    fn printf(&mut self) -> Parsed<Statement> {
        self.expect("(")?;
        let span = self.span();
        let Some(Token::Text(text)) = self.peek() else {
            return self.fail("a format between double quotes is expected here");
        };
        let format = Format::parse(text).map_err(|why| ScriptError::at(span.clone(), why))?;
        self.at += 1;
        let values = match self.take(",") {
            true => self.list(")")?,
            false => {
                self.expect(")")?;
                Vec::new()
            }
        };
        let wanted = format.values();
        if values.len() != wanted {
            let why = format!("the format takes {wanted} values, and has {}", values.len());
            return Err(ScriptError::at(span, why));
        }
        Ok(Statement::Printf(format, values))
    }

    fn condition(&mut self) -> Parsed<Statement> {
        self.expect("(")?;
        let condition = self.in_brackets(Self::expr)?;
        self.expect(")")?;
        let then = self.block()?;
        // Also behind what ends the statement before.
        let at = self.at;
        self.take(";");
        let is_else = matches!(self.peek(), Some(Token::Name(name)) if name == "else");
        let otherwise = match is_else {
            true => {
                self.at += 1;
                self.block()?
            }
            false => {
                self.at = at;
                Vec::new()
            }
        };
        Ok(Statement::If(condition, then, otherwise))
    }

    fn block(&mut self) -> Parsed<Vec<Statement>> {
        if !self.take("{") {
            return Ok(vec![self.statement()?]);
        }
        let statements = self.statements()?;
        self.expect("}")?;
        Ok(statements)
    }

    fn aggregation(&mut self, start: usize) -> Parsed<Statement> {
        let name = match self.peek() {
            Some(Token::Name(_)) => self.name("a name")?,
            _ => String::new(),
        };
        let keys = match self.take("[") {
            true => self.list("]")?,
            false => Vec::new(),
        };
        self.expect("=")?;
        let span = self.span();
        let names: Vec<_> = Aggregate::ALL.iter().map(|(name, ..)| *name).collect();
        let names = format!("{}, lquantize", names.join(", "));
        let word = self.name(&format!("one of {names}"))?;
        self.expect("(")?;
        let mut values = self.list(")")?;
        let wrong = |own: &Self, why: String| Err(ScriptError::at(own.since(span.start), why));
        let found = Aggregate::ALL.iter().find(|(name, ..)| *name == word);
        let (how, of) = match (found, word.as_str()) {
            (Some((_, how, takes)), _) => {
                let of = values.pop();
                let is_right = match takes {
                    Takes::Nothing => of.is_none(),
                    Takes::Value => of.is_some(),
                    Takes::Either => true,
                };
                if !is_right || !values.is_empty() {
                    let takes = match takes {
                        Takes::Nothing => "nothing",
                        Takes::Value => "one value",
                        Takes::Either => "one value or none",
                    };
                    return wrong(self, format!("{word}() takes {takes}"));
                }
                (*how, of)
            }
            (None, "lquantize") => match linear(values) {
                Some((how, of)) => (how, Some(of)),
                None => {
                    let why = format!(
                        "lquantize(x, low, high, step) takes a value and three numbers, for at most {STEPS_MAX} steps"
                    );
                    return wrong(self, why);
                }
            },
            _ => return wrong(self, format!("{word} is none of {names}")),
        };
        Ok(Statement::Aggregate {
            name,
            keys,
            how,
            of,
            span: self.since(start),
        })
    }
}

/// What `lquantize` is given.
fn linear(values: Vec<Expr>) -> Option<(Aggregate, Expr)> {
    let [of, low, high, step] = <[Expr; 4]>::try_from(values).ok()?;
    let (low, high, step) = (number(&low)?, number(&high)?, number(&step)?);
    let steps = high.checked_sub(low)?.checked_add(step - 1)? / step.max(1);
    if step < 1 || !(1..=STEPS_MAX).contains(&steps) {
        return None;
    }
    let how = Aggregate::Linear {
        low: i32::try_from(low).ok()?,
        step: i32::try_from(step).ok()?,
        steps: u16::try_from(steps).ok()?,
    };
    Some((how, of))
}

fn number(expr: &Expr) -> Option<i64> {
    match &expr.kind {
        ExprKind::Integer(value) => i64::try_from(*value).ok(),
        ExprKind::Negate(of) => number(of)?.checked_neg(),
        _ => None,
    }
}
