//! The text form.

use std::fmt::{self, Write};
use std::str::FromStr;

use thiserror::Error;

use crate::{
    Action, Addresses, Direction, Family, PORTS_MAX, PREFIXES_MAX, Prefix, PrefixError, RULES_MAX,
    Rule, Rules, SETS_MAX, Set, Side, State, States, TEXT_MAX,
};

const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMP: u8 = 1;
const ICMP6: u8 = 58;
const PROTOCOLS: [(&str, u8); 4] = [("tcp", TCP), ("udp", UDP), ("icmp", ICMP), ("icmp6", ICMP6)];
const STATES: [&str; 4] = ["new", "established", "related", "invalid"];
const WORDS: &str =
    "count, log, in, out, ipv4, ipv6, tcp, udp, icmp, icmp6, proto, type, from, to, state";

/// Why a text is no list of rules. Statements are counted from 1.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RuleError {
    /// A statement that begins with another word.
    #[error("rule {at}: begins with accept, drop, reject or set, not \"{word}\"")]
    Action {
        /// The statement.
        at: usize,
        /// Its word.
        word: String,
    },
    /// A word that means nothing.
    #[error("rule {at}: \"{word}\" is none of {WORDS}")]
    Word {
        /// The statement.
        at: usize,
        /// Its word.
        word: String,
    },
    /// A word that says again, or against, what was said.
    #[error("rule {at}: \"{word}\" is one more of what stands there already")]
    Twice {
        /// The statement.
        at: usize,
        /// Its word.
        word: String,
    },
    /// A word that is to be followed by something.
    #[error("rule {at}: {word} is followed by {needs}")]
    Missing {
        /// The statement.
        at: usize,
        /// The word.
        word: &'static str,
        /// What has to follow.
        needs: &'static str,
    },
    /// Not what has to follow.
    #[error("rule {at}: \"{value}\" is not {needs}")]
    Value {
        /// The statement.
        at: usize,
        /// The offending value.
        value: String,
        /// What it should be.
        needs: &'static str,
    },
    /// Not an address.
    #[error("rule {at}: \"{value}\": {error}")]
    Prefix {
        /// The statement.
        at: usize,
        /// The offending value.
        value: String,
        /// What is wrong.
        error: PrefixError,
    },
    /// Parts that no packet can match together.
    #[error("rule {at}: no packet matches it: {why}")]
    Never {
        /// The statement.
        at: usize,
        /// Why.
        why: &'static str,
    },
    /// More than there may be.
    #[error("{what}: more than {most}")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many there may be.
        most: usize,
    },
}

/// A value as an error shows it.
fn shown(value: &str) -> String {
    value.chars().take(64).collect()
}

/// One statement as it is read.
struct Reader<'a> {
    at: usize,
    words: std::iter::Peekable<std::str::SplitWhitespace<'a>>,
}

