//! The switches that take turns between two ports, memif or vhost-user, each with one forwarding core and started alone.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use serde::Serialize;

use super::child::{Child, run};
use super::firewall;
use super::host::{Scratch, find_program, require};
use super::stop;
use super::windlass::Daemon;
use crate::frames::{Mac, SENDER, sink_address};

/// A peer has this long to come up or to answer.
pub(super) const READY_WITHIN: Duration = Duration::from_secs(15);

/// The OVS build with DPDK: Debian keeps it beside the other one.
const OVS_WITH_DPDK: &str = "/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk";

/// The largest frame that is measured, less the Ethernet header: the MTU that lets it pass.
const MTU: u32 = 1518 - 14;

/// What can stand between the two ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Subject {
    /// Moves descriptors only: the generator's own limit.
    Null,
    /// windlassd with one bridge; rings poll for a short while after traffic, as by default.
    Windlass,
    /// The same, with rings that poll for as long as they may.
    WindlassPolling,
    /// The same, with rings that sleep as soon as they are empty.
    WindlassInterrupt,
    /// dpdk-testpmd, plain `io` forwarding: two copies, no look at the frame.
    Testpmd,
    /// OVS-DPDK with its `normal` action: a learning bridge.
    Ovs,
}

impl Subject {
    /// As it is called in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Subject::Null => "null switch",
            Subject::Windlass => "windlass",
            Subject::WindlassPolling => "windlass polling",
            Subject::WindlassInterrupt => "windlass interrupt",
            Subject::Testpmd => "testpmd io",
            Subject::Ovs => "OVS-DPDK",
        }
    }

    /// Makes sure that its programs are there.
    ///
    /// # Errors
    /// Naming what is missing.
    pub fn prepare(self) -> Result<()> {
        match self {
            Subject::Null
            | Subject::Windlass
            | Subject::WindlassPolling
            | Subject::WindlassInterrupt => Ok(()),
            Subject::Testpmd => require(&[("dpdk-testpmd", "dpdk")]),
            Subject::Ovs => require(&[
                (OVS_WITH_DPDK, "openvswitch-switch-dpdk"),
                ("ovsdb-server", "openvswitch-switch"),
            ]),
        }
    }

    /// Starts it.
    ///
    /// # Errors
    /// If it does not come up.
    pub fn start(self, setup: &Setup<'_>) -> Result<Box<dyn Switch>> {
        let socket = setup.scratch.join("port.sock");
        // A peer that was ended leaves its socket behind.
        let _ = std::fs::remove_file(&socket);
        let switch: Box<dyn Switch> = match self {
            Subject::Null if setup.plug == Plug::Vhost => Box::new(Ceiling { socket }),
            Subject::Null => Box::new(Null::start(setup, socket)?),
            Subject::Windlass => Box::new(Windlass::start(setup, socket, "auto")?),
            Subject::WindlassPolling => Box::new(Windlass::start(setup, socket, "1000")?),
            Subject::WindlassInterrupt => Box::new(Windlass::start(setup, socket, "0")?),
            Subject::Testpmd => Box::new(Testpmd::start(setup, socket)?),
            Subject::Ovs => Box::new(Ovs::start(setup, socket)?),
        };
        Ok(switch)
    }
}

/// What a switch is started with.
pub struct Setup<'a> {
    /// For sockets and logs.
    pub scratch: &'a Scratch,
    /// Directory of windlass's own programs.
    pub programs: &'a Path,
    /// The forwarding core.
    pub core: usize,
    /// What the switch's ports are.
    pub plug: Plug,
}

/// What the ports of a switch are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plug {
    /// memif interfaces 0 and 1 of one socket, in the server's role.
    Memif,
    /// vhost-user, in the client's role: the guests listen, on one socket each.
    Vhost,
}

