//! `windlass trace`: what functions of a running program are called with.
//!
//! # Purpose
//! Probes on functions of a program that was not prepared for it, in the types of its debug data: what is printed, counted and filtered is an expression over its
//! arguments and its memory.
//!
//! # Where it sits
//! ```text
//!   windlass trace     site (which instructions, which arguments) -> windlass-script (Plan) -> attached (kernel) -> record -> show
//!        |
//!   windlass-types     what arguments are and where they lie
//!   windlass-target    files that are mapped, debug data, machine code
//!   windlass-sys       programs, maps, the ring
//! ```
//!
//! # Failure modes
//! The program that is traced never waits: a record for which there is no room is dropped and counted. All probes end with this process, however that ends.
//!
//! # Not done
//! Jumps.

mod attached;
mod follow;
mod heat;
mod module;
mod place;
mod probe;
mod record;
mod sdt;
mod show;
mod site;
mod start;
mod symbols;

use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use windlass_api::ErrorCode;
use windlass_script::ebpf::{self, On, Plan};
use windlass_script::lower::{Lowered, Lowering, Shared};
use windlass_script::syntax::{Clause, Expr, ExprKind, Statement};
use windlass_script::{ScriptError, parse};
use windlass_sys::Errno;
use windlass_sys::process;
use windlass_types::{Encoding, Node, Types};

use crate::Session;
use crate::failure::Failure;
use crate::options::TraceArgs;
use crate::suggest;
use crate::table::clean;

use attached::{AttachError, Attached, Wanted};
use module::Module;
use probe::{Probe, looks_into};
use site::{Entered, Places, Site, SiteNames, Sites};
use start::Started;

/// The kernel's own types.
const KERNEL_TYPES: &str = "/sys/kernel/btf/vmlinux";

/// A place with what is done there.
struct Armed {
    site: Site,
    lowered: Lowered,
}

/// What is done at which probes.
struct Asked {
    /// As they were written.
    name: String,
    probes: Vec<Probe>,
    text: Option<String>,
}

/// Who is traced.
struct Target {
    /// Without it, all processes.
    pid: Option<u32>,
    /// Its end.
    pidfd: Option<Arc<OwnedFd>>,
    /// It was started for this.
    started: Option<Started>,
}

impl Target {
    fn of(args: &TraceArgs, what: &str) -> Result<Self, Failure> {
        let started = args.command.as_deref().map(Started::new).transpose();
        let started = started.map_err(|why| Failure::new(ErrorCode::Host, what, why, ""))?;
        let pid = started.as_ref().map(Started::pid).or(args.pid);
        let pinned = pid.map(|pid| process::pin(pid).map_err(|errno| gone(what, pid, errno)));
        Ok(Self {
            pid,
            pidfd: pinned.transpose()?.map(|(_, pidfd)| pidfd),
            started,
        })
    }
}

