//! Members that refuse, that are slow, and that are more than one; a plugin that is killed.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use tempfile::TempDir;

use crate::stage::{Host, Member, address, is_here, mac, until};

/// A user that may read and not write: what is known is told, and the overlay says what is refused.
#[test]
fn a_user_may_only_read() {
    if !is_here("a_user_may_only_read") {
        return;
    }
    let etcd = Member::started();
    let mut a = Host::started("a", &etcd.url());
    a.owns(mac(1), &[]);
    etcd.done(&["user", "add", "root:secret"]);
    etcd.done(&["user", "grant-role", "root", "root"]);
    etcd.done(&["role", "add", "reader"]);
    etcd.done(&[
        "role",
        "grant-permission",
        "--prefix",
        "reader",
        "read",
        "/windlass/",
    ]);
    etcd.done(&["user", "add", "b:word"]);
    etcd.done(&["user", "grant-role", "b", "reader"]);
    etcd.done(&["auth", "enable"]);
    let mut b = Host::new("b", &etcd.url());
    let password = b.cache.path().join("password");
    std::fs::write(&password, "word\n").expect("it is written");
    b.properties.insert("etcd/user".to_owned(), json!("b"));
    b.properties
        .insert("etcd/password-file".to_owned(), json!(password));
    b.start(&[23]);
    b.announce(mac(2), &[]);
    b.sees(mac(1), Some("a"));
    b.until("it is told", |b| {
        b.degraded
            .as_ref()
            .is_some_and(|text| text.contains("refuses what this host writes"))
    });
    assert_eq!(b.own.get(&(23, mac(2))), None);
}

/// A certificate authority with certificates, made by openssl.
struct Authority(TempDir);

impl Authority {
    fn new() -> Self {
        let of = Self(tempfile::tempdir().expect("a directory"));
        of.run(&[
            "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "ca.key", "-out", "ca.pem",
            "-subj", "/CN=ca", "-days", "2",
        ]);
        of
    }

    fn run(&self, arguments: &[&str]) {
        let ran = Command::new("openssl")
            .args(arguments)
            .current_dir(self.0.path())
            .output()
            .expect("openssl");
        assert!(
            ran.status.success(),
            "{arguments:?}: {}",
            String::from_utf8_lossy(&ran.stderr)
        );
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_string_lossy().into_owned()
    }

    /// A certificate for an address, which ends in so many days.
    fn certify(&self, name: &str, address: Ipv4Addr, days: &str) {
        let [key, request, pem, extensions] =
            ["key", "csr", "pem", "ext"].map(|kind| format!("{name}.{kind}"));
        let text = format!("subjectAltName=IP:{address}\nbasicConstraints=CA:FALSE\n");
        std::fs::write(self.path(&extensions), text).expect("it is written");
        self.run(&[
            "req",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-keyout",
            &key,
            "-out",
            &request,
            "-subj",
            &format!("/CN={name}"),
        ]);
        let sign = [
            "x509",
            "-req",
            "-in",
            &request,
            "-CA",
            "ca.pem",
            "-CAkey",
            "ca.key",
            "-CAcreateserial",
            "-out",
            &pem,
        ];
        self.run(&[&sign[..], &["-days", days, "-extfile", &extensions]].concat());
    }
}

