//! The talk with the daemon, and the clock: what joins the engine to the connection.

use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use windlass_lookup::line::{LineError, Lines, decode, encode};
use windlass_lookup::protocol::{FromPlugin, Kind, Overlay, ToPlugin, VERSION, sentence};

use crate::cache;
use crate::engine::{Conf, Engine};
use crate::link::Link;
use crate::settings::{self, Settings};

/// How often the copy on disk is written, if something changed.
const SAVE_EVERY: Duration = Duration::from_secs(10);

/// A registry, from the first overlay that uses it.
struct Registry {
    settings: Settings,
    engine: Engine,
    link: Link,
    cache: PathBuf,
    saved: u64,
}

/// A session with the daemon.
pub struct Session {
    daemon: UnixStream,
    registry: Option<Registry>,
    start: Instant,
    /// Names this start of the host.
    boot: String,
    seed: u64,
}

impl Session {
    /// One over a connected socket. `boot` names the start of the host, `seed` is for what is random.
    #[must_use]
    pub fn new(daemon: UnixStream, boot: String, seed: u64) -> Self {
        Self {
            daemon,
            registry: None,
            start: Instant::now(),
            boot,
            seed,
        }
    }

    /// Serves until the daemon ends it.
    ///
    /// # Errors
    /// A line that is none of the protocol, or the socket's.
    pub async fn run(mut self) -> io::Result<()> {
        let ended = self.serve().await;
        self.save();
        match ended {
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::BrokenPipe | ErrorKind::ConnectionReset
                ) =>
            {
                Ok(())
            }
            ended => ended,
        }
    }

    async fn serve(&mut self) -> io::Result<()> {
        self.say(vec![FromPlugin::Hello {
            v: VERSION,
            kind: Kind::Table,
            properties: settings::properties(),
        }])
        .await?;
        let mut lines = Lines::default();
        let mut save = tokio::time::interval(SAVE_EVERY);
        save.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut bytes = vec![0; 16 << 10];
        loop {
            let now = self.now();
            let due = self.registry.as_ref().and_then(|of| of.engine.due_at());
            let wait = due.map(|at| Duration::from_millis(at.saturating_sub(now)));
            tokio::select! {
                read = self.daemon.read(&mut bytes) => match read? {
                    0 => return Ok(()),
                    count => {
                        lines.feed(bytes.get(..count).unwrap_or_default());
                        self.read_lines(&mut lines).await?;
                    }
                },
                told = next(&mut self.registry) => {
                    let now = now.max(u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX));
                    if let Some(of) = &mut self.registry {
                        told.into_iter().for_each(|told| of.engine.told(now, told));
                    }
                }
                () = tokio::time::sleep(wait.unwrap_or(SAVE_EVERY)), if wait.is_some() => {}
                _ = save.tick() => self.save(),
            }
            self.turn().await?;
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Does what is due, and passes on what came of it.
    async fn turn(&mut self) -> io::Result<()> {
        let now = self.now();
        let Some(of) = &mut self.registry else {
            return Ok(());
        };
        of.engine.tick(now);
        let out = of.engine.take();
        out.asks.into_iter().for_each(|ask| of.link.ask(ask));
        self.say(out.lines).await
    }

    async fn say(&mut self, messages: Vec<FromPlugin>) -> io::Result<()> {
        let mut bytes = Vec::new();
        for message in messages {
            write(&mut bytes, message)?;
        }
        self.daemon.write_all(&bytes).await
    }

    async fn read_lines(&mut self, lines: &mut Lines) -> io::Result<()> {
        let broken =
            |error: LineError| io::Error::new(io::ErrorKind::InvalidData, error.to_string());
        while let Some(line) = lines.next_line().map_err(broken)? {
            let answer = match decode::<ToPlugin>(line) {
                Ok(message) => self.heard(message),
                Err(LineError::UnknownOp(what)) => Some(FromPlugin::Unsupported { what }),
                Err(error) => return Err(broken(error)),
            };
            // What the message had the engine say comes behind its answer.
            self.say(answer.into_iter().collect()).await?;
        }
        Ok(())
    }

    fn heard(&mut self, message: ToPlugin) -> Option<FromPlugin> {
        let unsupported = |what: &str| {
            Some(FromPlugin::Unsupported {
                what: what.to_owned(),
            })
        };
        let now = self.now();
        let engine = self.registry.as_mut().map(|of| &mut of.engine);
        match (message, engine) {
            (ToPlugin::Ping { id }, _) => return Some(FromPlugin::Pong { id }),
            (ToPlugin::Start(of) | ToPlugin::Set(of), _) => {
                let overlay = of.overlay.clone();
                return Some(match self.start(&of) {
                    Ok(()) => FromPlugin::Ok { overlay },
                    Err(text) => FromPlugin::Error {
                        overlay,
                        text: sentence(&text),
                    },
                });
            }
            (ToPlugin::Stop { overlay }, Some(engine)) => engine.stop(&overlay),
            (ToPlugin::Announce(of), Some(engine)) => engine.announce(now, &of),
            (ToPlugin::Retire { vni, mac, .. }, Some(engine)) => engine.retire(now, vni, mac),
            (ToPlugin::Claim(of), Some(engine)) => engine.claim(now, of),
            (ToPlugin::Release { vni, owner, .. }, Some(engine)) => {
                engine.release(now, vni, &owner)
            }
            (ToPlugin::Forget { host, .. }, Some(engine)) => engine.forget(&host),
            (ToPlugin::Resync { .. }, Some(engine)) => engine.accept(),
            (ToPlugin::Lookup { .. }, _) => return unsupported("lookup"),
            (ToPlugin::Arp(_), _) => return unsupported("arp"),
            (ToPlugin::Ndp(_), _) => return unsupported("ndp"),
            (ToPlugin::Dhcp { .. }, _) => return unsupported("dhcp"),
            _ => {}
        }
        None
    }

    fn start(&mut self, of: &Overlay) -> Result<(), String> {
        let settings = Settings::of(&of.properties)?;
        if let Some(registry) = &mut self.registry {
            if registry.settings != settings {
                return Err(
                    "another overlay of this host uses another registry, or another address"
                        .to_owned(),
                );
            }
            return registry.engine.start(of);
        }
        if settings.is_plain() {
            eprintln!(
                "etcd is spoken to without TLS: a host on the way can read and change where traffic goes"
            );
        }
        let mut engine = Engine::new(Conf {
            cluster: settings.cluster.clone(),
            host: settings.host.clone(),
            boot: self.boot.clone(),
            record: settings.record.clone(),
            seed: self.seed,
        });
        let cache = cache::path(&settings.cache, &settings.cluster, &settings.host);
        if let Err(error) = cache::load(&mut engine, &cache) {
            eprintln!("{}: {error}; starting without it", cache.display());
        }
        engine.start(of)?;
        let link = Link::new(settings.clone(), self.seed);
        self.registry = Some(Registry {
            settings,
            engine,
            link,
            cache,
            saved: 0,
        });
        Ok(())
    }

    fn save(&mut self) {
        let Some(of) = &mut self.registry else {
            return;
        };
        if of.engine.changes == of.saved {
            return;
        }
        of.saved = of.engine.changes;
        if let Err(error) = cache::save(&of.engine, &of.cache) {
            eprintln!("{}: {error}", of.cache.display());
        }
    }
}

async fn next(registry: &mut Option<Registry>) -> Vec<crate::registry::Told> {
    match registry {
        Some(of) => of.link.take().await,
        None => std::future::pending().await,
    }
}

/// Appends a message, its entries in as many lines as they need.
fn write(bytes: &mut Vec<u8>, message: FromPlugin) -> io::Result<()> {
    let error = match encode(&message) {
        Ok(line) => {
            bytes.extend_from_slice(&line);
            return Ok(());
        }
        Err(error) => error,
    };
    let halves = match message {
        FromPlugin::Push {
            overlay,
            mut entries,
        } if entries.len() > 1 => {
            let rest = entries.split_off(entries.len() / 2);
            [entries, rest].map(|entries| FromPlugin::Push {
                overlay: overlay.clone(),
                entries,
            })
        }
        FromPlugin::Withdraw {
            overlay,
            mut entries,
        } if entries.len() > 1 => {
            let rest = entries.split_off(entries.len() / 2);
            [entries, rest].map(|entries| FromPlugin::Withdraw {
                overlay: overlay.clone(),
                entries,
            })
        }
        _ => {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                error.to_string(),
            ));
        }
    };
    halves.into_iter().try_for_each(|half| write(bytes, half))
}
