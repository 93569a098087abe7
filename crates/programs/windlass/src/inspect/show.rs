//! Values as text: `print`.

use std::collections::HashMap;

use serde_json::json;
use windlass_target::Memory;
use windlass_types::Node;
use windlass_types::print::{Limits, quoted};
use windlass_views::line::{members, type_first};

use crate::Session;
use crate::failure::Failure;
use crate::table::clean;

use super::commands::{Call, answer, wanting};
use super::target::{Looking, Target, Typed};
use super::value::{self, Located, THIS, Value, Within};
use super::view;

/// A value as text, and its type.
pub(super) fn shown(target: &Target<'_>, value: &Value) -> Result<(String, Typed), Failure> {
    target.budget.set(view::BUDGET);
    Ok((text(target, value)?, value.of()))
}

/// A value within another one: a record goes without its name.
pub(super) fn inner(target: &Target<'_>, value: &Value) -> Result<String, Failure> {
    let text = text(target, value)?;
    let full = target.complete(value.of());
    let plain = match target.node(full) {
        Node::Record { .. } => text.strip_prefix(&format!("{} ", target.name(full))),
        _ => None,
    };
    Ok(plain.map(str::to_owned).unwrap_or(text))
}

fn text(target: &Target<'_>, value: &Value) -> Result<String, Failure> {
    let limits = Limits::default();
    match value {
        Value::Object { of, at } => {
            let full = target.complete(*of);
            let types = target.types(full.module);
            Ok(match types.node(full.ty) {
                // Without a length, or not all there: what is there of its text.
                Node::Array { of, count }
                    if types.size(of) == Some(1)
                        && count.is_none_or(|count| target.bytes(*at, count).is_err()) =>
                {
                    target.bytes(*at, 1)?;
                    let mut bytes = vec![0; limits.string];
                    let len = target.read(*at, &mut bytes);
                    bytes.truncate(len);
                    quoted(&bytes)
                }
                Node::Array { count: None, .. } | Node::Function { .. } | Node::Void => {
                    format!("{at:#x}")
                }
                _ => {
                    let bytes = target.bytes(*at, target.size(full)?)?;
                    let looking = Looking {
                        target,
                        module: full.module,
                    };
                    // Of a type that a typedef names, by its own name.
                    let ty = if full.module == of.module {
                        of.ty
                    } else {
                        full.ty
                    };
                    types.show_at(ty, (Some(*at), &bytes), &looking, limits)
                }
            })
        }
        Value::Number { of, value } => {
            let types = target.types(of.module);
            let looking = Looking {
                target,
                module: of.module,
            };
            Ok(match types.bare(of.ty) {
                Node::Void => format!("{value:#x}"),
                _ => types.show(of.ty, &value.to_le_bytes(), &looking, limits),
            })
        }
    }
}

/// `print EXPR, ...`, `ADDRESS::print TYPE MEMBER ...`
pub(super) fn print(
    session: &mut Session<'_>,
    target: &Target<'_>,
    call: &Call<'_>,
) -> Result<(), Failure> {
    if let Some(input) = call.input {
        return print_elements(session, target, input, call.rest);
    }
    let values = named(target, call)?;
    let is_one = values.len() == 1;
    for (name, value) in &values {
        let (text, of) = shown(target, value)?;
        let line = match is_one {
            true => text.clone(),
            false => format!("{name} = {text}"),
        };
        answer(session, &line, row(target, name, value, of, &text))?;
    }
    Ok(())
}

fn row(target: &Target<'_>, name: &str, value: &Value, of: Typed, text: &str) -> serde_json::Value {
    let at = match value {
        Value::Object { at, .. } => Some(format!("{at:#x}")),
        Value::Number { .. } => None,
    };
    json!({ "expression": name, "type": target.name(of), "address": at, "value": text })
}

/// The values of a `print` that begins a line, with their names.
fn named(target: &Target<'_>, call: &Call<'_>) -> Result<Vec<(String, Value)>, Failure> {
    if let Some(at) = call.address {
        let (name, members) = type_first(call.rest);
        if name.is_empty() {
            return Err(wanting("a type"));
        }
        let of = target.spelled(name)?;
        let members = members.split_whitespace();
        let member = |member: &str| {
            let value = value::member(target, of, member)?.at(target, &[at])?;
            Ok((member.to_owned(), value))
        };
        let values: Vec<_> = members.map(member).collect::<Result<_, Failure>>()?;
        return Ok(match values.is_empty() {
            true => vec![(name.to_owned(), Value::Object { of, at })],
            false => values,
        });
    }
    if call.rest.is_empty() {
        return Err(wanting("an expression"));
    }
    let all = value::expressions(call.rest)?.into_iter().map(|expr| {
        let name = call.rest.get(expr.span.clone()).unwrap_or_default();
        let value = value::value(target, call.rest, &expr)?;
        Ok((name.to_owned(), value))
    });
    all.collect()
}

