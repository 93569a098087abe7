//! Simulated hosts: each is a plugin's engine with its connection, and this program is their daemon.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{interval, sleep, timeout};
use windlass_lookup::protocol::{Endpoint, EndpointState, FromPlugin, Overlay};
use windlass_lookup_etcd::engine::{Conf, Engine};
use windlass_lookup_etcd::link::Link;
use windlass_lookup_etcd::registry::{Ask, Scope, Told};
use windlass_lookup_etcd::settings::Settings;
use windlass_wire::MacAddr;

use super::super::host::Scratch;
use super::super::stop;
use super::{A_NETWORK, Options};

/// The cluster of all hosts.
pub const CLUSTER: &str = "bench";
const OVERLAY: &str = "ov0";
/// Hosts that start at once.
const WAVE: usize = 50;
/// Without any news for so long, the run fails.
const PATIENCE: Duration = Duration::from_secs(150);

/// What the plugin of a host is told.
pub fn properties(host: &str, etcd: &str, cache: &Path) -> BTreeMap<String, Value> {
    let [.., high, low] = host
        .bytes()
        .fold(0_u32, |sum, byte| {
            sum.wrapping_mul(31).wrapping_add(byte.into())
        })
        .to_be_bytes();
    let of = [
        ("etcd/endpoints", json!(etcd)),
        ("etcd/cluster", json!(CLUSTER)),
        ("etcd/host", json!(host)),
        ("etcd/cache", json!(cache)),
        ("vxlan/listen-ip", json!(format!("198.18.{high}.{low}"))),
    ];
    of.map(|(name, value)| (name.to_owned(), value)).into()
}

/// The MAC address of an endpoint, by its number.
pub fn mac(endpoint: usize) -> MacAddr {
    let [.., a, b, c, d] = endpoint.to_be_bytes();
    MacAddr([2, 0, a, b, c, d])
}

fn number(mac: MacAddr) -> usize {
    let [_, _, a, b, c, d] = mac.0;
    u32::from_be_bytes([a, b, c, d]) as usize
}

/// The IP address of an endpoint.
pub fn ip(endpoint: usize) -> IpAddr {
    let [.., b, c, d] = endpoint.to_be_bytes();
    Ipv4Addr::new(10, b, c, d).into()
}

/// What a host's daemon says.
enum Said {
    Announce(usize, EndpointState),
    Retire(usize),
}

/// What a host tells its daemon.
enum News {
    /// An endpoint is its own.
    Owned(usize),
    /// Another host has an endpoint of its own.
    Lost(usize),
    /// An endpoint has moved.
    Seen(usize, Instant),
    /// Whether nothing is wrong.
    Well(bool),
    /// All that it missed was listed.
    Listed,
}

/// One host.
struct Host {
    number: usize,
    /// Of how many scopes it is told.
    scopes: usize,
    engine: Engine,
    link: Link,
    start: Instant,
    said: UnboundedReceiver<Said>,
    news: UnboundedSender<(usize, News)>,
    lists: Arc<AtomicU64>,
    /// What it has not been told yet, or was compacted before, and whether it has been listed since.
    missed: BTreeMap<Scope, bool>,
}

impl Host {
    fn now(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
    }

    async fn run(mut self) {
        loop {
            let now = self.now();
            let due = self.engine.due_at();
            let wait = due.map(|at| Duration::from_millis(at.saturating_sub(now)));
            tokio::select! {
                said = self.said.recv() => match said {
                    Some(said) => self.hear(&said),
                    None => return,
                },
                told = self.link.take() => told.into_iter().for_each(|told| self.told(told)),
                () = sleep(wait.unwrap_or_default()), if wait.is_some() => {}
            }
            self.engine.tick(self.now());
            let out = self.engine.take();
            for ask in out.asks {
                // What is compared every ten minutes is no list of what is watched.
                let is_list = matches!(&ask, Ask::List { scope, .. }
                    if !matches!(scope, Scope::Addresses(_) | Scope::Blocks));
                self.lists.fetch_add(is_list.into(), Ordering::Relaxed);
                self.link.ask(ask);
            }
            out.lines.into_iter().for_each(|line| self.tell(line));
        }
    }

    fn hear(&mut self, said: &Said) {
        let now = self.now();
        let vni = |endpoint: usize| (endpoint / A_NETWORK + 1) as u32;
        match *said {
            Said::Announce(endpoint, state) => {
                let of = Endpoint {
                    overlay: OVERLAY.to_owned(),
                    vni: vni(endpoint),
                    mac: mac(endpoint),
                    ips: vec![ip(endpoint)],
                    state,
                };
                self.engine.announce(now, &of);
            }
            Said::Retire(endpoint) => self.engine.retire(now, vni(endpoint), mac(endpoint)),
        }
    }