impl<'a> Reader<'a> {
    fn value(&mut self, word: &'static str, needs: &'static str) -> Result<&'a str, RuleError> {
        let at = self.at;
        self.words
            .next()
            .ok_or(RuleError::Missing { at, word, needs })
    }

    fn bad(&self, value: &str, needs: &'static str) -> RuleError {
        let (at, value) = (self.at, shown(value));
        RuleError::Value { at, value, needs }
    }

    fn never(&self, why: &'static str) -> RuleError {
        RuleError::Never { at: self.at, why }
    }

    fn number<T: FromStr>(&self, text: &str, needs: &'static str) -> Result<T, RuleError> {
        let number = text
            .bytes()
            .all(|b| b.is_ascii_digit())
            .then(|| text.parse().ok());
        number.flatten().ok_or_else(|| self.bad(text, needs))
    }

    fn prefixes(&self, text: &str) -> Result<Vec<Prefix>, RuleError> {
        let prefix = |entry: &str| {
            let error = |error| RuleError::Prefix {
                at: self.at,
                value: shown(entry),
                error,
            };
            entry.parse::<Prefix>().map_err(error)
        };
        text.split(',').map(prefix).collect()
    }

    fn addresses(&mut self, word: &'static str, sets: &[Set]) -> Result<Addresses, RuleError> {
        let text = self.value(word, "any, a list of addresses and prefixes, or @SET")?;
        if text == "any" {
            return Ok(Addresses::Any);
        }
        let Some(name) = text.strip_prefix('@') else {
            return Ok(Addresses::These(self.prefixes(text)?));
        };
        let index = sets.iter().position(|set| set.name == name);
        let index = index.ok_or_else(|| self.bad(text, "a set that stands before it"))?;
        Ok(Addresses::Set(index))
    }

    fn ports(&mut self) -> Result<Vec<(u16, u16)>, RuleError> {
        const NEEDS: &str = "a list of ports and ranges such as 80,8000-8080";
        let text = self.value("port", NEEDS)?;
        let port = |entry: &str| {
            let (first, last) = entry.split_once('-').unwrap_or((entry, entry));
            let (first, last) = (self.number(first, NEEDS)?, self.number(last, NEEDS)?);
            let is_range = first <= last;
            is_range
                .then_some((first, last))
                .ok_or_else(|| self.bad(entry, NEEDS))
        };
        let ports: Vec<_> = text.split(',').map(port).collect::<Result<_, _>>()?;
        let (what, most) = ("ports of a rule", PORTS_MAX);
        (ports.len() <= most)
            .then_some(ports)
            .ok_or(RuleError::TooMany { what, most })
    }

    fn states(&mut self) -> Result<States, RuleError> {
        const NEEDS: &str = "a list of new, established, related and invalid";
        let mut states = States::default();
        for name in self.value("state", NEEDS)?.split(',') {
            let index = STATES.iter().position(|state| *state == name);
            let state = index.and_then(|index| State::ALL.get(index));
            states.insert(*state.ok_or_else(|| self.bad(name, NEEDS))?);
        }
        Ok(states)
    }

    fn icmp(&mut self) -> Result<(u8, Option<u8>), RuleError> {
        const NEEDS: &str = "a type of ICMP from 0 to 255, or type and code such as 3/1";
        let text = self.value("type", NEEDS)?;
        match text.split_once('/') {
            Some((kind, code)) => Ok((self.number(kind, NEEDS)?, Some(self.number(code, NEEDS)?))),
            None => Ok((self.number(text, NEEDS)?, None)),
        }
    }

    fn set(&mut self, sets: &[Set]) -> Result<Set, RuleError> {
        const NEEDS: &str = "a name of 1 to 32 letters, digits, - and _";
        let name = self.value("set", NEEDS)?;
        let is_plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
        if !(1..=32).contains(&name.len()) || !name.bytes().all(is_plain) {
            return Err(self.bad(name, NEEDS));
        }
        let (at, word) = (self.at, shown(name));
        if sets.iter().any(|set| set.name == name) {
            return Err(RuleError::Twice { at, word });
        }
        let text = self.value("set", "a name and a list of addresses and prefixes")?;
        let mut prefixes = self.prefixes(text)?;
        while let Some(more) = self.words.next() {
            prefixes.extend(self.prefixes(more)?);
        }
        let name = name.to_owned();
        Ok(Set { name, prefixes })
    }

    fn rule(&mut self, action: Action, sets: &[Set]) -> Result<Rule, RuleError> {
        let mut rule = Rule::all(action);
        let (mut has_from, mut has_to) = (false, false);
        while let Some(word) = self.words.next() {
            let side = match word {
                "from" => Some((&mut rule.from, &mut has_from)),
                "to" => Some((&mut rule.to, &mut has_to)),
                _ => None,
            };
            let is_twice = if let Some((side, has)) = side {
                let name = if word == "from" { "from" } else { "to" };
                // "to port 22": any address.
                if self.words.peek() != Some(&"port") {
                    side.addresses = self.addresses(name, sets)?;
                }
                if self.words.next_if_eq(&"port").is_some() {
                    side.ports = self.ports()?;
                }
                std::mem::replace(has, true)
            } else {
                self.word(word, &mut rule)?
            };
            if is_twice {
                let (at, word) = (self.at, shown(word));
                return Err(RuleError::Twice { at, word });
            }
        }
        self.can_match(&rule)?;
        Ok(rule)
    }

    /// Reads what a word says; whether something of it was said before.
    fn word(&mut self, word: &str, rule: &mut Rule) -> Result<bool, RuleError> {
        let protocol = PROTOCOLS.iter().find(|(name, _)| *name == word);
        Ok(match word {
            "count" => std::mem::replace(&mut rule.count, true),
            "log" => std::mem::replace(&mut rule.log, true),
            "in" => rule.direction.replace(Direction::In).is_some(),
            "out" => rule.direction.replace(Direction::Out).is_some(),
            "ipv4" => rule.family.replace(Family::V4).is_some(),
            "ipv6" => rule.family.replace(Family::V6).is_some(),
            "type" => {
                let icmp = self.icmp()?;
                rule.icmp.replace(icmp).is_some()
            }
            "state" => {
                let states = self.states()?;
                !std::mem::replace(&mut rule.states, states).is_any()
            }
            "proto" => {
                const NEEDS: &str = "the number of a protocol from 0 to 255";
                let number = self.value("proto", NEEDS)?;
                let number = self.number(number, NEEDS)?;
                rule.protocol.replace(number).is_some()
            }
            _ => match protocol {
                Some((_, number)) => rule.protocol.replace(*number).is_some(),
                None => {
                    let (at, word) = (self.at, shown(word));
                    return Err(RuleError::Word { at, word });
                }
            },
        })
    }

    fn can_match(&self, rule: &Rule) -> Result<(), RuleError> {
        let has_ports = !rule.from.ports.is_empty() || !rule.to.ports.is_empty();
        if has_ports && !matches!(rule.protocol, Some(TCP | UDP)) {
            return Err(self.never("ports are of tcp or udp"));
        }
        if rule.icmp.is_some() && !matches!(rule.protocol, Some(ICMP | ICMP6)) {
            return Err(self.never("types are of icmp or icmp6"));
        }
        if (rule.protocol, rule.family) == (Some(ICMP), Some(Family::V6)) {
            return Err(self.never("icmp is of IPv4; icmp6 is of IPv6"));
        }
        if (rule.protocol, rule.family) == (Some(ICMP6), Some(Family::V4)) {
            return Err(self.never("icmp6 is of IPv6; icmp is of IPv4"));
        }
        Ok(())
    }
}

