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
//! Files and lines, static probes, events of the kernel, samples, jumps, programs that are started (`-c`), all processes at once.

mod attached;
mod place;
mod record;
mod show;
mod site;

use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use windlass_api::ErrorCode;
use windlass_script::lower::{Lowered, Lowering};
use windlass_script::syntax::{Clause, Expr, ExprKind, Statement};
use windlass_script::{ScriptError, ebpf, parse};
use windlass_sys::Errno;
use windlass_sys::process;
use windlass_types::{Encoding, Node, Types};

use crate::Session;
use crate::ending::Ending;
use crate::failure::Failure;
use crate::options::TraceArgs;
use crate::suggest;
use crate::table::clean;

use attached::{AttachError, Attached};
use record::Record;
use show::Show;
use site::{Module, Probe, Site, SiteNames, Sites};

/// How often aggregations and the ring are looked at, at least.
const LOOK: Duration = Duration::from_millis(200);

/// A place with what is done there.
struct Armed {
    site: Site,
    lowered: Lowered,
}

/// `windlass trace`
pub(crate) fn run(session: &mut Session<'_>, args: &TraceArgs) -> Result<(), Failure> {
    let what = format!("trace process {}", args.pid);
    let refused = |why: String| Failure::new(ErrorCode::Usage, &what, why, "");
    if !cfg!(target_arch = "x86_64") {
        return Err(refused("programs are traced on x86-64 alone".to_owned()));
    }
    let probe = Probe::parse(&args.probe).map_err(&refused)?;
    let pidfd = process::pin(args.pid);
    let (_, pidfd) = pidfd.map_err(|errno| gone(&what, args.pid, errno))?;
    let modules = Module::find(args.pid, probe.module.as_deref());
    let modules = modules.map_err(|why| no_right(&what, why))?;
    let types: Vec<Types<'_>> = modules.iter().map(Module::types).collect();
    for note in modules.iter().filter_map(Module::without_debug) {
        eprintln!("windlass: {}", clean(&note));
    }
    let mut sites = Vec::new();
    let (mut names, mut refusals) = (Vec::new(), Vec::new());
    for (number, (module, types)) in modules.iter().zip(&types).enumerate() {
        let all = Sites {
            number,
            module,
            types,
            probe: &probe,
        };
        let (found, left_out) = all.find().map_err(&refused)?;
        if found.is_empty() {
            names.extend(all.names());
        }
        refusals.extend(left_out);
        sites.extend(found);
    }
    if let ([], [why, ..]) = (sites.as_slice(), refusals.as_slice()) {
        return Err(refused(why.clone()));
    }
    refusals.iter().for_each(|why| left_out(why));
    if sites.is_empty() {
        let words = names.iter().map(String::as_str);
        let nearest = suggest::nearest(&probe.function, words);
        let todo = nearest.map_or(String::new(), |name| format!("did you mean \"{name}\"?"));
        let why = format!("no function fits {}", probe.function);
        return Err(Failure::new(ErrorCode::NotFound, &what, why, todo));
    }
    if args.list {
        return show::list(session, &sites, &types);
    }
    let armed = arm(args, sites, &modules, &types).map_err(refused)?;
    let plans: Vec<_> = armed
        .iter()
        .map(|armed| (armed.site.clone(), armed.lowered.plan.clone()))
        .collect();
    let attached = Attached::new(args.pid, &modules, &plans);
    let attached = attached.map_err(|error| not_attached(&what, &error))?;
    for site in &attached.refused {
        let armed = usize::try_from(*site).ok().and_then(|site| armed.get(site));
        if let Some(armed) = armed {
            left_out(&format!(
                "{}: {}",
                armed.site.name,
                AttachError::Instruction
            ));
        }
    }
    follow(session, args, attached, &armed, &types, &pidfd)
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

/// Works out what is done at each site.
fn arm(
    args: &TraceArgs,
    sites: Vec<Site>,
    modules: &[Module],
    types: &[Types<'_>],
) -> Result<Vec<Armed>, String> {
    let text = args.clause.as_deref().unwrap_or_default();
    // A failure is one line; the place in the text is two.
    let wrong = |error: ScriptError| {
        for line in error.show(text).lines() {
            eprintln!("{}", clean(line));
        }
        error.why
    };
    let has_return = sites.iter().any(|site| !site.leaves_by_jump);
    let clause = args
        .clause
        .as_ref()
        .map(|_| parse::clause(text))
        .transpose();
    let clause = clause.map_err(wrong)?;
    let mut armed: Vec<Armed> = Vec::new();
    for site in sites {
        let (Some(types), Some(module)) = (types.get(site.module), modules.get(site.module)) else {
            continue;
        };
        let long = types.add(Node::Int {
            name: "long".into(),
            size: 8,
            encoding: Encoding::Signed,
        });
        let names = SiteNames {
            site: &site,
            types,
            bias: module.bias,
            long,
        };
        let lowering = Lowering::new(types, &names);
        let lowered = match &clause {
            Some(clause) => match lowering.clause(clause, text) {
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
            },
            None => of_arguments(&lowering, &site),
        };
        if let Some(first) = armed.first()
            && shapes(&first.lowered) != shapes(&lowered)
        {
            let (one, other) = (&first.site.name, &site.name);
            return Err(format!("the keys at {one} and at {other} are not alike"));
        }
        armed.push(Armed { site, lowered });
    }
    Ok(armed)
}

/// Of each aggregation the sizes of its key's parts, and what is kept.
fn shapes(lowered: &Lowered) -> Vec<(Vec<u32>, windlass_script::syntax::Aggregate, bool)> {
    let additions = lowered.plan.additions.iter();
    let shape = |addition: &ebpf::Addition| {
        let parts = addition.key.iter().map(ebpf::KeyPart::bytes).collect();
        (parts, addition.how, addition.is_unsigned)
    };
    additions.map(shape).collect()
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

/// Reads and shows what is recorded, until a signal, the time, or the end of the process.
fn follow(
    session: &mut Session<'_>,
    args: &TraceArgs,
    mut attached: Attached,
    armed: &[Armed],
    types: &[Types<'_>],
    pidfd: &impl std::os::fd::AsFd,
) -> Result<(), Failure> {
    let ending = Ending::watch()?;
    let end = args.seconds.map(|seconds| Instant::now() + seconds);
    let mut show = Show::new(armed, types);
    show.begin(session)?;
    loop {
        let is_last = ending.has_come()
            || end.is_some_and(|end| Instant::now() >= end)
            || process::has_ended(pidfd);
        if is_last {
            attached.detach();
        }
        let mut failed = None;
        attached.ring.read(|bytes| {
            if let (Some(record), None) = (Record::of(bytes), &failed) {
                failed = show.record(session, &record).err();
            }
        });
        if let Some(failure) = failed {
            return Err(failure);
        }
        session.out.flush()?;
        if is_last {
            break;
        }
        let left = end.map_or(LOOK, |end| end.saturating_duration_since(Instant::now()));
        let mut fds = [
            PollFd::new(&attached.ring, PollFlags::IN),
            PollFd::new(&ending, PollFlags::IN),
            PollFd::new(pidfd, PollFlags::IN),
        ];
        let wait = Timespec::try_from(left.min(LOOK)).unwrap_or(Timespec::default());
        // An interrupted wait is a shorter one.
        let _ = poll(&mut fds, Some(&wait));
    }
    for (number, aggregation) in attached.aggregations.iter().enumerate() {
        let lines = aggregation.lines();
        let lines = lines.map_err(|error| not_attached("read what was counted", &error))?;
        show.aggregation(session, number, lines)?;
    }
    let counts = attached.counts();
    let counts = counts.map_err(|error| not_attached("read what was counted", &error))?;
    show.end(session, armed.len() - attached.refused.len(), counts)
}
