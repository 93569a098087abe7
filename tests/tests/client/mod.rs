//! A memif client that connects, and carries nothing.

use std::path::PathBuf;
use std::time::Instant;

use windlass_attach::endpoint::{Endpoint, Event, Rings};
use windlass_attach::memif::msg::Secret;
use windlass_attach::memif::{ClientConfig, MemifClient, Offloads};
use windlass_shm::HugePages;

/// What the daemon says to it is heard in [`Client::is_up`].
pub struct Client {
    client: MemifClient,
    rings: Option<Rings>,
    /// How often it has come up.
    pub connects: usize,
}

impl Client {
    pub fn start(path: PathBuf, id: u32) -> Client {
        let config = ClientConfig {
            path,
            owner: None,
            id,
            secret: Secret::NONE,
            name: "peer".to_owned(),
            rings: 1,
            log2_sizes: [6; 2],
            offloads: Offloads::None,
            huge: HugePages::No,
        };
        Client {
            client: MemifClient::new(config).expect("a client"),
            rings: None,
            connects: 0,
        }
    }

    pub fn is_up(&mut self) -> bool {
        for event in self.client.poll(Instant::now()) {
            match event {
                Event::Up(rings) => {
                    self.connects += 1;
                    self.rings = Some(rings);
                }
                Event::Down(_) => {
                    self.rings = None;
                    self.client.detached();
                }
            }
        }
        self.rings.is_some()
    }
}
