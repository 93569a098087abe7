//! Overlays as a daemon has them: searches, targets by hand, answers for neighbours, an underlay that comes and goes, restarts.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use windlass_tests::{Daemon, Lab, program, run, skip, until, write_program};

const GUEST: &str = "02:00:00:00:00:0a";
const FAR: &str = "02:00:00:00:02:02";
/// The hosts of [`hosts`] with their addresses, and that of [`join_third`].
const HOSTS: [(&str, &str); 2] = [THREE_HOSTS[0], THREE_HOSTS[1]];
const THREE_HOSTS: [(&str, &str); 3] = [
    ("host", "192.0.2.1"),
    ("far", "192.0.2.2"),
    ("third", "192.0.2.3"),
];

/// A host and another one, `far`, on an underlay of 192.0.2.0/24; a guest's namespace.
fn hosts(name: &str) -> Option<Lab> {
    let lab = Lab::start(name)?;
    for short in ["guest", "far"] {
        lab.namespace(short);
    }
    lab.underlay("far", &["192.0.2.2"]);
    Some(lab)
}

/// A kernel's VXLAN device on the far host, with 10.0.0.2 in the network.
fn far_device(lab: &Lab, vni: u32, more: &str) {
    let device = format!(
        "link add vx{vni} address {FAR} mtu 1450 type vxlan id {vni} dstport 4789 local 192.0.2.2 remote 192.0.2.1"
    );
    lab.ip("far", &device);
    lab.ip("far", &format!("addr add 10.0.0.2/24 dev vx{vni}"));
    lab.ip("far", &format!("link set vx{vni} {more} up"));
}

/// An overlay and a guest with 10.0.0.1 on its bridge.
fn overlay(lab: &Lab, daemon: &Daemon, search: &str) {
    let create = format!("overlay create ov0 --vni 23 {search},vxlan/listen-ip=192.0.2.1");
    daemon.must(&create);
    let netns = lab.name("guest");
    daemon.must(&format!(
        "vnic create g0 --over ov0 --mac {GUEST} --attach tap,netns={netns},address=10.0.0.1/24"
    ));
    daemon.wait_for_state("vnic", "g0", "up");
}

/// What a file says of the far host: its address, and the IP address that is answered for.
fn far_in(file: &Path, target: &str) {
    let text = json!({FAR: {"ip": target, "port": 4789, "arp": "10.0.0.2"}}).to_string();
    fs::write(file.with_extension("new"), text).expect("a file");
    fs::rename(file.with_extension("new"), file).expect("a file");
}

/// Address, target and kind of all targets.
fn targets(daemon: &Daemon) -> Vec<[String; 3]> {
    let rows = daemon.json("overlay target show ov0");
    let rows = rows.as_array().expect("rows").iter();
    let text = |row: &Value, key: &str| row[key].as_str().unwrap_or("-").to_owned();
    rows.map(|row| ["mac", "target", "kind"].map(|key| text(row, key)))
        .collect()
}

fn is_target(daemon: &Daemon, mac: &str, target: &str, kind: &str) -> bool {
    targets(daemon).contains(&[mac, target, kind].map(str::to_owned))
}

