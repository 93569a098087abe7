//! Changes that wait together: made one after the other, stored and published once.
//!
//! # Model
//! Each [`Proposal`] is checked against the document that those before it have left, and its steps are made in the one edit of the
//! backend that all of them share. One that is refused, by a check or by the backend, is undone by itself; the others go on
//! without it. Then the document that they make together is stored, and the edit ends: one flush of the disk and one
//! publication for all, after which each is answered, and the document before is removed from the disk. If the store refuses, all of them are undone, and whoever was to be told
//! that what he asks for is there already has the store's answer too.
//!
//! One that makes overlays, or gives them other searches, waits aside until those have said their first word, and is checked again from the
//! beginning then.
//!
//! Each that changes something has a revision of its own; the document is stored with the last.
//!
//! # Failure modes
//! A kill leaves the document from before all of them, or from after all of them: nobody has an answer yet.

use std::collections::BTreeSet;

use windlass_api::{
    Applied, Change, Document, ErrorBody, ErrorCode, EventKind, Name, Object, diff, validate,
};

use super::apply::{draw_mac, refused};
use super::claims::check_loops;
use super::{Audience, Engine};
use crate::authority::Peer;
use crate::store::StoreError;

/// Changes that are stored together at most, with the calls that come between them.
pub(super) const TOGETHER_MAX: usize = 128;

type Edit = dyn FnMut(&Engine, &mut Document) -> Result<(), ErrorBody> + Send;
type Answer = dyn FnOnce(Result<Applied, ErrorBody>) + Send;

/// A change that somebody asks for.
pub(super) struct Proposal {
    pub(super) peer: Peer,
    /// The revision that the document must have.
    pub(super) expected: Option<u64>,
    /// Only to say what would be changed.
    pub(super) dry_run: bool,
    /// Changes the document, which is the engine's; once or more often.
    pub(super) edit: Box<Edit>,
    /// Given the result, once it is durable.
    pub(super) answer: Box<Answer>,
    /// Overlays whose searches have begun for it.
    pub(super) overlays: BTreeSet<Name>,
}

/// What has become of a proposal.
enum Proposed {
    Done(Applied),
    /// Searches have not said their first word.
    Waits,
}

/// What has been made of a proposal, and is to be stored.
struct Made {
    revision: u64,
    changes: Vec<(Change, Audience)>,
}

impl Engine {
    /// Changes the document by `edit` for the peer; with `dry_run` only says what would be changed.
    ///
    /// # Errors
    /// What `edit` returns; [`ErrorCode::Conflict`] if `expected` is not the revision; what validation,
    /// authority, the data plane or the store refuse, and [`ErrorCode::Internal`] if a search of an overlay begins with it. Nothing has
    /// changed then.
    pub fn change(
        &mut self,
        peer: &Peer,
        expected: Option<u64>,
        dry_run: bool,
        edit: impl FnOnce(&mut Document) -> Result<(), ErrorBody> + Send + 'static,
    ) -> Result<Applied, ErrorBody> {
        let mut edit = Some(edit);
        let (answer, answered) = std::sync::mpsc::sync_channel(1);
        self.change_together(vec![Proposal {
            peer: *peer,
            expected,
            dry_run,
            edit: Box::new(move |_, document| edit.take().map_or(Ok(()), |edit| edit(document))),
            answer: Box::new(move |result| drop(answer.send(result))),
            overlays: BTreeSet::new(),
        }]);
        let unanswered = |_| ErrorBody::plain(ErrorCode::Internal, "a change was not answered");
        answered.try_recv().map_err(unanswered)?
    }

    /// Makes these changes, and answers each.
    pub(super) fn change_together(&mut self, proposals: Vec<Proposal>) {
        let (before, revision) = (self.document.clone(), self.revision);
        let mut results = Vec::with_capacity(proposals.len());
        let mut all = Vec::new();
        for mut proposal in proposals {
            let done = match self.propose(&mut proposal, &mut all) {
                Ok(Proposed::Done(done)) => Ok(done),
                Ok(Proposed::Waits) => {
                    match self.is_leaving {
                        true => self.refuse(proposal),
                        false => self.aside.push(proposal),
                    }
                    continue;
                }
                Err(error) => {
                    let overlays = &proposal.overlays;
                    overlays
                        .iter()
                        .for_each(|name| self.backend.end_search(name));
                    Err(error)
                }
            };
            results.push((proposal.peer, proposal.answer, done));
        }
        let is_stored = !all.is_empty();
        let stored = match is_stored {
            true => self.settle(all, &before, revision),
            false => Ok(()),
        };
        for (peer, answer, result) in results {
            let has_changed = |done: &Applied| !done.dry_run && !done.changes.is_empty();
            let result = match (&stored, result) {
                // Made, or compared with what was made before it.
                (Err(error), Ok(done)) if done.revision != revision => Err(error.clone()),
                (_, result) => result,
            };
            match &result {
                Ok(done) if has_changed(done) => {
                    self.tell_changes(&peer, done.revision, &done.changes);
                }
                Ok(_) => {}
                Err(error) => self.tell_refused(&peer, error),
            }
            answer(result);
        }
        if is_stored {
            // Nobody waits for that.
            self.tidy();
        }
    }

