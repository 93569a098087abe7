//! The CNI plugin: each command, each version, what it says when something is wrong, and what is left when it or the daemon is
//! killed.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use windlass_sys::netlink::Netlink;
use windlass_tests::{Daemon, Lab, program, until, write_program};

/// A daemon with a bridge, and a network on it.
struct Network {
    daemon: Daemon,
    lab: Lab,
    config: Value,
}

/// One call of the plugin.
struct Call<'a> {
    network: &'a Network,
    verb: &'a str,
    container: &'a str,
    /// The namespace's short name; empty: none.
    netns: &'a str,
    config: Value,
    args: &'a str,
    /// Programs with arguments before the plugin.
    under: Vec<String>,
}

impl Network {
    fn start(test: &str, containers: &[&str]) -> Option<Network> {
        let lab = Lab::start(test)?;
        for container in containers {
            lab.namespace(container);
        }
        let daemon = lab.daemon();
        daemon.must("bridge create br0");
        let config = json!({
            "cniVersion": "1.1.0",
            "name": "net",
            "type": "windlass-cni",
            "bridge": "br0",
            // What is quick: the kernel takes 0.1 s for the programs of a veth.
            "attach": "tap",
            "socket": daemon.socket(),
            "dataDir": lab.directory().join("cni"),
            "ipam": {"type": "windlass", "ranges": [["10.0.0.0/24"]]},
        });
        Some(Network {
            daemon,
            lab,
            config,
        })
    }

    fn call<'a>(&'a self, verb: &'a str, container: &'a str, netns: &'a str) -> Call<'a> {
        Call {
            network: self,
            verb,
            container,
            netns,
            config: self.config.clone(),
            args: "",
            under: Vec::new(),
        }
    }

    fn gc(&self, valid: &[&str]) -> (i32, Value) {
        let valid = valid
            .iter()
            .map(|container| json!({"containerID": container, "ifname": "eth0"}));
        let valid: Vec<Value> = valid.collect();
        let call = self.call("GC", "", "");
        call.with("cni.dev/valid-attachments", json!(valid)).run()
    }

    fn ledger(&self) -> Value {
        let path = self.lab.directory().join("cni/net.json");
        let text = std::fs::read(path).unwrap_or_else(|_| b"{}".into());
        serde_json::from_slice(&text).expect("a ledger")
    }

    /// The VNICs that there are, and entries of the ledger.
    fn left(&self) -> (usize, usize) {
        let vnics = self.daemon.json("vnic show");
        let entries = self.ledger()["entries"]
            .as_object()
            .map_or(0, |all| all.len());
        (vnics.as_array().expect("a list").len(), entries)
    }

    /// The kinds of the VNICs' attachments, sorted.
    fn kinds(&self) -> Vec<String> {
        let vnics = self.daemon.json("vnic show");
        let vnics = vnics.as_array().expect("a list").iter();
        let kinds = vnics.map(|vnic| vnic["attach"]["kind"].as_str().expect("a kind").to_owned());
        let mut kinds: Vec<String> = kinds.collect();
        kinds.sort();
        kinds
    }

    /// Takes a key out of the configuration.
    fn forget(&mut self, key: &str) {
        let config = self.config.as_object_mut().expect("an object");
        config.remove(key);
    }

    /// Has the network on an overlay that is up.
    fn move_to_overlay(&mut self) {
        self.forget("bridge");
        self.config["overlay"] = json!("ov0");
        let set = "vxlan/listen-ip=192.0.2.1,direct/dest-ip=192.0.2.2";
        let create =
            format!("overlay create ov0 --encap vxlan --vni 23 --search direct --set {set}");
        self.lab.ip("host", "link set lo up");
        self.lab.ip("host", "address add 192.0.2.1/24 dev lo");
        self.daemon.must(&create);
        self.daemon.wait_for_state("overlay", "ov0", "up");
    }

    /// Writes a plugin for addresses into the directory of plugins.
    fn write_plugin(&self, script: &str) {
        let plugin = self.lab.directory().join("addresses");
        write_program(&plugin, script);
    }

    /// Another plugin has the one address that there is; the file that is there while it is given.
    fn give_one_address(&mut self) -> PathBuf {
        let given = self.lab.directory().join("given");
        self.write_plugin(&format!(
            "#!/bin/sh\ncat >/dev/null\ncase $CNI_COMMAND in\nDEL) rm -f {0};;\nADD) set -C; : >{0} && \
             echo '{{\"cniVersion\":\"1.0.0\",\"ips\":[{{\"address\":\"10.3.0.4/24\"}}]}}';;\nesac\n",
            given.display()
        ));
        self.config["ipam"] = json!({"type": "addresses"});
        given
    }

    /// Whether a container has the interface.
    fn has_interface(&self, container: &str) -> bool {
        let link = || Netlink::open().expect("netlink").link_by_name("eth0");
        self.lab
            .within(container, link)
            .expect("an answer")
            .is_some()
    }
}