impl Plug {
    /// As it is called.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Plug::Memif => "memif",
            Plug::Vhost => "vhost-user",
        }
    }

    /// What windlass is told of a port.
    #[must_use]
    pub fn attachment(self, id: u32, socket: &Path) -> String {
        match self {
            Plug::Memif => format!("memif,socket={},id={id},role=server", socket.display()),
            Plug::Vhost => format!(
                "vhost-user,socket={},role=client",
                guest_socket(socket, id).display()
            ),
        }
    }

    /// DPDK's device for a port.
    fn device(self, id: u32, socket: &Path) -> String {
        match self {
            Plug::Memif => format!(
                "net_memif{id},role=server,id={id},socket={},socket-abstract=no",
                socket.display()
            ),
            Plug::Vhost => format!(
                "net_vhost{id},iface={},queues=1,client=1",
                guest_socket(socket, id).display()
            ),
        }
    }

    /// What OVS is told of a port.
    fn interface(self, id: u32, socket: &Path) -> String {
        match self {
            Plug::Memif => format!(
                "type=dpdk options:dpdk-devargs=\"{}\"",
                self.device(id, socket)
            ),
            Plug::Vhost => format!(
                "type=dpdkvhostuserclient options:vhost-server-path={}",
                guest_socket(socket, id).display()
            ),
        }
    }

    /// Waits until the switch listens, where it does.
    fn wait(self, socket: &Path) -> Result<()> {
        match self {
            Plug::Memif => wait_for_socket(socket),
            Plug::Vhost => Ok(()),
        }
    }

    /// The generator for a switch, which finds its ports.
    #[must_use]
    pub fn generator(self, setup: &Setup<'_>, switch: &dyn Switch) -> Command {
        let socket = switch.socket();
        match self {
            Plug::Memif => {
                let mut command = Command::new(setup.programs.join("memif-gen"));
                command.arg("--socket").arg(socket);
                command.args(["--sink-ring", &switch.sink_ring().to_string()]);
                command
            }
            Plug::Vhost => {
                let mut command = Command::new(setup.programs.join("vhost-gen"));
                if switch.is_in_generator() {
                    command.args(["--null-core", &setup.core.to_string()]);
                } else {
                    command.arg("--socket").arg(guest_socket(socket, 0));
                    command.arg("--sink-socket").arg(guest_socket(socket, 1));
                }
                command
            }
        }
    }
}

/// Where a guest listens.
#[must_use]
pub fn guest_socket(socket: &Path, id: u32) -> PathBuf {
    socket.with_extension(format!("guest{id}"))
}

/// A thread of the vhost-user generator: nothing to be started.
struct Ceiling {
    socket: PathBuf,
}

impl Switch for Ceiling {
    fn begin(&mut self) -> Result<()> {
        Ok(())
    }

    fn end(&mut self, _frames: u64) -> Result<Option<f64>> {
        Ok(None)
    }

    fn socket(&self) -> &Path {
        &self.socket
    }

    fn process(&mut self) -> Option<&mut Child> {
        None
    }

    fn is_in_generator(&self) -> bool {
        true
    }
}

/// A running switch with two ports.
pub trait Switch {
    /// Called just before the generator starts.
    ///
    /// # Errors
    /// If the switch is gone.
    fn begin(&mut self) -> Result<()>;

    /// Called when the generator has sent `frames` since [`Switch::begin`] and is still connected: busy cycles of
    /// the time-stamp counter per frame, polls that found nothing left out, if the switch tells.
    ///
    /// # Errors
    /// If the switch is gone.
    fn end(&mut self, frames: u64) -> Result<Option<f64>>;

    /// Its socket, or what those of its guests are called after.
    fn socket(&self) -> &Path;

    /// The process that forwards, unless it is the generator.
    fn process(&mut self) -> Option<&mut Child>;

    /// Has it filter what the first port sends by so many rules: see [`super::firewall`].
    ///
    /// # Errors
    /// If it cannot.
    fn filter(&mut self, _rules: u16) -> Result<()> {
        bail!("it has no firewall")
    }

    /// Captures what the first port sends as these words say, as long as what this gives lives.
    ///
    /// # Errors
    /// If it cannot.
    fn capture(&mut self, _words: &str) -> Result<Child> {
        bail!("it has no captures")
    }

    /// Whether it is a thread of the generator.
    fn is_in_generator(&self) -> bool {
        false
    }

    /// Which of its sending rings frames come on.
    fn sink_ring(&self) -> u16 {
        0
    }
}

/// Started anew for every run, since it serves one pair of clients.
struct Null {
    program: PathBuf,
    core: usize,
    socket: PathBuf,
    log: PathBuf,
    child: Child,
    served: bool,
}

impl Null {
    fn start(setup: &Setup<'_>, socket: PathBuf) -> Result<Null> {
        let program = setup.programs.join("null-switch");
        let log = setup.scratch.join("null.log");
        let child = Null::launch(&program, setup.core, &socket, &log)?;
        Ok(Null {
            program,
            core: setup.core,
            socket,
            log,
            child,
            served: false,
        })
    }