/// `windlass trace`
pub(crate) fn run(session: &mut Session<'_>, args: &TraceArgs) -> Result<(), Failure> {
    let what = match (&args.command, args.pid) {
        (Some(command), _) => format!("trace {command}"),
        (None, Some(pid)) => format!("trace process {pid}"),
        (None, None) => "trace all processes".to_owned(),
    };
    let refused = |why: String| Failure::new(ErrorCode::Usage, &what, why, "");
    if !cfg!(target_arch = "x86_64") {
        return Err(refused("programs are traced on x86-64 alone".to_owned()));
    }
    let asked = asked(args).map_err(&refused)?;
    let target = Target::of(args, &what)?;
    let patterns = asked.iter().flat_map(|asked| &asked.probes);
    let patterns: Vec<_> = patterns.filter_map(Probe::pattern).collect();
    let modules = match (target.pid, patterns.is_empty()) {
        (_, true) => Ok(Vec::new()),
        (Some(pid), false) => Module::find(pid, &patterns),
        (None, false) => Module::find_everywhere(&patterns),
    };
    let modules = modules.map_err(|why| no_right(&what, why))?;
    let probes = || asked.iter().flat_map(|asked| &asked.probes);
    let has_event = probes().any(|probe| matches!(probe, Probe::Kernel(_)));
    let btf = std::fs::read(KERNEL_TYPES).ok().filter(|_| has_event);
    let types: Vec<Types<'_>> = modules.iter().map(Module::types).collect();
    // And those of what is in no file.
    let kernel = btf.as_ref().map(|bytes| Types::of_btf(bytes, None));
    let types: Vec<Types<'_>> = types
        .into_iter()
        .chain([kernel.unwrap_or_default()])
        .collect();
    // Static probes need none.
    let is_typed = |module: &&Module| {
        probes().any(|probe| {
            let pattern = probe
                .pattern()
                .filter(|_| !matches!(probe, Probe::Static(..)));
            pattern.is_some_and(|pattern| looks_into(pattern, &module.name, module.is_program))
        })
    };
    let notes = modules.iter().filter(is_typed);
    let notes = notes.flat_map(|module| [module.without_debug(), module.replaced()]);
    for note in notes.flatten() {
        eprintln!("windlass: {}", clean(&note));
    }
    let mut sites = Vec::new();
    for asked in &asked {
        sites.push(places(asked, &modules, &types, &what)?);
    }
    if args.list {
        return show::list(session, &sites.concat(), &types);
    }
    let shared = RefCell::new(Shared::new(follow::to_wall()));
    let arming = Arming {
        pid: target.pid,
        modules: &modules,
        types: &types,
        shared: &shared,
        entries: RefCell::default(),
    };
    let mut armed = Vec::new();
    for (number, (asked, sites)) in (0..).zip(asked.iter().zip(sites)) {
        armed.extend(arming.clause(number, asked, sites).map_err(refused)?);
    }
    let attached = arming.attach(&armed, asked.len());
    let attached = attached.map_err(|error| not_attached(&what, &error))?;
    let names = asked.iter().map(|asked| asked.name.clone()).collect();
    let run = follow::Run::new(attached, &armed, &types, target, names);
    run.follow(session, args)
}

/// Each probe with its clause.
fn asked(args: &TraceArgs) -> Result<Vec<Asked>, String> {
    let mut words = std::iter::once(&args.probe).chain(&args.clauses);
    let mut all = Vec::new();
    while let Some(name) = words.next() {
        all.push(Asked {
            name: name.clone(),
            probes: Probe::all(name)?,
            text: words.next().cloned(),
        });
    }
    Ok(all)
}

