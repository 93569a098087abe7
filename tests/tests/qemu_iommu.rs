//! A virtual machine whose addresses go through an IOMMU: QEMU's own for Intel's machines, and Linux as it drives it.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use windlass_tests::{Daemon, Guest, Image, Lab, check_qemu, skip, uninterrupted, until};

/// What makes the machine one with an IOMMU whose translations a device may keep, and has the kernel use it: all that it
/// gives to its devices is then mapped, buffer by buffer, and unmapped after use.
const MACHINE: [&str; 8] = [
    "-machine",
    "q35",
    "-device",
    "intel-iommu,intremap=off,device-iotlb=on",
    "-device",
    "pcie-root-port,id=slot1,chassis=1",
    "-append",
    "console=ttyS0 quiet panic=1 net.ifnames=0 intel_iommu=on",
];
/// Only behind a port does the device have what an invalidation of its translations needs (ATS).
const DEVICE: &str = ",bus=slot1,iommu_platform=on,ats=on,disable-legacy=on";
/// Bytes of the copy each way.
const BYTES: u64 = 1 << 20;
/// How often the daemon is killed during one transfer, and what has to have come back and forth before and in between.
const KILLS: u32 = 2;
const BETWEEN: u64 = 128 << 10;
/// How long a transfer may stand still. At its slowest TCP tries again after some ten seconds.
const STANDSTILL: Duration = Duration::from_secs(60);

/// Sends a file of the guest to the host and back over TCP, and compares what came with what was sent.
fn copy_there_and_back(lab: &Lab, guest: &mut Guest) {
    let listen = || TcpListener::bind("10.9.0.1:7000").expect("a listener");
    let listener = lab.within("h", listen);
    guest.must(&format!("head -c {BYTES} /dev/urandom >/tmp/sent"));
    let sum = guest.must("md5sum </tmp/sent");
    let host = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("the guest");
        let mut bytes = vec![0; BYTES as usize];
        stream.read_exact(&mut bytes).expect("the file");
        // The guest's end waits for ours.
        drop(stream);
        let (mut stream, _) = listener.accept().expect("the guest again");
        stream.write_all(&bytes).expect("all of it back");
    });
    guest.must("nc 10.9.0.1 7000 </tmp/sent");
    let back = guest.must("nc 10.9.0.1 7000 </dev/null | md5sum");
    host.join().expect("the host");
    assert_eq!(back, sum, "what came back is not what was sent");
}

/// Sends everything back that comes, and counts it, until the other side has said all.
fn echo(stream: &mut TcpStream, came: &AtomicU64) {
    stream.set_read_timeout(Some(STANDSTILL)).expect("a time");
    stream.set_write_timeout(Some(STANDSTILL)).expect("a time");
    let mut bytes = vec![0; 64 << 10];
    loop {
        let n = uninterrupted(|| stream.read(&mut bytes)).expect("no standstill");
        if n == 0 {
            return;
        }
        stream.write_all(&bytes[..n]).expect("no standstill");
        came.fetch_add(n as u64, Ordering::Relaxed);
    }
}

/// Kills the daemon in the middle of a transfer from the guest to the host and back. It goes on by itself, and comes back as
/// it was sent; the guest can be reached afterwards.
fn the_daemon_dies(lab: &Lab, daemon: &mut Daemon, guest: &mut Guest) {
    let listener = lab.within("h", || {
        TcpListener::bind("10.9.0.1:7000").expect("a listener")
    });
    let came = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let host = scope.spawn(|| echo(&mut listener.accept().expect("the guest").0, &came));
        guest.must(
            "rm -f /tmp/enough /tmp/back /tmp/pipe; mkfifo /tmp/pipe; head -c 65536 /dev/urandom >/tmp/piece; \
             md5sum </tmp/pipe >/tmp/sum & \
             (until test -e /tmp/enough; do n=$((n+1)); echo $n; cat /tmp/piece; done) | tee /tmp/pipe | \
             nc 10.9.0.1 7000 | md5sum >/tmp/back &",
        );
        let mut seen = 0;
        for kill in 0..=KILLS {
            let begun = Instant::now();
            let goes_on = || came.load(Ordering::Relaxed) > seen + BETWEEN;
            until(&format!("bytes behind kill {kill}"), goes_on);
            println!("kill {kill}: {:?}", begun.elapsed());
            if kill < KILLS {
                daemon.kill();
                seen = came.load(Ordering::Relaxed);
                daemon.start_again();
            }
        }
        guest.must("touch /tmp/enough");
        host.join().expect("no standstill");
    });
    guest.until("test -s /tmp/back");
    let back = guest.must("cat /tmp/back");
    assert_eq!(
        back,
        guest.must("cat /tmp/sum"),
        "what came back is not what was sent"
    );
    guest.until("ping -q -c 1 -W 1 10.9.0.1");
}