    fn launch(program: &Path, core: usize, socket: &Path, log: &Path) -> Result<Child> {
        let mut command = Command::new(program);
        command
            .arg("--socket")
            .arg(socket)
            .arg("--core")
            .arg(core.to_string());
        let child = Child::start(&mut command, log)?;
        wait_for_socket(socket)?;
        Ok(child)
    }
}

impl Switch for Null {
    fn begin(&mut self) -> Result<()> {
        if self.served {
            stop::until("the end of the null switch", READY_WITHIN, || {
                self.child.still_runs().is_err().then_some(())
            })?;
            self.child = Null::launch(&self.program, self.core, &self.socket, &self.log)?;
        }
        self.served = true;
        Ok(())
    }

    fn end(&mut self, _frames: u64) -> Result<Option<f64>> {
        Ok(None)
    }

    fn socket(&self) -> &Path {
        &self.socket
    }

    fn process(&mut self) -> Option<&mut Child> {
        Some(&mut self.child)
    }
}

/// windlassd with one worker, one bridge and two VNICs: the sender's with its own address only, the sink's with any.
pub(super) struct Windlass {
    pub daemon: Daemon,
    socket: PathBuf,
    before: (u64, u64),
}

impl Windlass {
    /// `spin` is the property `spin-us` of both.
    ///
    /// # Errors
    /// If it does not come up.
    pub fn start(setup: &Setup<'_>, socket: PathBuf, spin: &str) -> Result<Windlass> {
        let daemon = Daemon::start(setup.programs, setup.scratch, &[setup.core])?;
        daemon.command("bridge create br0")?;
        let vnics = [
            (0, "v0", SENDER, ""),
            (1, "v1", sink_address(0), "--set mac-nospoof=off"),
        ];
        for (id, name, mac, more) in vnics {
            let more = format!("--set spin-us={spin} {more}");
            add_vnic(
                &daemon,
                (name, "br0"),
                mac,
                &more,
                &setup.plug.attachment(id, &socket),
            )?;
        }
        setup.plug.wait(&socket)?;
        Ok(Windlass {
            daemon,
            socket,
            before: (0, 0),
        })
    }
}

/// Makes a VNIC of that name on that bridge, for the largest frame that is measured.
pub(super) fn add_vnic(
    daemon: &Daemon,
    (name, bridge): (&str, &str),
    mac: Mac,
    more: &str,
    attach: &str,
) -> Result<()> {
    let [a, b, c, d, e, f] = mac;
    let made = daemon.command(&format!(
        "vnic create {name} --bridge {bridge} --mac {a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x} --mtu {MTU} {more} \
         --attach {attach}"
    ));
    made.map(drop)
}

impl Switch for Windlass {
    fn begin(&mut self) -> Result<()> {
        self.before = self.daemon.busy()?;
        Ok(())
    }

    fn end(&mut self, _frames: u64) -> Result<Option<f64>> {
        let (cycles, frames) = self.daemon.busy()?;
        let frames = frames.saturating_sub(self.before.1);
        Ok((frames > 0).then(|| cycles.saturating_sub(self.before.0) as f64 / frames as f64))
    }

    fn socket(&self) -> &Path {
        &self.socket
    }

    fn process(&mut self) -> Option<&mut Child> {
        Some(self.daemon.process())
    }

    fn filter(&mut self, rules: u16) -> Result<()> {
        let text = match rules {
            0 => "firewall=none".into(),
            rules => format!("firewall={}", firewall::windlass(rules)),
        };
        // Room for twice as many connections as a ring has slots.
        let words = ["vnic", "set", "v0", &text, "firewall-connections=32768"];
        self.daemon.command_of(words).map(drop)
    }

    fn capture(&mut self, words: &str) -> Result<Child> {
        self.daemon
            .start_command(&format!("snoop -d v0 -w /dev/null {words}"))
    }
}

/// The main thread sleeps on the forwarding core; only the forwarding thread works.
struct Testpmd {
    child: Child,
    socket: PathBuf,
    log: PathBuf,
    read: usize,
}

impl Testpmd {
    fn start(setup: &Setup<'_>, socket: PathBuf) -> Result<Testpmd> {
        let log = setup.scratch.join("testpmd.log");
        let core = setup.core;
        let mut command = Command::new("stdbuf");
        command.args([
            "-oL",
            "dpdk-testpmd",
            "--lcores",
            &format!("0@{core},1@{core}"),
        ]);
        command.args([
            "--main-lcore",
            "0",
            "--in-memory",
            "--no-pci",
            "--no-telemetry",
        ]);
        command.args(["-m", "256"]);
        for id in [0, 1] {
            let device = setup.plug.device(id, &socket);
            command.args(["--vdev", &device]);
        }
        command.args([
            "--",
            "-i",
            "--nb-cores=1",
            "--rxq=1",
            "--txq=1",
            "--forward-mode=io",
        ]);
        command.args([
            "--record-core-cycles",
            "--total-num-mbufs=16384",
            "--no-lsc-interrupt",
        ]);
        command.stdin(Stdio::piped());
        let mut testpmd = Testpmd {
            child: Child::start(&mut command, &log)?,
            socket,
            log,
            read: 0,
        };
        testpmd.answer("testpmd> ")?;
        Ok(testpmd)
    }

