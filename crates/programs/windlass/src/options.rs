//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueHint};
use windlass_api::{
    Attachment, FlowAttributes, Ifname, MacAddr, Name, NameError, Netns, Scope, ZoneRef, properties,
};

use crate::accounts;

mod complete;
mod inspect;
mod memory;
mod overlay;
mod snoop;
mod tables;
mod trace;
mod traffic;
mod vnd;

pub(crate) use complete::CompleteArgs;
pub(crate) use inspect::InspectArgs;
pub(crate) use memory::*;
pub(crate) use overlay::*;
pub(crate) use snoop::{ExtcapArgs, SnoopArgs};
pub(crate) use tables::*;
pub(crate) use trace::*;
pub(crate) use traffic::{At, GenArgs, SinkArgs};
pub(crate) use vnd::*;

/// Time that a call may take when `--timeout` does not say.
pub const TIMEOUT_S: f64 = 30.0;

/// Bridges and virtual NICs in user space: makes, shows and removes them.
///
/// windlass asks windlassd over its control socket. Data goes to stdout, everything else to stderr.
#[derive(Debug, Parser)]
#[command(
    name = "windlass",
    version,
    subcommand_required = true,
    arg_required_else_help = true,
    disable_help_subcommand = true,
    after_help = EXIT_CODES,
)]
pub(crate) struct Options {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What each exit code says.
pub const EXIT_CODES: &str = "Exit codes: 0 done, 1 refused, 2 wrong usage, 3 daemon not reached, \
4 no such object, 5 it exists already, 6 no permission, 124 not in time.";

/// Options that every command takes.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Options of every command")]
pub(crate) struct Global {
    /// Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}.
    #[arg(short, long, global = true, conflicts_with = "parsable")]
    pub(crate) json: bool,
    /// Write fields between colons, for scripts; needs -o.
    #[arg(short, long, global = true)]
    pub(crate) parsable: bool,
    /// Fields to write, of a table or with -j, or "all"; "help" lists them.
    #[arg(short = 'o', long = "output", value_name = "FIELD,...", global = true)]
    pub(crate) fields: Option<String>,
    /// Write no titles.
    #[arg(short = 'H', long, global = true)]
    pub(crate) no_header: bool,
    /// Write no colours; so does NO_COLOR.
    #[arg(long, global = true)]
    pub(crate) no_color: bool,
    /// Wait so long for each answer, 0 for ever [default: 30].
    #[arg(long, value_name = "SECONDS", global = true, value_parser = seconds)]
    pub(crate) timeout: Option<Duration>,
    /// The daemon's control socket.
    #[arg(long, value_name = "PATH", env = "WINDLASS_SOCKET", global = true,
          value_hint = ValueHint::FilePath)]
    pub(crate) socket: Option<PathBuf>,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text
        .parse()
        .map_err(|_| "not a number of seconds".to_owned())?;
    if !(0.0..=1e9).contains(&seconds) {
        return Err("not a number of seconds from 0 to 1000000000".into());
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// A whole number of this range. It is read as a signed one, so that the range is told of a negative one, too.
fn number(range: impl std::ops::RangeBounds<i64>) -> clap::builder::RangedI64ValueParser<u64> {
    clap::builder::RangedI64ValueParser::new().range(range)
}

pub(crate) fn interval(text: &str) -> Result<Duration, String> {
    let interval = seconds(text)?;
    if interval < Duration::from_millis(10) {
        return Err("not 0.01 s or more".into());
    }
    Ok(interval)
}

/// What is done.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Tenants: who may make VNICs, on which bridges, in which network namespace.
    #[command(
        subcommand,
        arg_required_else_help = true,
        disable_help_subcommand = true
    )]
    Zone(ZoneVerb),
    /// Learning switches.
    #[command(
        subcommand,
        arg_required_else_help = true,
        disable_help_subcommand = true
    )]
    Bridge(BridgeVerb),
    /// Interfaces of the host that are joined to a bridge.
    #[command(
        subcommand,
        arg_required_else_help = true,
        disable_help_subcommand = true
    )]
    Uplink(UplinkVerb),
    /// Layer-2 networks over many hosts.
    #[command(
        subcommand,
        arg_required_else_help = true,
        disable_help_subcommand = true
    )]
    Overlay(OverlayVerb),
    /// Virtual NICs.
    #[command(
        subcommand,
        arg_required_else_help = true,
        disable_help_subcommand = true
    )]
    Vnic(VnicVerb),
    /// Parts of a VNIC's traffic, with counters, a bandwidth and a priority of their own.
    #[command(
        subcommand,
        arg_required_else_help = true,
        disable_help_subcommand = true
    )]
    Flow(FlowVerb),
    /// Devices by which programs read and write the frames of a VNIC.
    #[command(
        subcommand,
        arg_required_else_help = true,
        disable_help_subcommand = true
    )]
    Vnd(VndVerb),
    /// Forwarding tables of bridges.
    #[command(
        subcommand,
        arg_required_else_help = true,
        disable_help_subcommand = true
    )]
    Fdb(FdbVerb),
    /// Threads that move frames.
    #[command(
        subcommand,
        arg_required_else_help = true,
        disable_help_subcommand = true
    )]
    Worker(WorkerVerb),
    /// The whole on one screen: daemon, workers, members that are not up, drops, sockets, limits that are near.
    Status,
    /// Traffic of uplinks and VNICs.
    Stat(StatArgs),
    /// Write the counters as text for Prometheus, or serve them.
    Metrics(MetricsArgs),
    /// Make the configuration like a document; what it lacks is removed.
    Apply(ApplyArgs),
    /// Write the configuration as a document that apply reads.
    Export,
    /// Write what changes, as it does.
    Monitor(MonitorArgs),
    /// Capture frames of a VNIC, an uplink or a bridge.
    ///
    /// Writes a line for each frame, or with -w a pcapng file for tcpdump and Wireshark. The filter is tcpdump's, see
    /// pcap-filter(7); the daemon runs it before it copies. A bridge shows each frame once, where it enters. Ends with
    /// Ctrl-C, and when the link goes.
    #[command(arg_required_else_help = true)]
    Snoop(SnoopArgs),
    /// Send frames into a bridge: at a rate, numbered and with times for sink; or those of a file.
    ///
    /// Frames are UDP over IPv4 or IPv6. A delay is made up for: the rate holds over the run, and how late frames left is
    /// shown as percentiles. Without a rate, the bridge sets the pace. Ends with Ctrl-C, and when the device goes.
    #[command(arg_required_else_help = true)]
    Gen(GenArgs),
    /// Receive frames at a device, and count them: rates, what gen sent and did not come, order, latencies.
    ///
    /// Every frame that comes is taken and counted. Of those that gen numbered, loss, duplicates, frames that came behind a
    /// later one of their flow, and latencies are shown. Ends with Ctrl-C, and when the device goes; then a row has the totals.
    #[command(arg_required_else_help = true)]
    Sink(SinkArgs),
    /// Answer Wireshark, which lists links and captures through this command (extcap).
    ///
    /// A script in Wireshark's extcap directory calls it: exec windlass extcap "$@"
    #[command(arg_required_else_help = true)]
    Extcap(ExtcapArgs),
    /// Run a program with accelerated sockets.
    ///
    /// windlass becomes the program: process id, signals, streams and exit status are its own. TCP and Unix stream
    /// connections between two such programs of one user on this host bypass the kernel while both are busy. All other
    /// sockets stay on the kernel. "windlass sockets" shows each connection.
    #[command(arg_required_else_help = true, after_help = RUN_EXIT_CODES)]
    Run(RunArgs),
    /// List accelerated programs' sockets: who carries them, ring or kernel, and why.
    Sockets(Repeat),
    /// Show what memory consists of in programs that run on windlass's allocator.
    ///
    /// Without a process, those that you may see are listed. With one: in use, caches, what is kept, its threads and its caches of objects, live
    /// and without stopping it.
    Memory(MemoryArgs),
    /// Show what functions of a running program are called with, in the types of its debug data.
    ///
    /// The program need not be prepared, and goes on: what is recorded faster than it is read is dropped and counted.
    #[command(arg_required_else_help = true)]
    Trace(TraceArgs),
    /// Look into a process or a core file by the types in its debug data: variables, lists, memory, threads, stacks.
    ///
    /// Nothing is written, and nothing stops but a thread whose stack is asked for. Without a command, commands are read from standard input.
    /// mdb's spellings ::COMMAND and ADDRESS::COMMAND are understood. "-- help" lists the commands.
    #[command(arg_required_else_help = true)]
    Inspect(InspectArgs),
    /// Show every word of the channels of a process, and of all with "all": locks, rings, sleepers.
    #[command(arg_required_else_help = true)]
    Stackdump(StackdumpArgs),
    /// What can stand at the cursor, for completions.
    #[command(name = "__complete", hide = true)]
    Complete(CompleteArgs),
}

