//! Client of the daemon's control socket.
//!
//! # Purpose
//! Typed calls for every resource of `windlassd`, for the command and for programs that would rather not
//! speak HTTP themselves.
//!
//! # Where it sits
//! ```text
//! windlass (command) -> windlass-client --HTTP/1.1 over a Unix socket--> windlassd
//! ```
//!
//! # Model
//! [`Client`] blocks. Each call has a connection of its own, so
//! that a daemon that was restarted between two calls is simply found again. The four kinds of object
//! have the same verbs; [`Resource`] says where each lies and what describes it. [`Events`] is the one
//! answer that does not end.
//!
//! # Limits
//! An answer has at most [`ANSWER_BYTES_MAX`] bytes, a line of the monitor [`LINE_BYTES_MAX`]. A call has
//! the time that [`Client::new`] was given, from connecting to the last byte of the answer.
//!
//! # Failure modes
//! See [`Error`]. After [`Error::Timeout`] and [`Error::Broken`] it is not known whether a change was made.

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing,
        clippy::string_slice
    )
)]

mod error;
mod http;
mod monitor;
mod resource;
pub mod socket;

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use windlass_api::{
    AddressClaim, AddressRelease, Applied, ClaimedAddresses, DaemonView, Document, FdbAdd, FdbPage,
    FdbQuery, Flushed, HostView, MigrationCheck, MigrationChecked, Moved, Name, RecentDrops,
    RegionView, RuleView, Stats, TargetQuery, TargetView, VndCreate, VndName, VndPatch, VndView,
    WorkerMove, WorkerStats, ZoneRef,
};

pub use error::Error;
pub use http::ANSWER_BYTES_MAX;
pub use monitor::{Events, LINE_BYTES_MAX};
pub use resource::Resource;

use http::{Answer, Connection, Request};

/// A way to one daemon. It holds no connection between two calls, but for [`Client::connect`].
#[derive(Debug)]
pub struct Client {
    socket: PathBuf,
    timeout: Option<Duration>,
    /// For the next call.
    ahead: Mutex<Option<Connection>>,
}

impl Client {
    /// A client of the daemon at this socket (see [`socket::find`]). `timeout` bounds each call; `None`
    /// waits for ever. Nothing is connected yet.
    pub fn new(socket: PathBuf, timeout: Option<Duration>) -> Self {
        Self {
            socket,
            timeout,
            ahead: Mutex::default(),
        }
    }

    /// Connects for the next call: the daemon is there, and finds out who is calling while the caller does something else.
    ///
    /// # Errors
    /// [`Error::Unreachable`], [`Error::Timeout`].
    pub fn connect(&self) -> Result<(), Error> {
        let connection = Connection::open(&self.socket, self.timeout)?;
        let mut ahead = self.ahead.lock().unwrap_or_else(PoisonError::into_inner);
        *ahead = Some(connection);
        Ok(())
    }

    /// The control socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Who the daemon is, and who the caller is to it.
    ///
    /// # Errors
    /// See [`Error`], as of every call.
    pub fn daemon(&self) -> Result<DaemonView, Error> {
        self.call(Request::get("/v1/daemon"))
    }