/// With one target for everything, a guest and a kernel's VXLAN device reach each other; the guest has the MTU that the tunnel
/// carries. Frames to an address that has answered are not flooded, so that no storm limit holds them back. The overlay takes its bridge with it, but not while a VNIC is on it.
#[test]
fn one_target_gets_everything() {
    let Some(lab) = hosts("one_target_gets_everything") else {
        return;
    };
    far_device(&lab, 23, "");
    let daemon = lab.daemon();
    overlay(
        &lab,
        &daemon,
        "--search direct --set direct/dest-ip=192.0.2.2",
    );
    assert!(lab.ping("guest", "10.0.0.2", 5));
    assert!(lab.ping("far", "10.0.0.1", 5));
    assert_eq!(daemon.show("vnic", "g0")["mtu_now"], 1450);
    assert!(lab.ip("guest", "link show g0").contains("mtu 1450"));
    assert!(is_target(&daemon, "-", "192.0.2.2:4789", "flood"));
    until("the far host's address is known", || {
        is_target(&daemon, FAR, "192.0.2.2:4789", "learned")
    });
    let counters = || daemon.show("vnic", "g0")["counters"].take();
    let before = counters();
    assert!(lab.ping("guest", "10.0.0.2", 5));
    until("the ping is counted", || {
        counters()["rx_unicast"].as_u64() > before["rx_unicast"].as_u64()
    });
    // Datagrams of nobody are counted, and a host that refuses ours is named.
    lab.within("far", || {
        let socket = UdpSocket::bind("192.0.2.2:0").expect("a socket");
        let unknown = [&[8, 0, 0, 0, 0, 0, 99, 0][..], &[0; 64]].concat();
        for datagram in [&b"short"[..], &unknown] {
            socket.send_to(datagram, "192.0.2.1:4789").expect("sent");
        }
    });
    until("both are counted", || {
        let details = daemon.show("overlay", "ov0")["details"].take();
        details["malformed-datagrams"] == "1" && details["unknown-vni-datagrams"] == "1"
    });
    lab.ip("far", "link del vx23");
    until("the far host refuses", || {
        assert!(!lab.ping("guest", "10.0.0.2", 1));
        daemon.show("overlay", "ov0")["state"] == "waiting"
    });
    let why = daemon.show("overlay", "ov0")["reason"].to_string();
    assert!(why.contains("192.0.2.2"), "{why}");
    let said = daemon.refuses(1, "overlay delete ov0");
    assert!(said.contains("g0"), "{said}");
    daemon.must("vnic delete g0");
    daemon.must("overlay delete ov0");
    assert_eq!(daemon.json("bridge show"), json!([]));
}

/// What a file says is known at once, without a question: the bridge answers ARP in the place of a far host that does not. A file that
/// is replaced is taken, one that is damaged degrades the overlay, in a sentence with its line, and what was known goes on.
#[test]
fn a_file_is_taken_whole_or_not_at_all() {
    let Some(lab) = hosts("a_file_is_taken_whole_or_not_at_all") else {
        return;
    };
    // It neither asks nor answers.
    far_device(&lab, 23, "arp off");
    lab.ip(
        "far",
        &format!("neigh add 10.0.0.1 lladdr {GUEST} dev vx23"),
    );
    let file = lab.directory().join("endpoints.json");
    far_in(&file, "192.0.2.2");
    let daemon = lab.daemon();
    let search = format!("--search files --set files/config={}", file.display());
    overlay(&lab, &daemon, &search);
    until("the guest reaches the far host", || {
        lab.ping("guest", "10.0.0.2", 1)
    });
    assert!(is_target(&daemon, FAR, "192.0.2.2:4789", "pushed"));

    far_in(&file, "192.0.2.9");
    until("the far host has moved", || {
        is_target(&daemon, FAR, "192.0.2.9:4789", "pushed")
    });
    assert_eq!(targets(&daemon).len(), 1, "the former target is gone");
    far_in(&file, "192.0.2.2");
    until("and back", || lab.ping("guest", "10.0.0.2", 1));

    fs::write(&file, "{\n\"x\": 1}").expect("a file");
    let why = daemon.wait_for_state("overlay", "ov0", "waiting");
    assert!(why.contains("line 2"), "{why}");
    let faults = daemon.json("overlay show -f");
    assert_eq!(faults[0]["state"], "degraded");
    assert!(lab.ping("guest", "10.0.0.2", 2));
    far_in(&file, "192.0.2.2");
    daemon.wait_for_state("overlay", "ov0", "up");
    let said = daemon.refuses(1, "overlay set ov0 files/config=/nowhere");
    assert!(said.contains("/nowhere"), "{said}");
    assert!(lab.ping("guest", "10.0.0.2", 2));
}

