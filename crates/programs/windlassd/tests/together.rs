//! Changes that wait together: stored and published once, each with its own result.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod bridge;
mod daemon;
mod lab;

use std::future::{Future, poll_fn};
use std::mem::MaybeUninit;
use std::path::Path;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use bridge::{bridge_of, mac, start};
use daemon::{Daemon, Edit, options};
use lab::{Lab, until};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use serde_json::{Value, json};
use tokio::runtime::{Builder, Handle};
use windlass_api::{Applied, ErrorBody, ErrorCode};
use windlassd::authority::Peer;
use windlassd::engine::{Engine, EngineHandle};

/// Makes a VNIC.
fn vnic(vnic: Value) -> Edit {
    Box::new(move |_, document| {
        let vnic = serde_json::from_value(vnic.clone()).unwrap();
        document.vnics.push(vnic);
        Ok(())
    })
}

/// Changes something by its JSON: the list, the name in it, and a key with its value; no value: it is deleted.
fn put(list: &'static str, name: &'static str, key: &'static str, value: Option<Value>) -> Edit {
    Box::new(move |_, document| {
        let mut json = serde_json::to_value(&*document).unwrap();
        let objects = json[list].as_array_mut().unwrap();
        match &value {
            None => objects.retain(|object| object["name"] != name),
            Some(value) => {
                let object = objects.iter_mut().find(|object| object["name"] == name);
                object.unwrap()[key] = value.clone();
            }
        }
        *document = serde_json::from_value(json).unwrap();
        Ok(())
    })
}

/// How often a document was put in the place of another one while `work` was done.
fn stored(directory: &Path, work: impl FnOnce()) -> usize {
    let flags = CreateFlags::NONBLOCK | CreateFlags::CLOEXEC;
    let watch = inotify::init(flags).unwrap();
    let state = options(directory).state_dir;
    inotify::add_watch(&watch, state, WatchFlags::MOVED_TO).unwrap();
    work();
    let mut buffer = [const { MaybeUninit::uninit() }; 16384];
    let mut reader = inotify::Reader::new(&watch, &mut buffer);
    std::iter::from_fn(|| reader.next().ok().map(drop)).count()
}

/// What the API shows there.
fn seen(daemon: &Daemon, paths: &[&str]) -> Vec<Value> {
    let paths = paths.iter();
    let seen = paths.map(|path| {
        let mut seen = daemon.must("GET", &format!("/v1/{path}"), None);
        let entries = seen.get_mut("entries").and_then(Value::as_array_mut);
        for entry in entries.into_iter().flatten() {
            entry.as_object_mut().unwrap().remove("age_s");
        }
        seen
    });
    seen.collect()
}

/// Whether all VNICs are up.
fn are_up(daemon: &Daemon) -> bool {
    let vnics = daemon.must("GET", "/v1/vnics", None);
    let mut vnics = vnics.as_array().unwrap().iter();
    vnics.all(|vnic| vnic["state"] == "up")
}

/// Has the store refuse whatever it gets.
fn refuse_to_store(directory: &Path) {
    // Nothing can be put in its place.
    let document = options(directory).state_dir.join("document.json");
    std::fs::remove_file(&document).unwrap();
    std::fs::create_dir(&document).unwrap();
}

fn code(result: &Result<Applied, ErrorBody>) -> Option<ErrorCode> {
    result.as_ref().err().map(|error| error.code)
}