/// Arguments of `metrics`.
#[derive(Debug, Args)]
pub(crate) struct MetricsArgs {
    /// Serve them at http://ADDRESS/metrics until a signal ends the command. Any user of this host can read what is served
    /// on a loopback address without a token.
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) listen: Option<std::net::SocketAddr>,
    /// Serve only to who sends the text in this file as a bearer token; needed where the address is not a loopback one.
    #[arg(long, value_name = "PATH", requires = "listen", value_hint = ValueHint::FilePath)]
    pub(crate) token_file: Option<PathBuf>,
}

/// What the exit codes of `windlass run` say.
const RUN_EXIT_CODES: &str = "Exit codes: 127 the program is not found, 126 it cannot be executed, 1 and 4 the \
library is not there; else the program's own. With --check: 0 it can be accelerated, 1 it cannot, 127, 126.";

/// Arguments of `run`.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// How long a waiting call polls for data before it sleeps, in microseconds. 50 suits two busy programs on cores of
    /// their own, 0 a host with more busy programs than cores [default: 30, in threads that wait again within 300 us,
    /// with exponential backoff while polls find nothing].
    #[arg(long, value_name = "USEC", value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    pub(crate) spin: Option<u32>,
    /// Also join connections with programs of other users that were run with --share; needs root's broker.
    #[arg(long)]
    pub(crate) share: bool,
    /// Accelerate Unix sockets even if the environment says WINDLASS_UNIX=0.
    #[arg(long, overrides_with = "no_unix")]
    pub(crate) unix: bool,
    /// Keep Unix sockets on the kernel.
    #[arg(long, overrides_with = "unix")]
    pub(crate) no_unix: bool,
    /// Replace malloc and C++'s new by windlass's allocator (libwindlass_alloc.so), in child processes too. It lies where
    /// the preload library does. Options and debugging words are in WINDLASS_MEMORY: windlass-alloc(7).
    #[arg(long)]
    pub(crate) alloc: bool,
    /// Say on stderr which library and which broker are used. At its end each process says there what its connections did:
    /// how many joined, the bytes by ring and by kernel, and why others stayed on the kernel. A process that a signal
    /// kills says nothing.
    #[arg(short, long)]
    pub(crate) verbose: bool,
    /// Only say whether the program can be accelerated, and why not; do not run it. Scripts are followed to their
    /// interpreter.
    #[arg(long)]
    pub(crate) check: bool,
    /// The preload library [default: beside windlass, in ../lib/windlass, or in /usr/lib/windlass].
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    pub(crate) library: Option<PathBuf>,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM",
          value_hint = ValueHint::CommandWithArguments)]
    pub(crate) command: Vec<std::ffi::OsString>,
}