/// The places of a clause.
fn places(
    asked: &Asked,
    modules: &[Module],
    types: &[Types<'_>],
    what: &str,
) -> Result<Vec<Site>, Failure> {
    let refused = |why: String| Failure::new(ErrorCode::Usage, what, why, "");
    let (mut sites, mut refusals) = (Vec::new(), Vec::new());
    for wanted in &asked.probes {
        let Some(probe) = wanted.function() else {
            sites.extend(others(wanted, modules, types).map_err(&refused)?);
            continue;
        };
        let before = sites.len();
        let (mut names, mut left) = (Vec::new(), Vec::new());
        for (number, (module, types)) in modules.iter().zip(types).enumerate() {
            if !looks_into(probe.module.as_deref(), &module.name, module.is_program) {
                continue;
            }
            let all = Sites {
                number,
                module,
                types,
                probe,
            };
            let (found, left_out) = all.find().map_err(&refused)?;
            if found.is_empty() {
                names.extend(all.names());
            }
            left.extend(left_out);
            sites.extend(found);
        }
        if sites.len() == before && left.is_empty() {
            let words = names.iter().map(String::as_str);
            let nearest = suggest::nearest(&probe.function, words);
            let todo = nearest.map_or(String::new(), |name| format!("did you mean \"{name}\"?"));
            let why = format!("no function fits {}", probe.function);
            return Err(Failure::new(ErrorCode::NotFound, what, why, todo));
        }
        refusals.extend(left);
    }
    if let ([], [why, ..]) = (sites.as_slice(), refusals.as_slice()) {
        return Err(refused(why.clone()));
    }
    refusals.iter().for_each(|why| left_out(why));
    Ok(sites)
}

fn left_out(why: &str) {
    eprintln!("windlass: left out: {}", clean(why));
}

fn gone(what: &str, pid: u32, errno: Errno) -> Failure {
    match errno {
        Errno::SRCH => Failure::new(
            ErrorCode::NotFound,
            what,
            format!("there is no process {pid}"),
            "",
        ),
        errno => Failure::new(ErrorCode::Host, what, errno.to_string(), ""),
    }
}

fn no_right(what: &str, why: String) -> Failure {
    let todo = "tracing needs CAP_BPF, CAP_PERFMON, and the right to look at the process's memory";
    Failure::new(ErrorCode::Host, what, why, todo)
}

fn not_attached(what: &str, error: &AttachError) -> Failure {
    match error {
        AttachError::Kernel {
            errno: Errno::PERM | Errno::ACCESS,
            ..
        } => {
            let todo = "CAP_BPF and CAP_PERFMON are needed";
            Failure::new(ErrorCode::Forbidden, what, error.to_string(), todo)
        }
        AttachError::Load(load)
            if matches!(load.errno, Errno::PERM | Errno::ACCESS) && load.log.is_empty() =>
        {
            let todo = "CAP_BPF and CAP_PERFMON are needed";
            Failure::new(ErrorCode::Forbidden, what, error.to_string(), todo)
        }
        error => Failure::new(ErrorCode::Host, what, error.to_string(), ""),
    }
}

/// The places of what is no function.
fn others(probe: &Probe, modules: &[Module], types: &[Types<'_>]) -> Result<Vec<Site>, String> {
    let Some(pattern) = probe.pattern() else {
        let site = Site::elsewhere(probe.clone(), modules.len());
        return Ok(vec![match types.last() {
            Some(types) => site.of_event(types),
            None => site,
        }]);
    };
    let mut sites = Vec::new();
    for (number, (module, types)) in modules.iter().zip(types).enumerate() {
        if !looks_into(pattern, &module.name, module.is_program) {
            continue;
        }
        let places = Places {
            number,
            module,
            types,
            probe,
        };
        sites.extend(match probe {
            Probe::Line(_, file, line) => places.of_line(file, *line),
            Probe::Static(provider, name) => places.of_static(provider, name),
            _ => Vec::new(),
        });
    }
    match (sites.is_empty(), probe) {
        (false, _) => Ok(sites),
        (true, Probe::Line(..)) => Err(format!("no code is from {}", probe.name())),
        (true, _) => Err(format!("no file that is mapped has {}", probe.name())),
    }
}

/// Works out what is done where.
struct Arming<'r, 'a> {
    pid: Option<u32>,
    modules: &'r [Module],
    types: &'r [Types<'a>],
    shared: &'r RefCell<Shared>,
    entries: RefCell<Vec<Entered>>,
}

impl Arming<'_, '_> {
    /// Attaches all of it.
    fn attach(&self, armed: &[Armed], clauses: usize) -> Result<Attached, AttachError> {
        let shared = self.shared.borrow();
        let plan = |(place, armed): (u64, &Armed)| {
            let mut plan = armed.lowered.plan.clone();
            plan.may_stop = shared.may_stop;
            // What tells of its place otherwise shares a program with others.
            plan.place = if plan.on == On::Instruction { 0 } else { place };
            (armed.site.clone(), plan)
        };
        let sites: Vec<(Site, Plan)> = (0..).zip(armed).map(plan).collect();
        let attached = Attached::new(&Wanted {
            pid: self.pid,
            modules: self.modules,
            sites: &sites,
            entries: &self.entries.borrow(),
            shared: &shared,
            clauses,
        })?;
        for site in &attached.refused {
            let armed = usize::try_from(*site).ok().and_then(|site| armed.get(site));
            if let Some(Armed { site, .. }) = armed {
                left_out(&format!("{}: {}", site.name, AttachError::Instruction));
            }
        }
        Ok(attached)
    }

    /// Works out what is done at each place of a clause.
    fn clause(&self, number: u32, asked: &Asked, sites: Vec<Site>) -> Result<Vec<Armed>, String> {
        let text = asked.text.as_deref().unwrap_or_default();
        // A failure is one line; the place in the text is two.
        let wrong = |error: ScriptError| {
            for line in error.show(text).lines() {
                eprintln!("{}", clean(line));
            }
            error.why
        };
        let has_return = sites.iter().any(|site| !site.leaves_by_jump);
        let clause = asked.text.as_ref().map(|_| parse::clause(text)).transpose();
        let clause = clause.map_err(wrong)?;
        let mut armed: Vec<Armed> = Vec::new();
        for site in sites {
            let lowered = match self.site(&site, clause.as_ref(), text) {
                Ok(lowered) => lowered,
                // Where the function returns itself, it may be known.
                Err(error) if site.leaves_by_jump && has_return => {
                    left_out(&format!("{}: {}", site.name, error.why));
                    continue;
                }
                Err(error) => {
                    let why = wrong(error);
                    return Err(format!("at {}: {why}", site.name));
                }
            };
            if let Some(first) = armed.first()
                && targets(&first.lowered.plan.actions) != targets(&lowered.plan.actions)
            {
                let (one, other) = (&first.site.name, &site.name);
                return Err(format!("the keys at {one} and at {other} are not alike"));
            }
            armed.push(Armed { site, lowered });
        }
        for Armed { site, lowered } in &mut armed {
            let plan = &mut lowered.plan;
            plan.clause = number;
            plan.on = match site.probe {
                Probe::Function(_) | Probe::Line(..) | Probe::Static(..) => On::Instruction,
                Probe::Kernel(_) => On::Kernel,
                Probe::Profile(_) => On::Sample,
                Probe::Begin | Probe::End | Probe::Tick(_) => On::Call,
            };
            plan.pid = self
                .pid
                .filter(|_| matches!(plan.on, On::Sample | On::Kernel));
        }
        Ok(armed)
    }

    fn site(
        &self,
        site: &Site,
        clause: Option<&Clause>,
        text: &str,
    ) -> Result<Lowered, ScriptError> {
        let nothing = Types::default();
        let types = self.types.get(site.module).unwrap_or(&nothing);
        let module = self.modules.get(site.module);
        let long = types.add(Node::Int {
            name: "long".into(),
            size: 8,
            encoding: Encoding::Signed,
        });
        let names = SiteNames {
            site,
            types,
            bias: module.and_then(|module| module.bias),
            module: module.map_or("", |module| &module.name),
            pid: self.pid,
            entries: &self.entries,
            long,
        };
        let lowering = Lowering::new(types, &names).sharing(self.shared, site.module);
        match clause {
            Some(clause) => lowering.clause(clause, text),
            None => Ok(of_arguments(&lowering, site)),
        }
    }
}

/// The aggregations that actions add to.
fn targets(actions: &[ebpf::Action]) -> Vec<usize> {
    let targets = actions.iter().flat_map(|action| match action {
        ebpf::Action::Add(addition) => vec![addition.to],
        ebpf::Action::If(_, then, otherwise) => [targets(then), targets(otherwise)].concat(),
        _ => Vec::new(),
    });
    targets.collect()
}

/// Every argument that can be printed.
fn of_arguments(lowering: &Lowering<'_, '_>, site: &Site) -> Lowered {
    let mut clause = Clause {
        filter: None,
        statements: Vec::new(),
    };
    let mut last = Lowered::default();
    last.plan.is_told = true;
    let mut values = Vec::new();
    let mut text = String::new();
    let names = site
        .arguments
        .iter()
        .map(|argument| argument.name.to_string());
    let names = names.chain(["retval".to_owned()]);
    for name in names.filter(|name| !name.is_empty()) {
        let span = text.len()..text.len() + name.len();
        text.push_str(&name);
        values.push(Expr {
            kind: ExprKind::Name(name),
            span,
        });
        clause.statements = vec![Statement::Print(values.clone())];
        match lowering.clause(&clause, &text) {
            Ok(lowered) => last = lowered,
            // One that is not there, or does not fit any more.
            Err(_) => drop(values.pop()),
        }
    }
    last
}
