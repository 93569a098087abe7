//! Just enough of man(7): headings, paragraphs, lists of terms, tables of fixed lines.

use std::path::Path;

use super::Page;

/// What is printed at the foot of every page.
pub(crate) const SOURCE: &str = concat!("windlass ", env!("CARGO_PKG_VERSION"));
/// What is printed at the head of every page.
pub(crate) const MANUAL: &str = "Windlass manual";
/// The date at the foot of every page: that of the last change of a page by hand.
pub(crate) const DATE: &str = "2026-11-24";
/// Columns of a line of text at most, as man(7) asks; a longer word stands alone.
const COLUMNS: usize = 80;

/// A page that is being written.
#[derive(Debug)]
pub(crate) struct Roff {
    name: String,
    section: u8,
    text: String,
}

impl Roff {
    /// A page with its head and its name.
    pub(crate) fn page(name: &str, section: u8, about: &str) -> Self {
        Self::page_of(&[name], section, about)
    }

    /// The same for several names, the first of which is the page's.
    pub(crate) fn page_of(names: &[&str], section: u8, about: &str) -> Self {
        let name = names.first().copied().unwrap_or_default();
        let head = format!(
            ".TH {} {section} \"{DATE}\" \"{SOURCE}\" \"{MANUAL}\"\n",
            escape(&name.to_uppercase())
        );
        let mut page = Self {
            name: name.into(),
            section,
            text: head,
        };
        page.heading("NAME");
        page.text.push_str(&format!(
            "{} \\- {}\n",
            escape(&names.join(", ")),
            escape(about.trim_end_matches('.'))
        ));
        page
    }

    /// A page of which the beginning is there already.
    pub(crate) fn continued(name: &str, section: u8, text: String) -> Self {
        Self {
            name: name.into(),
            section,
            text,
        }
    }

    pub(crate) fn heading(&mut self, title: &str) {
        self.text.push_str(&format!(".SH \"{}\"\n", escape(title)));
    }

    pub(crate) fn subheading(&mut self, title: &str) {
        self.text.push_str(&format!(".SS \"{}\"\n", escape(title)));
    }

    pub(crate) fn paragraph(&mut self, text: &str) {
        self.begin_paragraph();
        self.text.push_str(&filled(text));
    }

    /// A heading begins one by itself.
    fn begin_paragraph(&mut self) {
        let last = self.text.lines().next_back().unwrap_or_default();
        if !last.starts_with(".SH ") && !last.starts_with(".SS ") {
            self.text.push_str(".PP\n");
        }
    }

    /// A term in bold, and what it is.
    pub(crate) fn term(&mut self, term: &str, text: &str) {
        let term = escape(term);
        self.text
            .push_str(&format!(".TP\n\\fB{term}\\fR\n{}", filled(text)));
    }

    /// Lines as they are.
    pub(crate) fn literal(&mut self, lines: &str) {
        self.begin_paragraph();
        self.text.push_str(".nf\n.RS 4\n");
        for line in lines.lines() {
            self.text.push_str(&format!("{}\n", escape(line)));
        }
        self.text.push_str(".RE\n.fi\n");
    }

    /// References to other pages.
    pub(crate) fn see_also(&mut self, pages: &[&str]) {
        self.heading("SEE ALSO");
        let references: Vec<_> = pages
            .iter()
            .filter_map(|page| page.rsplit_once('.'))
            .filter(|(name, _)| *name != self.name)
            .map(|(name, section)| format!("\\fB{}\\fR({section})", escape(name)))
            .collect();
        self.text.push_str(&format!("{}\n", references.join(",\n")));
    }

    pub(crate) fn done(self) -> Page {
        let path = Path::new("man").join(format!("{}.{}", self.name, self.section));
        Page {
            path,
            text: self.text,
        }
    }
}

/// Text in which nothing is a request, an escape or a hyphen that may become another sign.
pub(crate) fn escape(text: &str) -> String {
    let text = text
        .replace('\\', "\\e")
        .replace('-', "\\-")
        .replace('"', "\\(dq");
    match text.chars().next() {
        Some('.' | '\'') => format!("\\&{text}"),
        _ => text,
    }
}

/// Text in lines of [`COLUMNS`] at most, each of which is only text.
fn filled(text: &str) -> String {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.len() + 1 + word.len() <= COLUMNS => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines.iter().map(|line| escape(line) + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No line is longer than asked, no word is lost, and none becomes a request where it begins a line.
    #[test]
    fn lines_are_filled() {
        let text = "word .word ".repeat(30);
        let lines = filled(&text);
        assert!(
            lines
                .lines()
                .all(|line| line.len() <= COLUMNS + 2 && !line.starts_with('.'))
        );
        assert_eq!(
            lines
                .replace("\\&", "")
                .split_whitespace()
                .collect::<Vec<_>>(),
            text.split_whitespace().collect::<Vec<_>>()
        );
    }

    /// Text that would be a request or an escape is only text.
    #[test]
    fn text_stays_text() {
        assert_eq!(escape(".x"), "\\&.x");
        assert_eq!(escape("a\\b --c"), "a\\eb \\-\\-c");
        let mut page = Roff::page("a-b", 8, "Does it.");
        page.literal("'one\ntwo");
        assert!(page.text.contains("a\\-b \\- Does it\n"));
        assert!(page.text.contains("\n\\&'one\ntwo\n"));
    }
}