/// Arguments of `stackdump`.
#[derive(Debug, Args)]
pub(crate) struct StackdumpArgs {
    /// Process id, or "all".
    #[arg(value_name = "PID", value_parser = process, value_hint = ValueHint::Other)]
    pub(crate) process: Processes,
}

/// Which processes are meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Processes {
    /// All of them.
    All,
    /// The one with this id.
    One(u32),
}

fn process(text: &str) -> Result<Processes, String> {
    match text {
        "all" => Ok(Processes::All),
        text => text
            .parse()
            .map(Processes::One)
            .map_err(|_| "not a process id, nor \"all\"".into()),
    }
}

/// Names of objects to remove.
#[derive(Debug, Args)]
pub(crate) struct DeleteArgs<N: clap::Args> {
    #[command(flatten)]
    pub(crate) name: N,
    /// Succeed if there is none of this name.
    #[arg(long)]
    pub(crate) if_exists: bool,
    /// Change nothing, and write what would be.
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// Arguments that name one object.
pub(crate) trait NamesOne: clap::Args {
    /// The name.
    fn name(&self) -> &Name;
}

macro_rules! names {
    ($($one:ident $many:ident $kind:literal $title:literal;)*) => { $(
        #[doc = concat!("The name of one ", $kind, ".")]
        #[derive(Debug, Args)]
        pub(crate) struct $one {
            #[doc = concat!("Name of the ", $kind, ".")]
            #[arg(value_name = $title, id = $kind, help = concat!("Name of the ", $kind))]
            pub(crate) name: Name,
        }
        impl NamesOne for $one {
            fn name(&self) -> &Name {
                &self.name
            }
        }
        #[doc = concat!("Names of any ", $kind, ".")]
        #[derive(Debug, Args)]
        pub(crate) struct $many {
            #[doc = concat!("Names of each ", $kind, "; all if there is none.")]
            #[arg(value_name = $title, id = $kind,
                  help = concat!("Name of a ", $kind, " to show; all if there is none"))]
            pub(crate) names: Vec<Name>,
        }
    )* };
}

