//! Others that write into the registry what no host of this project does.

use crate::stage::{Host, Member, is_here, mac, until};

/// Records of hosts and endpoints that are none take nothing away, are told to nobody, and end no session; the host whose record was
/// overwritten writes it again.
#[test]
fn what_is_no_record_is_passed_over() {
    if !is_here("what_is_no_record_is_passed_over") {
        return;
    }
    let etcd = Member::started();
    let [mut a, mut b] = ["a", "b"].map(|name| Host::started(name, &etcd.url()));
    a.owns(mac(1), &["10.0.0.1"]);
    b.sees(mac(1), Some("a"));
    let strange = [
        ("host/unspecified", r#"{"vtep":["0.0.0.0"],"port":4789}"#),
        (
            "host/multicast",
            r#"{"vtep":["192.0.2.9","ff02::1"],"port":4789}"#,
        ),
        ("host/a/b", r#"{"vtep":["192.0.2.9"],"port":4789}"#),
        (
            "ep/000017/02000000ff01",
            r#"{"h":"unspecified","g":1,"st":"active"}"#,
        ),
        (
            "ep/000017/02000000ff02",
            r#"{"h":"a/b","g":1,"st":"active"}"#,
        ),
        ("ep/000017/02000000ff03", "[[[["),
        (
            "ep/000017/02000000ff04/ff",
            r#"{"h":"b","g":1,"st":"active"}"#,
        ),
        ("ep/000017/ffffffffffff", r#"{"h":"b","g":1,"st":"active"}"#),
        ("bum/000017/unspecified", "{}"),
        ("ep/000017/020000000001", "no record"),
        ("host/a", "no record"),
    ];
    for (key, value) in strange {
        etcd.put(key, value.as_bytes());
    }
    let value = |key: &str| {
        let key = format!("/windlass/v1/test/{key}");
        etcd.done(&["get", "--print-value-only", &key])
    };
    until("a writes its endpoint again", || {
        value("ep/000017/020000000001").contains(r#""h":"a""#)
    });
    until("a writes its address again", || {
        value("host/a").contains("192.0.2.97")
    });
    b.until("b is told", |b| b.table[&(23, mac(1))].generation == 2);
    b.owns(mac(2), &[]);
    a.sees(mac(2), Some("b"));
    assert_eq!((a.table.len(), b.table.len()), (1, 1));
    assert_eq!(b.places(mac(1)), Some("a"));
    // One that lists all of it.
    let mut c = Host::started("c", &etcd.url());
    c.sees(mac(1), Some("a"));
    c.sees(mac(2), Some("b"));
    assert_eq!(c.table.len(), 2);
}

/// Names that are none take no room, and hosts that are gone leave theirs: those that come later are known.
#[test]
fn names_fill_nothing_up() {
    if !is_here("names_fill_nothing_up") {
        return;
    }
    let etcd = Member::started();
    let mut a = Host::started("a", &etcd.url());
    a.owns(mac(1), &[]);
    let all = |verb: &str, kind: &str, value: &str| {
        let line = |at: u32| format!("{verb} {kind}{at}{value}");
        etcd.write(&(0..1_200).map(line).collect::<Vec<_>>());
    };
    all("put", "alive/x/", " {}");
    let mut b = Host::started("b", &etcd.url());
    b.owns(mac(2), &[]);
    a.sees(mac(2), Some("b"));
    all("put", "bum/000017/x", " {}");
    let is_full = |host: &Host| {
        host.degraded
            .as_ref()
            .is_some_and(|text| text.contains("some are not known here"))
    };
    a.until("it says so", is_full);
    let mut c = Host::started("c", &etcd.url());
    c.owns(mac(3), &[]);
    all("del", "bum/000017/x", "");
    a.sees(mac(3), Some("c"));
    a.until("it is whole", |a| a.degraded.is_none());
    c.until("it is whole", |c| c.degraded.is_none());
}

/// Values of megabytes keep no host from being told: one that lists, and one that missed them.
#[test]
fn huge_values_are_passed_over() {
    if !is_here("huge_values_are_passed_over") {
        return;
    }
    let mut etcd = Member::started();
    let [mut a, mut b] = ["a", "b"].map(|name| Host::started(name, &etcd.url()));
    a.owns(mac(1), &[]);
    b.sees(mac(1), Some("a"));
    b.close();
    let value = vec![b'x'; 1_400_000];
    for at in 0..50 {
        etcd.put(&format!("ep/000017/02000000ff{at:02}"), &value);
    }
    a.owns(mac(2), &[]);
    let mut c = Host::started("c", &etcd.url());
    c.sees(mac(2), Some("a"));
    b.start(&[23]);
    b.sees(mac(2), Some("a"));
    assert_eq!((b.table.len(), c.table.len()), (2, 2));
    etcd.kill();
    etcd.start();
    a.owns(mac(3), &[]);
    b.sees(mac(3), Some("a"));
    c.sees(mac(3), Some("a"));
}