    /// Refuses a change that would wait while this daemon ends.
    pub(super) fn refuse(&mut self, proposal: Proposal) {
        let overlays = &proposal.overlays;
        overlays
            .iter()
            .for_each(|name| self.backend.end_search(name));
        let why = "the daemon ends, or is being replaced: try again";
        (proposal.answer)(Err(ErrorBody::plain(ErrorCode::Busy, why)));
    }

    /// Checks a change, and makes its steps in the edit that it opens if it is the first.
    fn propose(
        &mut self,
        proposal: &mut Proposal,
        all: &mut Vec<Made>,
    ) -> Result<Proposed, ErrorBody> {
        let (peer, dry_run) = (&proposal.peer, proposal.dry_run);
        if let Some(expected) = proposal
            .expected
            .filter(|&expected| expected != self.revision)
        {
            let now = self.revision;
            let message =
                format!("the document is at revision {now}, not {expected}: read it again");
            return Err(ErrorBody::plain(ErrorCode::Conflict, message));
        }
        let mut next = self.document.clone();
        (proposal.edit)(self, &mut next)?;
        next.complete(&self.document, draw_mac);
        next.canonicalize();
        peer.may_have_vnds(&self.document, &next)?;
        let changes = diff(&self.document, &next);
        for change in &changes {
            peer.may(change, &self.document, &next, &self.runtime_dir)?;
        }
        self.check_shares(peer, &next)?;
        self.check_owners(&next, &changes)?;
        self.check_vnds(&next, &changes)?;
        validate(&next, &self.document)?;
        check_loops(&next, &changes)?;
        let warnings = self.check_claims(peer, &next, &changes)?;
        if !dry_run && !changes.is_empty() {
            if !self.begin_searches(&changes, &next, &mut proposal.overlays)? {
                return Ok(Proposed::Waits);
            }
            if all.is_empty() {
                self.backend.begin_edit();
            }
            let before = self.document.clone();
            if let Err(error) = self.step_all(&changes, &before) {
                for change in &changes {
                    self.end(&change.inverse());
                }
                if all.is_empty() {
                    self.backend.end_edit();
                }
                return Err(error);
            }
            self.document = next;
            self.revision += 1;
            let told = changes.iter().cloned().map(|change| {
                let audience = self.audience_of(&change, &before);
                (change, audience)
            });
            all.push(Made {
                revision: self.revision,
                changes: told.collect(),
            });
        }
        Ok(Proposed::Done(Applied {
            revision: self.revision,
            dry_run,
            changes,
            warnings,
        }))
    }

    /// Has the searches of overlays that are to be made, or have others, begin; whether all have said their first word.
    fn begin_searches(
        &mut self,
        changes: &[Change],
        next: &Document,
        begun: &mut BTreeSet<Name>,
    ) -> Result<bool, ErrorBody> {
        let mut have_spoken = true;
        for change in changes {
            let (Change::Create { to } | Change::Set { to, .. }) = change else {
                continue;
            };
            let Object::Overlay(overlay) = to else {
                continue;
            };
            let bridge = next.bridge(overlay.bridge().as_str());
            let filters = bridge.is_some_and(|bridge| bridge.settings().vlan_filtering);
            match self.backend.begin_search(overlay, filters) {
                Some(word) => word.map_err(|error| refused(to, error))?,
                None => {
                    begun.insert(overlay.name.clone());
                    have_spoken = false;
                }
            }
        }
        Ok(have_spoken)
    }

    /// Stores what was made and ends the edit, or undoes it all.
    fn settle(
        &mut self,
        all: Vec<Made>,
        before: &Document,
        revision: u64,
    ) -> Result<(), ErrorBody> {
        let made = self.store_all(before, revision);
        if made.is_err() {
            let changes = all.iter().flat_map(|made| &made.changes);
            let changes: Vec<Change> = changes.map(|(change, _)| change.clone()).collect();
            self.undo(&changes, before);
            self.revision = revision;
        }
        self.backend.end_edit();
        for (change, _) in all.iter().flat_map(|made| &made.changes) {
            match made.is_ok() {
                true => self.end(change),
                false => self.end(&change.inverse()),
            }
        }
        made.map_err(|error| {
            ErrorBody::plain(ErrorCode::Storage, format!("{error}; nothing was changed"))
        })?;
        let mut waiting = Vec::new();
        for Made { revision, changes } in all {
            for (change, audience) in changes {
                waiting.push(change.clone());
                let change = Box::new(change);
                self.publish_at(revision, EventKind::Change { change }, audience);
            }
        }
        self.tell_waiting(&waiting);
        self.note_states();
        Ok(())
    }

    /// Puts the document in the place of the one `before`, which had this revision.
    fn store_all(&mut self, before: &Document, revision: u64) -> Result<(), StoreError> {
        self.store.prepare(self.revision, &self.document)?;
        let committed = self.store.commit();
        if committed.is_err() {
            // The rename may have been made and only its flush have failed: put the old one back.
            let back = self.store.prepare(revision, before);
            if let Err(error) = back.and_then(|()| self.store.commit()) {
                tracing::error!("{error}");
            }
        }
        committed
    }
}