names! {
    ZoneName ZoneNames "zone" "ZONE";
    BridgeName BridgeNames "bridge" "BRIDGE";
    UplinkName UplinkNames "uplink" "UPLINK";
    OverlayName OverlayNames "overlay" "OVERLAY";
    VnicName VnicNames "vnic" "VNIC";
    MemberName MemberNames "member" "MEMBER";
    FlowName FlowNames "flow" "FLOW";
}

/// Which statistics, and how often.
#[derive(Debug, Args)]
pub(crate) struct Counted {
    /// Statistics; twice: drops by reason.
    #[arg(short = 's', long, action = clap::ArgAction::Count)]
    pub(crate) statistics: u8,
    /// Drops by reason, as -s -s.
    #[arg(long)]
    pub(crate) drops: bool,
    #[command(flatten)]
    pub(crate) repeat: Repeat,
}

/// How often something is shown.
#[derive(Debug, Args)]
pub(crate) struct Repeat {
    /// Show again after so many seconds: first totals, then rates a second.
    #[arg(short, long, value_name = "SECONDS", value_parser = interval)]
    pub(crate) interval: Option<Duration>,
    /// Show so many times.
    #[arg(short, long, value_name = "COUNT", requires = "interval",
          value_parser = number(1..))]
    pub(crate) count: Option<u64>,
}

/// What may be asked about what can be set on an object.
#[derive(Debug, Subcommand)]
pub(crate) enum PropertyVerb<N: clap::Args> {
    /// Show what it is and what can be set on it.
    Get(GetArgs<N>),
    /// List what can be set.
    ShowProps,
}

/// Arguments of `get`.
#[derive(Debug, Args)]
pub(crate) struct GetArgs<N: clap::Args> {
    #[command(flatten)]
    pub(crate) name: N,
    /// Properties to show; all if there are none.
    #[arg(value_name = "PROPERTY", value_hint = ValueHint::Other)]
    pub(crate) properties: Vec<String>,
}

/// What may be done with a zone.
#[derive(Debug, Subcommand)]
pub(crate) enum ZoneVerb {
    /// Make a zone.
    Create(ZoneCreate),
    /// Remove a zone that has no VNICs.
    Delete(DeleteArgs<ZoneName>),
    /// List zones.
    Show(ZoneNames),
    /// Change a zone.
    Set(ZoneSet),
    #[command(flatten)]
    Properties(PropertyVerb<ZoneName>),
}

/// Arguments of `zone create`.
#[derive(Debug, Args)]
pub(crate) struct ZoneCreate {
    /// Name of the new zone.
    #[arg(value_hint = ValueHint::Other)]
    pub(crate) name: Name,
    /// User who acts in it: a name or a number.
    #[arg(long, value_name = "USER", value_hint = ValueHint::Username)]
    pub(crate) owner: String,
    #[command(flatten)]
    pub(crate) fields: ZoneFields,
    /// Set a property; may be repeated. "show-props" lists them.
    #[arg(long, value_name = "KEY=VALUE", value_hint = ValueHint::Other)]
    pub(crate) set: Vec<String>,
    #[command(flatten)]
    pub(crate) how: CreateHow,
}

/// What a zone has besides its owner.
#[derive(Debug, Args)]
pub(crate) struct ZoneFields {
    /// Group whose members see it: a name or a number [default of a new zone: the user's].
    #[arg(long, value_name = "GROUP", value_hint = ValueHint::Other)]
    pub(crate) group: Option<String>,
    /// Network namespace in which its TAPs may lie.
    #[arg(long, value_hint = ValueHint::Other)]
    pub(crate) netns: Option<Netns>,
    /// Bridge on which its owner may make VNICs; may be repeated. A set replaces the whole list.
    #[arg(long = "bridge", value_name = "BRIDGE")]
    pub(crate) bridges: Vec<Name>,
}

