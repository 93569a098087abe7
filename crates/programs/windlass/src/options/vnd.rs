//! Options of vnd devices.

use std::time::Duration;

use clap::{Args, Subcommand, ValueHint};
use windlass_api::{Name, VndName, ZoneRef};

use super::{Repeat, interval, number};

/// What may be done with a vnd device.
#[derive(Debug, Subcommand)]
pub(crate) enum VndVerb {
    /// Make a device over a VNIC that nobody is attached to.
    Create(VndCreateArgs),
    /// List devices, those too that were destroyed while a program has them open.
    List(VndList),
    /// Show properties of a device.
    Get(VndGet),
    /// Set properties of a device, one after the other: if one is refused, those before it stay set.
    Set(VndSet),
    /// Remove a device. A program that has it open keeps it, without a name.
    Destroy(VndDestroy),
    /// Give a device another name. A program that has it open does not notice.
    Rename(VndRename),
    /// Show the traffic of devices. rx is what the program receives.
    Stat(VndStat),
}

/// The zone of a device.
#[derive(Debug, Args)]
pub(crate) struct InZone {
    /// Zone of the device [default: the only zone that you own; for operators the global one].
    #[arg(short, long, value_name = "ZONE")]
    pub(crate) zone: Option<ZoneRef>,
}

/// One device.
#[derive(Debug, Args)]
pub(crate) struct OneVnd {
    /// Name of the device.
    #[arg(value_name = "VND", id = "vnd")]
    pub(crate) name: VndName,
    #[command(flatten)]
    pub(crate) within: InZone,
}

/// Arguments of `vnd create`.
#[derive(Debug, Args)]
pub(crate) struct VndCreateArgs {
    /// Name of the new device.
    #[arg(value_hint = ValueHint::Other)]
    pub(crate) name: VndName,
    /// VNIC that it is over [default: the one of the same name].
    #[arg(short = 'l', long = "link", value_name = "VNIC")]
    pub(crate) vnic: Option<Name>,
    #[command(flatten)]
    pub(crate) within: InZone,
    /// Set a property; may be repeated.
    #[arg(long, value_name = "KEY=VALUE", value_hint = ValueHint::Other)]
    pub(crate) set: Vec<String>,
}

/// Arguments of `vnd list`.
#[derive(Debug, Args)]
pub(crate) struct VndList {
    /// Names of devices to list; all if there is none.
    #[arg(value_name = "VND", id = "vnd")]
    pub(crate) names: Vec<VndName>,
    /// Only those of this zone.
    #[arg(short, long, value_name = "ZONE")]
    pub(crate) zone: Option<ZoneRef>,
}

/// Arguments of `vnd get`.
#[derive(Debug, Args)]
pub(crate) struct VndGet {
    #[command(flatten)]
    pub(crate) vnd: OneVnd,
    /// Properties to show; all if there are none.
    #[arg(value_name = "PROPERTY", value_hint = ValueHint::Other)]
    pub(crate) properties: Vec<String>,
}

/// Arguments of `vnd set`.
#[derive(Debug, Args)]
pub(crate) struct VndSet {
    #[command(flatten)]
    pub(crate) vnd: OneVnd,
    /// Properties to set; K, M and G are powers of 1024; KEY=auto forgets what was set.
    #[arg(value_name = "KEY=VALUE", required = true, value_hint = ValueHint::Other)]
    pub(crate) settings: Vec<String>,
}

/// Arguments of `vnd destroy`.
#[derive(Debug, Args)]
pub(crate) struct VndDestroy {
    #[command(flatten)]
    pub(crate) vnd: OneVnd,
    /// Succeed if there is none of this name.
    #[arg(long)]
    pub(crate) if_exists: bool,
}

/// Arguments of `vnd rename`.
#[derive(Debug, Args)]
pub(crate) struct VndRename {
    #[command(flatten)]
    pub(crate) vnd: OneVnd,
    /// Its new name.
    #[arg(value_name = "NEW-NAME", value_hint = ValueHint::Other)]
    pub(crate) to: VndName,
}

/// Arguments of `vnd stat`.
#[derive(Debug, Args)]
pub(crate) struct VndStat {
    /// Show again after so many seconds: first totals, then rates a second.
    #[arg(value_name = "INTERVAL", value_parser = interval, value_hint = ValueHint::Other)]
    interval: Option<Duration>,
    /// Show so many times.
    #[arg(value_name = "COUNT", value_parser = number(1..), value_hint = ValueHint::Other)]
    count: Option<u64>,
    /// Only devices of this zone.
    #[arg(short, long, value_name = "ZONE")]
    pub(crate) zone: Option<ZoneRef>,
}

impl VndStat {
    /// How often it is shown.
    pub(crate) fn repeat(&self) -> Repeat {
        Repeat {
            interval: self.interval,
            count: self.count,
        }
    }
}
