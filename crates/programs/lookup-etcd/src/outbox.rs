//! Lines for the daemon, in order; entries that follow one another go together.

use windlass_lookup::protocol::{ENTRIES_A_LINE_MAX, Entry, FromPlugin, Withdrawn, sentence};

/// Lines that were not taken yet.
#[derive(Debug, Default)]
pub struct Outbox(Vec<FromPlugin>);

impl Outbox {
    /// A line. What etcd says is in some, whatever that is.
    pub fn say(&mut self, mut line: FromPlugin) {
        if let FromPlugin::Degraded { text, .. }
        | FromPlugin::Claimed {
            text: Some(text), ..
        } = &mut line
        {
            *text = sentence(text);
        }
        self.0.push(line);
    }

    /// An endpoint that is new or changed.
    pub fn push(&mut self, of: &str, entry: Entry) {
        if let Some(FromPlugin::Push { overlay, entries }) = self.0.last_mut()
            && overlay == of
            && entries.len() < ENTRIES_A_LINE_MAX
        {
            return entries.push(entry);
        }
        self.0.push(FromPlugin::Push {
            overlay: of.to_owned(),
            entries: vec![entry],
        });
    }

    /// An endpoint that is gone.
    pub fn withdraw(&mut self, of: &str, entry: Withdrawn) {
        if let Some(FromPlugin::Withdraw { overlay, entries }) = self.0.last_mut()
            && overlay == of
            && entries.len() < ENTRIES_A_LINE_MAX
        {
            return entries.push(entry);
        }
        self.0.push(FromPlugin::Withdraw {
            overlay: of.to_owned(),
            entries: vec![entry],
        });
    }

    /// Everything, once.
    pub fn take(&mut self) -> Vec<FromPlugin> {
        std::mem::take(&mut self.0)
    }
}