/// How something is made.
#[derive(Debug, Args)]
pub(crate) struct CreateHow {
    /// Succeed if it exists already and is as asked.
    #[arg(long)]
    pub(crate) may_exist: bool,
    /// Change nothing, and write what would be.
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// Arguments of `zone set`.
#[derive(Debug, Args)]
#[group(id = "zone-change", multiple = true)]
pub(crate) struct ZoneSet {
    #[command(flatten)]
    pub(crate) name: ZoneName,
    /// Properties to set; KEY=auto forgets what was set.
    #[arg(value_name = "KEY=VALUE", value_hint = ValueHint::Other)]
    pub(crate) settings: Vec<String>,
    /// User who acts in it from now on: a name or a number. What its VNICs have counts for that user then. The group stays, unless one is named.
    #[arg(long, value_name = "USER", value_hint = ValueHint::Username)]
    pub(crate) owner: Option<String>,
    #[command(flatten)]
    pub(crate) fields: ZoneFields,
    /// Change nothing, and write what would be.
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// What may be done with a bridge.
#[derive(Debug, Subcommand)]
pub(crate) enum BridgeVerb {
    /// Make a bridge.
    Create(BridgeCreate),
    /// Remove a bridge that has no members.
    Delete(DeleteArgs<BridgeName>),
    /// List bridges, or their statistics.
    Show(BridgeShow),
    /// Set properties of a bridge.
    Set(BridgeSet),
    #[command(flatten)]
    Properties(PropertyVerb<BridgeName>),
    /// Ask neighbours of its spanning tree again whether they speak RSTP, after one that spoke STP was replaced.
    Mcheck(BridgeMcheck),
    /// Its forwarding table.
    #[command(
        subcommand,
        arg_required_else_help = true,
        disable_help_subcommand = true
    )]
    Fdb(FdbVerb),
    /// Its multicast groups.
    #[command(
        subcommand,
        arg_required_else_help = true,
        disable_help_subcommand = true
    )]
    Mdb(MdbVerb),
}

/// Arguments of `bridge mcheck`.
#[derive(Debug, Args)]
pub(crate) struct BridgeMcheck {
    #[command(flatten)]
    pub(crate) name: BridgeName,
    /// Only behind this member.
    #[arg(long, value_name = "MEMBER")]
    pub(crate) member: Option<Name>,
}

/// Arguments of `bridge create`.
#[derive(Debug, Args)]
pub(crate) struct BridgeCreate {
    /// Name of the new bridge.
    #[arg(value_hint = ValueHint::Other)]
    pub(crate) name: Name,
    /// Set a property; may be repeated. "show-props" lists them.
    #[arg(long, value_name = "KEY=VALUE", value_hint = ValueHint::Other)]
    pub(crate) set: Vec<String>,
    #[command(flatten)]
    pub(crate) how: CreateHow,
}

/// Arguments of `bridge show`.
#[derive(Debug, Args)]
pub(crate) struct BridgeShow {
    #[command(flatten)]
    pub(crate) names: BridgeNames,
    /// Their members: state, part in spanning tree, flags, traffic.
    #[arg(long, conflicts_with_all = ["statistics", "drops", "interval"])]
    pub(crate) ports: bool,
    #[command(flatten)]
    pub(crate) counted: Counted,
}

