//! The formats of `printf`.

/// A format: texts, and conversions of values between them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Format(Vec<Part>);

/// A part of a format.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    Value(Conversion),
}

/// `%-08x` and so on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Conversion {
    kind: char,
    width: usize,
    is_left: bool,
    has_zeros: bool,
}

/// Columns of a value at most.
const WIDTH_MAX: usize = 256;

/// A value for a format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Given {
    /// A number, by its bits.
    Number(u64),
    /// Everything else, as it is shown.
    Text(String),
}

impl Format {
    /// Parses a format: `%d`, `%i`, `%u`, `%x`, `%X`, `%o`, `%c`, `%p`, `%s`, `%%`, with `-`, `0` and a width; `h`, `l` and `z` say nothing.
    ///
    /// # Errors
    /// What is none of them.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (mut parts, mut plain) = (Vec::new(), String::new());
        let mut chars = text.chars().peekable();
        while let Some(c) = chars.next() {
            if c != '%' || chars.next_if_eq(&'%').is_some() {
                plain.push(c);
                continue;
            }
            let mut conversion = Conversion {
                kind: ' ',
                width: 0,
                is_left: false,
                has_zeros: false,
            };
            while let Some(flag) = chars.next_if(|c| matches!(c, '-' | '0')) {
                conversion.is_left |= flag == '-';
                conversion.has_zeros |= flag == '0';
            }
            while let Some(digit) = chars.peek().and_then(|c| c.to_digit(10)) {
                chars.next();
                conversion.width = conversion.width.saturating_mul(10) + digit as usize;
            }
            while chars.next_if(|c| matches!(c, 'h' | 'l' | 'z')).is_some() {}
            conversion.kind = chars.next().unwrap_or(' ');
            if !"diuxXocps".contains(conversion.kind) || conversion.width > WIDTH_MAX {
                return Err(format!(
                    "after % comes d, i, u, x, X, o, c, p, s or %, with a width of at most {WIDTH_MAX}"
                ));
            }
            parts.push(Part::Text(std::mem::take(&mut plain)));
            parts.push(Part::Value(conversion));
        }
        parts.push(Part::Text(plain));
        Ok(Self(parts))
    }

    /// How many values it takes.
    #[must_use]
    pub fn values(&self) -> usize {
        let values = self.0.iter();
        values.filter(|part| matches!(part, Part::Value(_))).count()
    }

    /// The text with values.
    #[must_use]
    pub fn fill(&self, values: &[Given]) -> String {
        let mut values = values.iter();
        let parts = self.0.iter().map(|part| match part {
            Part::Text(text) => text.clone(),
            Part::Value(how) => how.shown(values.next()),
        });
        parts.collect()
    }
}

impl Conversion {
    fn shown(self, value: Option<&Given>) -> String {
        let shown = match value {
            None => String::new(),
            Some(Given::Text(text)) => text.clone(),
            Some(Given::Number(number)) => match self.kind {
                'x' => format!("{number:x}"),
                'X' => format!("{number:X}"),
                'o' => format!("{number:o}"),
                'p' => format!("{number:#x}"),
                'u' => number.to_string(),
                'c' => u8::try_from(*number & 0xff)
                    .map_or('?', char::from)
                    .to_string(),
                _ => number.cast_signed().to_string(),
            },
        };
        let width = self.width;
        match (self.is_left, self.has_zeros && self.kind != 's') {
            (true, _) => format!("{shown:<width$}"),
            (false, true) => match shown.strip_prefix('-') {
                Some(rest) => format!("-{rest:0>0$}", width.saturating_sub(1)),
                None => format!("{shown:0>width$}"),
            },
            (false, false) => format!("{shown:>width$}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_cs() {
        let of = |format: &str, values: &[Given]| Format::parse(format).unwrap().fill(values);
        let number = |value: i64| Given::Number(value.cast_unsigned());
        assert_eq!(of("%d %u%%", &[number(-1), number(2)]), "-1 2%");
        assert_eq!(
            of(
                "%04x|%-4d|%4d|%05d",
                &[number(255), number(7), number(7), number(-7)]
            ),
            "00ff|7   |   7|-0007"
        );
        assert_eq!(
            of("%6s|%c", &[Given::Text("ab".into()), number(65)]),
            "    ab|A"
        );
        assert_eq!(of("%lld %p", &[number(1), number(16)]), "1 0x10");
        for wrong in ["%", "%f", "%1000d", "%5"] {
            assert!(Format::parse(wrong).is_err(), "{wrong}");
        }
        assert_eq!(Format::parse("a%db%%%s").unwrap().values(), 2);
    }
}
