//! The groups against a stand-in for a driver, with as many rules, contexts and rings as it is given.

use std::cell::{Cell, RefCell};

use super::*;

/// What a driver holds.
#[derive(Clone, Debug, PartialEq)]
struct Driver {
    rings: u32,
    rules_max: u32,
    contexts_max: usize,
    table: Vec<u32>,
    contexts: BTreeMap<u32, Vec<u32>>,
    rules: BTreeMap<u32, Rule>,
}

/// Where a daemon may be killed: what the driver has then, and what is written down.
struct Moment {
    driver: Driver,
    record: Option<String>,
    step: String,
}

/// Keeps what a driver would, and writes down what it is told.
struct Recorder {
    driver: RefCell<Driver>,
    told: RefCell<Vec<String>>,
    moments: RefCell<Vec<Moment>>,
    calls: Cell<usize>,
    /// The number of the call that is refused.
    refuse: Cell<usize>,
    record: PathBuf,
}

impl Recorder {
    fn new(driver: Driver, record: &Path) -> Recorder {
        Recorder {
            driver: RefCell::new(driver),
            told: RefCell::default(),
            moments: RefCell::default(),
            calls: Cell::new(0),
            refuse: Cell::new(usize::MAX),
            record: record.to_owned(),
        }
    }

    fn call<T>(&self, step: impl FnOnce(&mut Driver) -> Result<T, Errno>) -> Result<T, Errno> {
        let call = self.calls.replace(self.calls.get() + 1);
        match call == self.refuse.get() {
            true => Err(Errno::IO),
            false => step(&mut self.driver.borrow_mut()),
        }
    }

    fn change<T>(
        &self,
        told: String,
        step: impl FnOnce(&mut Driver) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let moment = |when: &str| Moment {
            driver: self.driver.borrow().clone(),
            record: fs::read_to_string(&self.record).ok(),
            step: format!("{when} {told}"),
        };
        let before = moment("before");
        let done = self.call(step);
        self.moments.borrow_mut().extend([before, moment("after")]);
        if done.is_ok() {
            self.told.borrow_mut().push(told);
        }
        done
    }
}

impl Classifier for Recorder {
    fn rings(&self) -> Result<u32, Errno> {
        self.call(|driver| Ok(driver.rings))
    }

    fn table(&self, context: u32) -> Result<Vec<u32>, Errno> {
        self.call(|driver| match context {
            0 => Ok(driver.table.clone()),
            _ => driver.contexts.get(&context).cloned().ok_or(Errno::NOENT),
        })
    }

    fn set_default_table(&self, table: &[u32]) -> Result<(), Errno> {
        self.change(format!("default {table:?}"), |driver| {
            let (rings, length) = (driver.rings, driver.table.len() as u32);
            driver.table = match table {
                [] => (0..length).map(|i| i % rings).collect(),
                _ => table.to_vec(),
            };
            Ok(())
        })
    }

    fn add_context(&self, table: &[u32]) -> Result<u32, Errno> {
        self.change(format!("add context {table:?}"), |driver| {
            let number = (1..).find(|n| !driver.contexts.contains_key(n));
            let number = number.filter(|_| driver.contexts.len() < driver.contexts_max);
            let number = number.ok_or(Errno::NOSPC)?;
            driver.contexts.insert(number, table.to_vec());
            Ok(number)
        })
    }

    fn remove_context(&self, context: u32) -> Result<(), Errno> {
        self.change(format!("remove context {context}"), |driver| {
            let led = |rule: &Rule| rule.target == Target::Context(context);
            assert!(!driver.rules.values().any(led), "it is in use");
            driver
                .contexts
                .remove(&context)
                .map(drop)
                .ok_or(Errno::NOENT)
        })
    }

    fn rules(&self) -> Result<(u32, Vec<Rule>), Errno> {
        self.call(|driver| Ok((driver.rules_max, driver.rules.values().copied().collect())))
    }

    fn add_rule(&self, rule: &Rule) -> Result<(), Errno> {
        let told = format!("add {} {:?}", rule.location, rule.target);
        self.change(told, |driver| {
            assert!(rule.location < driver.rules_max);
            let same = driver
                .rules
                .values()
                .any(|r| r.destination == rule.destination);
            let former = driver.rules.insert(rule.location, *rule);
            assert!(former.is_none() && !same, "{rule:?}");
            Ok(())
        })
    }

    fn remove_rule(&self, location: u32) -> Result<(), Errno> {
        self.change(format!("remove {location}"), |driver| {
            driver.rules.remove(&location).map(drop).ok_or(Errno::NOENT)
        })
    }
}

/// Six rings, of which a rule of somebody else's uses one, and a context of somebody else's.
fn driver() -> Driver {
    let foreign = Rule {
        location: 7,
        destination: None,
        target: Target::Queue(5),
    };
    Driver {
        rings: 6,
        rules_max: 8,
        contexts_max: 3,
        table: (0..12).map(|i| i % 6).collect(),
        contexts: [(1, vec![0; 12])].into(),
        rules: [(7, foreign)].into(),
    }
}