/// Arguments of `bridge set`.
#[derive(Debug, Args)]
pub(crate) struct BridgeSet {
    #[command(flatten)]
    pub(crate) name: BridgeName,
    /// Properties to set; KEY=auto forgets what was set.
    #[arg(value_name = "KEY=VALUE", required = true, value_hint = ValueHint::Other)]
    pub(crate) settings: Vec<String>,
    /// Change nothing, and write what would be.
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// Settings of a member of a bridge.
#[derive(Debug, Args)]
pub(crate) struct MemberSettings {
    /// VLAN of untagged frames, 0 to drop them.
    #[arg(long, value_name = "VLAN", value_hint = ValueHint::Other)]
    pub(crate) vlan: Option<String>,
    /// VLANs with a tag: 10,20-30.
    #[arg(long, value_name = "VLANS", value_hint = ValueHint::Other)]
    pub(crate) tagged: Option<String>,
    /// Largest packet, in bytes.
    #[arg(long, value_name = "BYTES", value_hint = ValueHint::Other)]
    pub(crate) mtu: Option<String>,
    /// Set a property; may be repeated. "show-props" lists them.
    #[arg(long, value_name = "KEY=VALUE", value_hint = ValueHint::Other)]
    pub(crate) set: Vec<String>,
}

impl MemberSettings {
    /// All of them as `KEY=VALUE`.
    pub(crate) fn settings(&self) -> Vec<String> {
        let named = [
            ("vlan", &self.vlan),
            ("tagged", &self.tagged),
            ("mtu", &self.mtu),
        ];
        let named = named
            .iter()
            .filter_map(|(key, value)| value.as_ref().map(|value| format!("{key}={value}")));
        named.chain(self.set.iter().cloned()).collect()
    }
}

/// Which members of bridges are shown, and what of them.
#[derive(Debug, Args)]
pub(crate) struct MemberShow<N: clap::Args> {
    #[command(flatten)]
    pub(crate) names: N,
    /// Only those of this bridge.
    #[arg(long, value_name = "BRIDGE", id = "of_bridge")]
    pub(crate) bridge: Option<Name>,
    #[command(flatten)]
    pub(crate) counted: Counted,
}

/// How a member of a bridge is changed.
#[derive(Debug, Args)]
pub(crate) struct MemberSet<N: clap::Args> {
    #[command(flatten)]
    pub(crate) name: N,
    /// Properties to set; KEY=auto forgets what was set.
    #[arg(value_name = "KEY=VALUE", value_hint = ValueHint::Other)]
    pub(crate) settings: Vec<String>,
    /// Move it to this bridge.
    #[arg(long, value_name = "BRIDGE", id = "to_bridge")]
    pub(crate) bridge: Option<Name>,
    #[command(flatten)]
    pub(crate) more: MemberSettings,
    /// Change nothing, and write what would be.
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// What may be done with a flow.
#[derive(Debug, Subcommand)]
pub(crate) enum FlowVerb {
    /// Make a flow of a VNIC.
    Add(FlowAdd),
    /// Remove a flow.
    Remove(DeleteArgs<FlowName>),
    /// List flows with what they have counted.
    Show(FlowShow),
    /// Set properties of a flow.
    Set(FlowSet),
    /// Forget what was set of a flow's properties.
    Reset(FlowReset),
    #[command(flatten)]
    Properties(PropertyVerb<FlowName>),
}

/// Arguments of `flow add`.
#[derive(Debug, Args)]
pub(crate) struct FlowAdd {
    /// Name of the new flow.
    #[arg(value_hint = ValueHint::Other)]
    pub(crate) name: Name,
    /// VNIC whose traffic it is a part of. All flows of a VNIC have the same attributes.
    #[arg(long, value_name = "VNIC")]
    pub(crate) vnic: Name,
    /// What is in it: local_ip=PREFIX, remote_ip=PREFIX, transport=PROTOCOL, transport=PROTOCOL,local_port=PORT,
    /// transport=PROTOCOL,remote_port=PORT, dsfield=VALUE or dsfield=VALUE:MASK. Local is the VNIC's side. The most specific prefix wins.
    #[arg(long, value_name = "ATTRIBUTE=VALUE,...", value_hint = ValueHint::Other)]
    pub(crate) attr: FlowAttributes,
    /// Set properties; may be repeated. "show-props" lists them.
    #[arg(long, visible_alias = "set", value_name = "KEY=VALUE", value_delimiter = ',', value_hint = ValueHint::Other)]
    pub(crate) prop: Vec<String>,
    #[command(flatten)]
    pub(crate) how: CreateHow,
}

/// Arguments of `flow show`.
#[derive(Debug, Args)]
pub(crate) struct FlowShow {
    #[command(flatten)]
    pub(crate) names: FlowNames,
    /// Only those of this VNIC.
    #[arg(long, value_name = "VNIC", id = "of_vnic")]
    pub(crate) vnic: Option<Name>,
    #[command(flatten)]
    pub(crate) repeat: Repeat,
}

/// Arguments of `flow set`.
#[derive(Debug, Args)]
pub(crate) struct FlowSet {
    #[command(flatten)]
    pub(crate) name: FlowName,
    /// Properties to set; KEY=auto forgets what was set.
    #[arg(value_name = "KEY=VALUE", required = true, value_delimiter = ',', value_hint = ValueHint::Other)]
    pub(crate) settings: Vec<String>,
    /// Change nothing, and write what would be.
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// Arguments of `flow reset`.
#[derive(Debug, Args)]
pub(crate) struct FlowReset {
    #[command(flatten)]
    pub(crate) name: FlowName,
    /// Properties to forget; all if there is none.
    #[arg(value_name = "PROPERTY", value_delimiter = ',', value_hint = ValueHint::Other)]
    pub(crate) properties: Vec<String>,
    /// Change nothing, and write what would be.
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// What may be done with an uplink.
#[derive(Debug, Subcommand)]
pub(crate) enum UplinkVerb {
    /// Join an interface of the host to a bridge.
    Create(UplinkCreate),
    /// Give an interface back to the host.
    Delete(DeleteArgs<UplinkName>),
    /// List uplinks, or their statistics.
    Show(MemberShow<UplinkNames>),
    /// Change an uplink.
    Set(MemberSet<UplinkName>),
    #[command(flatten)]
    Properties(PropertyVerb<UplinkName>),
}

/// Arguments of `uplink create`.
#[derive(Debug, Args)]
pub(crate) struct UplinkCreate {
    /// Name of the new uplink.
    #[arg(value_hint = ValueHint::Other)]
    pub(crate) name: Name,
    /// Interface of the host.
    #[arg(long, value_hint = ValueHint::Other)]
    pub(crate) device: Ifname,
    /// Bridge that it joins.
    #[arg(long, value_name = "BRIDGE")]
    pub(crate) bridge: Name,
    /// How frames are taken from it.
    #[arg(long, value_name = "KIND,KEY=VALUE,...", default_value = "packet",
          value_hint = ValueHint::Other)]
    pub(crate) attach: Attachment,
    /// Take it although it has addresses or a master.
    #[arg(long)]
    pub(crate) share: bool,
    #[command(flatten)]
    pub(crate) settings: MemberSettings,
    #[command(flatten)]
    pub(crate) how: CreateHow,
}

/// What may be done with a VNIC.
#[derive(Debug, Subcommand)]
pub(crate) enum VnicVerb {
    /// Make a VNIC.
    Create(VnicCreate),
    /// Remove a VNIC and what it is attached to.
    Delete(DeleteArgs<VnicName>),
    /// List VNICs, or their statistics.
    Show(VnicShow),
    /// Change a VNIC.
    Set(VnicSet),
    #[command(flatten)]
    Properties(PropertyVerb<VnicName>),
    /// List the rules that packets of a VNIC have to pass, with what those with "count" have counted.
    Rules(VnicName),
    /// Write the QEMU arguments that attach a machine to a VNIC.
    QemuArgs(QemuArgs),
    /// Write the libvirt elements that attach a machine to a VNIC.
    LibvirtXml(VnicName),
}

/// Arguments of `vnic qemu-args`.
#[derive(Debug, Args)]
pub(crate) struct QemuArgs {
    #[command(flatten)]
    pub(crate) name: VnicName,
    /// Memory of the machine.
    #[arg(long, value_name = "SIZE", default_value = "1G", value_hint = ValueHint::Other)]
    pub(crate) memory: String,
    /// What runs the machine, as QEMU's -accel: kvm, or tcg where the host has no KVM. Without it none is named.
    #[arg(long, value_name = "ACCELERATOR", value_hint = ValueHint::Other)]
    pub(crate) accel: Option<String>,
}

/// Arguments of `vnic create`.
#[derive(Debug, Args)]
pub(crate) struct VnicCreate {
    /// Name of the new VNIC.
    #[arg(value_hint = ValueHint::Other)]
    pub(crate) name: Name,
    /// Bridge that it is a member of.
    #[arg(long, value_name = "BRIDGE", required_unless_present = "over")]
    pub(crate) bridge: Option<Name>,
    /// Overlay whose bridge it is a member of.
    #[arg(long, value_name = "OVERLAY", conflicts_with = "bridge")]
    pub(crate) over: Option<Name>,
    /// Who is on the other side: tap, memif, vhost-user or none; a socket's owner=USER:GROUP by name or number.
    #[arg(long, value_name = "KIND,KEY=VALUE,...", default_value = "none",
          value_hint = ValueHint::Other, value_parser = accounts::attachment)]
    pub(crate) attach: Attachment,
    /// Its address [default: a random local one, drawn once and kept].
    #[arg(long, value_hint = ValueHint::Other)]
    pub(crate) mac: Option<MacAddr>,
    /// Zone that it belongs to.
    #[arg(long, value_name = "ZONE", default_value = "global")]
    pub(crate) zone: ZoneRef,
    #[command(flatten)]
    pub(crate) settings: MemberSettings,
    #[command(flatten)]
    pub(crate) how: CreateHow,
}