/// Certificates are checked both ways. One that has expired is told in words; once it is renewed on disk, the next connection uses it.
#[test]
fn a_certificate_has_expired() {
    if !is_here("a_certificate_has_expired") {
        return;
    }
    let authority = Authority::new();
    let mut etcd = Member::new();
    authority.certify("member", etcd.address, "2");
    authority.certify("host", etcd.address, "-1");
    let [ca, cert, key] = ["ca.pem", "member.pem", "member.key"].map(|name| authority.path(name));
    etcd.scheme = "https";
    let tls = [
        "--client-cert-auth",
        "--trusted-ca-file",
        &ca,
        "--cert-file",
        &cert,
        "--key-file",
        &key,
    ];
    etcd.arguments = tls.map(str::to_owned).to_vec();
    etcd.start();
    let mut a = Host::new("a", &etcd.url());
    for (property, file) in [
        ("etcd/ca", "ca.pem"),
        ("etcd/cert", "host.pem"),
        ("etcd/key", "host.key"),
    ] {
        a.properties
            .insert(property.to_owned(), json!(authority.path(file)));
    }
    a.start(&[23]);
    a.announce(mac(1), &[]);
    a.until("it is told", |a| {
        a.degraded
            .as_ref()
            .is_some_and(|text| text.contains("cannot be reached"))
    });
    assert_eq!(a.own.get(&(23, mac(1))), None);
    authority.certify("host", etcd.address, "2");
    a.until("it is owned", |a| a.own.get(&(23, mac(1))) == Some(&Ok(1)));
}

/// Properties that cannot be are refused in a sentence that names them.
#[test]
fn bad_properties_are_refused() {
    for (property, value, expected) in [
        (
            "etcd/endpoints",
            json!("127.0.0.1:2379"),
            "begins with neither",
        ),
        ("etcd/endpoints", json!("http://127.0.0.1"), "names no port"),
        (
            "etcd/endpoints",
            json!("https://127.0.0.1:2379"),
            "etcd/ca is required",
        ),
        ("etcd/host", json!("a/b"), "is no name"),
        ("etcd/host", json!("a\nb"), "is no name"),
        ("etcd/cert", json!("/absent"), "go together"),
        (
            "vxlan/listen-ip",
            json!("0.0.0.0"),
            "other hosts cannot send",
        ),
        ("vxlan/listen-port", json!(70_000), "is no port"),
    ] {
        let mut a = Host::new("a", "http://127.0.0.1:1");
        a.properties.insert(property.to_owned(), value);
        a.start(&[23]);
        let told = a
            .started
            .clone()
            .expect("it is answered")
            .expect_err("it is refused");
        assert!(
            told.contains(expected)
                && told.contains(property.split('/').next().unwrap_or_default()),
            "{told}"
        );
    }
}

/// Passes bytes on after so many milliseconds, both ways.
fn delayed(to: (Ipv4Addr, u16), delay: &Arc<AtomicU64>) -> Ipv4Addr {
    let at = address();
    let listener = TcpListener::bind((at, 2379)).expect("it listens");
    let delay = Arc::clone(delay);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let Ok(other) = TcpStream::connect(to) else {
                continue;
            };
            pass(
                stream.try_clone().expect("a copy"),
                other.try_clone().expect("a copy"),
                Arc::clone(&delay),
            );
            pass(other, stream, Arc::clone(&delay));
        }
    });
    at
}

fn pass(mut from: TcpStream, mut to: TcpStream, delay: Arc<AtomicU64>) {
    let (sent, received) = std::sync::mpsc::channel::<(Instant, Vec<u8>)>();
    std::thread::spawn(move || {
        let mut bytes = vec![0; 65_536];
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            let piece = bytes.get(..count).unwrap_or_default().to_vec();
            let delay = Duration::from_millis(delay.load(Ordering::Relaxed));
            if sent.send((Instant::now() + delay, piece)).is_err() {
                return;
            }
        }
    });
    std::thread::spawn(move || {
        for (at, piece) in received {
            std::thread::sleep(at.saturating_duration_since(Instant::now()));
            if to.write_all(&piece).is_err() {
                return;
            }
        }
    });
}