fn wish(vnic: &str, addresses: &[u64], rings: u32) -> Wish {
    Wish {
        vnic: vnic.into(),
        addresses: addresses.iter().copied().collect(),
        rings,
    }
}

fn begun(record: &Path) -> Rings {
    let mut rings = Rings::left(record);
    rings.begin(3);
    rings
}

/// Everything that a driver was given by us is written down, every VNIC has all it asks for or nothing and a reason, and nothing else
/// comes by its rings.
fn is_sound(rings: &Rings, driver: &Driver, wishes: &[Wish]) {
    let laid: Vec<Rule> = rings
        .laid
        .groups
        .iter()
        .flat_map(LaidGroup::rules)
        .collect();
    for rule in driver.rules.values() {
        assert!(rule.location == 7 || laid.contains(rule), "{rule:?}");
    }
    for wish in wishes {
        let is_of = |group: &&LaidGroup| {
            let Group {
                vnic,
                addresses,
                rings,
            } = &group.group;
            let asked = rings.len() == wish.rings as usize && *addresses == wish.addresses;
            asked && *vnic == wish.vnic
        };
        let group = rings.laid.groups.iter().find(is_of);
        let refused = rings.refused.contains_key(&wish.vnic);
        if refused || rings.stays.is_some() {
            continue;
        }
        let group = group.expect("it has one");
        assert_eq!(group.rules.len(), wish.addresses.len());
        for rule in group.rules() {
            assert_eq!(driver.rules.get(&rule.location), Some(&rule));
            if let Target::Context(context) = rule.target {
                assert_eq!(driver.contexts[&context], spread(&group.group.rings, 12));
            }
        }
        if !group
            .group
            .rings
            .is_disjoint(&driver.table.iter().copied().collect())
        {
            panic!("{:?} {:?}", group.group, driver.table);
        }
    }
}

/// One ring by a rule, two by a context; the default group's table is kept off them, and is as before in the end.
#[test]
fn groups_are_made_and_end() {
    let directory = tempfile::tempdir().unwrap();
    let record = directory.path().join("uplinks/eth0");
    let nic = Recorder::new(driver(), &record);
    let mut rings = begun(&record);
    rings.follow(&nic, &[]);
    assert_eq!((nic.calls.get(), rings.describe()), (0, None));
    let wishes = [
        wish("a", &[1], 1),
        wish("b", &[2, 3], 2),
        wish("c", &[4], 3),
    ];
    rings.follow(&nic, &wishes);
    let told = nic.told.take();
    let wanted = [
        "default [0, 1, 2, 3, 0, 5, 0, 1, 2, 3, 1, 5]",
        "add 6 Queue(4)",
        "default [0, 1, 0, 1, 5, 5, 0, 1, 0, 1, 5, 5]",
        "add context [2, 3, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3]",
        "add 5 Context(2)",
        "add 4 Context(2)",
    ];
    assert_eq!(told[1..2], wanted[1..2]);
    assert_eq!(told[3..], wanted[3..]);
    is_sound(&rings, &nic.driver.borrow(), &wishes);
    let said = "a 4; b 2,3; c default group (2 rings are free)";
    assert_eq!(rings.describe().as_deref(), Some(said));
    rings.follow(&nic, &wishes);
    assert!(nic.told.borrow().is_empty());
    rings.follow(&nic, &wishes[2..]);
    assert_eq!(rings.describe().as_deref(), Some("c 2,3,4"));
    rings.release(&nic);
    assert_eq!(*nic.driver.borrow(), driver());
    assert_eq!(nic.told.borrow().last().unwrap(), "default []");
    assert!(!record.exists());
}

/// Whatever is refused, at each step of each change in turn: what was done is taken back, no other VNIC loses anything, the next try gets
/// there, and in the end the driver is as it was.
#[test]
fn a_refused_step_is_taken_back() {
    let (a, b) = (wish("a", &[1], 1), wish("b", &[2, 3], 2));
    let (more, other) = (wish("b", &[2, 3, 4], 2), wish("a", &[1], 2));
    let changes = [
        (vec![], vec![a.clone(), b.clone()]),
        (vec![a.clone(), b.clone()], vec![a.clone()]),
        (vec![b.clone()], vec![more]),
        (vec![a], vec![other, b]),
    ];
    let mut steps = 0;
    for (from, to) in &changes {
        for refuse in 0.. {
            let directory = tempfile::tempdir().unwrap();
            let record = directory.path().join("eth0");
            let nic = Recorder::new(driver(), &record);
            let mut rings = begun(&record);
            rings.follow(&nic, from);
            assert!(rings.refused.is_empty());
            nic.calls.set(0);
            nic.refuse.set(refuse);
            rings.follow(&nic, to);
            let was_refused = nic.calls.get() > refuse;
            nic.refuse.set(usize::MAX);
            is_sound(&rings, &nic.driver.borrow(), to);
            let told = rings.refused.len() + usize::from(rings.stays.is_some());
            assert_eq!(told > 0, was_refused, "{refuse}: {:?}", rings.describe());
            assert!(rings.refused.len() <= 2);
            rings.follow(&nic, to);
            is_sound(&rings, &nic.driver.borrow(), to);
            assert!(rings.refused.is_empty() && rings.stays.is_none());
            assert_eq!(
                nic.driver.borrow().rules.len(),
                1 + to.iter().map(|w| w.addresses.len()).sum::<usize>()
            );
            rings.release(&nic);
            assert_eq!(*nic.driver.borrow(), driver(), "{refuse}");
            if !was_refused {
                break;
            }
            steps += 1;
        }
    }
    assert!(steps > 60, "{steps}");
}