/// What a person says of an address holds before the file; without it, the file's word holds again. Such an entry is in the
/// document, and names its target.
#[test]
fn a_target_by_hand_holds_first() {
    let Some(lab) = hosts("a_target_by_hand_holds_first") else {
        return;
    };
    far_device(&lab, 23, "");
    let file = lab.directory().join("endpoints.json");
    far_in(&file, "192.0.2.9");
    let daemon = lab.daemon();
    let search = format!("--search files --set files/config={}", file.display());
    overlay(&lab, &daemon, &search);
    assert!(!lab.ping("guest", "10.0.0.2", 1), "nobody is at 192.0.2.9");
    daemon.must(&format!("overlay target set ov0 {FAR} 192.0.2.2:4789"));
    assert!(is_target(&daemon, FAR, "192.0.2.2:4789", "static"));
    until("the guest reaches the far host", || {
        lab.ping("guest", "10.0.0.2", 1)
    });
    let fdb = daemon.json("export")["fdb"].clone();
    assert_eq!(fdb[0]["target"], "192.0.2.2:4789");
    let shown = daemon.json("fdb show ov0");
    let shown = shown.as_array().expect("rows").iter();
    let entry = shown
        .clone()
        .find(|row| row["mac"] == FAR)
        .expect("an entry");
    assert_eq!(
        (&entry["member"], &entry["target"]),
        (&json!("ov0"), &json!("192.0.2.2:4789"))
    );
    // A file that speaks meanwhile changes nothing.
    far_in(&file, "192.0.2.8");
    daemon.must(&format!("overlay target set ov0 {FAR} 192.0.2.2:4789"));
    assert!(lab.ping("guest", "10.0.0.2", 2));
    daemon.must(&format!("overlay target delete ov0 {FAR}"));
    until("the file's word holds", || {
        is_target(&daemon, FAR, "192.0.2.8:4789", "pushed")
    });
    daemon.refuses(4, "overlay target delete ov0 02:00:00:00:00:77");
}

/// An overlay whose underlay address is not there waits and says so, and begins when the address comes. A killed daemon brings
/// it back, with the targets that the file and a person told.
#[test]
fn it_comes_with_the_underlay_and_after_a_kill() {
    let Some(lab) = hosts("it_comes_with_the_underlay_and_after_a_kill") else {
        return;
    };
    far_device(&lab, 23, "");
    lab.ip("host", "addr del 192.0.2.1/24 dev under0");
    let mut daemon = lab.daemon();
    overlay(
        &lab,
        &daemon,
        "--search learn --set learn/remotes=192.0.2.2",
    );
    let why = daemon.wait_for_state("overlay", "ov0", "waiting");
    assert!(why.contains("192.0.2.1:4789"), "{why}");
    assert!(!lab.ping("guest", "10.0.0.2", 1));
    lab.ip("host", "addr add 192.0.2.1/24 dev under0");
    daemon.wait_for_state("overlay", "ov0", "up");
    until("the guest reaches the far host", || {
        lab.ping("guest", "10.0.0.2", 1)
    });
    assert!(is_target(&daemon, FAR, "192.0.2.2:4789", "learned"));
    daemon.must("overlay target set ov0 02:00:00:00:00:77 192.0.2.7:4789");

    daemon.kill();
    daemon.start_again();
    daemon.wait_for_state("overlay", "ov0", "up");
    until("the guest reaches it again", || {
        lab.ping("guest", "10.0.0.2", 1)
    });
    assert!(is_target(
        &daemon,
        "02:00:00:00:00:77",
        "192.0.2.7:4789",
        "static"
    ));
    assert!(is_target(&daemon, "-", "192.0.2.2:4789", "flood"));
}

/// Two tenants with the same addresses at one underlay address: each reaches its own far host, and nothing of the other's.
#[test]
fn tenants_with_one_address_do_not_meet() {
    let Some(lab) = hosts("tenants_with_one_address_do_not_meet") else {
        return;
    };
    lab.namespace("other");
    far_device(&lab, 23, "");
    let daemon = lab.daemon();
    overlay(
        &lab,
        &daemon,
        "--search direct --set direct/dest-ip=192.0.2.2",
    );
    daemon.must(
        "overlay create ov1 --vni 24 --search direct --set direct/dest-ip=192.0.2.2,vxlan/listen-ip=192.0.2.1",
    );
    let netns = lab.name("other");
    daemon.must(&format!(
        "vnic create g1 --over ov1 --mac {GUEST} --attach tap,netns={netns},address=10.0.0.1/24"
    ));
    daemon.wait_for_state("vnic", "g1", "up");
    assert!(lab.ping("guest", "10.0.0.2", 5));
    assert!(!lab.ping("other", "10.0.0.2", 1), "VNI 24 has nobody");
    lab.ip("far", "link del vx23");
    far_device(&lab, 24, "");
    until("the other reaches its own", || {
        lab.ping("other", "10.0.0.2", 1)
    });
    assert!(!lab.ping("guest", "10.0.0.2", 1), "VNI 23 has nobody");
    let said = daemon.refuses(
        1,
        "overlay create ov2 --vni 23 --search direct --set direct/dest-ip=192.0.2.2,vxlan/listen-ip=192.0.2.1",
    );
    assert!(said.contains("ov0"), "{said}");
}