/// `print` in the middle of a line: its values go on.
pub(super) fn printed(
    _: &mut Session<'_>,
    target: &Target<'_>,
    call: &Call<'_>,
) -> Result<Vec<Value>, Failure> {
    let Some(input) = call.input else {
        return Ok(named(target, call)?
            .into_iter()
            .map(|(_, value)| value)
            .collect());
    };
    let mut forms = Forms::of(target, call.rest);
    let mut all = Vec::new();
    for element in input {
        for (_, located) in forms.of_element(element)? {
            all.push(located.at(target, &[element.word()])?);
        }
    }
    Ok(all)
}

/// What is printed of elements, by their types.
struct Forms<'f, 'a> {
    target: &'f Target<'a>,
    rest: &'f str,
    known: HashMap<(Typed, bool), Vec<(String, Located)>>,
}

impl<'f, 'a> Forms<'f, 'a> {
    fn of(target: &'f Target<'a>, rest: &'f str) -> Self {
        Self {
            target,
            rest,
            known: HashMap::new(),
        }
    }

    fn of_element(&mut self, element: &Value) -> Result<&[(String, Located)], Failure> {
        let key = (element.of(), matches!(element, Value::Number { .. }));
        if !self.known.contains_key(&key) {
            let form = self.form(element)?;
            self.known.insert(key, form);
        }
        Ok(self.known.get(&key).map_or(&[], Vec::as_slice))
    }

    fn form(&self, element: &Value) -> Result<Vec<(String, Located)>, Failure> {
        let bound = [element.bound(THIS)];
        let within = Within {
            bound: &bound,
            ..Within::default()
        };
        if self.rest.is_empty() {
            let whole = value::expression_in(self.target, &within, THIS)?;
            return Ok(vec![(String::new(), whole)]);
        }
        if let Some(parts) = members(self.rest)
            && parts.len() > 1
        {
            let part = |part: &&str| {
                let located = value::expression_in(self.target, &within, part)?;
                Ok(((*part).to_owned(), located))
            };
            return parts.iter().map(part).collect();
        }
        if let Some(cast) = self.cast()? {
            return Ok(cast);
        }
        let all = value::expressions(self.rest)?.into_iter().map(|expr| {
            let name = self.rest.get(expr.span.clone()).unwrap_or_default();
            let located = value::located_in(self.target, &within, self.rest, &expr)?;
            Ok((name.to_owned(), located))
        });
        all.collect()
    }

    /// mdb's `print TYPE MEMBER ...`: each element is the address of such a record.
    fn cast(&self) -> Result<Option<Vec<(String, Located)>>, Failure> {
        let (name, members) = type_first(self.rest);
        let keyword = name.split(' ').next().unwrap_or_default();
        let is_type = matches!(keyword, "struct" | "union" | "class" | "enum")
            || (!members.is_empty() && !name.contains(','));
        let of = match is_type {
            true => self.target.find_type(name)?,
            false => None,
        };
        let Some(of) = of else {
            return Ok(None);
        };
        let member = |member: &str| {
            let located = value::member(self.target, of, member)?;
            Ok((member.to_owned(), located))
        };
        let all: Vec<_> = members
            .split_whitespace()
            .map(member)
            .collect::<Result<_, Failure>>()?;
        if !all.is_empty() {
            return Ok(Some(all));
        }
        let bound = [value::Bound {
            name: THIS,
            of,
            is_value: false,
        }];
        let within = Within {
            bound: &bound,
            ..Within::default()
        };
        let whole = value::expression_in(self.target, &within, THIS)?;
        Ok(Some(vec![(String::new(), whole)]))
    }
}

fn print_elements(
    session: &mut Session<'_>,
    target: &Target<'_>,
    input: &[Value],
    rest: &str,
) -> Result<(), Failure> {
    let mut forms = Forms::of(target, rest);
    let mut rows = Vec::new();
    for element in input {
        let form = forms.of_element(element)?;
        let mut parts = Vec::new();
        let is_one = form.len() == 1;
        for (name, located) in form {
            let value = located.at(target, &[element.word()]);
            let text = value
                .as_ref()
                .map_err(|_| ())
                .and_then(|value| shown(target, value).map(|(text, _)| text).map_err(|_| ()));
            let text = text.unwrap_or_else(|()| "<fault>".to_owned());
            if session.form == crate::table::Form::Json {
                let name = if name.is_empty() { THIS } else { name };
                if let Ok(value) = &value {
                    rows.push(row(target, name, value, value.of(), &text));
                }
                continue;
            }
            parts.push(match is_one {
                true => text,
                false => format!("{} = {text}", clean(name)),
            });
        }
        if session.form != crate::table::Form::Json {
            writeln!(session.out, "{}", parts.join(", "))?;
        }
    }
    match session.form {
        crate::table::Form::Json => session.rows(&rows, &crate::table::Chosen::new()),
        _ => Ok(()),
    }
}
