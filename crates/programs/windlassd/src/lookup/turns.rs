//! The look-up thread: what it waits for, and what one turn does.

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
use super::overlay::{Overlay, Overlays, Tell, Waiter, announced, retired};
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
    overlays: Overlays,
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
            overlays: Overlays::default(),
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
            self.end_refused();
        }
    }

    fn deadline(&self) -> Option<Instant> {
        let overlays = self.overlays.all();
        let files = overlays.flat_map(|overlay| [overlay.looks.due, overlay.looks.until]);
        let plugins = self.plugins.deadline(&self.overlays);
        files.flatten().chain(plugins).min()
    }

    fn answer(&mut self, ask: Ask) {
        match ask {
            Ask::Start(conf, waiter) => self.start(conf, waiter),
            Ask::Set(conf, waiter) => self.set(conf, waiter),
            Ask::Try(conf, waiter) => self.try_set(conf, waiter),
            Ask::Stop(overlay) => self.stop(&overlay),
            Ask::Reload(overlay) => {
                if let Some(overlay) = self.overlays.there.get_mut(&overlay) {
                    overlay.looks.forget(Instant::now());
                }
            }
            Ask::Lookup {
                overlay,
                id,
                vni,
                key,
            } => {
                if let Some(of) = self.overlays.there.get_mut(&overlay)
                    && let Some(answer) = self.plugins.ask(&self.epoll, of, (id, vni, key))
                {
                    (self.tell)(&overlay, Told::Answer { id, answer });
                }
            }
            Ask::Announce(overlay, endpoint) => {
                if let Some(of) = self.overlays.there.get_mut(&overlay)
                    && of.note(&endpoint)
                {
                    let message = ToPlugin::Announce(announced(&overlay, &endpoint));
                    self.plugins.tell(&self.epoll, of, &message);
                }
            }
            Ask::Retire(overlay, vni, mac) => {
                if let Some(of) = self.overlays.there.get_mut(&overlay)
                    && of.retire((vni, mac))
                {
                    let message = retired(&overlay, (vni, mac));
                    self.plugins.tell(&self.epoll, of, &message);
                }
            }
            Ask::Claim(overlay, claim, answer) => match self.overlays.there.get(&overlay) {
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
        if let Some(overlay) = self.overlays.there.get(overlay) {
            self.plugins.tell(&self.epoll, overlay, message);
        }
    }

    fn start(&mut self, conf: LookupConf, waiter: Waiter) {
        let name = conf.overlay.clone();
        self.end_trial(&name);
        let former = self.overlays.there.remove(&name);
        let mut overlay = Overlay::new(conf, waiter);
        // One of the same plugin has its session, which would end if nobody had it.
        let same = former.as_ref().filter(|of| of.plugin() == overlay.plugin());
        overlay.session = same.and_then(|former| former.session);
        self.overlays.there.insert(name.clone(), overlay);
        if let Some(former) = former {
            self.leave(former);
        }
        (self.tell)(&name, Told::Begun);
        if let Some(overlay) = self.overlays.there.get_mut(&name) {
            self.plugins.join(&self.epoll, overlay, &self.tell);
        }
        self.look(&name, false);
    }

    /// Tries a change: with another source, beside what is there until that has taken it.
    fn try_set(&mut self, conf: LookupConf, waiter: Waiter) {
        self.end_trial(&conf.overlay);
        let there = self.overlays.there.get(&conf.overlay);
        let has_other = |of: &Overlay| of.file().is_some() || of.plugin() != conf.plugin();
        if !there.is_some_and(has_other) {
            return self.set(conf, waiter);
        }
        let name = conf.overlay.clone();
        let mut trial = Overlay::new(conf, waiter);
        trial.is_trial = true;
        self.plugins.join(&self.epoll, &mut trial, &self.tell);
        self.overlays.trials.insert(name.clone(), trial);
        self.look(&name, true);
    }

    fn end_trial(&mut self, name: &Name) {
        if let Some(trial) = self.overlays.trials.remove(name) {
            self.leave(trial);
        }
    }

    /// Ends what was taken out.
    fn leave(&mut self, mut overlay: Overlay) {
        let others = &self.overlays;
        self.plugins.leave(&self.epoll, &mut overlay, others);
        self.overlays.left.extend(overlay.looks.watch);
    }

    /// Ends what sources have refused, and watches that nobody needs any more.
    fn end_refused(&mut self) {
        let trials = self.overlays.trials.iter();
        let refused = trials.filter(|(_, trial)| trial.waiter.is_none());
        for name in refused.map(|(name, _)| name.clone()).collect::<Vec<_>>() {
            self.end_trial(&name);
        }
        for watch in std::mem::take(&mut self.overlays.left) {
            self.unwatch(Some(watch));
        }
    }

    fn set(&mut self, conf: LookupConf, waiter: Waiter) {
        self.end_trial(&conf.overlay);
        let Some(mut overlay) = self.overlays.there.remove(&conf.overlay) else {
            return self.start(conf, waiter);
        };
        let name = conf.overlay.clone();
        if overlay.conf == conf && overlay.next.is_none() {
            // It was tried with something else.
            self.overlays.there.insert(name, overlay);
            return;
        }
        overlay.waiter = Some(waiter);
        if overlay.is_served() && overlay.plugin() == conf.plugin() {
            overlay.next = Some(conf);
            self.plugins.change(&self.epoll, &mut overlay, &self.tell);
            self.overlays.there.insert(name, overlay);
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
        self.overlays.there.insert(name.clone(), overlay);
        self.unwatch(watch);
        self.look(&name, false);
    }

    fn stop(&mut self, overlay: &Name) {
        self.end_trial(overlay);
        if let Some(overlay) = self.overlays.there.remove(overlay) {
            self.leave(overlay);
        }
    }

    /// Has a directory watched no longer, unless another file is in it, or may be: a look that goes on has a watch of its own,
    /// which can be the same.
    fn unwatch(&self, watch: Option<i32>) {
        let uses = |looks: &Looks| looks.watch == watch || looks.number != 0;
        if let Some(watch) = watch
            && !self.overlays.all().any(|overlay| uses(&overlay.looks))
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
        for overlay in self.overlays.all_mut() {
            if overlay.file().is_some() {
                overlay.looks.change(now);
            }
        }
    }

    /// Begins to look at an overlay's file, if it has one.
    fn look(&mut self, name: &Name, is_trial: bool) {
        let overlays = match is_trial {
            true => &mut self.overlays.trials,
            false => &mut self.overlays.there,
        };
        let Some(overlay) = overlays.get_mut(name) else {
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
        let its = |overlay: &&mut Overlay| {
            overlay.conf.overlay == *name && overlay.looks.number == number
        };
        let Some(overlay) = self.overlays.all_mut().find(its) else {
            // Of a path or an overlay that is no more.
            return self.unwatch(found.watch);
        };
        let before = overlay.looks.watch;
        let mut how = overlay.looks.end(found);
        if overlay.is_trial {
            if let Ok(Some(endpoints)) = &how {
                how = overlay.take(endpoints).and(how);
            }
            if let Err(reason) = how {
                return overlay.say(&self.tell, Err(reason));
            }
            let (plugins, overlays) = (&mut self.plugins, &mut self.overlays);
            plugins.adopt(&self.epoll, name.as_str(), overlays);
        }
        let Some(overlay) = self.overlays.there.get_mut(name) else {
            return;
        };
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
        for overlay in self.overlays.all_mut() {
            if is_past(overlay.looks.until) {
                overlay.looks.until = None;
                let path = overlay.file().map(|path| path.display().to_string());
                let path = path.unwrap_or_default();
                let reason = format!("{path}: its file system does not answer");
                overlay.say(&self.tell, Err(reason));
            }
            if is_past(overlay.looks.due) {
                due.push((overlay.conf.overlay.clone(), overlay.is_trial));
            }
        }
        for (name, is_trial) in due {
            self.look(&name, is_trial);
        }
        let (plugins, overlays) = (&mut self.plugins, &mut self.overlays);
        plugins.do_what_is_due(&self.epoll, overlays, &self.tell);
    }
}
