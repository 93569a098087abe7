//! Named namespaces against the kernel.

#![allow(clippy::unwrap_used)]

mod lab;

use lab::{Lab, can_run, readable};
use windlass_sys::netns::{self, NetnsError, NetnsRef, NetnsWatch};

/// A closure runs inside, the caller stays outside, and a panic inside reaches the caller.
#[test]
fn entering_leaves_the_caller_where_it_was() {
    if !can_run("entering_leaves_the_caller_where_it_was") {
        return;
    }
    let lab = Lab::create("enter");
    let outside = NetnsRef::current().unwrap().id();
    let inside = lab.within(|| NetnsRef::current().unwrap().id());
    assert_eq!(inside, lab.namespace.id());
    assert_ne!(inside, outside);
    assert_eq!(NetnsRef::current().unwrap().id(), outside);
    let caught =
        std::panic::catch_unwind(|| netns::within(&lab.namespace, || std::panic::panic_any(7_u8)));
    assert_eq!(caught.unwrap_err().downcast_ref::<u8>(), Some(&7));
    assert_eq!(NetnsRef::current().unwrap().id(), outside);
}

/// A name that is deleted and made again is another namespace, and the watch tells of each step.
#[test]
fn a_name_made_again_is_another_namespace() {
    if !can_run("a_name_made_again_is_another_namespace") {
        return;
    }
    let name = format!("wlsys-{}-again", std::process::id());
    let missing = NetnsRef::open(&name);
    assert!(
        matches!(missing, Err(NetnsError::Missing(_))),
        "{missing:?}"
    );
    let watch = NetnsWatch::start().unwrap();

    let first = netns::create(&name).unwrap();
    assert!(readable(&watch) && watch.take_changes().unwrap());
    assert!(matches!(netns::create(&name), Err(NetnsError::Exists(_))));
    assert!(first.is_named_still());

    // Other tests of this process make namespaces too, so what is left is taken until it is.
    while watch.take_changes().unwrap() {}
    netns::delete(&name).unwrap();
    assert!(readable(&watch) && watch.take_changes().unwrap());
    assert!(!first.is_named_still());
    assert!(matches!(netns::delete(&name), Err(NetnsError::Missing(_))));

    let second = netns::create(&name).unwrap();
    assert_ne!(first.id(), second.id());
    assert!(!first.is_named_still() && second.is_named_still());
    netns::delete(&name).unwrap();
}

/// A file that is no namespace, such as one whose mount is still to come, is told from a missing
/// one, and a FIFO does not block the caller.
#[test]
fn a_file_is_not_a_namespace() {
    if !can_run("a_file_is_not_a_namespace") {
        return;
    }
    let _directory = Lab::create("dir");
    let name = format!("wlsys-{}-file", std::process::id());
    let path = std::path::Path::new(netns::DIRECTORY).join(&name);
    std::fs::write(&path, "").unwrap();
    assert!(matches!(
        NetnsRef::open(&name),
        Err(NetnsError::NotNamespace(_))
    ));
    netns::delete(&name).unwrap();
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    assert!(matches!(
        NetnsRef::open(&name),
        Err(NetnsError::NotNamespace(_))
    ));
    std::fs::remove_file(&path).unwrap();
}

/// A namespace is found by the path of its mount, also through a link of the system, and by its process; not through a
/// directory that others can write to, and not if it is one of another kind.
#[test]
fn a_path_names_a_namespace() {
    if !can_run("a_path_names_a_namespace") {
        return;
    }
    let lab = Lab::create("path");
    let mounted = format!("{}/{}", netns::DIRECTORY, lab.name);
    assert_eq!(NetnsRef::open(&mounted).unwrap().id(), lab.namespace.id());
    let directory = format!("/run/wlsys-{}", std::process::id());
    std::fs::create_dir(&directory).unwrap();
    let link = format!("{directory}/net");
    std::os::unix::fs::symlink(format!("../netns/{}", lab.name), &link).unwrap();
    assert_eq!(NetnsRef::open(&link).unwrap().id(), lab.namespace.id());
    let open_to_all = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(&directory, open_to_all).unwrap();
    let untrusted = NetnsRef::open(&link);
    assert!(
        matches!(untrusted, Err(NetnsError::Untrusted { .. })),
        "{untrusted:?}"
    );
    std::fs::remove_dir_all(&directory).unwrap();
    for other in ["/etc/passwd", "/run"] {
        let refused = NetnsRef::open(other);
        assert!(
            matches!(refused, Err(NetnsError::NotNamespace(_))),
            "{other}: {refused:?}"
        );
    }

    let mut child = lab.within(|| {
        let mut sleep = std::process::Command::new("sleep");
        sleep.arg("1000").spawn().unwrap()
    });
    let by_process = NetnsRef::open(&format!("/proc/{}/ns/net", child.id())).unwrap();
    assert_eq!(by_process.id(), lab.namespace.id());
    assert!(by_process.is_named_still());
    child.kill().unwrap();
    assert!(readable(by_process.process().unwrap()));
    assert!(!by_process.is_named_still());
    child.wait().unwrap();
    let gone = NetnsRef::open(&format!("/proc/{}/ns/net", child.id()));
    assert!(matches!(gone, Err(NetnsError::Missing(_))), "{gone:?}");
}

/// A namespace of another kind under a name is refused.
#[test]
fn another_kind_is_refused() {
    if !can_run("another_kind_is_refused") {
        return;
    }
    let _directory = Lab::create("kind");
    let name = format!("wlsys-{}-uts", std::process::id());
    let path = std::path::Path::new(netns::DIRECTORY).join(&name);
    std::fs::write(&path, "").unwrap();
    rustix::mount::mount_bind("/proc/self/ns/uts", &path).unwrap();
    for name in [name.as_str(), path.to_str().unwrap()] {
        let refused = NetnsRef::open(name);
        assert!(
            matches!(refused, Err(NetnsError::NotNamespace(_))),
            "{refused:?}"
        );
    }
    netns::delete(&name).unwrap();
}