impl Call<'_> {
    fn with(mut self, key: &str, value: Value) -> Self {
        self.config[key] = value;
        self
    }

    fn command(&self) -> Command {
        let plugin = program("windlass-cni");
        let mut command = match self.under.split_first() {
            None => Command::new(plugin),
            Some((first, rest)) => {
                let mut command = Command::new(first);
                command.args(rest).arg(plugin);
                command
            }
        };
        let netns = match self.netns {
            "" => String::new(),
            netns => format!("/run/netns/{}", self.network.lab.name(netns)),
        };
        command
            .env("CNI_COMMAND", self.verb)
            .env("CNI_CONTAINERID", self.container)
            .env("CNI_NETNS", netns)
            .env("CNI_IFNAME", "eth0")
            .env("CNI_ARGS", self.args)
            .env("CNI_PATH", self.network.lab.directory());
        command
    }

    /// Runs it; its exit code (-1: it was killed) and what it printed.
    fn run(&self) -> (i32, Value) {
        self.run_on(self.config.to_string().as_bytes())
    }

    fn run_on(&self, config: &[u8]) -> (i32, Value) {
        run(self.command(), config)
    }

    fn must(&self) -> Value {
        let (code, printed) = self.run();
        assert_eq!(code, 0, "{} {}: {printed}", self.verb, self.container);
        printed
    }

    fn refused(&self, code: u64) {
        let (exit, printed) = self.run();
        let wanted = (1, &json!(code));
        assert_eq!(
            (exit, &printed["code"]),
            wanted,
            "{} {printed}",
            self.config
        );
        assert!(printed["msg"].as_str().is_some_and(|text| !text.is_empty()));
        assert!(printed["cniVersion"].is_string());
    }
}

fn run(mut command: Command, config: &[u8]) -> (i32, Value) {
    let command = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut child = command.spawn().expect("the plugin");
    // One that is killed at once does not read it.
    let _ = child.stdin.take().expect("a pipe").write_all(config);
    let output = child.wait_with_output().expect("the plugin");
    let printed = serde_json::from_slice(&output.stdout).unwrap_or_default();
    (output.status.code().unwrap_or(-1), printed)
}

/// Has a namespace speak IPv6.
fn enable_ipv6(lab: &Lab, container: &str) {
    let enable = "for of in all default; do echo 0 >/proc/sys/net/ipv6/conf/$of/disable_ipv6; done";
    let mut shell = lab.command(container, "sh");
    let done = shell.args(["-c", enable]).status().expect("a shell");
    assert!(done.success());
}

/// The result of an ADD as this version has it.
fn is_of_version(result: &Value, version: &str) {
    assert_eq!(result["cniVersion"], version);
    let interface = &result["interfaces"][0];
    assert_eq!(interface["name"], "eth0");
    let mtu = (version == "1.1.0").then_some(1400);
    assert_eq!(interface["mtu"], json!(mtu));
    let sandbox = interface["sandbox"].as_str().expect("a path");
    assert!(sandbox.starts_with("/run/netns/"), "{sandbox}");
    assert_eq!(result["ips"][0]["gateway"], "10.0.0.1");
    assert_eq!(result["ips"][0]["interface"], 0);
    let family = version.starts_with('0').then_some("4");
    assert_eq!(result["ips"][0]["version"], json!(family));
    let second = result["ips"][1]["address"].as_str().expect("an address");
    assert!(second.starts_with("fd00::"), "{second}");
    let route = json!({"dst": "0.0.0.0/0", "gw": "10.0.0.1"});
    assert_eq!(result["routes"][0], route);
}

/// CHECK finds the interface of container `one` in `a`, and finds that a route of it is gone.
fn check_finds(network: &Network, result: &Value) {
    let check = || {
        let call = network.call("CHECK", "one", "a");
        call.with("prevResult", result.clone())
    };
    if network.config["cniVersion"] == "0.3.1" {
        check().refused(1);
        return;
    }
    check().must();
    let forget = || {
        let mut netlink = Netlink::open().expect("netlink");
        let routes = netlink.routes().expect("routes");
        let mut routes = routes.iter();
        let route = routes.find(|route| route.prefix == 16);
        netlink.delete_route(route.expect("a route"))
    };
    network.lab.within("a", forget).expect("deleted");
    check().refused(101);
}