/// Another table, and VLANs that are filtered or not, leave an overlay what it was told.
#[test]
fn a_bridge_may_change_under_an_overlay() {
    let Some(lab) = hosts("a_bridge_may_change_under_an_overlay") else {
        return;
    };
    far_device(&lab, 23, "");
    let file = lab.directory().join("endpoints.json");
    far_in(&file, "192.0.2.2");
    let daemon = lab.daemon();
    let search = format!("--search files --set files/config={}", file.display());
    overlay(&lab, &daemon, &search);
    until("the guest reaches the far host", || {
        lab.ping("guest", "10.0.0.2", 1)
    });
    for change in [
        "addresses-max=20000",
        "vlan-filtering=off",
        "vlan-filtering=on",
        "ageing=60",
    ] {
        daemon.must(&format!("bridge set ov0 {change}"));
        assert!(
            is_target(&daemon, FAR, "192.0.2.2:4789", "pushed"),
            "{change}"
        );
        until(change, || lab.ping("guest", "10.0.0.2", 1));
    }
}

/// A daemon's program on a host that knows the plugins' user, whether or not this machine does.
fn with_plugin_user(lab: &Lab) -> PathBuf {
    let passwd = lab.directory().join("passwd");
    let known = fs::read_to_string("/etc/passwd").expect("the accounts");
    let others = known
        .lines()
        .filter(|line| !line.starts_with("windlass-lookup:"));
    let mut all: Vec<_> = others.map(str::to_owned).collect();
    all.push("windlass-lookup:x:64097:64097::/:/bin/false\n".to_owned());
    fs::write(&passwd, all.join("\n")).expect("the accounts");
    let script = lab.directory().join("windlassd");
    let text = format!(
        "#!/bin/sh\nexec unshare --mount sh -c 'mount --bind {} /etc/passwd && exec {} \"$@\"' sh \"$@\"\n",
        passwd.display(),
        program("windlassd").display()
    );
    write_program(&script, &text);
    script
}

/// A member of etcd, with its data in the lab's directory.
struct Registry(Child);

impl Registry {
    /// The only one, on the first host.
    fn start(lab: &Lab) -> Registry {
        Registry::member(lab, &[("host", "192.0.2.1")], 0)
    }

