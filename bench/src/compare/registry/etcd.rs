//! One member of etcd, started, killed and started elsewhere.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use windlass_lookup_etcd::client::Client;
use windlass_lookup_etcd::registry::{Op, Outcome, Scope, Txn};
use windlass_lookup_etcd::schema::{self, HostRecord, Keys};
use windlass_lookup_etcd::settings::Settings;

use super::super::child::{Child, memory_kib, run};
use super::super::host::Scratch;
use super::super::stop;
use super::PLACE;
use super::hosts::{CLUSTER, properties};

/// It replays what it has written when it starts.
const ANSWERS_WITHIN: Duration = Duration::from_secs(60);
/// Writes of one transaction; etcd takes 128.
const WRITES: usize = 100;

/// It, with its data in the scratch directory.
pub struct Etcd {
    child: Option<Child>,
    data: PathBuf,
    log: PathBuf,
    at: String,
    cache: PathBuf,
}

impl Etcd {
    /// One without data, once it answers.
    ///
    /// # Errors
    /// If it does not.
    pub async fn start(scratch: &Scratch) -> Result<Self> {
        let data = scratch.join("etcd");
        // That of an earlier part.
        let _ = std::fs::remove_dir_all(&data);
        let mut etcd = Self {
            child: None,
            data,
            log: scratch.join("etcd.log"),
            at: PLACE.to_owned(),
            cache: scratch.path().to_owned(),
        };
        etcd.start_at(PLACE).await?;
        Ok(etcd)
    }

    /// Starts it with what it has, and waits until it answers.
    ///
    /// # Errors
    /// If it does not.
    pub async fn start_at(&mut self, at: &str) -> Result<()> {
        at.clone_into(&mut self.at);
        let mut command = Command::new("etcd");
        command.arg("--data-dir").arg(&self.data).args([
            format!("--listen-client-urls={}", self.url()),
            format!("--advertise-client-urls={}", self.url()),
            format!("--listen-peer-urls=http://{PLACE}:2380"),
        ]);
        self.child = Some(Child::start(&mut command, &self.log)?);
        let end = Instant::now() + ANSWERS_WITHIN;
        while let Err(error) = self.answers().await {
            stop::check()?;
            if Instant::now() > end {
                return Err(error).context("etcd does not answer");
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    async fn client(&self) -> Result<Client> {
        let of = properties("bench", &self.url(), &self.cache);
        let endpoint = Settings::of(&of).and_then(|settings| settings.endpoint(0));
        let endpoint = endpoint.map_err(anyhow::Error::msg)?;
        let client = Client::connect(&endpoint, None).await;
        client.map_err(anyhow::Error::msg)
    }

    async fn answers(&self) -> Result<()> {
        let keys = Keys::new("nobody");
        let client = self.client().await?;
        client.list(&keys.prefix(Scope::All), true).await?;
        Ok(())
    }

    /// Where it is.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}:2379", self.at)
    }

    /// Its process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.as_ref().map_or(0, Child::pid)
    }

    /// Kills it.
    ///
    /// # Errors
    /// If it has ended before.
    pub fn kill(&mut self) -> Result<()> {
        self.child.take().context("etcd does not run")?.kill()
    }

    /// The most memory that it had since it was started, in MiB.
    ///
    /// # Errors
    /// If it has ended.
    pub fn memory_mib(&self) -> Result<f64> {
        let path = format!("/proc/{}/status", self.pid());
        Ok(memory_kib(&path, "VmHWM:")? as f64 / 1024.0)
    }

    /// Writes keys, without a condition.
    ///
    /// # Errors
    /// If etcd does not.
    pub async fn write(&self, pairs: Vec<(String, Vec<u8>)>) -> Result<()> {
        let client = self.client().await?;
        let put = |(key, value): &(String, Vec<u8>)| Op::Put {
            key: key.clone(),
            value: value.clone(),
            lease: 0,
        };
        for some in pairs.chunks(WRITES) {
            stop::check()?;
            let txn = Txn {
                expect: Vec::new(),
                then: some.iter().map(put).collect(),
            };
            let (_, outcome) = client.txn(&txn).await?;
            if outcome != Outcome::Done {
                bail!("etcd did not write: {outcome:?}");
            }
        }
        Ok(())
    }

    /// Writes the record of one more host, of which all are to be told, twice: what is compacted then is behind every host's next watch.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub async fn write_stranger(&self) -> Result<()> {
        let record = HostRecord {
            vtep: vec!["192.0.2.250".parse()?],
            port: 4789,
        };
        let key = Keys::new(CLUSTER).host("stranger");
        let pair = (key, schema::value(&record));
        self.write(vec![pair.clone()]).await?;
        self.write(vec![pair]).await
    }

    fn ctl(&self, arguments: &[&str]) -> Result<String> {
        let url = self.url();
        let own = ["ETCDCTL_API=3", "etcdctl", "--endpoints", url.as_str()];
        run("env", own.iter().chain(arguments))
    }

    /// Has it forget the past.
    ///
    /// # Errors
    /// If it does not.
    pub fn compact(&self) -> Result<()> {
        let status = self.ctl(&["endpoint", "status", "-w", "json"])?;
        let status: serde_json::Value = serde_json::from_str(&status)?;
        let revision = status[0]["Status"]["header"]["revision"].to_string();
        self.ctl(&["compact", "--physical", &revision]).map(drop)
    }
}
