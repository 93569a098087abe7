//! UNIX sockets: what may be replaced, who may connect, and that no descriptor leaks.

#![allow(clippy::unwrap_used)]

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;

use windlass_sys::unix::{
    BindError, FDS_MAX, SOCKET_NAME_BYTES_MAX, SocketKind, bind_socket, connect, connect_unlinked,
    pair, peer_credentials, receive_with_fds, send_with_fds,
};
use windlass_sys::{Errno, IoSlice};

fn bind(path: &Path) -> Result<windlass_sys::unix::Listener, BindError> {
    bind_socket(path, SocketKind::Stream, 0o600, None)
}

/// A file, a directory and a symbolic link, also one to a stale socket, are left as they are.
#[test]
fn replaces_nothing_but_a_socket() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    std::fs::write(at("file"), "precious").unwrap();
    std::fs::create_dir(at("directory")).unwrap();
    drop(UnixListener::bind(at("stale")).unwrap());
    symlink(at("stale"), at("link")).unwrap();
    symlink(at("nowhere"), at("dangling")).unwrap();
    for name in ["file", "directory", "link", "dangling"] {
        let refused = bind(&at(name));
        assert!(
            matches!(refused, Err(BindError::NotSocket(_))),
            "{name}: {refused:?}"
        );
    }
    assert_eq!(std::fs::read(at("file")).unwrap(), b"precious");
    assert!(at("stale").exists() && !at("nowhere").exists());
    assert!(at("link").symlink_metadata().unwrap().is_symlink());
}

/// Where another user could have put a symbolic link, none is followed, as a directory on the way or in the socket's
/// place: nothing is made or removed behind it, and nobody is connected to.
#[test]
fn links_of_others_are_not_followed() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().canonicalize().unwrap();
    let at = |name: &str| root.join(name);
    let mine = std::fs::metadata(&root).unwrap();
    let owner = Some((mine.uid(), mine.gid()));
    for name in ["victim", "his"] {
        std::fs::create_dir(at(name)).unwrap();
    }
    drop(UnixListener::bind(at("victim/stale")).unwrap());
    let kind = SocketKind::Stream;
    let _served = bind(&at("victim/served")).unwrap();
    symlink(at("victim"), at("his/way")).unwrap();
    symlink(at("victim/served"), at("his/socket")).unwrap();
    for name in ["his/way/fresh", "his/way/stale"] {
        let refused = bind_socket(&at(name), kind, 0o600, owner);
        assert!(matches!(refused, Err(BindError::Link(_))), "{refused:?}");
    }
    assert!(!at("victim/fresh").exists() && at("victim/stale").exists());
    for name in ["his/way/served", "his/socket"] {
        assert!(connect(&at(name), kind).is_ok(), "links of one's own are");
        let refused = connect_unlinked(&at(name), kind);
        assert_eq!(refused.err(), Some(Errno::LOOP), "{name}");
    }
    assert!(connect_unlinked(&at("victim/served"), kind).is_ok());
    assert!(bind_socket(&at("his/own"), kind, 0o600, owner).is_ok());
}

/// A stale socket is replaced; one that somebody listens on, of either kind, is not.
#[test]
fn replaces_a_stale_socket_only() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    drop(UnixListener::bind(&path).unwrap());
    let listener = bind(&path).unwrap();
    for kind in [SocketKind::Stream, SocketKind::SeqPacket] {
        let refused = bind_socket(&path, kind, 0o600, None);
        assert!(matches!(refused, Err(BindError::InUse(_))), "{refused:?}");
    }
    assert!(connect(&path, SocketKind::Stream).is_ok());
    drop(listener);
    let again = bind(&path).unwrap();
    again.unlink().unwrap();
    assert!(!path.exists());
    again.unlink().unwrap();
    std::fs::write(&path, "another's").unwrap();
    again.unlink().unwrap();
    assert!(path.exists(), "only its own file is removed");
}

/// Mode and owner are exactly as asked, whatever the umask.
#[test]
fn mode_and_owner_are_exact() {
    let directory = tempfile::tempdir().unwrap();
    let mine = std::fs::metadata(directory.path()).unwrap();
    for mode in [0o600, 0o660, 0o666] {
        let path = directory.path().join(format!("{mode:o}"));
        let owner = Some((mine.uid(), mine.gid()));
        let _listener = bind_socket(&path, SocketKind::SeqPacket, mode, owner).unwrap();
        let file = std::fs::symlink_metadata(&path).unwrap();
        assert!(file.file_type().is_socket());
        assert_eq!(file.permissions().mode() & 0o7777, mode);
        assert_eq!((file.uid(), file.gid()), (mine.uid(), mine.gid()));
    }
}