/// A registry that answers after 5 s is slow, not gone: everything works, late.
#[test]
fn etcd_is_slow() {
    if !is_here("etcd_is_slow") {
        return;
    }
    let etcd = Member::started();
    let delay = Arc::new(AtomicU64::new(50));
    let slow = delayed((etcd.address, 2379), &delay);
    let mut a = Host::started("a", &format!("http://{slow}:2379"));
    let mut b = Host::started("b", &etcd.url());
    a.owns(mac(1), &[]);
    b.owns(mac(2), &[]);
    a.sees(mac(2), Some("b"));
    delay.store(2_500, Ordering::Relaxed);
    let asked = Instant::now();
    a.announce(mac(3), &["10.0.0.3"]);
    b.owns(mac(4), &[]);
    a.until("it is owned", |a| a.own.get(&(23, mac(3))) == Some(&Ok(1)));
    assert!(asked.elapsed() >= Duration::from_secs(5));
    a.sees(mac(4), Some("b"));
    b.sees(mac(3), Some("a"));
    assert_eq!(a.degraded, None);
}

/// Three members: the leader is killed, then another, which leaves one without a leader; what is known serves, and all goes on when they are back.
#[test]
fn members_are_killed() {
    if !is_here("members_are_killed") {
        return;
    }
    let mut members: Vec<_> = (0..3).map(|_| Member::new()).collect();
    let cluster = members
        .iter()
        .map(|of| format!("{}={}", of.address, of.peer_url()));
    let cluster = cluster.collect::<Vec<_>>().join(",");
    for member in &mut members {
        member.arguments = ["--initial-cluster", &cluster].map(str::to_owned).to_vec();
        member.start();
    }
    members.iter().for_each(Member::wait);
    let urls = members.iter().map(Member::url).collect::<Vec<_>>();
    let [mut a, mut b] = ["a", "b"].map(|name| Host::started(name, &urls.join(",")));
    a.owns(mac(1), &[]);
    b.sees(mac(1), Some("a"));
    let leads = |member: &Member| {
        let status: serde_json::Value =
            serde_json::from_str(&member.done(&["endpoint", "status", "-w", "json"]))
                .expect("JSON");
        status[0]["Status"]["leader"] == status[0]["Status"]["header"]["member_id"]
    };
    let leader = members.iter().position(leads).expect("one leads");
    members[leader].kill();
    a.owns(mac(2), &[]);
    b.sees(mac(2), Some("a"));
    let other = (leader + 1) % 3;
    members[other].kill();
    a.until("it is told", |a| a.degraded.is_some());
    a.announce(mac(3), &[]);
    assert_eq!(b.places(mac(2)), Some("a"));
    members[leader].start();
    members[other].start();
    a.until("it is owned", |a| a.own.get(&(23, mac(3))) == Some(&Ok(1)));
    b.sees(mac(3), Some("a"));
    assert_eq!(b.places(mac(1)), Some("a"));
    b.until("it is whole", |b| b.degraded.is_none());
}

/// The plugin is killed at random moments while endpoints come and go: in the end the registry has what the daemon announced, and nothing else.
#[test]
fn the_plugin_is_killed() {
    if !is_here("the_plugin_is_killed") {
        return;
    }
    let etcd = Member::started();
    let mut a = Host::started("a", &etcd.url());
    let mut b = Host::started("b", &etcd.url());
    for round in 0..8_u16 {
        let ip = format!("10.0.0.{round}");
        (0..10).for_each(|at| a.announce(mac(at), &[]));
        a.announce(mac(20 + round), &[&ip]);
        std::thread::sleep(Duration::from_millis(u64::from(round) * 11));
        a.kill();
        a.start(&[23]);
    }
    (0..10).for_each(|at| a.announce(mac(at), &[]));
    a.announce(mac(20), &["10.0.0.0"]);
    a.until("all are owned", |a| {
        a.own.values().filter(|own| own.is_ok()).count() == 11
    });
    (21..28).for_each(|at| a.retire(mac(at)));
    let expected: Vec<_> = (0..10).chain([20]).map(mac).collect();
    b.until("b knows them", |b| {
        b.table.keys().map(|key| key.1).eq(expected.iter().copied())
    });
    until("the addresses are free", || {
        etcd.keys("ip/") == ["ip/000017/10.0.0.0"]
    });
}
