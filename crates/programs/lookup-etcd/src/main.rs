#![forbid(unsafe_code)]
//! `windlass-lookup-etcd`: started by windlassd, which is connected to descriptor 3.

use anyhow::{Context, Result};
use tokio::net::UnixStream;
use windlass_lookup_etcd::session::Session;

/// The descriptor that is connected to the daemon.
const DAEMON: i32 = 3;

fn main() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let socket = windlass_sys::unix::inherited(DAEMON)
            .context("descriptor 3 is not open: this program is started by windlassd")?;
        let socket = std::os::unix::net::UnixStream::from(socket);
        socket.set_nonblocking(true)?;
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").context("boot id")?;
        let session = Session::new(
            UnixStream::from_std(socket)?,
            boot.trim().to_owned(),
            seed()?,
        );
        Ok(session.run().await?)
    })
}

fn seed() -> Result<u64> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(u64::from_le_bytes(bytes))
}
