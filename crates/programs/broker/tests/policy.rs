//! The policy: what a text says, and which files are believed.

use std::path::Path;

use windlass_broker::policy::Policy;

fn parse(text: &str) -> Result<Policy, (usize, String)> {
    let passwd = "app:x:1001:1::/:/bin/sh\nbad\nredis:x:1002:2::/:\nbackup:x:34:34\n";
    Policy::parse(text, passwd)
}

/// Rules say what they say, in both directions, and nothing more.
#[test]
fn rules_hold() {
    let policy =
        parse("# ours\n\njoin app redis # both\njoin redis 7\ndeny backup\nplain /bin/x\n")
            .expect("rules");
    assert!(policy.joins(1002, 1001) && policy.joins(1001, 1002) && policy.joins(7, 1002));
    assert!(!policy.joins(1001, 7), "not over two steps");
    assert!(!policy.admits(34, Path::new("/bin/y")) && !policy.admits(1, Path::new("/bin/x")));
    assert!(policy.admits(1, Path::new("/bin/y")));
    assert!(!policy.ignores_accounting());
    assert!(parse("accounting ignore").is_ok_and(|policy| policy.ignores_accounting()));
    assert_eq!(
        (policy.group(1001), policy.group(7), policy.group(5)),
        (7, 7, 5)
    );
    let circle = parse("join 9 8\njoin 6 7\njoin 5 9\njoin 8 7\njoin 5 6").expect("rules");
    assert!((5..10).all(|uid| circle.group(uid) == 5) && circle.group(4) == 4);
}

/// A mistake is told with its line, and the whole file is refused.
#[test]
fn mistakes_are_told() {
    for (text, line, part) in [
        ("join app", 1, "two users"),
        ("\njoin app app", 2, "itself"),
        ("deny nobody-here", 1, "nobody-here"),
        ("deny a b", 1, "one user"),
        ("plain ntpd", 1, "whole path"),
        ("# x\n# y\nallow app", 3, "allow"),
        ("deny 4294967295", 1, "4294967295"),
    ] {
        let (at, what) = parse(text).expect_err(text);
        assert_eq!(at, line, "{text}");
        assert!(what.contains(part), "{what}");
    }
}

/// A file that another could have written is refused; one that is not there says nothing.
#[test]
fn files_are_root_s() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("sockets.conf");
    assert_eq!(Policy::load(&path).expect("absent"), Policy::default());
    std::fs::write(&path, "deny 7\n").expect("file");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o666);
    std::fs::set_permissions(&path, mode).expect("mode");
    let untrusted = Policy::load(&path).expect_err("of everybody").to_string();
    assert!(untrusted.contains("others than root"), "{untrusted}");
    let root = rustix::process::geteuid().is_root();
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o644))
        .expect("mode");
    assert_eq!(Policy::load(&path).is_ok(), root);
}