    fn say(&mut self, line: &str) -> Result<()> {
        Ok(writeln!(self.child.input()?, "{line}")?)
    }

    /// Waits until `mark` has been written since the last answer, and gives everything up to there.
    fn answer(&mut self, mark: &str) -> Result<String> {
        let (log, read) = (self.log.clone(), self.read);
        let child = &mut self.child;
        let text = stop::until(&format!("{mark:?} from testpmd"), READY_WITHIN, || {
            let bytes = std::fs::read(&log).ok()?;
            let text = String::from_utf8_lossy(bytes.get(read..)?).into_owned();
            (text.contains(mark) || child.still_runs().is_err()).then_some(text)
        })?;
        self.child.still_runs()?;
        self.read += text.len();
        Ok(text)
    }
}

impl Switch for Testpmd {
    fn begin(&mut self) -> Result<()> {
        self.say("start")
    }

    fn end(&mut self, frames: u64) -> Result<Option<f64>> {
        self.say("stop")?;
        let text = self.answer("\nDone.")?;
        // Its own quotient counts both directions; the generator knows what it sent.
        let cycles = number_after(&text, "(total cycles=");
        Ok(cycles
            .filter(|_| frames > 0)
            .map(|cycles| cycles / frames as f64))
    }

    fn socket(&self) -> &Path {
        &self.socket
    }

    fn process(&mut self) -> Option<&mut Child> {
        Some(&mut self.child)
    }
}

/// ovs-vswitchd and its database server, both with every file under our own directory.
struct Ovs {
    switch: Child,
    _database: Child,
    control: PathBuf,
    socket: PathBuf,
}

impl Ovs {
    fn start(setup: &Setup<'_>, socket: PathBuf) -> Result<Ovs> {
        let directory = setup.scratch.join("ovs");
        let mask = format!("{:#x}", 1u64 << setup.core);
        let options = format!(
            "other_config:dpdk-init=true other_config:pmd-cpu-mask={mask} other_config:dpdk-lcore-mask={mask} \
             other_config:dpdk-socket-mem=256"
        );
        let mut options: Vec<String> = options.split_ascii_whitespace().map(Into::into).collect();
        options.push("other_config:dpdk-extra=--in-memory --no-pci --no-telemetry".into());
        let (switch, database) = start_ovs(&directory, Path::new(OVS_WITH_DPDK), &options)?;
        let ovs = Ovs {
            switch,
            _database: database,
            control: directory.join("switch.ctl"),
            socket,
        };
        let configure = |line: &str| ovs_vsctl(&directory, line.split_ascii_whitespace());
        configure("add-br br0 -- set bridge br0 datapath_type=netdev")?;
        for id in [0, 1] {
            let interface = setup.plug.interface(id, &ovs.socket);
            configure(&format!(
                "add-port br0 m{id} -- set Interface m{id} {interface}"
            ))?;
        }
        setup.plug.wait(&ovs.socket)?;
        Ok(ovs)
    }

    fn ask(&self, what: &str) -> Result<String> {
        run("ovs-appctl", ["-t", &self.control.to_string_lossy(), what])
    }
}

impl Switch for Ovs {
    fn begin(&mut self) -> Result<()> {
        self.ask("dpif-netdev/pmd-stats-clear").map(drop)
    }

    fn end(&mut self, _frames: u64) -> Result<Option<f64>> {
        let text = self.ask("dpif-netdev/pmd-stats-show")?;
        Ok(number_after(&text, "avg processing cycles per packet: "))
    }

    fn socket(&self) -> &Path {
        &self.socket
    }

    fn process(&mut self) -> Option<&mut Child> {
        Some(&mut self.switch)
    }

