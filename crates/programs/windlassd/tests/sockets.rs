//! The daemon's broker of accelerated sockets listens beside the control socket, with the policy that the options name.

use windlass_channel::client::Client;
use windlassd::sockets::Sockets;

mod daemon;

/// Where the option is on, processes find a broker in the runtime directory as long as the daemon lives; where it is
/// off,
/// nobody listens.
#[test]
fn the_broker_listens() {
    let dir = tempfile::tempdir().expect("directory");
    let mut options = daemon::options(dir.path());
    windlassd::paths::make_runtime_dir(&options.runtime_dir).expect("runtime directory");
    let path = options.runtime_dir.join("sockets.sock");
    let lists = || {
        let client = Client::new();
        client.locate(Some(path.as_os_str().as_encoded_bytes()), None, 0);
        client.list().is_ok()
    };
    let sockets = Sockets::start(&options);
    assert!(lists());
    sockets.reload();
    assert!(lists());
    let second = Sockets::start(&options);
    assert!(lists(), "a second one leaves the first one alone");
    second.stop();
    assert!(lists());
    sockets.stop();
    assert!(!path.exists() && !lists());
    options.sockets = false;
    Sockets::start(&options).stop();
    assert!(!path.exists());
}
