//! A virtual machine of libvirt at a bridge, made of what `vnic libvirt-xml` prints.

use windlass_tests::{Console, Daemon, Image, Lab, Libvirt, check_qemu, skip};

/// What `vnic libvirt-xml` prints of a VNIC: the domain's element, and that of the device.
fn parts(daemon: &Daemon, name: &str) -> [String; 2] {
    let printed = daemon.json(&format!("vnic libvirt-xml {name}"));
    ["memory_backing", "interface"]
        .map(|key| printed[0][key].as_str().expect("an element").to_owned())
}

/// Both of the machine's VNICs carry frames from it to the host and back.
fn reaches_the_host(lab: &Lab, daemon: &Daemon, machine: &mut Console) {
    for (vnic, number) in [("g0", 8), ("g1", 9)] {
        daemon.wait_for_state("vnic", vnic, "up");
        machine.until(&format!("ping -c 1 -W 2 10.{number}.0.1"));
        assert!(lab.ping("h", &format!("10.{number}.0.2"), 1), "{vnic}");
    }
}

/// Suspends the machine, which both VNICs tell, and resumes it.
fn pauses(libvirt: &Libvirt, daemon: &Daemon) {
    libvirt.must(&["suspend", "machine"]);
    for vnic in ["g0", "g1"] {
        let reason = daemon.wait_for_state("vnic", vnic, "waiting");
        assert!(reason.contains("the guest is paused"), "{reason}");
    }
    libvirt.must(&["resume", "machine"]);
}

/// Saves the machine to a file and starts it from there.
fn is_saved_and_restored(lab: &Lab, libvirt: &Libvirt, daemon: &Daemon) {
    let state = lab.directory().join("machine.state");
    let state = state.to_str().expect("a path");
    libvirt.must(&["save", "machine", state]);
    for vnic in ["g0", "g1"] {
        daemon.wait_for_state("vnic", vnic, "waiting");
    }
    libvirt.must(&["restore", state]);
}

/// The XML as it is printed starts a domain: QEMU listens for one VNIC with packed rings, windlass for the other with
/// two queues. Both outlive the daemon's death and the domain's way to a file and back; a device goes and comes.
#[test]
fn a_domain_of_libvirt() {
    const NAME: &str = "a_domain_of_libvirt";
    if let Err(reason) = check_qemu() {
        return skip(NAME, &reason);
    }
    let Some(lab) = Lab::start_in_memory(NAME) else {
        return;
    };
    let (image, libvirt) = match (Image::make(lab.directory()), Libvirt::start(&lab)) {
        (Ok(image), Ok(libvirt)) => (image, libvirt),
        (Err(reason), _) | (_, Err(reason)) => return skip(NAME, &reason),
    };
    let mut daemon = lab.daemon();
    lab.namespace("h");
    for (bridge, tap, number) in [("br0", "h0", 8), ("br1", "h1", 9)] {
        daemon.must(&format!("bridge create {bridge}"));
        let attach = format!(",address=10.{number}.0.1/24");
        daemon.must(&format!(
            "vnic create {tap} --bridge {bridge} --attach tap,netns={},name={tap}{attach}",
            lab.name("h")
        ));
    }
    let socket = daemon.directory().join("g1.sock");
    daemon.must("vnic create g0 --bridge br0 --attach vhost-user,socket=g0,role=server,queues=2");
    daemon.must(&format!(
        "vnic create g1 --bridge br1 --attach vhost-user,socket={},role=client",
        socket.display()
    ));

    let [memory, first] = parts(&daemon, "g0");
    let [_, second] = parts(&daemon, "g1");
    let packed = second.replace("<driver ", "<driver packed='on' ");
    assert_ne!(packed, second);
    libvirt.start_machine(&image, "machine", &memory, &format!("{first}{packed}"));
    let mut machine = libvirt.console("machine");
    machine.ready();
    let addresses = "ip addr add 10.8.0.2/24 dev eth0; ip link set eth0 up";
    machine.must(addresses);
    machine.must("ip addr add 10.9.0.2/24 dev eth1; ip link set eth1 up");
    reaches_the_host(&lab, &daemon, &mut machine);
    let details =
        |daemon: &Daemon, vnic: &str, key: &str| daemon.show("vnic", vnic)["details"][key].clone();
    assert_eq!(details(&daemon, "g0", "queue-pairs"), "2");
    assert_eq!(details(&daemon, "g0", "rss-table"), "64,64");
    assert_eq!(details(&daemon, "g1", "ring-layout"), "packed");

    daemon.kill();
    daemon.start_again();
    reaches_the_host(&lab, &daemon, &mut machine);

    pauses(&libvirt, &daemon);
    reaches_the_host(&lab, &daemon, &mut machine);

    is_saved_and_restored(&lab, &libvirt, &daemon);
    machine = libvirt.console("machine");
    reaches_the_host(&lab, &daemon, &mut machine);

    let device = libvirt.file("device.xml", &first);
    libvirt.must(&["detach-device", "machine", &device, "--live"]);
    machine.until("! ip link show eth0");
    daemon.wait_for_state("vnic", "g0", "waiting");
    libvirt.must(&["attach-device", "machine", &device, "--live"]);
    machine.until("ip link show eth0");
    machine.must(addresses);
    reaches_the_host(&lab, &daemon, &mut machine);
    daemon.assert_alive();
}