    fn filter(&mut self, rules: u16) -> Result<()> {
        let directory = self.control.parent().context("a directory")?;
        let flows = directory.join("flows");
        std::fs::write(&flows, firewall::open_flow(rules))?;
        let bridge = format!("unix:{}", directory.join("br0.mgmt").display());
        let words = ["-O", "OpenFlow14", "replace-flows", &bridge];
        let words = words.map(str::to_owned);
        let flows = flows.display().to_string();
        run("ovs-ofctl", words.into_iter().chain([flows])).map(drop)
    }

    /// The first ring is its main thread's.
    fn sink_ring(&self) -> u16 {
        1
    }
}

/// Starts a database server and a switch in a network namespace of their own, with all files in `directory`.
///
/// # Errors
/// If one of them does not come up.
pub fn start_ovs(directory: &Path, program: &Path, options: &[String]) -> Result<(Child, Child)> {
    std::fs::create_dir_all(directory)?;
    let file = |name: &str| directory.join(name);
    let schema = "/usr/share/openvswitch/vswitch.ovsschema";
    // A database of an earlier turn would bring its bridges along.
    let _ = std::fs::remove_file(file("conf.db"));
    run(
        "ovsdb-tool",
        [
            "create".as_ref(),
            file("conf.db").as_os_str(),
            schema.as_ref(),
        ],
    )?;
    let environment =
        ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR"].map(|name| (name, directory));
    let mut command = Command::new("ovsdb-server");
    command.envs(environment).arg(file("conf.db"));
    command.arg(format!("--remote=punix:{}", file("db.sock").display()));
    command.arg(format!("--unixctl={}", file("db.ctl").display()));
    let database = Child::start(&mut command, &file("db.log"))?;
    wait_for_socket(&file("db.sock"))?;
    ovs_vsctl(directory, ["--no-wait", "init"])?;
    let set = ["--no-wait", "set", "Open_vSwitch", "."];
    if !options.is_empty() {
        ovs_vsctl(
            directory,
            set.into_iter().chain(options.iter().map(String::as_str)),
        )?;
    }
    let mut command = Command::new("unshare");
    command.arg("-n").arg(program).envs(environment);
    command.arg(format!("unix:{}", file("db.sock").display()));
    command.arg(format!("--unixctl={}", file("switch.ctl").display()));
    let switch = Child::start(&mut command, &file("switch.log"))?;
    wait_for_socket(&file("switch.ctl"))?;
    Ok((switch, database))
}

/// Runs `ovs-vsctl` on the database in `directory`.
///
/// # Errors
/// If it fails or is not answered.
pub fn ovs_vsctl<'a>(directory: &Path, words: impl IntoIterator<Item = &'a str>) -> Result<String> {
    let database = format!("--db=unix:{}", directory.join("db.sock").display());
    let own = [database, "--timeout=20".to_owned()];
    run(
        "ovs-vsctl",
        own.into_iter().chain(words.into_iter().map(str::to_owned)),
    )
}

/// Waits until a path is there.
///
/// # Errors
/// If that takes too long.
pub fn wait_for_socket(path: &Path) -> Result<()> {
    let what = format!("the appearance of {}", path.display());
    stop::until(&what, READY_WITHIN, || path.exists().then_some(()))
}

/// The first number that follows `mark`.
fn number_after(text: &str, mark: &str) -> Option<f64> {
    let (_, rest) = text.split_once(mark)?;
    let end = rest
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(rest.len());
    rest[..end].parse().ok()
}

/// The directory that this program lies in: the other programs lie beside it.
///
/// # Errors
/// If the system does not tell.
pub fn own_directory() -> Result<PathBuf> {
    let program = std::env::current_exe()?;
    Ok(program
        .parent()
        .context("this program lies nowhere")?
        .to_path_buf())
}

/// Where windlass's programs are, if they were built.
///
/// # Errors
/// Naming the one that is missing.
pub fn check_programs(directory: &Path, names: &[&str]) -> Result<()> {
    for name in names {
        let path = directory.join(name);
        find_program(&path.to_string_lossy())
            .with_context(|| format!("{} was not built", path.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers are found in what the peers really write.
    #[test]
    fn numbers_are_found() {
        let testpmd = "  CPU cycles/packet=164.08 (total cycles=4961568400 / total io packets=3)";
        assert_eq!(
            number_after(testpmd, "(total cycles="),
            Some(4_961_568_400.0)
        );
        let ovs = "  avg cycles per packet: 493.25 (6/1)\n  avg processing cycles per packet: 490.82 (6/1)\n";
        assert_eq!(
            number_after(ovs, "avg processing cycles per packet: "),
            Some(490.82)
        );
        assert_eq!(number_after(ovs, "missing"), None);
    }
}
