//! The registry as the engine sees it: what it asks, and what it is told.
//!
//! # Model
//! Nothing here does I/O. [`crate::link`] takes each [`Ask`] to etcd and brings back [`Told`]; the simulation takes it to a model.
//! Every transaction has one form: *if each of these keys was last changed at the revision that I saw (0: it is absent), do all of this;
//! else tell me what the keys are now*. A transaction whose answer was lost may so be asked again.

/// A key with its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kv {
    /// The key.
    pub key: String,
    /// The value.
    pub value: Vec<u8>,
    /// Revision of its last change.
    pub mod_revision: i64,
}

/// A change of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The key.
    pub key: String,
    /// The new value; `None`: deleted.
    pub value: Option<Vec<u8>>,
    /// Revision of this change.
    pub mod_revision: i64,
}

/// Keys that are listed and watched together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// Every host's addresses.
    Hosts,
    /// Which hosts are alive.
    Alive,
    /// The endpoints of a VNI.
    Endpoints(u32),
    /// The hosts that have members in a VNI.
    Flood(u32),
    /// Who owns the IP addresses of a VNI. Only listed.
    Addresses(u32),
    /// Blocks of addresses, of all pools. Only listed.
    Blocks,
    /// Every key of the cluster. Only listed.
    All,
}

/// One write of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// Writes a key.
    Put {
        /// The key.
        key: String,
        /// The value.
        value: Vec<u8>,
        /// With which lease it ends; 0: none.
        lease: i64,
    },
    /// Removes a key.
    Delete {
        /// The key.
        key: String,
    },
}

/// A transaction.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Txn {
    /// Keys, and the revision at which each was last changed; 0: it is absent.
    pub expect: Vec<(String, i64)>,
    /// What is done if that holds.
    pub then: Vec<Op>,
}

/// What a transaction did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It was applied; everything that it wrote has this revision.
    Done,
    /// Nothing was written. What the keys of `expect` are now, in their order.
    Conflict(Vec<Option<Kv>>),
    /// The registry refused it: it would refuse it again.
    Denied(String),
}

/// What a lease is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lease {
    /// The sign of life of this host: 30 s.
    Alive,
    /// Addresses that rest: 120 s. Those that come to rest within some time share one.
    Rest,
}

impl Lease {
    /// How long it lasts without a sign of life, in seconds.
    #[must_use]
    pub fn ttl_s(self) -> i64 {
        match self {
            Self::Alive => 30,
            Self::Rest => 120,
        }
    }
}

/// What the engine asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ask {
    /// Do a transaction.
    Txn {
        /// Comes back with the answer.
        id: u64,
        /// It.
        txn: Txn,
    },
    /// Did this key get this value at this revision?
    Check {
        /// The key.
        key: String,
        /// The value; `None`: it was absent then.
        value: Option<Vec<u8>>,
        /// The revision.
        revision: i64,
    },
    /// List a scope at one revision.
    List {
        /// Which.
        scope: Scope,
        /// With the leader's agreement; else as the member has it.
        fresh: bool,
    },
    /// Tell every change from this revision on.
    Watch {
        /// Which scope.
        scope: Scope,
        /// The first revision.
        from: i64,
    },
    /// No more of this scope.
    Unwatch {
        /// Which.
        scope: Scope,
    },
    /// Grant a lease.
    Grant {
        /// What for.
        of: Lease,
    },
    /// Say that this lease's owner is alive.
    KeepAlive {
        /// The lease.
        lease: i64,
    },
}

/// What the engine is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Told {
    /// There is a connection.
    Up,
    /// There is none any more. What was asked on it and not answered will not be.
    Down {
        /// Why, in words.
        why: String,
    },
    /// The answer to a transaction.
    Txn {
        /// Its number.
        id: u64,
        /// The cluster that answered.
        cluster: u64,
        /// The registry's revision then.
        revision: i64,
        /// What it did.
        outcome: Outcome,
    },
    /// Whether it did; `None`: the past is gone.
    Checked {
        /// It.
        is_same: Option<bool>,
    },
    /// Everything in a scope.
    Listed {
        /// Which.
        scope: Scope,
        /// As of this revision.
        revision: i64,
        /// In order of the keys.
        kvs: Vec<Kv>,
    },
    /// A scope could not be listed.
    ListFailed {
        /// Which.
        scope: Scope,
        /// Why.
        why: String,
    },
    /// The watch of a scope is there.
    Watching {
        /// Which.
        scope: Scope,
    },
    /// Changes in a scope, in order; none: nothing changed up to this revision.
    Changed {
        /// Which.
        scope: Scope,
        /// As of this revision.
        revision: i64,
        /// They.
        changes: Vec<Change>,
    },
    /// The watch of a scope ended: the revision it asked for is gone.
    Compacted {
        /// Which.
        scope: Scope,
    },
    /// A lease was granted.
    Granted {
        /// What for.
        of: Lease,
        /// It.
        lease: i64,
    },
    /// The lease was renewed.
    LeaseKept,
    /// The lease is gone.
    LeaseGone,
}