    /// Every object of a kind that the caller may see, in order of names.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn list<R: Resource>(&self) -> Result<Vec<R::View>, Error> {
        self.call(Request::get(R::PATH))
    }

    /// One object.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn get<R: Resource>(&self, name: &Name) -> Result<R::View, Error> {
        self.call(Request::get(at::<R>(name)))
    }

    /// Makes an object.
    ///
    /// # Errors
    /// [`Error::Refused`] with code `exists` if there is one of its name.
    pub fn create<R: Resource>(&self, object: &R) -> Result<Applied, Error> {
        self.call(Request::with("POST", R::PATH, object)?)
    }

    /// Makes an object, or makes the one of its name like it.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn replace<R: Resource>(&self, object: &R) -> Result<Applied, Error> {
        self.call(Request::with("PUT", at::<R>(object.name()), object)?)
    }

    /// Changes what the patch names.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn change<R: Resource>(&self, name: &Name, patch: &R::Patch) -> Result<Applied, Error> {
        self.call(Request::with("PATCH", at::<R>(name), patch)?)
    }

    /// Removes an object.
    ///
    /// # Errors
    /// [`Error::Refused`] with code `in_use` while others refer to it.
    pub fn delete<R: Resource>(&self, name: &Name) -> Result<Applied, Error> {
        self.call(Request::bare("DELETE", at::<R>(name)))
    }

    /// Every vnd device that the caller may see.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn vnds(&self) -> Result<Vec<VndView>, Error> {
        self.call(Request::get("/v1/vnds"))
    }

    /// One vnd device.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn vnd(&self, zone: &ZoneRef, name: &VndName) -> Result<VndView, Error> {
        self.call(Request::get(vnd_at(zone, name)))
    }

    /// Makes a vnd device.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn create_vnd(&self, vnd: &VndCreate) -> Result<Applied, Error> {
        self.call(Request::with("POST", "/v1/vnds", vnd)?)
    }

    /// Renames a vnd device, or sets its properties.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn change_vnd(
        &self,
        zone: &ZoneRef,
        name: &VndName,
        patch: &VndPatch,
    ) -> Result<Applied, Error> {
        self.call(Request::with("PATCH", vnd_at(zone, name), patch)?)
    }

    /// Takes a vnd device's name away; a program that has it open keeps it.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn destroy_vnd(&self, zone: &ZoneRef, name: &VndName) -> Result<Applied, Error> {
        self.call(Request::bare("DELETE", vnd_at(zone, name)))
    }

    /// Entries of a bridge's forwarding table.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn fdb(&self, bridge: &Name, query: &FdbQuery) -> Result<FdbPage, Error> {
        self.call(Request::get(format!(
            "/v1/bridges/{bridge}/fdb{}",
            http::query(query)?
        )))
    }

    /// Puts a static entry into a bridge's forwarding table.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn fdb_add(&self, bridge: &Name, entry: &FdbAdd) -> Result<Applied, Error> {
        self.call(Request::with(
            "POST",
            format!("/v1/bridges/{bridge}/fdb"),
            entry,
        )?)
    }

    /// Removes the entry of the address that the query names: the static one, else the learned one.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn fdb_delete(&self, bridge: &Name, query: &FdbQuery) -> Result<Applied, Error> {
        let path = format!("/v1/bridges/{bridge}/fdb{}", http::query(query)?);
        self.call(Request::bare("DELETE", path))
    }

    /// Removes the learned entries that match the query.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn fdb_flush(&self, bridge: &Name, query: &FdbQuery) -> Result<Flushed, Error> {
        self.call(Request::with(
            "POST",
            format!("/v1/bridges/{bridge}/fdb/flush"),
            query,
        )?)
    }

    /// The targets of an overlay, and the addresses behind them, that match the query.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn targets(&self, overlay: &Name, query: &TargetQuery) -> Result<Vec<TargetView>, Error> {
        let query = http::query(query)?;
        self.call(Request::get(format!(
            "/v1/overlays/{overlay}/targets{query}"
        )))
    }

    /// The hosts of an overlay's registry.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn hosts(&self, overlay: &Name) -> Result<Vec<HostView>, Error> {
        self.call(Request::get(format!("/v1/overlays/{overlay}/hosts")))
    }

    /// Takes a host's records out of an overlay's registry. `host` has letters, digits, dots, dashes and underscores.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn forget_host(&self, overlay: &Name, host: &str) -> Result<Applied, Error> {
        let path = format!("/v1/overlays/{overlay}/hosts/{host}");
        self.call(Request::bare("DELETE", path))
    }

    /// Has an overlay's registry give this host addresses.
    ///
    /// # Errors
    /// See [`Error`]. [`ErrorCode::Host`](windlass_api::ErrorCode::Host): the registry does not answer, or has no such address now.
    pub fn claim_addresses(
        &self,
        overlay: &Name,
        claim: &AddressClaim,
    ) -> Result<ClaimedAddresses, Error> {
        let path = format!("/v1/overlays/{overlay}/addresses");
        self.call(Request::with("POST", path, claim)?)
    }

    /// Gives addresses back for which no VNIC was made.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn release_addresses(
        &self,
        overlay: &Name,
        release: &AddressRelease,
    ) -> Result<Applied, Error> {
        let path = format!("/v1/overlays/{overlay}/addresses/release");
        self.call(Request::with("POST", path, release)?)
    }

    /// Has an overlay take its registry as it is, though that is younger than what is known.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn resync(&self, overlay: &Name) -> Result<Applied, Error> {
        self.call(Request::bare(
            "POST",
            format!("/v1/overlays/{overlay}/resync"),
        ))
    }

    /// Forgets what was learned of targets that match the query.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn flush_targets(&self, overlay: &Name, query: &TargetQuery) -> Result<Flushed, Error> {
        let path = format!("/v1/overlays/{overlay}/targets/flush");
        self.call(Request::with("POST", path, query)?)
    }

    /// Has the bridges behind a member, or behind all, asked again whether they speak RSTP.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn check_migration(
        &self,
        bridge: &Name,
        check: &MigrationCheck,
    ) -> Result<MigrationChecked, Error> {
        self.call(Request::with(
            "POST",
            format!("/v1/bridges/{bridge}/mcheck"),
            check,
        )?)
    }

    /// The rules that packets of a VNIC have to pass.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn rules(&self, vnic: &Name) -> Result<Vec<RuleView>, Error> {
        self.call(Request::get(format!("/v1/vnics/{vnic}/rules")))
    }

    /// The whole configuration and its revision.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn document(&self) -> Result<(Document, Option<u64>), Error> {
        let request = Request::get("/v1/document");
        let answer = self.exchange(&request)?;
        let revision = answer.revision();
        Ok((answer.read(&request)?, revision))
    }

    /// Makes the configuration like the document. `dry_run`: only says what would change. `revision`:
    /// refused with code `conflict` if the configuration has another one by now.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn apply(
        &self,
        document: &Document,
        dry_run: bool,
        revision: Option<u64>,
    ) -> Result<Applied, Error> {
        let query = if dry_run { "?dry_run=true" } else { "" };
        let mut request = Request::with("PUT", format!("/v1/document{query}"), document)?;
        request.revision = revision;
        self.call(request)
    }

    /// All counters at one moment.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn stats(&self) -> Result<Stats, Error> {
        self.stats_as()
    }

    /// The same as another type, of which the reader needs no more.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn stats_as<T: DeserializeOwned>(&self) -> Result<T, Error> {
        self.call(Request::get("/v1/stats"))
    }

    /// What was dropped lately.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn drops(&self) -> Result<RecentDrops, Error> {
        self.call(Request::get("/v1/drops"))
    }

    /// All counters at one moment, as text for Prometheus.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn metrics(&self) -> Result<String, Error> {
        let request = Request::get("/v1/metrics");
        self.exchange(&request)?.text(&request)
    }

    /// The data workers.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn workers(&self) -> Result<Vec<WorkerStats>, Error> {
        self.call(Request::get("/v1/workers"))
    }

    /// Memory through which the daemon forwards, and its pages.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn regions(&self) -> Result<Vec<RegionView>, Error> {
        self.call(Request::get("/v1/regions"))
    }

    /// Has a worker serve rings, or write a table.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn move_to_worker(&self, what: &WorkerMove) -> Result<Moved, Error> {
        self.call(Request::with("POST", "/v1/workers/move", what)?)
    }

    /// The OpenAPI description of the daemon.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn openapi(&self) -> Result<serde_json::Value, Error> {
        self.call(Request::get("/v1/openapi.json"))
    }

    /// What happens from now on. The time limit holds for the answer's head, not for the events.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn monitor(&self) -> Result<Events, Error> {
        let request = Request::get("/v1/monitor");
        let body = http::open(&self.socket, self.timeout, &request)?;
        Ok(Events::new(body))
    }

    fn exchange(&self, request: &Request) -> Result<Answer, Error> {
        // Locked for no longer than this: another call does not wait for this one.
        let ahead = self
            .ahead
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let connection = match ahead.and_then(Connection::begin) {
            Some(connection) => connection,
            None => Connection::open(&self.socket, self.timeout)?,
        };
        http::exchange(connection, request)
    }

    fn call<T: DeserializeOwned>(&self, request: Request) -> Result<T, Error> {
        self.exchange(&request)?.read(&request)
    }
}

fn vnd_at(zone: &ZoneRef, name: &VndName) -> String {
    format!("/v1/vnds/{zone}/{name}")
}

fn at<R: Resource>(name: &Name) -> String {
    format!("{}/{name}", R::PATH)
}

/// A value as JSON; it fails only for types that JSON cannot express, which the API has none of.
fn json<T: Serialize + ?Sized>(value: &T, request: &str) -> Result<Vec<u8>, Error> {
    serde_json::to_vec(value).map_err(|error| Error::Answer {
        request: request.into(),
        reason: error.to_string(),
    })
}