/// In each version: an interface with address, MTU and route, which others reach; CHECK finds it, and finds what was changed; DEL takes it
/// away, also when it was taken away, also when the namespace is gone.
#[test]
fn a_container_gets_an_interface() {
    let Some(mut network) = Network::start("a_container_gets_an_interface", &["a", "b"]) else {
        return;
    };
    enable_ipv6(&network.lab, "a");
    enable_ipv6(&network.lab, "b");
    network.config["mtu"] = json!(1400);
    network.forget("attach");
    let first = json!({"subnet": "10.0.0.0/24", "gateway": "10.0.0.1"});
    network.config["ipam"]["ranges"] = json!([[first], ["fd00::/64"]]);
    network.config["ipam"]["routes"] =
        json!([{"dst": "0.0.0.0/0"}, {"dst": "10.9.0.0/16", "gw": "10.0.0.9"}]);
    for version in ["0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
        network.config["cniVersion"] = json!(version);
        let result = network.call("ADD", "one", "a").must();
        let tap = network.call("ADD", "two", "b").with("attach", json!("tap"));
        let other = tap.must();
        is_of_version(&result, version);
        assert_eq!(network.kinds(), ["tap", "veth"]);
        let address = other["ips"][0]["address"].as_str().expect("an address");
        let address = address.strip_suffix("/24").expect("a prefix");
        assert!(network.lab.ping("a", address, 3), "{result} {other}");
        check_finds(&network, &result);
        network.call("DEL", "one", "a").must();
        network.call("DEL", "one", "").must();
        network.call("DEL", "two", "nowhere").must();
        network.call("DEL", "two", "b").must();
        assert_eq!(network.left(), (0, 0));
        assert!(!network.has_interface("a") && !network.has_interface("b"));
    }
}

/// MAC, IP addresses and bandwidth by capability or argument; an address that was given back is nobody's for a while; an
/// address that another has is refused, and so is an interface that is there. What was refused left nothing.
#[test]
fn runtimes_have_wishes() {
    let Some(network) = Network::start("runtimes_have_wishes", &["a", "b"]) else {
        return;
    };
    let wishes = json!({"mac": "02:00:00:00:00:77", "ips": ["10.0.0.7/24"],
        "bandwidth": {"ingressRate": 5_000_000, "ingressBurst": 1, "egressRate": 9_000_000, "egressBurst": 1}});
    let result = network
        .call("ADD", "one", "a")
        .with("runtimeConfig", wishes.clone())
        .must();
    assert_eq!(result["interfaces"][0]["mac"], "02:00:00:00:00:77");
    assert_eq!(result["ips"][0]["address"], "10.0.0.7/24");
    let vnic = network.daemon.json("vnic show")[0].take();
    assert_eq!(vnic["properties"]["maxbw"], 5, "{vnic}");
    network
        .call("ADD", "two", "b")
        .with("runtimeConfig", wishes)
        .refused(11);
    network.call("ADD", "two", "a").refused(4);
    assert_eq!(network.left(), (1, 1));
    network.call("DEL", "one", "a").must();
    let mut again = network.call("ADD", "two", "b");
    again.args = "IgnoreUnknown=1;IP=10.0.0.7";
    again.refused(11);
    again.args = "MAC=02:00:00:00:00:78;IP=10.0.0.8";
    assert_eq!(again.must()["ips"][0]["address"], "10.0.0.8/24");
    again.args = "IP=10.1.0.8";
    again.refused(7);
    network.call("DEL", "two", "b").must();
    assert_eq!(network.left(), (0, 0));
}

/// What is wrong with a call has the code of the specification, and nothing is made.
#[test]
fn bad_calls_are_refused() {
    let Some(network) = Network::start("bad_calls_are_refused", &["a"]) else {
        return;
    };
    let add = || network.call("ADD", "one", "a");
    for (key, value, code) in [
        ("cniVersion", json!("0.2.0"), 1),
        ("cniVersion", Value::Null, 1),
        ("cniVersion", json!(7), 7),
        ("bridgee", json!("br0"), 2),
        ("name", json!("../etc"), 7),
        ("name", Value::Null, 7),
        ("bridge", Value::Null, 7),
        ("bridge", json!("nowhere"), 100),
        ("overlay", json!("ov0"), 7),
        ("zone", json!("nowhere"), 100),
        ("vlan", json!(4095), 7),
        ("mtu", json!("large"), 7),
        ("attach", json!("hub"), 7),
        ("ipam", json!({"type": "windlass"}), 7),
        (
            "ipam",
            json!({"type": "windlass", "ranges": [], "subnet": 1}),
            2,
        ),
        (
            "ipam",
            json!({"type": "windlass", "ranges": [["10.0.0.0/33"]]}),
            7,
        ),
        (
            "ipam",
            json!({"type": "windlass", "pool": "p0", "ranges": [["10.0.0.0/24"]]}),
            7,
        ),
        ("ipam", json!({"type": "../sh"}), 7),
        ("ipam", json!({"type": "none-such"}), 7),
        ("socket", json!("/nonexistent"), 11),
        ("dataDir", json!("/proc/none"), 5),
    ] {
        add().with(key, value).refused(code);
    }
    let decode = add().run_on(b"{\"name\"");
    assert_eq!((decode.0, &decode.1["code"]), (1, &json!(6)));
    assert_eq!(network.left(), (0, 0));
    assert!(!network.has_interface("a"));
}