/// A hundred VNICs that are asked for at once are stored once and published once. Those that cannot be made are refused, each
/// with its own reason, and hinder none of the others. Each result has its revision, in the order in which they were asked for.
#[test]
fn a_hundred_are_stored_once() {
    let directory = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(&options(directory.path()), None);
    bridge_of(&daemon, 0, &json!({}));
    let first = daemon.must("GET", "/v1/daemon", None)["revision"]
        .as_u64()
        .unwrap();
    let mut edits: Vec<_> = (0..100)
        .map(|n| vnic(json!({"name": format!("v{n}"), "bridge": "br0"})))
        .collect();
    edits[20] = vnic(json!({"name": "v19", "bridge": "br0"}));
    edits[40] = vnic(json!({"name": "v40", "bridge": "nowhere"}));
    daemon.memory.lock().unwrap().fail = Some("create_vnic v60".into());
    let edits_before = daemon.memory.lock().unwrap().edits;
    let mut results = Vec::new();
    let times = stored(directory.path(), || results = daemon.change_at_once(edits));
    assert_eq!(times, 1);
    assert_eq!(daemon.memory.lock().unwrap().edits - edits_before, 1);
    let mut revision = first;
    for (number, result) in results.iter().enumerate() {
        let refused = [
            (20, ErrorCode::Invalid),
            (40, ErrorCode::Invalid),
            (60, ErrorCode::Host),
        ];
        let refused = refused.iter().find(|(at, _)| *at == number);
        assert_eq!(
            code(result),
            refused.map(|(_, code)| *code),
            "{number} {result:?}"
        );
        if let Ok(applied) = result {
            revision += 1;
            assert_eq!(applied.revision, revision);
            assert_eq!(applied.changes.len(), 1);
        }
    }
    assert_eq!(revision, first + 97);
    drop(daemon);
    let daemon = Daemon::start(&options(directory.path()), None);
    let vnics = daemon.must("GET", "/v1/vnics", None);
    assert_eq!(vnics.as_array().unwrap().len(), 97);
    assert_eq!(
        daemon.must("GET", "/v1/daemon", None)["revision"],
        json!(revision)
    );
}

/// If the store refuses, none of them is made, and each is told so; what was refused before that keeps its reason.
#[test]
fn the_store_refuses_all() {
    let directory = tempfile::tempdir().unwrap();
    let lab = Lab::default();
    let daemon = start(directory.path(), &lab);
    bridge_of(&daemon, 2, &json!({}));
    until("both are up", || are_up(&daemon));
    let seen = || seen(&daemon, &["document", "vnics", "bridges/br0/fdb"]);
    let before = seen();
    refuse_to_store(directory.path());
    let results = daemon.change_at_once(vec![
        vnic(json!({"name": "v2", "bridge": "br0"})),
        put("vnics", "v0", "mac", Some(json!(mac(77)))),
        vnic(json!({"name": "v3", "bridge": "nowhere"})),
        put("vnics", "v1", "", None),
        put("bridges", "br0", "properties", Some(json!({"ageing": 20}))),
    ]);
    let codes: Vec<_> = results.iter().map(code).collect();
    let refused = Some(ErrorCode::Storage);
    assert_eq!(
        codes,
        [refused, refused, Some(ErrorCode::Invalid), refused, refused]
    );
    assert_eq!(seen(), before);
    assert_eq!(lab.deleted(), 0);
}

/// What concerns one object in several ways is together as it is one by one: a bridge that is set twice, a VNIC that is made,
/// set, moved, deleted and made again.
#[test]
fn together_is_as_one_by_one() {
    let edits = || {
        let bridge = |properties: Value| put("bridges", "br0", "properties", Some(properties));
        vec![
            bridge(json!({"ageing": 20})),
            bridge(json!({"ageing": 20, "vlan-filtering": true})),
            bridge(json!({"ageing": 20, "vlan-filtering": true, "multicast-snooping": true})),
            put("vnics", "v0", "mac", Some(json!(mac(7)))),
            put("vnics", "v0", "properties", Some(json!({"mtu": 1300}))),
            put("vnics", "v1", "bridge", Some(json!("br1"))),
            put("vnics", "v1", "bridge", Some(json!("br0"))),
            put("vnics", "v2", "", None),
            vnic(json!({"name": "v2", "bridge": "br0", "mac": mac(9)})),
            put("vnics", "v3", "", None),
        ]
    };
    let made = |together: bool| {
        let directory = tempfile::tempdir().unwrap();
        let lab = Lab::default();
        let daemon = start(directory.path(), &lab);
        bridge_of(&daemon, 5, &json!({}));
        daemon.must("POST", "/v1/bridges", Some(json!({"name": "br1"})));
        let results = match together {
            true => daemon.change_at_once(edits()),
            false => edits()
                .into_iter()
                .flat_map(|edit| daemon.change_at_once(vec![edit]))
                .collect(),
        };
        let codes: Vec<_> = results.iter().map(code).collect();
        until("all are up", || are_up(&daemon));
        let paths = [
            "document",
            "vnics",
            "bridges",
            "bridges/br0/fdb",
            "bridges/br1/fdb",
        ];
        let seen = seen(&daemon, &paths);
        (codes, seen)
    };
    let (together, alone) = (made(true), made(false));
    assert_eq!(together.0, alone.0);
    assert_eq!(together.0, [None; 10]);
    for (together, alone) in together.1.iter().zip(&alone.1) {
        assert_eq!(together, alone);
    }
}

