//! A daemon of the test's own, over the memory backend, and a bare HTTP client for it.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_res_gid, set_thread_res_uid};
use serde_json::Value;
use windlass_api::{Applied, Document, ErrorBody, Name, Status};
use windlassd::authority::Peer;
use windlassd::backend::{Backend, StateSink};
use windlassd::engine::{Engine, EngineHandle};
use windlassd::http::{App, Server, SocketLock};
use windlassd::memory::{Memory, MemoryBackend};
use windlassd::options::{Args, Limits, Options};
use windlassd::routes;

/// Options that keep everything in one directory.
pub fn options(directory: &Path) -> Options {
    let config = directory.join("none.toml");
    std::fs::write(&config, "").unwrap();
    let args = Args {
        config: Some(config),
        socket: Some(directory.join("run/control.sock")),
        state_dir: Some(directory.join("state")),
        runtime_dir: Some(directory.join("run")),
        ..Args::default()
    };
    Options::load(&args).unwrap()
}

/// What changes a document.
pub type Edit = Box<dyn FnMut(&Engine, &mut Document) -> Result<(), ErrorBody> + Send>;

/// A running daemon; dropping it ends it in order.
pub struct Daemon {
    pub socket: PathBuf,
    /// Over the memory backend, what that has; of its own otherwise.
    pub memory: Arc<Mutex<Memory>>,
    backend: Option<MemoryBackend>,
    /// Changes what is allowed, as a reload does.
    pub limits: tokio::sync::watch::Sender<Limits>,
    engine: EngineHandle,
    engine_thread: Option<JoinHandle<()>>,
    api_thread: Option<JoinHandle<()>>,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
}

impl Daemon {
    /// Starts one over what an earlier one left, or over nothing.
    pub fn start(options: &Options, memory: Option<Arc<Mutex<Memory>>>) -> Self {
        let memory = memory.unwrap_or_default();
        let mut made = None;
        let mut daemon = Self::start_over(options, |sink| {
            let backend = MemoryBackend::over(memory.clone(), sink);
            made = Some(backend.clone());
            Ok(Box::new(backend))
        });
        daemon.memory = memory;
        daemon.backend = made;
        daemon
    }

    /// Starts one over any backend.
    pub fn start_over(
        options: &Options,
        build: impl FnOnce(StateSink) -> anyhow::Result<Box<dyn Backend>>,
    ) -> Self {
        Self::start_on(options, build, |_| {})
    }

