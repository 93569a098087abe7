//! The look-up thread: what it waits for, and what one turn does.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::time::Instant;

use rustix::fs::inotify;
use windlass_api::Name;
use windlass_lookup::table::{ENTRIES_MAX, Table};
use windlass_sys::epoll::{Epoll, Events, Interest};
use windlass_sys::eventfd;

use super::file::{Endpoints, Found, Looks};
use super::{Ask, CHANGES_MAX, LookupConf, LookupKind, PluginUser, StartError, Told};

/// What is reported for the eventfd that wakes the thread.
const WAKE: u64 = 0;
/// What is reported for changes of directories.
const DIRECTORIES: u64 = 1;

/// Reads of changes of directories in one turn.
const READS_MAX: usize = 16;

/// Who is told.
type Tell = Box<dyn Fn(&Name, Told) + Send>;

/// One overlay's lookup.
struct Overlay {
    conf: LookupConf,
    table: Table,
    /// Of its file, if it has one.
    looks: Looks,
    /// Who waits for its start.
    waiter: Option<Sender<Result<(), StartError>>>,
    /// Why it is degraded, as it was told last.
    degraded: Option<String>,
}

impl Overlay {
    fn new(conf: LookupConf) -> Self {
        let mut table = Table::default();
        table.set_vnis(conf.vnis.iter().map(|(_, vni)| *vni));
        Self {
            conf,
            table,
            looks: Looks::default(),
            waiter: None,
            degraded: None,
        }
    }

    fn file(&self) -> Option<&PathBuf> {
        match &self.conf.kind {
            LookupKind::Files { config } => Some(config),
            LookupKind::Plugin { .. } => None,
        }
    }

    /// Takes what a file has as all there is.
    fn take(&mut self, endpoints: &Endpoints) -> Result<(), String> {
        let vnis = self.conf.vnis.len();
        if endpoints.len().saturating_mul(vnis) > ENTRIES_MAX {
            let count = endpoints.len();
            return Err(format!(
                "{count} endpoints in {vnis} VNIs are more than {ENTRIES_MAX}"
            ));
        }
        let put = |table: &mut Table| {
            table.sync_begin(None)?;
            for (_, vni) in &self.conf.vnis {
                for (mac, record) in endpoints {
                    table.put(*vni, *mac, record.clone())?;
                }
            }
            table.sync_end(None)
        };
        put(&mut self.table).map_err(|error| error.to_string())
    }

    /// Tells how it is, and who waits for its start.
    fn say(&mut self, tell: &Tell, how: Result<(), String>) {
        if let Some(waiter) = self.waiter.take() {
            // Whoever waited has given up at worst.
            let _ = waiter.send(how.clone().map_err(StartError));
        }
        let reason = how.err();
        if self.degraded != reason {
            let told = reason.clone().map_or(Told::Restored, Told::Degraded);
            tell(&self.conf.overlay, told);
            self.degraded = reason;
        }
    }

    fn tell_changes(&mut self, tell: &Tell) {
        while let Some((vni, changes)) = self.table.take_changes(CHANGES_MAX) {
            tell(&self.conf.overlay, Told::Entries { vni, changes });
        }
    }
}

/// The thread's state.
pub(super) struct Turns {
    tell: Tell,
    asks: Receiver<Ask>,
    wake: Arc<OwnedFd>,
    epoll: Epoll,
    /// Watches the directories of files.
    inotify: Arc<OwnedFd>,
    overlays: BTreeMap<Name, Overlay>,
    /// Outcomes of looks, with the overlay and the number of the look.
    found: Receiver<(Name, u64, Found)>,
    finds: Sender<(Name, u64, Found)>,
    /// The number of the last look.
    looks: u64,
}

impl Turns {
    pub(super) fn create(
        _: PluginUser,
        tell: Tell,
        asks: Receiver<Ask>,
        wake: Arc<OwnedFd>,
    ) -> io::Result<Self> {
        let epoll = Epoll::create()?;
        epoll.add(&wake, WAKE, Interest::READABLE)?;
        let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
        let inotify = Arc::new(inotify::init(flags)?);
        epoll.add(&inotify, DIRECTORIES, Interest::READABLE)?;
        let (finds, found) = mpsc::channel();
        Ok(Self {
            tell,
            asks,
            wake,
            epoll,
            inotify,
            overlays: BTreeMap::new(),
            found,
            finds,
            looks: 0,
        })
    }

    /// Serves until it is asked to end.
    pub(super) fn run(mut self) {
        let mut events = Events::default();
        loop {
            let now = Instant::now();
            let timeout = self.deadline().map(|at| at.saturating_duration_since(now));
            if let Err(errno) = self.epoll.wait(&mut events, timeout) {
                tracing::error!("epoll_wait: {errno}");
                return;
            }
            for ready in events.iter() {
                match ready.token {
                    // Nothing is lost by a failure: what it stands for is looked at in each turn.
                    WAKE => drop(eventfd::drain(&self.wake)),
                    _ => self.directories_changed(),
                }
            }
            while let Ok((overlay, number, found)) = self.found.try_recv() {
                self.looked(&overlay, number, found);
            }
            loop {
                match self.asks.try_recv() {
                    Ok(Ask::End) | Err(TryRecvError::Disconnected) => return,
                    Ok(ask) => self.answer(ask),
                    Err(TryRecvError::Empty) => break,
                }
            }
            self.do_what_is_due();
        }
    }

