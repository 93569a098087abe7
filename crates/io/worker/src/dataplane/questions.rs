//! What the searches of overlays are asked, and their answers: the control side of [`crate::questions`].

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;

use windlass_sync::mpsc;

use super::{DataPlane, DataPlaneError};
use crate::command::Command;
use crate::local::Notice;
use crate::questions::{Answer, Asker, QUESTIONS, Question};

/// Questions of all workers, and answers that are on their way to them.
pub(super) struct Asked {
    /// Where workers ask.
    pub(super) asker: Arc<Asker>,
    questions: mpsc::Receiver<(Question, u16)>,
    /// Those that were taken to see whose they are.
    kept: Vec<(Question, u16)>,
    /// With the number of workers that may still hold frames.
    answers: Vec<(Question, Arc<AtomicUsize>)>,
}

impl Asked {
    pub(super) fn new(notice: &Arc<Notice>) -> Asked {
        let (queue, questions) = mpsc::channel(QUESTIONS);
        let notice = notice.clone();
        Asked {
            asker: Arc::new(Asker { queue, notice }),
            questions,
            kept: Vec::new(),
            answers: Vec::new(),
        }
    }

    /// Forgets overlays that are gone: their numbers may be others' soon.
    pub(super) fn forget(&mut self, members: &[u16]) {
        let waiting = std::iter::from_fn(|| self.questions.pop());
        self.kept.extend(waiting.take(QUESTIONS));
        self.kept
            .retain(|(question, _)| !members.contains(&question.overlay));
        self.answers
            .retain(|(question, _)| !members.contains(&question.overlay));
    }
}

impl DataPlane {
    /// Where a member has unknown addresses asked for: an overlay with such a search.
    pub(super) fn asker_of(&self, member: u16) -> Option<Arc<Asker>> {
        let asks = self.overlays.asks(member);
        asks.then(|| self.questions.asker.clone())
    }

    /// What overlays with [`Unknown::Lookup`](super::overlays::Unknown::Lookup) ask their searches: each question from each worker, with
    /// the member whose frame asks. [`DataPlane::local_alarm`] tells of new ones. To be called after [`DataPlane::take_local`], which takes
    /// the notice.
    pub fn take_questions(&mut self) -> Vec<(Question, u16)> {
        let waiting = std::iter::from_fn(|| self.questions.questions.pop());
        let mut questions = std::mem::take(&mut self.questions.kept);
        questions.extend(waiting.take(QUESTIONS));
        questions
    }

    /// Tells the workers where an address is: what waits for it goes to this place, a target of the overlay, and so does what comes.
    /// [`DataPlane::take_answered`] gives the question again when all have sent what waited: the table is to be written
    /// then, and [`DataPlane::end_question`] to be called. Without a place what waits is dropped, and what comes for
    /// [`REFUSED_NS`](crate::questions::REFUSED_NS). An answer takes the place of one before it that is still on its way.
    pub fn answer_question(&mut self, question: Question, to: Option<u16>) {
        let left = Arc::new(AtomicUsize::new(self.workers.len()));
        for worker in &self.workers {
            let left = left.clone();
            worker.send(Command::Answer(Answer::Found { question, to, left }));
        }
        // Workers that have sent what they held for it may hold more for this one.
        self.questions
            .answers
            .retain(|(former, _)| *former != question);
        if to.is_some() {
            self.questions.answers.push((question, left));
        }
    }

    /// Questions for which no worker holds frames any more, since the last call. [`DataPlane::local_alarm`] tells of new ones.
    pub fn take_answered(&mut self) -> Vec<Question> {
        let mut answered = Vec::new();
        self.questions.answers.retain(|(question, left)| {
            let is_over = left.load(Ordering::Acquire) == 0;
            answered.extend(is_over.then_some(*question));
            !is_over
        });
        answered
    }

    /// No worker sends to these places for an answer any more, when it returns: their numbers may be others' then.
    pub(super) fn leave_places(&self, places: &[u16]) -> Result<(), DataPlaneError> {
        let places: Arc<[u16]> = places.into();
        let told = self.workers.iter().map(|worker| {
            let (done, answer) = sync_channel(1);
            let places = places.clone();
            worker.send(Command::Answer(Answer::Gone { places, done }));
            (worker, answer)
        });
        let told: Vec<_> = told.collect();
        told.iter()
            .try_for_each(|(worker, answer)| self.answer(worker, answer))
    }

    /// The table has the address, or is not to have it.
    pub fn end_question(&self, question: Question) {
        for worker in &self.workers {
            worker.send(Command::Answer(Answer::Known(question)));
        }
    }
}