    /// The same; `prepare` is given the socket before it is served.
    pub fn start_on(
        options: &Options,
        build: impl FnOnce(StateSink) -> anyhow::Result<Box<dyn Backend>>,
        prepare: impl FnOnce(&tokio::net::UnixListener) + Send + 'static,
    ) -> Self {
        windlassd::paths::make_runtime_dir(&options.runtime_dir).unwrap();
        let mut lock = SocketLock::take(&options.socket, None).unwrap();
        let (engine, engine_thread) = Engine::spawn(options, build).unwrap();
        let (limits, allowed) = tokio::sync::watch::channel(options.limits);
        let app = App {
            engine: engine.clone(),
            limits: allowed.clone(),
        };
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let (listening, listens) = std::sync::mpsc::channel();
        let api_thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async move {
                let listener = lock.listen().unwrap();
                prepare(&listener);
                listening.send(()).unwrap();
                let mut server = Server::start(listener, routes::router(app), allowed);
                let _ = stopped.await;
                server.end(Duration::ZERO).await;
            });
        });
        listens.recv().unwrap();
        Self {
            socket: options.socket.clone(),
            memory: Arc::default(),
            backend: None,
            limits,
            engine,
            engine_thread: Some(engine_thread),
            api_thread: Some(api_thread),
            stop: Some(stop),
        }
    }

    /// Sends a request and gives status and JSON.
    pub fn ask(&self, method: &str, path: &str, body: Option<Value>) -> (u16, Value) {
        ask(&self.socket, method, path, body)
    }

    /// Sends a request that must succeed.
    pub fn must(&self, method: &str, path: &str, body: Option<Value>) -> Value {
        let (status, json) = self.ask(method, path, body);
        assert!(
            (200..300).contains(&status),
            "{method} {path}: {status} {json}"
        );
        json
    }

    /// Sends a request that must fail with this code.
    pub fn refused(&self, method: &str, path: &str, body: Option<Value>, code: &str) -> Value {
        let (status, json) = self.ask(method, path, body);
        assert!(status >= 400, "{method} {path}: {status} {json}");
        assert_eq!(json["code"], code, "{method} {path}: {json}");
        assert!(json["message"].as_str().is_some_and(|m| !m.is_empty()));
        json
    }

    /// Changes the document for somebody else.
    pub fn change(
        &self,
        peer: Peer,
        edit: impl FnOnce(&mut Document) -> Result<(), ErrorBody> + Send + 'static,
    ) -> Result<Applied, ErrorBody> {
        self.call(move |engine| engine.change(&peer, None, false, edit))
    }

    /// Asks the engine.
    pub fn call<T: Send + 'static>(
        &self,
        what: impl FnOnce(&mut Engine) -> Result<T, ErrorBody> + Send + 'static,
    ) -> Result<T, ErrorBody> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        let itself = Peer::daemon();
        runtime.block_on(self.engine.call(&itself, what))
    }

    /// The engine.
    pub fn engine(&self) -> EngineHandle {
        self.engine.clone()
    }

    /// Changes the document for the daemon itself by all of these, which wait together, in their order.
    pub fn change_at_once(&self, edits: Vec<Edit>) -> Vec<Result<Applied, ErrorBody>> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        let itself = Peer::daemon();
        runtime.block_on(async {
            let (go, gone) = std::sync::mpsc::channel::<()>();
            let engine = self.engine.clone();
            let busy = tokio::spawn(async move {
                let wait = move |_: &mut Engine| {
                    gone.recv().unwrap();
                    Ok(())
                };
                engine.call(&itself, wait).await
            });
            let asked: Vec<_> = (edits.into_iter())
                .map(|edit| {
                    let engine = self.engine.clone();
                    tokio::spawn(async move { engine.change(&itself, None, false, edit).await })
                })
                .collect();
            // At least one of the tasks asks before this one goes on.
            for _ in 0..=asked.len() {
                tokio::task::yield_now().await;
            }
            go.send(()).unwrap();
            busy.await.unwrap().unwrap();
            let mut results = Vec::new();
            for asked in asked {
                results.push(asked.await.unwrap());
            }
            results
        })
    }

    /// Sets the state of a member in the memory backend, which says so.
    pub fn say(&self, member: &Name, status: Status) {
        self.backend.as_ref().unwrap().say(member, status);
    }

    /// The calls that the backend got since the last time.
    pub fn calls(&self) -> Vec<String> {
        std::mem::take(&mut self.memory.lock().unwrap().calls)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.stop.take().map(|stop| stop.send(()));
        self.engine.stop();
        let engine = self.engine_thread.take().map(JoinHandle::join);
        let api = self.api_thread.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            assert!(matches!((engine, api), (Some(Ok(())), Some(Ok(())))));
        }
    }
}

/// Opens a connection that waits ten seconds at most.
pub fn connect(socket: &Path) -> UnixStream {
    let stream = UnixStream::connect(socket).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    stream
}

/// The same for another user, which only root can.
pub fn connect_as(uid: u32, socket: &Path) -> UnixStream {
    let connecting = || {
        // Of this thread only.
        let (id, group) = (Uid::from_raw(uid), Gid::from_raw(uid));
        set_thread_res_gid(group, group, group).unwrap();
        set_thread_res_uid(id, id, id).unwrap();
        connect(socket)
    };
    std::thread::scope(|scope| scope.spawn(connecting).join().unwrap())
}

/// Sends a request on a connection of its own and gives status and JSON (`null` if there is none).
pub fn ask(socket: &Path, method: &str, path: &str, body: Option<Value>) -> (u16, Value) {
    let body = body.map(|body| body.to_string()).unwrap_or_default();
    ask_text(socket, method, path, &body)
}

/// The same with any text as body.
pub fn ask_text(socket: &Path, method: &str, path: &str, body: &str) -> (u16, Value) {
    ask_on(connect(socket), method, path, body)
}

/// The same on this connection, which ends with it.
pub fn ask_on(mut stream: UnixStream, method: &str, path: &str, body: &str) -> (u16, Value) {
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: windlass\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    // A daemon that refuses early may close before all is written.
    let _ = stream.write_all(head.as_bytes());
    let _ = stream.write_all(body.as_bytes());
    read_answer(stream)
}

/// Reads an answer until the connection is closed.
pub fn read_answer(stream: UnixStream) -> (u16, Value) {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    let status = line
        .split(' ')
        .nth(1)
        .and_then(|code| code.parse().ok())
        .unwrap_or(0);
    let mut length = None;
    loop {
        let mut header = String::new();
        if reader.read_line(&mut header).unwrap() == 0 || header == "\r\n" {
            break;
        }
        if let Some(value) = header.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().ok();
        }
    }
    let mut text = vec![0; length.unwrap_or(0)];
    reader.read_exact(&mut text).unwrap();
    (status, serde_json::from_slice(&text).unwrap_or(Value::Null))
}