/// Pings of twenty that are answered.
fn answered(guest: &mut Guest) -> u32 {
    let pinged = guest.run("ping -q -c 20 -i 0.1 10.9.0.1").out;
    let before = pinged.split(" packets received").next();
    let word = before.and_then(|text| text.rsplit([' ', '\n']).next());
    let received = word.and_then(|n| n.parse::<u32>().ok());
    received.unwrap_or_else(|| panic!("no number: {pinged:?}"))
}

/// Frames of the guest's VNIC that were dropped, none for another reason than that it had no buffer just then: such as that a frame
/// was read from where its buffer is no longer.
fn dropped(daemon: &Daemon) -> u64 {
    let counters = daemon.counters("g1");
    let drops = counters["drops"].as_object().into_iter().flatten();
    let of = |(reason, count): (&String, &Value)| {
        let is_known = reason == "ring-full" || reason == "peer-down";
        assert!(is_known, "{count} {reason}");
        count.as_u64().expect("a number")
    };
    drops.map(of).sum()
}

/// Each of twenty pings is answered, or was dropped and counted for want of a buffer: under emulation, the more so on a busy machine, a
/// translation can take longer than a frame waits for it. That takes no set number of them: nobody waits for better ones.
fn reaches(daemon: &Daemon, guest: &mut Guest) {
    let before = dropped(daemon);
    let unanswered = 20 - u64::from(answered(guest));
    let dropped = dropped(daemon) - before;
    println!("{unanswered} of 20 unanswered, {dropped} frames dropped");
    assert!(
        unanswered <= dropped,
        "{unanswered} unanswered, {dropped} dropped"
    );
}

/// A guest behind an IOMMU reaches the host and copies data both ways, with rings of either layout; what the VNIC shows says
/// that it was asked for translations. The daemon is killed twice during a transfer, which goes on by itself. The driver is
/// taken from the device and given back once.
#[test]
fn a_guest_behind_an_iommu() {
    const NAME: &str = "a_guest_behind_an_iommu";
    if let Err(reason) = check_qemu() {
        return skip(NAME, &reason);
    }
    let Some(lab) = Lab::start_in_memory(NAME) else {
        return;
    };
    let image = match Image::make(lab.directory()) {
        Ok(image) => image,
        Err(reason) => return skip(NAME, &reason),
    };
    let mut daemon = lab.daemon();
    daemon.must("bridge create br0");
    lab.namespace("h");
    daemon.tap(&lab, "h0", "h", ",address=10.9.0.1/24", "");
    daemon.must("vnic create --bridge br0 g1 --attach vhost-user,socket=g1,role=server");
    for layout in ["", ",packed=on"] {
        let device = format!("{DEVICE}{layout}");
        let mut guest = Guest::start(&daemon, &image, "g1", &device, &MACHINE);
        guest.ready();
        guest.must("dmesg | grep -q 'DMAR: IOMMU enabled'");
        // A question that was asked twice around an invalidation may come when the page is gone: the kernel says so on the
        // line that this test reads.
        guest.must("dmesg -n 1");
        guest.must("ip addr add 10.9.0.3/24 dev eth0; ip link set eth0 up");
        daemon.wait_for_state("vnic", "g1", "up");
        guest.until("ping -q -c 1 -W 1 10.9.0.1");
        reaches(&daemon, &mut guest);
        copy_there_and_back(&lab, &mut guest);
        let shown = daemon.must("vnic show g1");
        println!("{shown}");
        assert!(shown.contains("access-platform"), "{shown}");
        assert!(shown.contains("invalidations so far"), "{shown}");
        assert_eq!(
            daemon.show("vnic", "g1")["details"]["survives-a-kill"],
            "yes"
        );
        the_daemon_dies(&lab, &mut daemon, &mut guest);
        let driver = "/sys/bus/virtio/drivers/virtio_net";
        guest.must(&format!(
            "echo virtio0 >{driver}/unbind; echo virtio0 >{driver}/bind"
        ));
        guest.must("ip addr add 10.9.0.3/24 dev eth0; ip link set eth0 up");
        guest.until("ping -q -c 1 -W 1 10.9.0.1");
        reaches(&daemon, &mut guest);
    }
}
