//! The rules of a member, compiled.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use windlass_rules::{Action, Direction, Rules, State};

use crate::classify::{Classifier, CompileError};
use crate::count::{Counts, LISTS_MAX, Ledger, Marks};
use crate::packet::Packet;
use crate::track::Decided;

/// Numbers of policies.
static GENERATION: AtomicU64 = AtomicU64::new(1);

/// What a rule does.
#[derive(Debug, Clone)]
struct Act {
    action: Action,
    /// Which of the list's counts it has.
    count: Option<u16>,
    /// Its text, if it logs.
    log: Option<Arc<str>>,
}

/// A list of rules: the first that matches decides, and what none matches passes.
#[derive(Debug)]
pub struct List {
    classifier: Classifier,
    /// By rule.
    acts: Vec<Act>,
    /// Texts of the rules that count.
    counted: Vec<Arc<str>>,
    /// Some rule asks about connections.
    has_states: bool,
}

impl List {
    /// Prepares a list.
    ///
    /// # Errors
    /// [`CompileError`].
    pub fn new(rules: &Rules) -> Result<List, CompileError> {
        let classifier = Classifier::new(rules)?;
        let mut counted = Vec::new();
        let mut act = |rule: &windlass_rules::Rule| {
            let count = rule.count.then_some(counted.len() as u16);
            if rule.count {
                counted.push(rules.text_of(rule).into());
            }
            Act {
                action: rule.action,
                count,
                log: rule.log.then(|| rules.text_of(rule).into()),
            }
        };
        let acts = rules.rules.iter().map(&mut act).collect();
        Ok(List {
            classifier,
            acts,
            counted,
            has_states: rules.rules.iter().any(|rule| !rule.states.is_any()),
        })
    }

    /// What becomes of a packet.
    fn act(&self, direction: Direction, packet: &Packet, state: State) -> Option<&Act> {
        let rule = self.classifier.first(direction, packet, state)?;
        self.acts.get(usize::from(rule))
    }
}

/// The lists of rules that packets have to pass, all of them.
#[derive(Debug)]
pub struct Compiled {
    /// With the place of each.
    lists: Vec<(usize, Arc<List>)>,
    /// Some rule asks about connections.
    has_states: bool,
}

impl Compiled {
    /// A packet passes if each list lets it. Counts of a rule go on as long as its list has the same place; [`LISTS_MAX`] places at most
    /// are looked at.
    pub fn new(lists: impl IntoIterator<Item = Option<Arc<List>>>) -> Compiled {
        let lists = lists.into_iter().take(LISTS_MAX).enumerate();
        let lists: Vec<_> = lists
            .filter_map(|(place, list)| Some((place, list?)))
            .collect();
        Compiled {
            has_states: lists.iter().any(|(_, list)| list.has_states),
            lists,
        }
    }

    /// Bytes that it takes.
    pub fn bytes(&self) -> usize {
        let lists = self.lists.iter();
        lists.map(|(_, list)| list.classifier.bytes()).sum()
    }
}

/// What a rule has counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counted {
    /// The place of its list.
    pub list: usize,
    /// Frames that it decided.
    pub frames: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// What rules say.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Said<'a> {
    /// The first that does not accept, or all do.
    pub(crate) action: Action,
    pub(crate) marks: Marks,
    /// The last rule with `log` that was asked, and the place of its list.
    pub(crate) log: Option<(usize, &'a Arc<str>, Action)>,
}

/// The rules of one member, with what they count there.
#[derive(Debug)]
pub struct Policy {
    rules: Arc<Compiled>,
    /// What decisions of the tracker hold for.
    pub(crate) generation: u64,
    pub(crate) counts: Counts,
}

impl Policy {
    /// Rules for a member that has this ledger.
    pub fn new(rules: Arc<Compiled>, ledger: &mut Ledger) -> Policy {
        let counted = rules
            .lists
            .iter()
            .flat_map(|(place, list)| list.counted.iter().map(move |text| (*place, text)));
        let counts = Counts::new(ledger.counts(counted));
        Policy {
            counts,
            rules,
            generation: GENERATION.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// Whether these are its rules.
    pub fn is_of(&self, rules: &Arc<Compiled>) -> bool {
        Arc::ptr_eq(&self.rules, rules)
    }

    /// What rules with `count` have counted, in their order.
    pub fn counted(&self) -> impl Iterator<Item = Counted> + '_ {
        let places = (self.rules.lists.iter())
            .flat_map(|(place, list)| std::iter::repeat_n(*place, list.counted.len()));
        places.zip(self.counts.iter()).map(|(list, count)| {
            let (frames, bytes) = count.get();
            Counted {
                list,
                frames,
                bytes,
            }
        })
    }

    /// Whether some rule asks about connections.
    pub(crate) fn has_states(&self) -> bool {
        self.rules.has_states
    }

    /// A decision as a tracker keeps it; none if the rules have to be asked again.
    #[inline(always)]
    pub(crate) fn decided(&self, state: State, said: &Said<'_>) -> Decided {
        match self.counts.number(said.marks) {
            Some(number) if said.action != Action::Reject => {
                let accepts = said.action == Action::Accept;
                Decided::new(self.generation, state, accepts, number)
            }
            _ => Decided::NONE,
        }
    }

    /// What the lists say of a packet. A list behind one that refuses it is not asked.
    #[inline(always)]
    pub(crate) fn ask(&self, direction: Direction, packet: &Packet, state: State) -> Said<'_> {
        let mut said = Said {
            action: Action::Accept,
            marks: Marks::default(),
            log: None,
        };
        let mut first = 0u16;
        for (place, list) in &self.rules.lists {
            if let Some(act) = list.act(direction, packet, state) {
                said.action = act.action;
                if let Some(count) = act.count {
                    said.marks.push(first.wrapping_add(count));
                }
                if let Some(text) = &act.log {
                    said.log = Some((*place, text, act.action));
                }
                if act.action != Action::Accept {
                    break;
                }
            }
            first = first.wrapping_add(list.counted.len() as u16);
        }
        said
    }
}
