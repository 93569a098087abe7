//! The command against a daemon that answers what it was told to: every form, every exit code, every
//! form of output.

mod completion;
mod failures;
mod fake;
mod forms;
mod guest;
mod metrics;
mod output;
mod run;
mod statistics;
mod status;