impl Action {
    /// All of them.
    const ALL: [Action; 3] = [Action::Accept, Action::Drop, Action::Reject];

    /// The word for it.
    pub const fn word(self) -> &'static str {
        match self {
            Action::Accept => "accept",
            Action::Drop => "drop",
            Action::Reject => "reject",
        }
    }
}

impl Rule {
    /// A rule that matches every packet.
    pub fn all(action: Action) -> Rule {
        Rule {
            action,
            count: false,
            log: false,
            direction: None,
            family: None,
            protocol: None,
            icmp: None,
            from: Side::default(),
            to: Side::default(),
            states: States::default(),
        }
    }
}

impl FromStr for Rules {
    type Err = RuleError;
    fn from_str(text: &str) -> Result<Self, RuleError> {
        let too_many = |what, most| Err(RuleError::TooMany { what, most });
        if text.len() > TEXT_MAX {
            return too_many("bytes", TEXT_MAX);
        }
        let mut rules = Rules::default();
        let lines = text
            .lines()
            .map(|line| line.split('#').next().unwrap_or(""));
        let statements = lines.flat_map(|line| line.split(';'));
        let statements = statements.filter(|s| !s.trim().is_empty() && s.trim() != "none");
        for (index, statement) in statements.enumerate() {
            let at = index + 1;
            let words = statement.split_whitespace().peekable();
            let mut reader = Reader { at, words };
            match reader.words.next() {
                Some("set") => {
                    let set = reader.set(&rules.sets)?;
                    rules.sets.push(set);
                }
                word => {
                    let word = word.unwrap_or_default();
                    let action = Action::ALL.into_iter().find(|a| a.word() == word);
                    let word = shown(word);
                    let action = action.ok_or(RuleError::Action { at, word })?;
                    let rule = reader.rule(action, &rules.sets)?;
                    rules.rules.push(rule);
                }
            }
        }
        match () {
            () if rules.rules.len() > RULES_MAX => too_many("rules", RULES_MAX),
            () if rules.sets.len() > SETS_MAX => too_many("sets", SETS_MAX),
            () if count(&rules) > PREFIXES_MAX => too_many("prefixes", PREFIXES_MAX),
            () => Ok(rules),
        }
    }
}