    fn told(&mut self, told: Told) {
        match &told {
            Told::Compacted { scope } => drop(self.missed.insert(*scope, false)),
            Told::Listed { scope, .. } => {
                if let Some(is_listed) = self.missed.get_mut(scope) {
                    *is_listed = true;
                }
            }
            _ => {}
        }
        self.engine.told(self.now(), told);
        if self.missed.len() == self.scopes && self.missed.values().all(|is_listed| *is_listed) {
            self.missed.clear();
            self.send(News::Listed);
        }
    }

    fn send(&self, news: News) {
        // Nobody listens when the run ends.
        let _ = self.news.send((self.number, news));
    }

    fn tell(&self, line: FromPlugin) {
        match line {
            FromPlugin::Push { entries, .. } => {
                let at = Instant::now();
                let moved = entries.iter().filter(|entry| entry.generation > 1);
                moved.for_each(|entry| self.send(News::Seen(number(entry.mac), at)));
            }
            FromPlugin::Owned { mac, .. } => self.send(News::Owned(number(mac))),
            FromPlugin::Refused { mac, .. } => self.send(News::Lost(number(mac))),
            FromPlugin::Degraded { .. } => self.send(News::Well(false)),
            FromPlugin::Restored { .. } => self.send(News::Well(true)),
            _ => {}
        }
    }
}

/// A move under way.
struct Move {
    to: usize,
    /// When it was announced as active; before, it becomes standby.
    begun: Option<Instant>,
    /// Hosts that have not seen it.
    left: usize,
}

/// All hosts.
pub struct Cluster {
    said: Vec<UnboundedSender<Said>>,
    news: UnboundedReceiver<(usize, News)>,
    /// Hosts of each network.
    networks: Vec<Vec<usize>>,
    /// Where each endpoint is.
    places: Vec<usize>,
    is_well: Vec<bool>,
    random: u64,
    /// Lists of what is watched that hosts have asked for.
    pub lists: Arc<AtomicU64>,
}

impl Cluster {
    /// Starts all hosts, one wave after the other; each announces its endpoints, and is whole.
    ///
    /// # Errors
    /// If one is refused, or nothing goes on.
    pub async fn start(options: &Options, etcd: &str, scratch: &Scratch) -> Result<Self> {
        let count = options.endpoints / A_NETWORK;
        let mut networks = vec![Vec::new(); count];
        for host in 0..options.hosts {
            let first = host * options.networks;
            (first..first + options.networks).for_each(|at| networks[at % count].push(host));
        }
        let mut places = vec![0; options.endpoints];
        for (endpoint, place) in places.iter_mut().enumerate() {
            let of = &networks[endpoint / A_NETWORK];
            *place = of[endpoint % of.len()];
        }
        let (to, news) = unbounded_channel();
        let mut cluster = Self {
            said: Vec::new(),
            news,
            networks,
            places,
            is_well: vec![false; options.hosts],
            random: 1,
            lists: Arc::default(),
        };
        while cluster.said.len() < options.hosts {
            let first = cluster.said.len();
            let wave = first..(first + WAVE).min(options.hosts);
            for host in wave.clone() {
                cluster.add(host, options, etcd, scratch, to.clone())?;
            }
            cluster.announce(wave).await?;
        }
        cluster.until_all_are(true).await?;
        Ok(cluster)
    }

    fn add(
        &mut self,
        host: usize,
        options: &Options,
        etcd: &str,
        scratch: &Scratch,
        news: UnboundedSender<(usize, News)>,
    ) -> Result<()> {
        let name = format!("host{host}");
        let settings = Settings::of(&properties(&name, etcd, scratch.path()));
        let settings = settings.map_err(anyhow::Error::msg)?;
        let seed = host as u64;
        let mut engine = Engine::new(Conf {
            cluster: settings.cluster.clone(),
            host: settings.host.clone(),
            boot: "boot".to_owned(),
            record: settings.record.clone(),
            seed,
        });
        let first = host * options.networks;
        let vnis =
            (first..first + options.networks).map(|at| (at % self.networks.len() + 1) as u32);
        let vnis: Vec<u32> = vnis.collect();
        let overlay = Overlay {
            overlay: OVERLAY.to_owned(),
            vnis: vnis.clone(),
            properties: BTreeMap::new(),
        };
        engine.start(&overlay).map_err(anyhow::Error::msg)?;
        let (say, said) = unbounded_channel();
        self.said.push(say);
        let of_networks = vnis
            .iter()
            .flat_map(|vni| [Scope::Endpoints(*vni), Scope::Flood(*vni)]);
        let scopes = [Scope::Hosts, Scope::Alive].into_iter().chain(of_networks);
        let missed: BTreeMap<_, _> = scopes.map(|scope| (scope, false)).collect();
        let host = Host {
            number: host,
            scopes: missed.len(),
            engine,
            link: Link::new(settings, seed),
            start: Instant::now(),
            said,
            news,
            lists: Arc::clone(&self.lists),
            missed,
        };
        tokio::spawn(host.run());
        Ok(())
    }