/// Whoever asks for what another one has just changed is not told that it is so, if the store refuses that.
#[test]
fn nobody_relies_on_what_is_not_stored() {
    let directory = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(&options(directory.path()), None);
    bridge_of(&daemon, 0, &json!({}));
    let revision = daemon.must("GET", "/v1/daemon", None)["revision"].clone();
    refuse_to_store(directory.path());
    let ageing = |seconds: u32| {
        put(
            "bridges",
            "br0",
            "properties",
            Some(json!({"ageing": seconds})),
        )
    };
    let as_it_is = put("bridges", "br0", "name", Some(json!("br0")));
    let results = daemon.change_at_once(vec![as_it_is, ageing(20), ageing(20)]);
    assert_eq!(json!(results[0].as_ref().unwrap().revision), revision);
    let refused = Some(ErrorCode::Storage);
    assert_eq!([code(&results[1]), code(&results[2])], [refused; 2]);
}

/// A zone that goes and comes again in one edit has its directory, also if the edit is undone.
#[test]
fn a_zone_that_comes_again_has_its_directory() {
    let directory = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(&options(directory.path()), None);
    let zone = json!({"name": "z", "owner_uid": 1000, "owner_gid": 1000});
    daemon.must("POST", "/v1/zones", Some(zone.clone()));
    let sockets = options(directory.path()).runtime_dir.join("zones/z");
    let replace = |daemon: &Daemon| {
        let zone = zone.clone();
        let come: Edit = Box::new(move |_, document| {
            let zone = serde_json::from_value(zone.clone()).unwrap();
            document.zones.push(zone);
            Ok(())
        });
        let results = daemon.change_at_once(vec![put("zones", "z", "", None), come]);
        results.iter().map(code).collect::<Vec<_>>()
    };
    assert!(sockets.is_dir());
    assert_eq!(replace(&daemon), [None, None]);
    assert!(sockets.is_dir());
    refuse_to_store(directory.path());
    assert_eq!(replace(&daemon), [Some(ErrorCode::Storage); 2]);
    assert!(sockets.is_dir());
}

/// Calls each of which has another one wait, so that there always is one.
fn call_on(engine: EngineHandle, runtime: Handle, left: Arc<AtomicUsize>) {
    if left.load(Ordering::Relaxed) == 0 {
        return;
    }
    left.fetch_sub(1, Ordering::Relaxed);
    let next = (engine.clone(), runtime.clone());
    let call = move |_: &mut Engine| {
        call_on(next.0, next.1, left);
        Ok(())
    };
    let _in_it = runtime.enter();
    let itself = Peer::daemon();
    let asked = pin!(engine.call(&itself, call));
    assert!(
        asked
            .poll(&mut Context::from_waker(Waker::noop()))
            .is_pending()
    );
}

/// A change is made while others call without an end.
#[test]
fn calls_do_not_keep_a_change_waiting() {
    async fn ask<T>(mut asked: Pin<&mut impl Future<Output = T>>) {
        poll_fn(|cx| Poll::Ready(asked.as_mut().poll(cx).is_ready())).await;
    }
    // Outlives the daemon, in which others call to the end.
    let runtime = Builder::new_current_thread().enable_time().build().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(&options(directory.path()), None);
    let engine = daemon.engine();
    let (itself, left) = (Peer::daemon(), Arc::new(AtomicUsize::new(10_000)));
    let (go, gone) = std::sync::mpsc::channel::<()>();
    let (engines, handle, others) = (engine.clone(), runtime.handle().clone(), Arc::clone(&left));
    let calls = move |_: &mut Engine| {
        gone.recv().unwrap();
        call_on(engines, handle, others);
        Ok(())
    };
    let left_then = runtime.block_on(async {
        let mut first = pin!(engine.call(&itself, calls));
        ask(first.as_mut()).await;
        let (tell, told) = std::sync::mpsc::channel();
        let edit = move |_: &Engine, _: &mut _| {
            tell.send(left.load(Ordering::Relaxed)).unwrap();
            Ok(())
        };
        let mut change = pin!(engine.change(&itself, None, false, edit));
        ask(change.as_mut()).await;
        go.send(()).unwrap();
        first.await.unwrap();
        change.await.unwrap();
        told.recv().unwrap()
    });
    assert!(left_then > 0);
}