/// Prefixes of rules and sets.
fn count(rules: &Rules) -> usize {
    let sides = rules.rules.iter().flat_map(|rule| [&rule.from, &rule.to]);
    let inline = sides.map(|side| match &side.addresses {
        Addresses::These(prefixes) => prefixes.len(),
        _ => 0,
    });
    let sets = rules.sets.iter().map(|set| set.prefixes.len());
    inline.chain(sets).sum()
}

/// Entries between commas.
struct List<'a, T>(&'a [T]);

impl<T: fmt::Display> fmt::Display for List<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, entry) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}{entry}")?;
        }
        Ok(())
    }
}

/// A range of ports.
struct Ports(u16, u16);

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 == self.1 {
            true => write!(f, "{}", self.0),
            false => write!(f, "{}-{}", self.0, self.1),
        }
    }
}

fn print(rule: &Rule, sets: &[Set]) -> Result<String, fmt::Error> {
    let mut out = String::from(rule.action.word());
    let flags = [(rule.count, " count"), (rule.log, " log")];
    for (_, word) in flags.iter().filter(|(is_set, _)| *is_set) {
        out.push_str(word);
    }
    match rule.direction {
        Some(Direction::In) => out.push_str(" in"),
        Some(Direction::Out) => out.push_str(" out"),
        None => {}
    }
    match rule.family {
        Some(Family::V4) => out.push_str(" ipv4"),
        Some(Family::V6) => out.push_str(" ipv6"),
        None => {}
    }
    if let Some(number) = rule.protocol {
        match PROTOCOLS.iter().find(|(_, known)| *known == number) {
            Some((name, _)) => write!(out, " {name}")?,
            None => write!(out, " proto {number}")?,
        }
    }
    match rule.icmp {
        Some((kind, Some(code))) => write!(out, " type {kind}/{code}")?,
        Some((kind, None)) => write!(out, " type {kind}")?,
        None => {}
    }
    for (word, side) in [("from", &rule.from), ("to", &rule.to)] {
        match &side.addresses {
            Addresses::Any if side.ports.is_empty() => continue,
            Addresses::Any => write!(out, " {word}")?,
            Addresses::These(prefixes) => write!(out, " {word} {}", List(prefixes))?,
            Addresses::Set(index) => {
                let name = sets.get(*index).map_or("", |set| &set.name);
                write!(out, " {word} @{name}")?;
            }
        }
        let ports: Vec<_> = side.ports.iter().map(|(a, b)| Ports(*a, *b)).collect();
        if !ports.is_empty() {
            write!(out, " port {}", List(&ports))?;
        }
    }
    let states = State::ALL.iter().zip(STATES);
    let states = states.filter(|(state, _)| !rule.states.is_any() && rule.states.matches(**state));
    let states: Vec<_> = states.map(|(_, name)| name).collect();
    if !states.is_empty() {
        write!(out, " state {}", List(&states))?;
    }
    Ok(out)
}

impl Rules {
    /// The text of a rule of this list.
    pub fn text_of(&self, rule: &Rule) -> String {
        // Writing to a String cannot fail.
        print(rule, &self.sets).unwrap_or_default()
    }
}