    fn deadline(&self) -> Option<Instant> {
        let overlays = self.overlays.values();
        let files = overlays.flat_map(|overlay| [overlay.looks.due, overlay.looks.until]);
        files.flatten().min()
    }

    fn answer(&mut self, ask: Ask) {
        match ask {
            Ask::Start(conf, waiter) => {
                self.stop(&conf.overlay);
                self.start(conf, waiter);
            }
            Ask::Set(conf, waiter) => self.set(conf, waiter),
            Ask::Stop(overlay) => self.stop(&overlay),
            Ask::Reload(overlay) => {
                if let Some(overlay) = self.overlays.get_mut(&overlay) {
                    overlay.looks.forget(Instant::now());
                }
            }
            // Of plugins alone; none is there.
            Ask::Lookup { .. }
            | Ask::Announce(..)
            | Ask::Retire(..)
            | Ask::Forget(..)
            | Ask::Resync(..)
            | Ask::End => {}
        }
    }

    fn start(&mut self, conf: LookupConf, waiter: Sender<Result<(), StartError>>) {
        let name = conf.overlay.clone();
        let mut overlay = Overlay::new(conf);
        overlay.waiter = Some(waiter);
        self.overlays.insert(name.clone(), overlay);
        self.look(&name);
    }

    fn set(&mut self, conf: LookupConf, waiter: Sender<Result<(), StartError>>) {
        let Some(overlay) = self.overlays.get_mut(&conf.overlay) else {
            return self.start(conf, waiter);
        };
        let name = conf.overlay.clone();
        overlay
            .table
            .set_vnis(conf.vnis.iter().map(|(_, vni)| *vni));
        overlay.conf = conf;
        overlay.waiter = Some(waiter);
        overlay.tell_changes(&self.tell);
        let watch = std::mem::take(&mut overlay.looks).watch;
        self.unwatch(watch);
        self.look(&name);
    }

    fn stop(&mut self, overlay: &Name) {
        if let Some(overlay) = self.overlays.remove(overlay) {
            self.unwatch(overlay.looks.watch);
        }
    }

    /// Has a directory watched no longer, unless another file is in it, or may be: a look that goes on has a watch of its own,
    /// which can be the same.
    fn unwatch(&self, watch: Option<i32>) {
        let uses = |looks: &Looks| looks.watch == watch || looks.number != 0;
        if let Some(watch) = watch
            && !self.overlays.values().any(|overlay| uses(&overlay.looks))
        {
            // It is gone if its directory is.
            let _ = inotify::remove_watch(&*self.inotify, watch);
        }
    }

    /// Something has changed in a directory. Which one is not asked: each file is looked at, and read only if it is another.
    fn directories_changed(&mut self) {
        let mut room = [0; 4096];
        for _ in 0..READS_MAX {
            if rustix::io::read(&*self.inotify, &mut room).is_err() {
                break;
            }
        }
        let now = Instant::now();
        for overlay in self.overlays.values_mut() {
            if overlay.file().is_some() {
                overlay.looks.change(now);
            }
        }
    }

    /// Begins to look at an overlay's file, if it has one.
    fn look(&mut self, name: &Name) {
        let Some(overlay) = self.overlays.get_mut(name) else {
            return;
        };
        let Some(path) = overlay.file().cloned() else {
            return;
        };
        self.looks += 1;
        let (number, finds, wake) = (self.looks, self.finds.clone(), Arc::clone(&self.wake));
        let of = name.clone();
        let done = move |found| {
            // Where the thread has ended, nobody wants to know.
            let _ = finds.send((of, number, found));
            let _ = eventfd::signal(&wake);
        };
        let begun = overlay.looks.begin(number, &path, &self.inotify, done);
        if let Err(reason) = begun {
            let reason = format!("{}: {reason}", path.display());
            overlay.say(&self.tell, Err(reason));
        }
    }

    /// A look has ended.
    fn looked(&mut self, name: &Name, number: u64, found: Found) {
        let overlay = self.overlays.get_mut(name);
        let Some(overlay) = overlay.filter(|overlay| overlay.looks.number == number) else {
            // Of a path or an overlay that is no more.
            return self.unwatch(found.watch);
        };
        let before = overlay.looks.watch;
        let how = overlay.looks.end(found);
        let how = how.and_then(|endpoints| match endpoints {
            Some(endpoints) => {
                overlay.looks.content = overlay.take(&endpoints);
                overlay.looks.content.clone()
            }
            None => Ok(()),
        });
        overlay.tell_changes(&self.tell);
        overlay.say(&self.tell, how);
        if before != overlay.looks.watch {
            self.unwatch(before);
        }
    }

    fn do_what_is_due(&mut self) {
        let now = Instant::now();
        let is_past = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        let mut due = Vec::new();
        for (name, overlay) in &mut self.overlays {
            if is_past(overlay.looks.until) {
                overlay.looks.until = None;
                let path = overlay.file().map(|path| path.display().to_string());
                let path = path.unwrap_or_default();
                let reason = format!("{path}: its file system does not answer");
                overlay.say(&self.tell, Err(reason));
            }
            if is_past(overlay.looks.due) {
                due.push(name.clone());
            }
        }
        for name in due {
            self.look(&name);
        }
    }
}
