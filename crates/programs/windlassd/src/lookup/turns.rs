//! The look-up thread: what it waits for, and what one turn does.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::time::Instant;

use rustix::fs::inotify;
use windlass_api::Name;
use windlass_lookup::protocol::ToPlugin;
use windlass_sys::epoll::{Epoll, Events, Interest};
use windlass_sys::eventfd;

use super::file::{Found, Looks};
use super::overlay::{Overlay, Tell, Waiter, announced, retired};
use super::plugins::Plugins;
use super::{Ask, LookupConf, Pace, Told};

/// What is reported for the eventfd that wakes the thread.
const WAKE: u64 = 0;
/// What is reported for changes of directories.
const DIRECTORIES: u64 = 1;
/// Reads of changes of directories in one turn.
const READS_MAX: usize = 16;

/// The thread's state.
pub(super) struct Turns {
    tell: Tell,
    asks: Receiver<Ask>,
    wake: Arc<OwnedFd>,
    epoll: Epoll,
    /// Watches the directories of files.
    inotify: Arc<OwnedFd>,
    overlays: BTreeMap<Name, Overlay>,
    plugins: Plugins,
    /// Outcomes of looks, with the overlay and the number of the look.
    found: Receiver<(Name, u64, Found)>,
    finds: Sender<(Name, u64, Found)>,
    /// The number of the last look.
    looks: u64,
}

impl Turns {
    pub(super) fn create(
        pace: Pace,
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
            plugins: Plugins::new(pace),
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
                    DIRECTORIES => self.directories_changed(),
                    session => {
                        let (plugins, overlays) = (&mut self.plugins, &mut self.overlays);
                        plugins.ready(&self.epoll, session, overlays, &self.tell);
                    }
                }
            }
            while let Ok((overlay, number, found)) = self.found.try_recv() {
                self.looked(&overlay, number, found);
            }
            loop {
                match self.asks.try_recv() {
                    Ok(Ask::End) | Err(TryRecvError::Disconnected) => {
                        return self.plugins.end(&self.epoll);
                    }
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
        let plugins = self.plugins.deadline(&self.overlays);
        files.flatten().chain(plugins).min()
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
            Ask::Lookup {
                overlay,
                id,
                vni,
                key,
            } => {
                if let Some(of) = self.overlays.get_mut(&overlay)
                    && let Some(answer) = self.plugins.ask(&self.epoll, of, (id, vni, key))
                {
                    (self.tell)(&overlay, Told::Answer { id, answer });
                }
            }
            Ask::Announce(overlay, endpoint) => {
                if let Some(of) = self.overlays.get_mut(&overlay)
                    && of.note(&endpoint)
                {
                    let message = ToPlugin::Announce(announced(&overlay, &endpoint));
                    self.plugins.tell(&self.epoll, of, &message);
                }
            }
            Ask::Retire(overlay, vni, mac) => {
                if let Some(of) = self.overlays.get_mut(&overlay)
                    && of.retire((vni, mac))
                {
                    let message = retired(&overlay, (vni, mac));
                    self.plugins.tell(&self.epoll, of, &message);
                }
            }
            Ask::Claim(overlay, claim, answer) => match self.overlays.get(&overlay) {
                Some(of) => self.plugins.claim(&self.epoll, of, claim, answer),
                None => answer(Err("the overlay has no search".to_owned())),
            },
            Ask::Release(overlay, vni, owner) => {
                let name = overlay.to_string();
                let message = ToPlugin::Release {
                    overlay: name,
                    vni,
                    owner,
                };
                self.tell_plugin(&overlay, &message);
            }
            Ask::Forget(overlay, host) => {
                let name = overlay.to_string();
                let message = ToPlugin::Forget {
                    overlay: name,
                    host,
                };
                self.tell_plugin(&overlay, &message);
            }
            Ask::Resync(overlay) => {
                let name = overlay.to_string();
                self.tell_plugin(&overlay, &ToPlugin::Resync { overlay: name });
            }
            Ask::End => {}
        }
    }

    fn tell_plugin(&mut self, overlay: &Name, message: &ToPlugin) {
        if let Some(overlay) = self.overlays.get(overlay) {
            self.plugins.tell(&self.epoll, overlay, message);
        }
    }

    fn start(&mut self, conf: LookupConf, waiter: Waiter) {
        let name = conf.overlay.clone();
        (self.tell)(&name, Told::Begun);
        let mut overlay = Overlay::new(conf, waiter);
        self.plugins.join(&self.epoll, &mut overlay, &self.tell);
        self.overlays.insert(name.clone(), overlay);
        self.look(&name);
    }

    fn set(&mut self, conf: LookupConf, waiter: Waiter) {
        let Some(mut overlay) = self.overlays.remove(&conf.overlay) else {
            return self.start(conf, waiter);
        };
        let name = conf.overlay.clone();
        overlay.waiter = Some(waiter);
        if overlay.is_served() && overlay.plugin() == conf.plugin() {
            overlay.next = Some(conf);
            self.plugins.change(&self.epoll, &mut overlay, &self.tell);
            self.overlays.insert(name, overlay);
            return;
        }
        let others = &self.overlays;
        self.plugins.leave(&self.epoll, &mut overlay, others);
        overlay.is_inherited = overlay.plugin() != conf.plugin();
        (overlay.conf, overlay.next) = (conf, None);
        overlay.set_vnis();
        overlay.tell_changes(&self.tell);
        let watch = std::mem::take(&mut overlay.looks).watch;
        self.plugins.join(&self.epoll, &mut overlay, &self.tell);
        self.overlays.insert(name.clone(), overlay);
        self.unwatch(watch);
        self.look(&name);
    }

    fn stop(&mut self, overlay: &Name) {
        if let Some(mut overlay) = self.overlays.remove(overlay) {
            let others = &self.overlays;
            self.plugins.leave(&self.epoll, &mut overlay, others);
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
        let (plugins, overlays) = (&mut self.plugins, &mut self.overlays);
        plugins.do_what_is_due(&self.epoll, overlays, &self.tell);
    }
}