/// The same of what the environment says, and of commands that a version does not have.
#[test]
fn bad_environments_are_refused() {
    let Some(network) = Network::start("bad_environments_are_refused", &["a"]) else {
        return;
    };
    for (verb, container, netns, code) in [
        ("ADD", "", "a", 4),
        ("ADD", "../x", "a", 4),
        ("ADD", "one", "", 4),
        ("ADD", "one", "nowhere", 3),
        ("CHECK", "one", "a", 7),
        ("FROB", "one", "a", 4),
    ] {
        network.call(verb, container, netns).refused(code);
    }
    for verb in ["GC", "STATUS"] {
        network
            .call(verb, "", "")
            .with("cniVersion", json!("1.0.0"))
            .refused(1);
    }
    let versions = network
        .call("VERSION", "", "")
        .with("cniVersion", json!("1.0.0"))
        .must();
    assert_eq!(
        versions["supportedVersions"],
        json!(["0.3.1", "0.4.0", "1.0.0", "1.1.0"])
    );
    network.call("STATUS", "", "").must();
    network
        .call("STATUS", "", "")
        .with("bridge", json!("nowhere"))
        .refused(50);
    network
        .call("STATUS", "", "")
        .with("socket", json!("/nonexistent"))
        .refused(50);
    assert_eq!(network.left(), (0, 0));
    assert!(!network.has_interface("a"));
}

/// Each command with each thing that may be missing or wrong, while there is an interface: the code of its error, or 0. The interface
/// stays.
#[test]
fn each_command_tells_what_is_wrong() {
    let Some(network) = Network::start("each_command_tells_what_is_wrong", &["a"]) else {
        return;
    };
    let result = network.call("ADD", "one", "a").must();
    let valid = json!([{"containerID": "one", "ifname": "eth0"}]);
    let code = |(exit, printed): (i32, Value)| match exit {
        0 => 0,
        _ => printed["code"].as_u64().expect("a code"),
    };
    for (verb, namespace, daemon, previous, version) in [
        ("ADD", 3, 11, 0, 1),
        ("DEL", 0, 0, 0, 1),
        ("CHECK", 3, 11, 7, 1),
        ("GC", 0, 0, 0, 1),
        ("STATUS", 0, 50, 0, 1),
        ("VERSION", 0, 0, 0, 0),
    ] {
        // What DEL takes away is another one's.
        let container = if verb == "DEL" { "other" } else { "one" };
        let call = |netns| {
            let call = network.call(verb, container, netns);
            call.with("prevResult", result.clone())
                .with("cni.dev/valid-attachments", valid.clone())
        };
        let bare = network.call(verb, container, "a");
        assert_eq!(code(call("nowhere").run()), namespace, "{verb}");
        let away = call("a").with("socket", json!("/nonexistent"));
        assert_eq!(code(away.run()), daemon, "{verb}");
        assert_eq!(code(bare.run()), previous, "{verb}");
        let strange = call("a").with("cniVersion", json!("9.9.9"));
        assert_eq!(code(strange.run()), version, "{verb}");
        let garbled = bare.run_on(b"{\"cniVersion\": \"1.1.0\", ");
        assert_eq!(code(garbled), 6, "{verb}");
        let silent = if verb == "VERSION" { 0 } else { 6 };
        assert_eq!(code(bare.run_on(b"")), silent, "{verb}");
    }
    network.call("DEL", "other", "").must();
    assert_eq!(network.left(), (1, 1));
    assert!(network.has_interface("a"));
    // What a runtime says that has no interface.
    let none = network.call("GC", "", "");
    none.with("cni.dev/valid-attachments", Value::Null).must();
    assert_eq!(network.left(), (0, 0));
}

/// Without the daemon, DEL succeeds and owes; the next call that reaches the daemon pays. An interface of an earlier boot goes by
/// itself; GC takes away what it is not told of, and leaves the rest.
#[test]
fn what_is_owed_is_paid() {
    let Some(mut network) = Network::start("what_is_owed_is_paid", &["a", "b"]) else {
        return;
    };
    network.call("ADD", "one", "a").must();
    network.daemon.kill();
    network.call("DEL", "one", "a").must();
    network.call("DEL", "one", "a").must();
    network.call("ADD", "two", "b").refused(11);
    network.call("STATUS", "", "").refused(50);
    assert_eq!(
        network.ledger()["entries"].as_object().map(|all| all.len()),
        Some(1)
    );
    network.daemon.start_again();
    network.call("DEL", "other", "").must();
    assert_eq!(network.left(), (0, 0));
    network.call("ADD", "one", "a").must();
    network.call("ADD", "two", "b").must();
    assert_eq!(network.gc(&["one"]).0, 0);
    assert_eq!(network.left(), (1, 1));
    assert!(network.has_interface("a") && !network.has_interface("b"));
    // As if the machine had been started again.
    let path = network.lab.directory().join("cni/net.json");
    let text = std::fs::read_to_string(&path).expect("a ledger");
    let boot = network.ledger()["boot"]
        .as_str()
        .expect("a boot")
        .to_owned();
    std::fs::write(&path, text.replace(&boot, "before")).expect("written");
    network.call("ADD", "two", "b").must();
    assert_eq!(network.left(), (1, 1));
    assert!(!network.has_interface("a"));
    network.call("DEL", "two", "b").must();
    assert_eq!(network.left(), (0, 0));
}