/// A daemon that is killed before or after any step: the next one removes all of it, and nothing else. Only a context that was made
/// in that very instant stays.
#[test]
fn a_killed_daemons_are_found() {
    let directory = tempfile::tempdir().unwrap();
    let record = directory.path().join("eth0");
    let nic = Recorder::new(driver(), &record);
    let mut rings = begun(&record);
    rings.follow(&nic, &[wish("a", &[1], 1), wish("b", &[2, 3], 2)]);
    rings.follow(&nic, &[wish("a", &[1, 5], 1), wish("c", &[6], 2)]);
    rings.follow(&nic, &[]);
    let moments = nic.moments.take();
    assert!(moments.len() > 30);
    for Moment {
        driver: found,
        record: text,
        step,
    } in moments
    {
        match text {
            Some(text) => fs::write(&record, text).unwrap(),
            None => drop(fs::remove_file(&record)),
        }
        let nic = Recorder::new(found, &record);
        let mut left = Rings::left(&record);
        assert!(left.interface().is_none_or(|interface| interface == 3));
        left.release(&nic);
        let mut found = nic.driver.borrow().clone();
        if step.starts_with("after add context") {
            found.contexts.remove(&2);
        }
        assert_eq!(found, driver(), "{step}");
        assert!(!record.exists(), "{step}");
    }
}

/// A group that should end and cannot even be looked at is no VNIC's any more: not of one that asks for nothing, nor of one that asks for
/// something else. It is ended when it can be.
#[test]
fn what_cannot_end_is_nobodys() {
    let directory = tempfile::tempdir().unwrap();
    let record = directory.path().join("eth0");
    let nic = Recorder::new(driver(), &record);
    let mut rings = begun(&record);
    rings.follow(&nic, &[wish("a", &[1], 1)]);
    for wishes in [vec![], vec![wish("a", &[1], 2)]] {
        nic.refuse.set(nic.calls.get());
        rings.follow(&nic, &wishes);
        let said = rings.describe().unwrap();
        assert!(said.contains("some are left (the driver"), "{said}");
        assert!(!said.starts_with("a 4"), "{said}");
        assert_eq!(rings.refused.len(), wishes.len());
    }
    rings.follow(&nic, &[wish("a", &[1], 2)]);
    assert_eq!(rings.describe().as_deref(), Some("a 3,4"));
    rings.release(&nic);
    assert_eq!(*nic.driver.borrow(), driver());
}

/// What somebody else has put where ours was, and a table that somebody else has set, stay.
#[test]
fn what_others_made_stays() {
    let directory = tempfile::tempdir().unwrap();
    let record = directory.path().join("eth0");
    let nic = Recorder::new(driver(), &record);
    let mut rings = begun(&record);
    rings.follow(&nic, &[wish("a", &[1], 1), wish("b", &[2], 2)]);
    let (theirs, table) = {
        let mut driver = nic.driver.borrow_mut();
        let rule = driver.rules.get_mut(&6).unwrap();
        rule.target = Target::Queue(0);
        let theirs = *rule;
        driver.table = vec![0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2];
        driver.contexts.insert(2, vec![1; 12]);
        (theirs, driver.table.clone())
    };
    rings.release(&nic);
    let driver = nic.driver.borrow();
    assert_eq!(
        (driver.rules.get(&6), &driver.table),
        (Some(&theirs), &table)
    );
    assert_eq!(driver.rules.len(), 2);
    assert!(driver.contexts.contains_key(&2));
    assert!(rings.is_empty() && !record.exists());
}

/// Where nothing can be written down, nothing is done.
#[test]
fn nothing_is_done_that_is_not_written_down() {
    let directory = tempfile::tempdir().unwrap();
    let record = directory.path().join("eth0");
    fs::create_dir_all(record.join("in the way")).unwrap();
    let nic = Recorder::new(driver(), &record);
    let mut rings = begun(&record);
    rings.follow(&nic, &[wish("a", &[1], 1)]);
    assert!(nic.told.borrow().is_empty());
    let said = rings.describe().unwrap();
    assert!(
        said.starts_with("a default group") && said.contains("eth0"),
        "{said}"
    );
}