/// Paths that cannot be are refused by name; a missing directory is told from them.
#[test]
fn bad_paths_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    for bad in [Path::new("/"), Path::new(".."), Path::new("")] {
        assert!(matches!(bind(bad), Err(BindError::BadPath(_))), "{bad:?}");
    }
    let long = directory.path().join("x".repeat(SOCKET_NAME_BYTES_MAX + 1));
    assert!(matches!(bind(&long), Err(BindError::BadPath(_))));
    let longest = directory.path().join("x".repeat(SOCKET_NAME_BYTES_MAX));
    bind(&longest).unwrap();
    let missing = directory.path().join("no/socket");
    assert!(matches!(
        bind(&missing),
        Err(BindError::Directory {
            errno: Errno::NOENT,
            ..
        })
    ));
}

/// The kernel says who is at the other end.
#[test]
fn peer_is_known() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let listener = bind(&path).unwrap();
    assert_eq!(listener.accept().unwrap_err(), Errno::AGAIN);
    let client = connect(&path, SocketKind::Stream).unwrap();
    let server = listener.accept().unwrap();
    for end in [&client, &server] {
        let peer = peer_credentials(end).unwrap();
        assert_eq!(peer.pid, Some(std::process::id()));
        assert_eq!(peer.uid, std::fs::metadata(&path).unwrap().uid());
    }
}

/// Descriptors arrive in order, close-on-exec, and are the same files.
#[test]
fn descriptors_arrive_in_order() {
    for kind in [SocketKind::Stream, SocketKind::SeqPacket] {
        let (left, right) = pair(kind).unwrap();
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let parts = [IoSlice::new(b"he"), IoSlice::new(b"llo")];
        assert_eq!(
            send_with_fds(&left, &parts, &[writer.as_fd(), reader.as_fd()]),
            Ok(5)
        );
        drop((reader, writer));
        let mut space = [0; 16];
        let message = receive_with_fds(&right, &mut space, 8).unwrap();
        assert_eq!((message.bytes, &space[..5]), (5, b"hello".as_slice()));
        assert_eq!(
            (message.fds.len(), message.surplus_fds, message.truncated),
            (2, 0, false)
        );
        for fd in &message.fds {
            let flags = rustix::io::fcntl_getfd(fd).unwrap();
            assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
        }
        rustix::io::write(&message.fds[0], b"x").unwrap();
        assert_eq!(rustix::io::read(&message.fds[1], &mut space).unwrap(), 1);
        assert_eq!(
            receive_with_fds(&right, &mut space, 8).unwrap_err(),
            Errno::AGAIN
        );
        drop(left);
        let end = receive_with_fds(&right, &mut space, 8).unwrap();
        assert_eq!((end.bytes, end.fds.len()), (0, 0));
    }
}

/// However many descriptors a peer sends, at most those asked for are kept and the rest is closed:
/// the pipe has no writer left once the kept ones are dropped.
#[test]
fn surplus_descriptors_are_closed() {
    for (sent, fds_max) in [(1, 0), (20, 2), (FDS_MAX, 8)] {
        let (left, right) = pair(SocketKind::SeqPacket).unwrap();
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let fds: Vec<_> = (0..sent).map(|_| writer.as_fd()).collect();
        assert_eq!(send_with_fds(&left, &[IoSlice::new(b"!")], &fds), Ok(1));
        drop(writer);
        let message = receive_with_fds(&right, &mut [0; 1], fds_max).unwrap();
        assert_eq!(
            (message.fds.len(), message.surplus_fds),
            (fds_max, sent - fds_max)
        );
        no_writer_but(&reader, message.fds);
    }
    let (left, _right) = pair(SocketKind::SeqPacket).unwrap();
    let many = [left.as_fd(); FDS_MAX + 1];
    assert_eq!(
        send_with_fds(&left, &[IoSlice::new(b"!")], &many),
        Err(Errno::INVAL)
    );
    assert_eq!(
        send_with_fds(&left, &[IoSlice::new(b"")], &many[..1]),
        Err(Errno::INVAL)
    );
}

fn no_writer_but(reader: &OwnedFd, kept: Vec<OwnedFd>) {
    drop(kept);
    let flags = rustix::fs::OFlags::NONBLOCK;
    rustix::fs::fcntl_setfl(reader, flags).unwrap();
    // End of file, and not EAGAIN: nobody has the other end.
    assert_eq!(rustix::io::read(reader, &mut [0; 1]), Ok(0));
}

/// A message that does not fit is cut, and says so.
#[test]
fn a_cut_message_says_so() {
    let (left, right) = pair(SocketKind::SeqPacket).unwrap();
    send_with_fds(&left, &[IoSlice::new(&[7; 100])], &[]).unwrap();
    let message = receive_with_fds(&right, &mut [0; 10], 0).unwrap();
    assert!(message.truncated && message.bytes == 10);
}