/// Where all addresses are those of an earlier boot, they rest from the first ADD on, however many are refused meanwhile.
#[test]
fn a_refused_call_pays() {
    let Some(mut network) = Network::start("a_refused_call_pays", &["a", "b"]) else {
        return;
    };
    network.config["ipam"]["ranges"] = json!([["10.0.0.0/31"]]);
    network.call("ADD", "one", "a").must();
    network.call("ADD", "two", "b").must();
    let path = network.lab.directory().join("cni/net.json");
    let text = std::fs::read_to_string(&path).expect("a ledger");
    let boot = network.ledger()["boot"].take();
    let boot = boot.as_str().expect("a boot");
    std::fs::write(&path, text.replace(boot, "before")).expect("written");
    network.call("ADD", "three", "a").refused(11);
    assert_eq!(network.left(), (0, 0));
    let resting = network.ledger()["resting"].take();
    assert_eq!(resting.as_object().map(|all| all.len()), Some(2));
    network.call("ADD", "three", "a").refused(11);
    assert_eq!(network.ledger()["resting"], resting);
}

/// What the daemon refuses to delete stays owed, and keeps nothing else from being deleted.
#[test]
fn a_refusal_leaves_other_debts() {
    let Some(mut network) = Network::start("a_refusal_leaves_other_debts", &["a", "b"]) else {
        return;
    };
    network.call("ADD", "one", "a").must();
    network.call("ADD", "two", "b").must();
    network.daemon.kill();
    network.call("DEL", "one", "a").must();
    network.call("DEL", "two", "b").must();
    network.daemon.start_again();
    // The first that is tried.
    let first = network.daemon.json("vnic show")[0]["name"].take();
    let first = first.as_str().expect("a name").to_owned();
    network
        .daemon
        .must(&format!("vnic set {first} --attach none"));
    network.daemon.must(&format!("vnd create {first}"));
    network.call("DEL", "other", "").must();
    assert_eq!(network.left(), (1, 1));
    assert!(network.ledger()["entries"][&first].is_object());
    network.daemon.must(&format!("vnd destroy {first}"));
    network.call("DEL", "other", "").must();
    assert_eq!(network.left(), (0, 0));
}

/// A network on an overlay: its VNICs are on the overlay's bridge, with its MTU; STATUS says when the overlay is not there, or degraded.
#[test]
fn an_overlay_has_containers() {
    let Some(mut network) = Network::start("an_overlay_has_containers", &["a"]) else {
        return;
    };
    network.forget("bridge");
    network.config["overlay"] = json!("ov0");
    network.call("ADD", "one", "a").refused(100);
    network.call("STATUS", "", "").refused(50);
    let set = "vxlan/listen-ip=192.0.2.1,direct/dest-ip=192.0.2.2";
    let create = format!("overlay create ov0 --encap vxlan --vni 23 --search direct --set {set}");
    network.daemon.must(&create);
    network.call("STATUS", "", "").refused(51);
    network.lab.ip("host", "link set lo up");
    network.lab.ip("host", "address add 192.0.2.1/24 dev lo");
    until("the overlay is up", || {
        network.call("STATUS", "", "").run().0 == 0
    });
    let result = network.call("ADD", "one", "a").must();
    let vnic = network.daemon.json("vnic show")[0].take();
    assert_eq!(vnic["bridge"], "ov0", "{vnic}");
    let mtu = result["interfaces"][0]["mtu"].as_u64();
    assert!(mtu.is_some_and(|mtu| mtu != 1500), "{result}");
    network.call("DEL", "one", "a").must();
    assert_eq!(network.left(), (0, 0));
}