impl fmt::Display for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sets = self.sets.iter();
        let sets = sets.map(|set| Ok(format!("set {} {}", set.name, List(&set.prefixes))));
        let rules = self.rules.iter().map(|rule| print(rule, &self.sets));
        for (index, statement) in sets.chain(rules).enumerate() {
            let between = if index == 0 { "" } else { "; " };
            write!(f, "{between}{}", statement?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What is printed is canonical, and reads back.
    #[test]
    fn texts() {
        for (text, canonical) in [
            ("", ""),
            ("none", ""),
            ("drop", "drop"),
            (
                "accept  in tcp to port 22 ;drop in",
                "accept in tcp to port 22; drop in",
            ),
            (
                "# all\naccept state established,new # known\n\ndrop out from any",
                "accept state new,established; drop out",
            ),
            (
                "set bad 10.0.0.0/8,FD00::/16 10.0.0.1/32\ndrop from @bad",
                "set bad 10.0.0.0/8,fd00::/16,10.0.0.1; drop from @bad",
            ),
            (
                "accept udp to 10.0.0.1 port 1-9,53 from port 5-5 out",
                "accept out udp from port 5 to 10.0.0.1 port 1-9,53",
            ),
            (
                "drop in count tcp; reject log count; accept log",
                "drop count in tcp; reject count log; accept log",
            ),
            ("accept proto 6; drop proto 47", "accept tcp; drop proto 47"),
            (
                "accept icmp type 3/4; drop ipv6 icmp6 type 128",
                "accept icmp type 3/4; drop ipv6 icmp6 type 128",
            ),
        ] {
            let rules: Rules = text.parse().expect(text);
            assert_eq!(rules.to_string(), canonical);
            assert_eq!(canonical.parse(), Ok(rules));
        }
    }

    /// An error names the rule, the word, and what is possible.
    #[test]
    fn errors() {
        for (text, told) in [
            (
                "pass",
                "rule 1: begins with accept, drop, reject or set, not \"pass\"",
            ),
            (
                "drop; accept tpc",
                "rule 2: \"tpc\" is none of count, log, in, out, ipv4, ipv6, tcp, udp, icmp, icmp6, proto, type, from, to, state",
            ),
            (
                "drop in out",
                "rule 1: \"out\" is one more of what stands there already",
            ),
            (
                "drop from ::1 from ::2",
                "rule 1: \"from\" is one more of what stands there already",
            ),
            (
                "drop from",
                "rule 1: from is followed by any, a list of addresses and prefixes, or @SET",
            ),
            (
                "drop from 10.0.0.1/8",
                "rule 1: \"10.0.0.1/8\": bits beyond the prefix: name the address alone, or the prefix",
            ),
            (
                "drop from @x",
                "rule 1: \"@x\" is not a set that stands before it",
            ),
            (
                "drop tcp to port 9-8",
                "rule 1: \"9-8\" is not a list of ports and ranges such as 80,8000-8080",
            ),
            (
                "drop tcp to port 65536",
                "rule 1: \"65536\" is not a list of ports and ranges such as 80,8000-8080",
            ),
            (
                "drop to port 80",
                "rule 1: no packet matches it: ports are of tcp or udp",
            ),
            (
                "drop tcp type 3",
                "rule 1: no packet matches it: types are of icmp or icmp6",
            ),
            (
                "drop ipv6 icmp",
                "rule 1: no packet matches it: icmp is of IPv4; icmp6 is of IPv6",
            ),
            (
                "drop state open",
                "rule 1: \"open\" is not a list of new, established, related and invalid",
            ),
            (
                "set a ::1; set a ::2",
                "rule 2: \"a\" is one more of what stands there already",
            ),
            (
                "set a",
                "rule 1: set is followed by a name and a list of addresses and prefixes",
            ),
        ] {
            let error = text.parse::<Rules>().expect_err(text);
            assert_eq!(error.to_string(), told);
        }
    }

    /// More rules than there may be are refused.
    #[test]
    fn too_many() {
        let many = "drop;".repeat(RULES_MAX + 1);
        let error = many.parse::<Rules>().expect_err("too many");
        assert_eq!(error.to_string(), "rules: more than 10000");
    }

    proptest! {
        /// Any words either read back or are refused; nothing panics.
        #[test]
        fn words_read_back(words in proptest::collection::vec(prop_oneof![
            Just("accept"), Just("drop"), Just("count"), Just("reject"), Just("log"), Just(";"), Just("in"), Just("out"), Just("tcp"), Just("icmp"), Just("from"),
            Just("to"), Just("port"), Just("80"), Just("1-9,7"), Just("10.0.0.0/8"), Just("fd00::/8,10.0.0.1"), Just("state"),
            Just("new,related"), Just("set"), Just("x"), Just("@x"), Just("type"), Just("8/0"), Just("proto"), Just("\n"), Just("#"),
        ], 0..24)) {
            let text = words.join(" ");
            if let Ok(rules) = text.parse::<Rules>() {
                let printed = rules.to_string();
                prop_assert_eq!(printed.parse::<Rules>().map(|rules| rules.to_string()), Ok(printed));
            }
        }
    }
}