    /// One of several, each on a host that has this address.
    fn member(lab: &Lab, members: &[(&str, &str)], at: usize) -> Registry {
        let (short, address) = members[at];
        let peers = members
            .iter()
            .map(|(short, address)| format!("{short}=http://{address}:2380"));
        let peers: Vec<_> = peers.collect();
        let mut etcd = lab.command(short, "etcd");
        let data = lab.directory().join(format!("etcd-{short}"));
        etcd.arg("--data-dir").arg(data).args([
            format!("--name={short}"),
            format!("--listen-client-urls=http://{address}:2379"),
            format!("--advertise-client-urls=http://{address}:2379"),
            format!("--listen-peer-urls=http://{address}:2380"),
            format!("--initial-advertise-peer-urls=http://{address}:2380"),
            format!("--initial-cluster={}", peers.join(",")),
            "--unsafe-no-fsync".to_owned(),
        ]);
        let log = lab.directory().join(format!("etcd-{short}.log"));
        let log = fs::File::options().append(true).create(true).open(log);
        etcd.stdin(Stdio::null()).stdout(Stdio::null());
        etcd.stderr(log.expect("a log"));
        Registry(etcd.spawn().expect("etcd"))
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A daemon with an overlay whose registry, of which a member is at `member`, knows it as `short`.
fn registered(lab: &Lab, script: &Path, (short, address): (&str, &str), member: &str) -> Daemon {
    let number = u32::from(address.as_bytes()[address.len() - 1]);
    let daemon = Daemon::start_program(lab, short, number, script.to_owned());
    let cache = lab.directory().join("cache").join(short);
    fs::create_dir_all(&cache).expect("a directory");
    daemon.must(&format!(
        "overlay create ov0 --vni 23 --search etcd --set vxlan/listen-ip={address},\
         etcd/endpoints=http://{member}:2379,etcd/host={short},etcd/cache={}",
        cache.display()
    ));
    daemon
}

/// Two hosts tell each other by a registry where their guests are: a guest is reached without a broadcast, also while the registry is
/// gone, and one that moves is reached at its new host.
#[test]
fn hosts_find_each_other_in_a_registry() {
    const NAME: &str = "hosts_find_each_other_in_a_registry";
    if Command::new("etcd").arg("--version").output().is_err() {
        return skip(NAME, "there is no etcd");
    }
    let Some(lab) = hosts(NAME) else {
        return;
    };
    for short in ["there", "moved"] {
        lab.namespace(short);
    }
    let registry = Registry::start(&lab);
    let script = with_plugin_user(&lab);
    let [here, far] = HOSTS.map(|host| registered(&lab, &script, host, "192.0.2.1"));
    let vnic = |daemon: &Daemon, name: &str, netns: &str, last: u8, more: &str| {
        let netns = lab.name(netns);
        daemon.must(&format!(
            "vnic create {name} --over ov0 --mac 02:00:00:00:00:{last:02x} \
             --attach tap,netns={netns},address=10.0.0.{last}/24 {more}"
        ));
    };
    vnic(&here, "g0", "guest", 1, "");
    vnic(&far, "g1", "there", 2, "");
    vnic(&here, "m0", "there", 3, "");
    until("the guests reach each other", || {
        lab.ping("guest", "10.0.0.2", 1)
    });
    let known = here.json("overlay target show ov0");
    assert_eq!(known[0]["target"], "192.0.2.2:4789", "{known}");
    until("both hosts are known", || {
        let hosts = here.json("overlay host show ov0");
        hosts.as_array().is_some_and(|hosts| hosts.len() == 2)
    });

    drop(registry);
    here.wait_for_state("overlay", "ov0", "waiting");
    assert!(lab.ping("guest", "10.0.0.2", 2), "what is known holds");
    let registry = Registry::start(&lab);
    here.wait_for_state("overlay", "ov0", "up");

    let at =
        |daemon: &Daemon, target: &str| is_target(daemon, "02:00:00:00:00:03", target, "pushed");
    until("m0 is known at its host", || at(&far, "192.0.2.1:4789"));
    vnic(&far, "m0", "moved", 3, "--set state=standby");
    assert!(at(&far, "192.0.2.1:4789"), "it is not live there yet");
    far.must("vnic set m0 state=active");
    let why = here.wait_for_state("overlay", "ov0", "waiting");
    assert!(why.contains("far"), "{why}");
    here.must("vnic delete m0");
    until("it is known where it is", || at(&here, "192.0.2.2:4789"));
    until("and reached", || lab.ping("guest", "10.0.0.3", 1));
    here.wait_for_state("overlay", "ov0", "up");
    drop(registry);
}

/// Calls `windlass-cni` for a container of a network whose addresses are of the pool `p0`: its exit code, and what it printed.
fn call_cni(lab: &Lab, daemon: &Daemon, verb: &str, container: &str) -> (i32, Value) {
    let config = json!({
        "cniVersion": "1.1.0",
        "name": "net",
        "type": "windlass-cni",
        "overlay": "ov0",
        "attach": "tap",
        "socket": daemon.socket(),
        "dataDir": daemon.directory().join("cni"),
        "ipam": {"type": "windlass", "pool": "p0", "ranges": [["10.0.0.0/24"]]},
    });
    let mut plugin = Command::new(program("windlass-cni"));
    plugin
        .env("CNI_COMMAND", verb)
        .env("CNI_CONTAINERID", container)
        .env("CNI_NETNS", format!("/run/netns/{}", lab.name(container)))
        .env("CNI_IFNAME", "eth0")
        .env("CNI_PATH", lab.directory())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut plugin = plugin.spawn().expect("the plugin");
    let mut stdin = plugin.stdin.take().expect("a pipe");
    stdin
        .write_all(config.to_string().as_bytes())
        .expect("it reads");
    drop(stdin);
    let output = plugin.wait_with_output().expect("the plugin");
    let printed = serde_json::from_slice(&output.stdout).unwrap_or_default();
    (output.status.code().unwrap_or(-1), printed)
}

/// The addresses that the registry has as somebody's, and those that rest.
fn addresses(lab: &Lab) -> [BTreeSet<String>; 2] {
    let mut etcdctl = lab.command("host", "etcdctl");
    etcdctl.env("ETCDCTL_API", "3");
    etcdctl.args(["--endpoints", "http://192.0.2.1:2379", "get", "--prefix"]);
    let listed = run(etcdctl.arg("/windlass/v1/default/ip/"));
    assert_eq!(listed.code, 0, "{}", listed.err);
    let mut found = [BTreeSet::new(), BTreeSet::new()];
    let lines: Vec<&str> = listed.out.lines().collect();
    for pair in lines.chunks(2) {
        let ip = pair[0].rsplit('/').next().expect("an address");
        let rests = pair[1].contains(r#""rest":true"#);
        found[usize::from(rests)].insert(ip.to_owned());
    }
    found
}

/// Adds containers at once, on one host after the other: their addresses.
fn add_at_once(lab: &Lab, daemons: &[Daemon], containers: &[&str]) -> Vec<String> {
    std::thread::scope(|scope| {
        let places = containers.iter().zip(daemons.iter().cycle());
        let calls = places.map(|(container, daemon)| {
            scope.spawn(move || call_cni(lab, daemon, "ADD", container))
        });
        let calls: Vec<_> = calls.collect();
        let results = calls.into_iter().map(|call| {
            let (code, result) = call.join().expect("a call");
            let address = result["ips"][0]["address"].as_str().unwrap_or_default();
            assert!(code == 0 && address.ends_with("/24"), "{result}");
            address.replace("/24", "")
        });
        results.collect()
    })
}

/// Containers of two hosts get addresses out of one pool, all at once: none twice, and each is known on the other host. What DEL gives back
/// rests, and so does what it gave back while there was no registry; ADD says then that there is none.
#[test]
fn containers_share_a_pool() {
    const NAME: &str = "containers_share_a_pool";
    if Command::new("etcdctl").arg("--version").output().is_err() {
        return skip(NAME, "there is no etcd");
    }
    let Some(lab) = hosts(NAME) else {
        return;
    };
    let containers = ["a", "b", "c", "d", "e", "f"];
    for container in containers.iter().chain(&["late"]) {
        lab.namespace(container);
    }
    let registry = Registry::start(&lab);
    let script = with_plugin_user(&lab);
    let daemons = HOSTS.map(|host| registered(&lab, &script, host, "192.0.2.1"));
    for daemon in &daemons {
        daemon.wait_for_state("overlay", "ov0", "up");
    }
    let given = add_at_once(&lab, &daemons, &containers);
    let all: BTreeSet<String> = given.iter().cloned().collect();
    assert_eq!(all.len(), containers.len(), "{given:?}");
    until("they reach each other", || lab.ping("c", &given[3], 1));
    // The registry has what the daemons announced, which is what was claimed.
    assert_eq!(addresses(&lab), [all.clone(), BTreeSet::new()]);
    let delete = |at: usize| {
        let (code, printed) = call_cni(&lab, &daemons[at % 2], "DEL", containers[at]);
        assert_eq!(code, 0, "{printed}");
    };
    let rest = |gone: &[usize]| {
        let gone: BTreeSet<String> = gone.iter().map(|at| given[*at].clone()).collect();
        let wanted = [&all - &gone, gone];
        until("they rest", || addresses(&lab) == wanted);
    };
    delete(0);
    rest(&[0]);
    drop(registry);
    for daemon in &daemons {
        daemon.wait_for_state("overlay", "ov0", "waiting");
    }
    let (code, printed) = call_cni(&lab, &daemons[0], "ADD", "late");
    assert_eq!((code, &printed["code"]), (1, &json!(11)), "{printed}");
    delete(1);
    assert!(lab.ping("c", &given[3], 2), "what is known holds");
    let registry = Registry::start(&lab);
    for daemon in &daemons {
        daemon.wait_for_state("overlay", "ov0", "up");
    }
    rest(&[0, 1]);
    let (code, result) = call_cni(&lab, &daemons[0], "ADD", "late");
    let late = result["ips"][0]["address"].as_str().unwrap_or_default();
    assert!(
        code == 0 && !all.contains(&late.replace("/24", "")),
        "{result}"
    );
    drop(registry);
}

/// Between datagrams of a flow.
const GAP: Duration = Duration::from_millis(10);

/// A third host on the link of the two.
fn join_third(lab: &Lab) {
    lab.namespace("third");
    lab.ip("host", "addr del 192.0.2.1/24 dev under0");
    lab.ip("host", "link add under1 type bridge");
    let third = lab.name("third");
    lab.ip(
        "host",
        &format!("link add under2 type veth peer name under0 netns {third}"),
    );
    for words in [
        "under0 master under1",
        "under2 master under1",
        "under2 up",
        "under1 up",
    ] {
        lab.ip("host", &format!("link set {words}"));
    }
    lab.ip("host", "addr add 192.0.2.1/24 dev under1");
    lab.ip("third", "addr add 192.0.2.3/24 dev under0");
    lab.ip("third", "link set under0 up");
}

/// Datagrams at [`GAP`] while a guest moves from the first of two sockets to the second: those that came. No more were lost than
/// were sent during the move, and a few that were on their way.
fn flow(source: &UdpSocket, sinks: &[UdpSocket; 2], moves: impl Fn()) -> BTreeSet<u64> {
    /// Those that are on their way.
    const MORE: u64 = 3;
    let is_over = AtomicBool::new(false);
    let moved = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let sending = scope.spawn(|| {
            let mut sent = 0_u64;
            while !is_over.load(Ordering::Relaxed) {
                source
                    .send_to(&sent.to_be_bytes(), "10.0.0.2:7000")
                    .expect("sent");
                sent += 1;
                std::thread::sleep(GAP);
            }
            sent
        });
        let receiving = sinks.each_ref().map(|sink| {
            let (is_over, moved) = (&is_over, &moved);
            let is_former = std::ptr::eq(sink, &sinks[0]);
            scope.spawn(move || {
                let mut came = BTreeSet::new();
                let mut bytes = [0; 8];
                loop {
                    match sink.recv(&mut bytes) {
                        // A guest that has moved is no more at its former host.
                        Ok(8) if is_former && moved.load(Ordering::Relaxed) => {}
                        Ok(8) => drop(came.insert(u64::from_be_bytes(bytes))),
                        Err(_) if is_over.load(Ordering::Relaxed) => return came,
                        _ => {}
                    }
                }
            })
        });
        std::thread::sleep(GAP * 30);
        let begun = Instant::now();
        moved.store(true, Ordering::Relaxed);
        moves();
        let time = begun.elapsed();
        std::thread::sleep(GAP * 30);
        is_over.store(true, Ordering::Relaxed);
        let sent = sending.join().expect("sent");
        let mut came = BTreeSet::new();
        receiving
            .into_iter()
            .for_each(|sink| came.extend(sink.join().expect("received")));
        let lost: Vec<u64> = (0..sent).filter(|n| !came.contains(n)).collect();
        println!("{} of {sent} lost in {time:?}: {lost:?}", lost.len());
        let most = time.as_millis() as u64 / GAP.as_millis() as u64 + MORE;
        assert!(lost.len() as u64 <= most, "{lost:?} of {sent}, in {time:?}");
        came
    })
}

/// A flow of 100 datagrams a second to a guest that moves from one host to another, sent on a third one. The first one, to a guest that is
/// known and has said nothing, comes. Until the hosts know of the move, as long as that takes, datagrams may get lost, and then none: also
/// where the sender's host goes on sending to the former one, which relays them.
#[test]
fn a_move_loses_few_datagrams() {
    const NAME: &str = "a_move_loses_few_datagrams";
    if Command::new("etcd").arg("--version").output().is_err() {
        return skip(NAME, "there is no etcd");
    }
    let Some(lab) = hosts(NAME) else {
        return;
    };
    join_third(&lab);
    for short in ["before", "after"] {
        lab.namespace(short);
    }
    let registry = Registry::start(&lab);
    let script = with_plugin_user(&lab);
    let daemons = THREE_HOSTS.map(|host| registered(&lab, &script, host, "192.0.2.1"));
    let [sender, former, next] = &daemons;
    let vnic = |daemon: &Daemon, name: &str, netns: &str, last: u8, more: &str| {
        let netns = lab.name(netns);
        daemon.must(&format!(
            "vnic create {name} --over ov0 --mac 02:00:00:00:00:{last:02x} \
             --attach tap,netns={netns},address=10.0.0.{last}/24 --set allowed-ips=10.0.0.{last} {more}"
        ));
    };
    vnic(sender, "g0", "guest", 1, "");
    vnic(former, "m0", "before", 2, "");
    let at = |target| is_target(sender, "02:00:00:00:00:02", target, "pushed");
    until("it is known", || at("192.0.2.2:4789"));
    vnic(next, "m0", "after", 2, "--set state=standby");
    let bind = |short, address: &str| {
        let socket = lab
            .within(short, || UdpSocket::bind(address))
            .expect("an address");
        let wait = Some(Duration::from_millis(200));
        socket.set_read_timeout(wait).expect("a socket");
        socket
    };
    let source = bind("guest", "10.0.0.1:0");
    let sinks = ["before", "after"].map(|short| bind(short, "10.0.0.2:7000"));
    let came = flow(&source, &sinks, || {
        next.must("vnic set m0 state=active");
        until("the sender's host knows", || at("192.0.2.3:4789"));
    });
    assert!(came.contains(&0), "the first one");

    former.must("vnic set m0 state=standby");
    former.wait_for_state("overlay", "ov0", "up");
    sender.must("overlay target set ov0 02:00:00:00:00:02 192.0.2.3:4789");
    let [before, after] = sinks;
    flow(&source, &[after, before], || {
        former.must("vnic set m0 state=active");
        next.wait_for_state("overlay", "ov0", "waiting");
    });
    drop(registry);
}

/// One of three hosts is cut off together with its member of etcd. The others go on, and what it knows holds. When it is back, each host knows
/// what all have got meanwhile; an endpoint that came on both sides is that of the greater part.
#[test]
fn a_host_is_cut_off_with_its_member() {
    const NAME: &str = "a_host_is_cut_off_with_its_member";
    if Command::new("etcd").arg("--version").output().is_err() {
        return skip(NAME, "there is no etcd");
    }
    let Some(lab) = hosts(NAME) else {
        return;
    };
    join_third(&lab);
    for short in ["cut", "beside"] {
        lab.namespace(short);
    }
    let members = [0, 1, 2].map(|at| Registry::member(&lab, &THREE_HOSTS, at));
    let script = with_plugin_user(&lab);
    let daemons = THREE_HOSTS.map(|host| registered(&lab, &script, host, host.1));
    let [here, far, third] = &daemons;
    let vnic = |daemon: &Daemon, last: u8, attach: &str| {
        daemon.must(&format!(
            "vnic create g{last} --over ov0 --mac 02:00:00:00:00:{last:02x} {attach}"
        ));
    };
    let guest = |daemon: &Daemon, last: u8, netns: &str| {
        let netns = lab.name(netns);
        let attach = format!("--attach tap,netns={netns},address=10.0.0.{last}/24");
        vnic(daemon, last, &attach);
    };
    let is_at = |daemon: &Daemon, last: u8, address: &str| {
        let mac = format!("02:00:00:00:00:{last:02x}");
        is_target(daemon, &mac, &format!("{address}:4789"), "pushed")
    };
    let is_known = |daemon: &Daemon, last: u8, address: &str| {
        until("it is known", || is_at(daemon, last, address));
    };
    guest(here, 1, "guest");
    guest(third, 2, "cut");
    is_known(third, 1, "192.0.2.1");
    until("they reach each other", || lab.ping("cut", "10.0.0.1", 1));
    lab.ip("host", "link set under2 nomaster");
    third.wait_for_state("overlay", "ov0", "waiting");
    // Everything comes on both sides.
    vnic(far, 3, "--attach none");
    is_known(here, 3, "192.0.2.2");
    vnic(third, 3, "--attach none");
    vnic(here, 4, "--attach none");
    is_known(far, 4, "192.0.2.1");
    guest(third, 5, "beside");
    until("guests of one host", || lab.ping("cut", "10.0.0.5", 1));
    assert!(is_at(third, 1, "192.0.2.1") && !is_at(third, 4, "192.0.2.1"));
    lab.ip("host", "link set under2 master under1");
    is_known(third, 4, "192.0.2.1");
    is_known(here, 5, "192.0.2.3");
    until("it is told whose the endpoint is", || {
        let why = third.wait_for_state("overlay", "ov0", "waiting");
        why.contains("is an endpoint of host far")
    });
    third.must("vnic delete g3");
    is_known(third, 3, "192.0.2.2");
    third.wait_for_state("overlay", "ov0", "up");
    assert!(lab.ping("beside", "10.0.0.1", 2));
    drop(members);
}