/// A lookup plugin as a registry of addresses, which gives one host the first of each set, and nothing to container `two`. Gives what it was
/// asked when the daemon has closed the connection.
fn registry(socket: &Path) -> Vec<String> {
    let connected =
        windlass_tests::until_some("the daemon listens", || UnixStream::connect(socket).ok());
    let mut say = connected.try_clone().expect("a connection");
    let mut say = move |message: Value| {
        // The daemon may have closed it.
        let _ = say.write_all(format!("{message}\n").as_bytes());
    };
    say(json!({"op": "hello", "v": 1, "kind": "table"}));
    let mut asked = Vec::new();
    for line in BufReader::new(connected).lines() {
        let Ok(line) = line else { break };
        let message: Value = serde_json::from_str(&line).expect("a message");
        let of = |key: &str| message[key].clone();
        let owner = message["owner"].as_str().unwrap_or_default().to_owned();
        match message["op"].as_str().expect("an op") {
            "start" | "set" => say(json!({"op": "ok", "overlay": of("overlay")})),
            "ping" => say(json!({"op": "pong", "id": of("id")})),
            "claim" if owner.contains("two") => {
                asked.push(format!("claim {owner}"));
                say(json!({"op": "claimed", "id": of("id"), "text": "there is none"}));
            }
            "claim" => {
                asked.push(format!("claim {owner} of {}", message["pool"]));
                let sets = message["sets"].as_array().expect("sets").iter();
                let ips: Vec<&Value> = sets.map(|set| &set[0][0]).collect();
                let mac = "02:00:00:00:00:99";
                say(json!({"op": "claimed", "id": of("id"), "mac": mac, "ips": ips}));
            }
            "release" => asked.push(format!("release {owner}")),
            _ => {}
        }
    }
    asked
}

/// The registry of an overlay has the addresses: a container gets the MAC and IP addresses that it gives; where it gives none or is not there,
/// ADD fails for the moment, and gives back what no VNIC has.
#[test]
fn a_registry_has_the_addresses() {
    let Some(mut network) = Network::start("a_registry_has_the_addresses", &["a", "b"]) else {
        return;
    };
    let first = json!({"subnet": "10.0.0.0/24", "gateway": "10.0.0.1"});
    network.config["ipam"] = json!({"type": "windlass", "pool": "p0", "ranges": [[first]],
        "routes": [{"dst": "0.0.0.0/0"}]});
    network.forget("bridge");
    network.config["overlay"] = json!("ov0");
    network.lab.ip("host", "address add 192.0.2.1/24 dev lo");
    let socket = network.lab.directory().join("registry.sock");
    let serving = {
        let socket = socket.clone();
        std::thread::spawn(move || registry(&socket))
    };
    network.daemon.must(&format!(
        "overlay create ov0 --vni 23 --search plugin --set vxlan/listen-ip=192.0.2.1,plugin/socket={}",
        socket.display()
    ));
    network.daemon.wait_for_state("overlay", "ov0", "up");
    let result = network.call("ADD", "one", "a").must();
    assert_eq!(result["ips"][0]["address"], "10.0.0.2/24");
    assert_eq!(result["routes"][0]["gw"], "10.0.0.1");
    assert_eq!(result["interfaces"][0]["mac"], "02:00:00:00:00:99");
    network.call("ADD", "two", "b").refused(11);
    network.call("STATUS", "", "").must();
    assert_eq!(network.left(), (1, 1));
    // The session ends with the daemon.
    network.daemon.kill();
    let asked = serving.join().expect("served");
    let wanted = [
        "claim cni:one/eth0 of \"p0\"",
        "claim cni:two/eth0",
        "release cni:two/eth0",
        "claim cni:status of \"p0\"",
    ];
    assert_eq!(asked, wanted);
    network.daemon.start_again();
    network.call("ADD", "three", "b").refused(11);
    network.call("STATUS", "", "").refused(51);
    network.call("DEL", "one", "a").must();
    assert_eq!(network.left(), (0, 0));
}

/// Another plugin has the addresses: it is asked for each command, also when DEL is repeated and when ADD fails after it.
#[test]
fn another_plugin_has_the_addresses() {
    let Some(mut network) = Network::start("another_plugin_has_the_addresses", &["a"]) else {
        return;
    };
    let log = network.lab.directory().join("log");
    let script = format!(
        "#!/bin/sh\ncat >/dev/null\necho $CNI_COMMAND $CNI_CONTAINERID >>{}\n[ $CNI_COMMAND != ADD ] || \
         echo '{{\"cniVersion\":\"1.0.0\",\"ips\":[{{\"address\":\"10.3.0.4/24\",\"gateway\":\"10.3.0.1\"}}],\
         \"routes\":[{{\"dst\":\"0.0.0.0/0\"}}],\"dns\":{{\"nameservers\":[\"10.3.0.1\"]}}}}'\n",
        log.display()
    );
    network.write_plugin(&script);
    network.config["ipam"] = json!({"type": "addresses", "anything": 1});
    let result = network.call("ADD", "one", "a").must();
    assert_eq!(result["ips"][0]["address"], "10.3.0.4/24");
    assert_eq!(result["routes"][0]["gw"], "10.3.0.1");
    assert_eq!(result["dns"]["nameservers"][0], "10.3.0.1");
    network
        .call("CHECK", "one", "a")
        .with("prevResult", result)
        .must();
    network.call("ADD", "two", "a").refused(4);
    network.call("STATUS", "", "").must();
    network.call("DEL", "one", "a").must();
    network.call("DEL", "one", "").must();
    assert_eq!(network.gc(&[]).0, 0);
    let asked = std::fs::read_to_string(&log).expect("a log");
    let asked: Vec<&str> = asked.lines().map(str::trim).collect();
    let wanted = [
        "ADD one",
        "CHECK one",
        "ADD two",
        "DEL two",
        "STATUS",
        "DEL one",
        "DEL one",
        "GC",
    ];
    assert_eq!(asked, wanted);
    assert_eq!(network.left(), (0, 0));
}

