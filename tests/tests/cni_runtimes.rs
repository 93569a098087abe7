//! Real callers of the CNI plugin: podman, containerd's ctr, and cnitool for each command. Run by `make soak`.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use windlass_tests::{Daemon, Lab, copy_program, program, run, skip, until};

/// A daemon with a bridge, and a network of containers on it.
struct Host {
    lab: Lab,
    daemon: Daemon,
}

/// A program that runs beside a test; it is told to end, and waited for.
struct Beside(Child);

impl Drop for Beside {
    fn drop(&mut self) {
        if let Some(pid) = Pid::from_raw(self.0.id().cast_signed()) {
            let _ = kill_process(pid, Signal::TERM);
        }
        let _ = self.0.wait();
    }
}

/// What is done at the end of a test, also of one that fails.
struct AtEnd<F: Fn()>(F);

impl<F: Fn()> Drop for AtEnd<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

fn is_missing(test: &str, programs: &[&str]) -> bool {
    let is_there = |program: &&&str| {
        let asked = Command::new(program)
            .arg("--version")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        asked.is_ok()
    };
    let missing = programs.iter().find(|program| !is_there(program));
    if let Some(program) = missing {
        skip(test, &format!("{program} is missing"));
    }
    missing.is_some()
}

impl Host {
    fn start(test: &str) -> Option<Host> {
        let lab = Lab::start(test)?;
        let daemon = lab.daemon();
        daemon.must("bridge create br0");
        let host = Host { lab, daemon };
        std::fs::create_dir(host.join("plugins")).expect("made");
        let plugin = host.join("plugins/windlass-cni");
        symlink(program("windlass-cni"), plugin).expect("linked");
        Some(host)
    }

    fn join(&self, name: &str) -> PathBuf {
        self.lab.directory().join(name)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.join(name);
        std::fs::create_dir_all(path.parent().expect("a directory")).expect("made");
        std::fs::write(&path, text).expect("written");
        path
    }

    /// The directory of the network's configuration, as a runtime wants it.
    fn write_network(&self, version: &str) -> PathBuf {
        let network = json!({
            "cniVersion": version,
            "name": "net",
            "plugins": [{
                "type": "windlass-cni",
                "bridge": "br0",
                "socket": self.daemon.socket(),
                "dataDir": self.join("cni"),
                "ipam": {"type": "windlass", "ranges": [["10.0.0.0/24"]]},
            }],
        });
        self.write("conf/10-net.conflist", &network.to_string());
        self.join("conf")
    }

    /// A container's files: busybox.
    fn write_root(&self, name: &str) -> PathBuf {
        let root = self.join(name);
        for directory in ["bin", "proc", "sys", "dev", "etc", "tmp", "run"] {
            std::fs::create_dir_all(root.join(directory)).expect("made");
        }
        copy_program(Path::new("/bin/busybox"), &root.join("bin/busybox"));
        for applet in ["sh", "sleep", "ping"] {
            symlink("busybox", root.join("bin").join(applet)).expect("linked");
        }
        root
    }

    /// containerd's configuration, without Kubernetes' part.
    fn write_containerd(&self, socket: &Path) -> PathBuf {
        self.write(
            "containerd.toml",
            &format!(
                "version = 2\nroot = {:?}\nstate = {:?}\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n\
                 [grpc]\naddress = {socket:?}\n",
                self.join("root"),
                self.join("state")
            ),
        )
    }

    /// VNICs of containers that are up.
    fn up(&self) -> usize {
        let vnics = self.daemon.json("vnic show");
        let vnics = vnics.as_array().expect("a list").iter();
        vnics.filter(|vnic| vnic["state"] == "up").count()
    }

    /// Nothing is left of any container.
    fn is_clean(&self) {
        assert_eq!(self.daemon.json("vnic show"), json!([]));
        let ledger = std::fs::read(self.join("cni/net.json")).expect("a ledger");
        let ledger: Value = serde_json::from_slice(&ledger).expect("a ledger");
        assert_eq!(ledger["entries"], json!({}));
    }
}

/// Runs a command that must succeed; what it printed.
fn must(command: &mut Command) -> String {
    let done = run(command);
    assert_eq!(done.code, 0, "{command:?}: {} {}", done.out, done.err);
    done.out
}

