//! Options of what bridges know: forwarding tables and multicast groups.

use std::net::IpAddr;

use clap::{Args, Subcommand, ValueHint};
use windlass_api::{MacAddr, Name};

use super::{BridgeName, BridgeNames, CreateHow, MemberName};

/// What may be done with a forwarding table.
#[derive(Debug, Subcommand)]
pub(crate) enum FdbVerb {
    /// List entries.
    Show(FdbShow),
    /// Put in an entry that does not age.
    Add(FdbAddArgs),
    /// Remove the entry of an address.
    Delete(FdbDelete),
    /// Remove learned entries.
    Flush(FdbFlush),
}

/// Arguments of `fdb show`.
#[derive(Debug, Args)]
pub(crate) struct FdbShow {
    #[command(flatten)]
    pub(crate) names: BridgeNames,
    /// Only those of this member.
    #[arg(long, value_name = "MEMBER")]
    pub(crate) member: Option<Name>,
    /// Only those of this VLAN.
    #[arg(long, value_hint = ValueHint::Other)]
    pub(crate) vlan: Option<u16>,
    /// Only this address.
    #[arg(long, value_hint = ValueHint::Other)]
    pub(crate) mac: Option<MacAddr>,
    /// So many entries of each bridge at most [default: 10000].
    #[arg(long, value_hint = ValueHint::Other)]
    pub(crate) limit: Option<u32>,
}

/// Arguments of `fdb add`.
#[derive(Debug, Args)]
pub(crate) struct FdbAddArgs {
    #[command(flatten)]
    pub(crate) bridge: BridgeName,
    /// The address.
    #[arg(value_hint = ValueHint::Other)]
    pub(crate) mac: MacAddr,
    #[command(flatten)]
    pub(crate) member: MemberName,
    /// VLAN [default: the member's untagged one].
    #[arg(long, value_hint = ValueHint::Other)]
    pub(crate) vlan: Option<u16>,
    /// Sticky instead of static.
    #[arg(long)]
    pub(crate) sticky: bool,
    #[command(flatten)]
    pub(crate) how: CreateHow,
}

/// Arguments of `fdb delete`.
#[derive(Debug, Args)]
pub(crate) struct FdbDelete {
    #[command(flatten)]
    pub(crate) bridge: BridgeName,
    /// The address.
    #[arg(value_hint = ValueHint::Other)]
    pub(crate) mac: MacAddr,
    /// Only in this VLAN.
    #[arg(long, value_hint = ValueHint::Other)]
    pub(crate) vlan: Option<u16>,
    /// Succeed if there is no such entry.
    #[arg(long)]
    pub(crate) if_exists: bool,
}

/// Arguments of `fdb flush`.
#[derive(Debug, Args)]
pub(crate) struct FdbFlush {
    #[command(flatten)]
    pub(crate) bridge: BridgeName,
    /// Only those of this member.
    #[arg(long, value_name = "MEMBER")]
    pub(crate) member: Option<Name>,
    /// Only those of this VLAN.
    #[arg(long, value_hint = ValueHint::Other)]
    pub(crate) vlan: Option<u16>,
    /// Only this address.
    #[arg(long, value_hint = ValueHint::Other)]
    pub(crate) mac: Option<MacAddr>,
}

/// What may be done with multicast groups.
#[derive(Debug, Subcommand)]
pub(crate) enum MdbVerb {
    /// List groups of bridges that snoop, and their members.
    Show(BridgeNames),
    /// Put a member into a group for good: it neither ages nor leaves. It counts while the bridge snoops.
    Add(MdbAdd),
    /// Take a member out of a group that it was put into.
    Delete(MdbDelete),
}

/// A member's place in a group.
#[derive(Debug, Args)]
pub(crate) struct MdbOf {
    #[command(flatten)]
    pub(crate) bridge: BridgeName,
    /// The group.
    #[arg(value_hint = ValueHint::Other)]
    pub(crate) group: IpAddr,
    #[command(flatten)]
    pub(crate) member: MemberName,
    /// VLAN [default: the member's untagged one].
    #[arg(long, value_hint = ValueHint::Other)]
    pub(crate) vlan: Option<u16>,
}

/// Arguments of `bridge mdb add`.
#[derive(Debug, Args)]
pub(crate) struct MdbAdd {
    #[command(flatten)]
    pub(crate) of: MdbOf,
    #[command(flatten)]
    pub(crate) how: CreateHow,
}

/// Arguments of `bridge mdb delete`.
#[derive(Debug, Args)]
pub(crate) struct MdbDelete {
    #[command(flatten)]
    pub(crate) of: MdbOf,
    /// Succeed if the member was not put into it.
    #[arg(long)]
    pub(crate) if_exists: bool,
    /// Change nothing, and write what would be.
    #[arg(long)]
    pub(crate) dry_run: bool,
}