/// What a leftover had is given back when the next ADD replaces it: its address rests, and another plugin that has the addresses
/// takes back its own.
#[test]
fn a_leftover_gives_its_addresses_back() {
    let name = "a_leftover_gives_its_addresses_back";
    let Some(mut network) = Network::start(name, &["a", "b"]) else {
        return;
    };
    let first = network.call("ADD", "one", "a").must();
    assert_eq!(first["ips"][0]["address"], "10.0.0.1/24");
    let second = network.call("ADD", "one", "a").must();
    assert_eq!(second["ips"][0]["address"], "10.0.0.2/24");
    let mut other = network.call("ADD", "two", "b");
    other.args = "IP=10.0.0.1";
    other.refused(11);
    // The same address may be asked for again.
    let mut same = network.call("ADD", "one", "a");
    same.args = "IP=10.0.0.2";
    same.must();
    network.call("DEL", "one", "a").must();
    let given = network.give_one_address();
    network.call("ADD", "one", "a").must();
    network.call("ADD", "one", "a").must();
    network.call("DEL", "one", "a").must();
    assert!(!given.exists());
    assert_eq!(network.left(), (0, 0));
}

/// The system calls with which the plugin changes something or asks somebody.
const STEPS: [&str; 6] = ["connect", "sendto", "rename", "fdatasync", "fsync", "flock"];

/// Kills the plugin at its n-th call of this kind.
fn killed_at(step: &str, number: usize) -> Vec<String> {
    let inject = format!("inject={step}:signal=SIGKILL:when={number}");
    let words = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", &inject];
    words.map(str::to_owned).to_vec()
}

/// Kills the plugin at each step of ADD and DEL. Once DEL was called (as runtimes do after both), there is nothing, and nothing that GC does
/// not find; and an ADD in its place succeeds. `is_clean`: whether others have nothing of it either.
fn kill_at_each_step(network: &Network, is_clean: impl Fn() -> bool) {
    for (verb, least) in [("ADD", 8), ("DEL", 4)] {
        let mut kills = 0;
        for step in STEPS {
            for number in 1.. {
                if verb == "DEL" {
                    network.call("ADD", "one", "a").must();
                }
                let mut call = network.call(verb, "one", "a");
                call.under = killed_at(step, number);
                let (code, _) = call.run();
                match kills % 3 {
                    0 => assert_eq!(network.gc(&[]).0, 0),
                    1 => drop(network.call("ADD", "one", "a").must()),
                    _ => {}
                }
                network.call("DEL", "one", "a").must();
                assert_eq!(network.left(), (0, 0), "{verb} at {step} {number}");
                assert!(!network.has_interface("a"), "{verb} at {step} {number}");
                assert!(is_clean(), "{verb} at {step} {number}");
                if code == 0 {
                    break;
                }
                kills += 1;
            }
        }
        assert!(kills >= least, "{verb}: {kills}");
    }
}

/// A plugin that is killed at any step leaves nothing, with addresses of its own on an overlay.
#[test]
fn a_killed_plugin_leaves_nothing() {
    let name = "a_killed_plugin_leaves_nothing";
    let Some(mut network) = Network::start(name, &["a"]) else {
        return;
    };
    network.move_to_overlay();
    kill_at_each_step(&network, || true);
}

/// The same where another plugin has the addresses, on a bridge.
#[test]
fn a_killed_plugin_leaves_no_address_of_another() {
    let name = "a_killed_plugin_leaves_no_address_of_another";
    let Some(mut network) = Network::start(name, &["a"]) else {
        return;
    };
    let given = network.give_one_address();
    kill_at_each_step(&network, || !given.exists());
}

/// Nor does the plugin leave anything if the daemon is killed while it waits for it.
#[test]
fn a_killed_daemon_leaves_nothing() {
    let Some(mut network) = Network::start("a_killed_daemon_leaves_nothing", &["a"]) else {
        return;
    };
    network.move_to_overlay();
    network.forget("attach");
    for round in 0..12u64 {
        let verb = if round % 2 == 0 { "ADD" } else { "DEL" };
        if verb == "DEL" {
            network.call("ADD", "one", "a").must();
        }
        let (command, config) = {
            let call = network.call(verb, "one", "a");
            (call.command(), call.config.to_string())
        };
        let plugin = std::thread::spawn(move || run(command, config.as_bytes()));
        std::thread::sleep(Duration::from_millis(2 * round));
        network.daemon.kill();
        let (code, printed) = plugin.join().expect("it ends");
        assert!(verb == "ADD" || code == 0, "{printed}");
        network.daemon.start_again();
        if round % 4 < 2 {
            assert_eq!(network.gc(&[]).0, 0);
        } else {
            network.call("DEL", "one", "a").must();
        }
        assert_eq!(network.left(), (0, 0), "{verb} {round}: {printed}");
        assert!(!network.has_interface("a"), "{verb} {round}");
    }
}