/// Arguments of `vnic show`.
#[derive(Debug, Args)]
pub(crate) struct VnicShow {
    #[command(flatten)]
    pub(crate) members: MemberShow<VnicNames>,
    /// Only those of this zone.
    #[arg(long, value_name = "ZONE", id = "of_zone")]
    pub(crate) zone: Option<ZoneRef>,
}

/// Arguments of `vnic set`.
#[derive(Debug, Args)]
pub(crate) struct VnicSet {
    #[command(flatten)]
    pub(crate) member: MemberSet<VnicName>,
    /// Attach it to someone else.
    #[arg(long, value_name = "KIND,KEY=VALUE,...", value_hint = ValueHint::Other,
          value_parser = accounts::attachment)]
    pub(crate) attach: Option<Attachment>,
    /// Give it this address.
    #[arg(long, value_hint = ValueHint::Other)]
    pub(crate) mac: Option<MacAddr>,
}

/// What may be done with workers.
#[derive(Debug, Subcommand)]
pub(crate) enum WorkerVerb {
    /// List workers and what they have done.
    Show(Repeat),
    /// Have another worker serve rings of an uplink or a VNIC, while frames pass: none is lost or overtaken.
    ///
    /// With --table it is the forwarding table of a bridge that another worker writes from now on. "vnic show -o
    /// name,workers" and "bridge show -o name,home,workers" show who serves what. A move lasts until the daemon ends or the
    /// object is deleted, also when the peer connects again; it is not in the configuration. If a worker does not answer,
    /// nothing is moved.
    #[command(arg_required_else_help = true)]
    Move(WorkerMoveArgs),
}