    fn say(&self, host: usize, said: Said) {
        // A host ends with the run only.
        let _ = self.said[host].send(said);
    }

    /// Has some hosts announce their endpoints, and waits until they own them and have listed everything.
    async fn announce(&mut self, hosts: std::ops::Range<usize>) -> Result<()> {
        let mut left = hosts.len();
        for endpoint in 0..self.places.len() {
            let host = self.places[endpoint];
            if hosts.contains(&host) {
                self.say(host, Said::Announce(endpoint, EndpointState::Active));
                left += 1;
            }
        }
        while left > 0 {
            match self.next().await? {
                (_, News::Owned(_) | News::Listed) => left -= 1,
                (host, News::Lost(endpoint)) => bail!("{host} was refused {endpoint}"),
                _ => {}
            }
        }
        Ok(())
    }

    async fn next(&mut self) -> Result<(usize, News)> {
        stop::check()?;
        let next = timeout(PATIENCE, self.news.recv()).await;
        let (host, news) = next.context("no news")?.context("no hosts")?;
        if let News::Well(is_well) = news {
            self.is_well[host] = is_well;
        }
        Ok((host, news))
    }

    /// Waits until all hosts are whole, or all are degraded.
    ///
    /// # Errors
    /// If that does not happen.
    pub async fn until_all_are(&mut self, well: bool) -> Result<()> {
        while self.is_well.iter().any(|is_well| *is_well != well) {
            self.next().await?;
        }
        Ok(())
    }

    /// Waits until every host has listed everything, and is whole.
    ///
    /// # Errors
    /// If that does not happen.
    pub async fn until_all_have_listed(&mut self) -> Result<()> {
        let mut left = self.said.len();
        while left > 0 {
            let (_, news) = self.next().await?;
            left -= usize::from(matches!(news, News::Listed));
        }
        self.until_all_are(true).await
    }

    /// SplitMix64, below `bound`.
    fn random(&mut self, bound: usize) -> usize {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % bound as u64) as usize
    }

    /// Moves endpoints, so many a second: for each move and each other host of the network, how long it took to be seen there.
    ///
    /// # Errors
    /// If one is not seen.
    pub async fn move_some(&mut self, rate: f64, count: usize) -> Result<Vec<Duration>> {
        let mut ticks = interval(Duration::from_secs_f64(1.0 / rate));
        let mut under_way = HashMap::<usize, Move>::new();
        let mut delays = Vec::new();
        let mut begun = 0;
        while begun < count || !under_way.is_empty() {
            tokio::select! {
                _ = ticks.tick(), if begun < count => {
                    begun += usize::from(self.begin(&mut under_way));
                }
                next = self.next() => {
                    let (host, news) = next.with_context(|| format!("{} moves", under_way.len()))?;
                    self.hear_move(&mut under_way, host, &news, &mut delays);
                }
            }
        }
        Ok(delays)
    }

    /// Begins a move, of an endpoint that does not move.
    fn begin(&mut self, under_way: &mut HashMap<usize, Move>) -> bool {
        let endpoint = self.random(self.places.len());
        let network = endpoint / A_NETWORK;
        let at = self.random(self.networks[network].len());
        let of = &self.networks[network];
        let (to, left) = (of[at], of.len() - 1);
        if to == self.places[endpoint] || under_way.contains_key(&endpoint) {
            return false;
        }
        self.say(to, Said::Announce(endpoint, EndpointState::Standby));
        let begun = None;
        under_way.insert(endpoint, Move { to, begun, left });
        true
    }

    fn hear_move(
        &mut self,
        under_way: &mut HashMap<usize, Move>,
        host: usize,
        news: &News,
        delays: &mut Vec<Duration>,
    ) {
        match *news {
            News::Owned(endpoint) => {
                let of = under_way.get_mut(&endpoint);
                if let Some(of) = of.filter(|of| of.to == host && of.begun.is_none()) {
                    of.begun = Some(Instant::now());
                    self.say(host, Said::Announce(endpoint, EndpointState::Active));
                }
            }
            News::Lost(endpoint) => self.say(host, Said::Retire(endpoint)),
            News::Seen(endpoint, at) => {
                let Some(of) = under_way.get_mut(&endpoint) else {
                    return;
                };
                let Some(begun) = of.begun else { return };
                delays.push(at.duration_since(begun));
                of.left -= 1;
                if of.left == 0 {
                    self.places[endpoint] = of.to;
                    under_way.remove(&endpoint);
                }
            }
            News::Well(_) | News::Listed => {}
        }
    }
}