/// Two containers of podman reach each other, and leave nothing.
#[test]
#[ignore = "run by make soak"]
fn podman_runs_containers() {
    let test = "podman_runs_containers";
    if is_missing(test, &["podman", "runc", "busybox", "tar"]) {
        return;
    }
    let Some(host) = Host::start(test) else {
        return;
    };
    let conf = host.write_network("1.0.0");
    let limits = r#"default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]"#;
    let containers = host.write(
        "containers.conf",
        &format!(
            "[network]\nnetwork_backend = \"cni\"\ncni_plugin_dirs = [{:?}]\nnetwork_config_dir = {conf:?}\n\
             [engine]\ncgroup_manager = \"cgroupfs\"\nruntime = \"runc\"\nevents_logger = \"file\"\n\
             tmp_dir = {:?}\n[containers]\n{limits}\npids_limit = 0\n",
            host.join("plugins"),
            host.join("podman")
        ),
    );
    let storage = host.write(
        "storage.conf",
        &format!(
            "[storage]\ndriver = \"vfs\"\ngraphroot = {:?}\nrunroot = {:?}\n",
            host.join("graph"),
            host.join("run")
        ),
    );
    let command = |words: &str| {
        let mut command = host.lab.command("host", "podman");
        command
            .env("CONTAINERS_CONF", &containers)
            .env("CONTAINERS_STORAGE_CONF", &storage)
            .args(words.split_whitespace());
        command
    };
    let podman = |words: &str| must(&mut command(words));
    let _end = AtEnd(|| drop(run(&mut command("rm -f -a -t 0"))));
    let (root, image) = (host.write_root("root"), host.join("image.tar"));
    let mut pack = Command::new("tar");
    must(pack.arg("-C").arg(root).arg("-cf").arg(&image).arg("."));
    podman(&format!("import {} busy", image.display()));
    for name in ["one", "two"] {
        podman(&format!(
            "run -d --name {name} --network net busy /bin/sleep 1000"
        ));
    }
    assert_eq!(host.up(), 2);
    let format = "{{.NetworkSettings.Networks.net.IPAddress}}";
    let address = podman(&format!("inspect two --format {format}"));
    assert_eq!(address.trim(), "10.0.0.2");
    podman("exec one /bin/ping -c 1 -W 10 10.0.0.2");
    podman("rm -f -t 0 one two");
    host.is_clean();
}

/// Two containers of containerd, run by ctr, reach each other, and leave nothing.
#[test]
#[ignore = "run by make soak"]
fn containerd_runs_containers() {
    let test = "containerd_runs_containers";
    if is_missing(test, &["containerd", "ctr", "runc", "busybox", "unshare"]) {
        return;
    }
    let Some(host) = Host::start(test) else {
        return;
    };
    let conf = host.write_network("1.0.0");
    let socket = host.join("containerd.sock");
    let config = host.write_containerd(&socket);
    let mut containerd = host.lab.command("host", "containerd");
    let containerd = containerd.arg("-c").arg(config);
    let containerd = containerd.stdout(Stdio::null()).stderr(Stdio::null());
    let _containerd = Beside(containerd.spawn().expect("containerd"));
    // ctr looks for networks and plugins in these places only.
    let places = "mount --bind \"$1\" /etc/cni/net.d && mount -t tmpfs none /opt && mkdir /opt/cni && \
        ln -s \"$2\" /opt/cni/bin && shift 2 && exec ctr \"$@\"";
    std::fs::create_dir_all("/etc/cni/net.d").expect("made");
    let ctr = |words: &str| {
        let mut command = host.lab.command("host", "unshare");
        command
            .args(["-m", "sh", "-c", places, "sh"])
            .arg(&conf)
            .arg(host.join("plugins"))
            .arg("-a")
            .arg(&socket)
            .args(words.split_whitespace())
            .stdin(Stdio::null());
        command
    };
    until("containerd serves", || run(&mut ctr("version")).code == 0);
    let kill = |name: &str| run(&mut ctr(&format!("task kill -s KILL {name}")));
    let names = ["c1", "c2"].map(|short| host.lab.name(short));
    let _end = AtEnd(|| names.iter().for_each(|name| drop(kill(name))));
    let run_one = |name: &str| {
        let root = host.write_root(&format!("root-{name}"));
        // It stays until its container ends, and takes the interface away then.
        let mut command = ctr(&format!(
            "run --rm --cni --rootfs {} {name} /bin/sleep 1000",
            root.display()
        ));
        command.stderr(Stdio::null()).spawn().expect("ctr")
    };
    let mut running = Vec::new();
    for name in &names {
        running.push(run_one(name));
        until("the container has an interface", || {
            host.up() == running.len()
        });
    }
    let ping = "/bin/ping -c 1 -W 10 10.0.0.2";
    must(&mut ctr(&format!(
        "task exec --exec-id ping {} {ping}",
        names[0]
    )));
    for name in &names {
        assert_eq!(kill(name).code, 0);
    }
    for mut one in running {
        one.wait().expect("ctr");
    }
    host.is_clean();
}

/// cnitool calls each command.
#[test]
#[ignore = "run by make soak"]
fn cnitool_calls_each_command() {
    let test = "cnitool_calls_each_command";
    let tool = std::env::var("WINDLASS_CNITOOL").unwrap_or_else(|_| "cnitool".into());
    if is_missing(test, &[&tool]) {
        return;
    }
    let Some(host) = Host::start(test) else {
        return;
    };
    let conf = host.write_network("1.1.0");
    let container = PathBuf::from("/run/netns").join(host.lab.namespace("a"));
    let call = |verb: &str, netns: &Path| {
        let mut command = host.lab.command("host", &tool);
        command
            .env("NETCONFPATH", &conf)
            .env("CNI_PATH", host.join("plugins"))
            .env("CNI_IFNAME", "eth0")
            .args([verb, "net"])
            .arg(netns);
        command
    };
    must(&mut call("status", &container));
    let result: Value =
        serde_json::from_str(&must(&mut call("add", &container))).expect("a result");
    assert_eq!(result["ips"][0]["address"], "10.0.0.1/24");
    must(&mut call("check", &container));
    assert_eq!(host.up(), 1);
    host.lab.ip("a", "link set eth0 mtu 1280");
    host.lab.ip("a", "address flush dev eth0");
    assert_ne!(run(&mut call("check", &container)).code, 0);
    must(&mut call("del", &container));
    host.is_clean();
    must(&mut call("add", &container));
    must(&mut call("gc", &container));
    host.is_clean();
}