/// Forty containers that come at once all get an interface, each its own address, and lose it again at once.
#[test]
fn many_come_at_once() {
    let Some(network) = Network::start("many_come_at_once", &[]) else {
        return;
    };
    let names: Vec<String> = (0..40).map(|number| format!("n{number}")).collect();
    for name in &names {
        network.lab.namespace(name);
    }
    let all = |verb: &str| -> Vec<Value> {
        let network = &network;
        std::thread::scope(|scope| {
            let calls = names
                .iter()
                .map(|name| scope.spawn(move || network.call(verb, name, name).must()));
            let calls: Vec<_> = calls.collect();
            calls
                .into_iter()
                .map(|call| call.join().expect("it succeeds"))
                .collect()
        })
    };
    let results = all("ADD");
    let addresses: BTreeSet<&str> = (results.iter())
        .filter_map(|result| result["ips"][0]["address"].as_str())
        .collect();
    assert_eq!(addresses.len(), names.len());
    assert_eq!(network.left(), (names.len(), names.len()));
    all("DEL");
    assert_eq!(network.left(), (0, 0));
}

/// The documents of a YAML file.
fn yaml(path: &Path) -> Vec<Value> {
    let script =
        "import json, sys, yaml; print(json.dumps(list(yaml.safe_load_all(open(sys.argv[1])))))";
    let mut python = Command::new("python3");
    let done = windlass_tests::run(python.args(["-c", script]).arg(path));
    assert_eq!(done.code, 0, "{}", done.err);
    serde_json::from_str(&done.out).expect("documents")
}

/// The strings at a key of each element of a list.
fn strings<'a>(list: &'a Value, key: &str) -> BTreeSet<&'a str> {
    let list = list.as_array().expect("a list").iter();
    list.map(|one| one[key].as_str().expect("a string"))
        .collect()
}

/// The manifest for Kubernetes has the fields that the API wants of its objects, each volume that is mounted is there, and the plugin
/// takes the configuration in it.
#[test]
fn the_manifest_has_its_form() {
    let name = "the_manifest_has_its_form";
    let asked = Command::new("python3").args(["-c", "import yaml"]).status();
    if !asked.is_ok_and(|status| status.success()) {
        windlass_tests::skip(name, "Python's yaml is missing");
        return;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let documents = yaml(&root.join("crates/programs/cni/dist/kubernetes.yaml"));
    let [network, set] = documents.as_slice() else {
        panic!("{documents:?}");
    };
    assert_eq!(
        (&network["apiVersion"], &network["kind"]),
        (&json!("v1"), &json!("ConfigMap"))
    );
    assert_eq!(
        (&set["apiVersion"], &set["kind"]),
        (&json!("apps/v1"), &json!("DaemonSet"))
    );
    for object in [network, set] {
        assert!(object["metadata"]["name"].is_string());
    }
    let pod = &set["spec"]["template"];
    let wanted = &set["spec"]["selector"]["matchLabels"];
    assert!(wanted.is_object() && *wanted == pod["metadata"]["labels"]);
    let volumes = &pod["spec"]["volumes"];
    assert_eq!(volumes[0]["configMap"]["name"], network["metadata"]["name"]);
    for path in volumes.as_array().expect("a list").iter().skip(1) {
        assert!(path["hostPath"]["path"].is_string(), "{path}");
    }
    let mounts = &pod["spec"]["initContainers"][0]["volumeMounts"];
    assert_eq!(strings(mounts, "name"), strings(volumes, "name"));
    assert_eq!(strings(mounts, "mountPath").len(), 3);
    for kind in ["initContainers", "containers"] {
        let containers = &pod["spec"][kind];
        assert_eq!(
            strings(containers, "name").len(),
            strings(containers, "image").len()
        );
    }
    let list = network["data"]["10-windlass.conflist"]
        .as_str()
        .expect("a list");
    let list: Value = serde_json::from_str(list).expect("JSON");
    let mut config = list["plugins"][0].clone();
    config["name"] = list["name"].clone();
    config["cniVersion"] = json!("1.1.0");
    config["socket"] = json!("/nonexistent");
    let mut plugin = Command::new(program("windlass-cni"));
    plugin.env("CNI_COMMAND", "STATUS");
    let (code, printed) = run(plugin, config.to_string().as_bytes());
    // Only the daemon is missing.
    assert_eq!((code, &printed["code"]), (1, &json!(50)), "{printed}");
}