/// Arguments of `worker move`.
#[derive(Debug, Args)]
pub(crate) struct WorkerMoveArgs {
    /// Uplink or VNIC, with one of its rings or without: all of them.
    #[arg(value_name = "MEMBER[/RING]", id = "member")]
    pub(crate) what: RingName,
    /// Number of the worker, as "worker show" lists it.
    #[arg(value_name = "WORKER")]
    pub(crate) worker: u16,
    /// MEMBER is a bridge: its forwarding table is moved.
    #[arg(long)]
    pub(crate) table: bool,
}

/// A name and the number of a ring, if there is one.
#[derive(Debug, Clone)]
pub(crate) struct RingName {
    pub(crate) name: Name,
    pub(crate) ring: Option<u16>,
}

impl std::str::FromStr for RingName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, ring) = match text.split_once('/') {
            Some((name, ring)) => {
                let number = ring.parse();
                let number =
                    number.map_err(|_| format!("\"{ring}\" is not the number of a ring"))?;
                (name, Some(number))
            }
            None => (text, None),
        };
        let name = name.parse().map_err(|error: NameError| error.to_string())?;
        Ok(Self { name, ring })
    }
}

/// Arguments of `stat`.
#[derive(Debug, Args)]
pub(crate) struct StatArgs {
    #[command(flatten)]
    pub(crate) names: MemberNames,
    /// Drops by reason.
    #[arg(long)]
    pub(crate) drops: bool,
    #[command(flatten)]
    pub(crate) repeat: Repeat,
}

/// Arguments of `apply`.
#[derive(Debug, Args)]
pub(crate) struct ApplyArgs {
    /// The document; - for stdin.
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) file: PathBuf,
    /// Change nothing, and write what would be.
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// Arguments of `monitor`.
#[derive(Debug, Args)]
pub(crate) struct MonitorArgs {
    /// End after so many events.
    #[arg(short, long, value_name = "COUNT", value_parser = number(1..))]
    pub(crate) count: Option<u64>,
}

/// The whole command line, with the properties of each kind of object in the help of its verbs.
pub(crate) fn command() -> clap::Command {
    let command = with_negative_numbers(<Options as clap::CommandFactory>::command());
    each(command, |object| {
        let scope = match object.get_name() {
            "zone" => Scope::Zone,
            "bridge" => Scope::Bridge,
            "uplink" => Scope::Uplink,
            "overlay" => Scope::Overlay,
            "vnic" => Scope::Vnic,
            "flow" => Scope::Flow,
            "vnd" => Scope::Vnd,
            _ => return object,
        };
        each(object, |verb| match verb.get_name() {
            "create" | "set" => verb.after_help(property_help(scope)),
            _ => verb,
        })
    })
}

/// The command whose arguments take negative numbers, so that each says which numbers it has, instead of the parser that there is no option `-5`.
fn with_negative_numbers(command: clap::Command) -> clap::Command {
    let command = command.mut_args(|arg| match arg.get_action().takes_values() {
        true => arg.allow_negative_numbers(true),
        false => arg,
    });
    each(command, with_negative_numbers)
}

/// The command with every subcommand changed, and their order kept.
fn each(command: clap::Command, change: impl Fn(clap::Command) -> clap::Command) -> clap::Command {
    let names: Vec<String> = command
        .get_subcommands()
        .map(|command| command.get_name().to_owned())
        .collect();
    names.iter().fold(command, |command, name| {
        command.mut_subcommand(name, &change)
    })
}

fn property_help(scope: Scope) -> String {
    let mut text = String::from("Properties:\n");
    for row in properties(scope) {
        let option = row.option;
        let default = if option.default.is_empty() {
            "--"
        } else {
            option.default
        };
        let unit = if option.unit.is_empty() {
            String::new()
        } else {
            format!(" {}", option.unit)
        };
        text.push_str(&format!(
            "  {:<17} {} [{}{unit}; default: {default}]\n",
            option.name,
            option.sentence,
            option.possible(),
        ));
    }
    text
}
