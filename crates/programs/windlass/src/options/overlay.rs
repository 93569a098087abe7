//! Options of overlays.

use std::net::SocketAddr;

use clap::{Args, Subcommand, ValueHint};
use windlass_api::{MacAddr, Name, Search};

use super::{Counted, CreateHow, DeleteArgs, OverlayName, OverlayNames, PropertyVerb};

/// What may be done with an overlay.
#[derive(Debug, Subcommand)]
pub(crate) enum OverlayVerb {
    /// Make an overlay: a member of a bridge whose frames go to other hosts.
    Create(OverlayCreate),
    /// Remove an overlay, with the bridge that came with it.
    Delete(DeleteArgs<OverlayName>),
    /// List overlays, their states, their targets or their statistics.
    Show(OverlayShow),
    /// Set properties of an overlay.
    Set(OverlaySet),
    #[command(flatten)]
    Properties(PropertyVerb<OverlayName>),
    /// Addresses behind remote hosts.
    #[command(
        subcommand,
        arg_required_else_help = true,
        disable_help_subcommand = true
    )]
    Target(TargetVerb),
    /// Hosts of an overlay's registry.
    #[command(
        subcommand,
        arg_required_else_help = true,
        disable_help_subcommand = true
    )]
    Host(HostVerb),
    /// Take a registry as it is, though it is younger than what is known: what it lacks is forgotten.
    Resync(OverlayResync),
}

/// Arguments of `overlay resync`.
#[derive(Debug, Args)]
pub(crate) struct OverlayResync {
    #[command(flatten)]
    pub(crate) name: OverlayName,
    /// Addresses that the registry lacks may go.
    #[arg(long, required = true)]
    pub(crate) accept: bool,
}

/// What may be done with hosts of a registry.
#[derive(Debug, Subcommand)]
pub(crate) enum HostVerb {
    /// List hosts.
    Show(OverlayNames),
    /// Take the records of a host that does not come back out of the registry.
    Forget(HostForget),
}

/// Arguments of `overlay host forget`.
#[derive(Debug, Args)]
pub(crate) struct HostForget {
    #[command(flatten)]
    pub(crate) name: OverlayName,
    /// Name of the host.
    #[arg(value_hint = ValueHint::Other, value_parser = host_name)]
    pub(crate) host: String,
}

/// The name of a host, as a registry takes it.
fn host_name(text: &str) -> Result<String, String> {
    let is_good = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
    match !text.is_empty() && text.len() <= 253 && text.chars().all(is_good) {
        true => Ok(text.to_owned()),
        false => Err("not the name of a host".into()),
    }
}

/// Arguments of `overlay create`.
#[derive(Debug, Args)]
pub(crate) struct OverlayCreate {
    /// Name of the new overlay.
    #[arg(value_hint = ValueHint::Other)]
    pub(crate) name: Name,
    /// Bridge that it joins [default: a bridge of its own name, which comes and goes with it].
    #[arg(long, value_name = "BRIDGE")]
    pub(crate) bridge: Option<Name>,
    /// How frames are put on the wire: vxlan.
    #[arg(long, value_name = "ENCAP", default_value = "vxlan", value_parser = ["vxlan"])]
    pub(crate) encap: String,
    /// How the host of an address is found: direct, files, learn, etcd or plugin.
    #[arg(long, value_name = "SEARCH", value_hint = ValueHint::Other)]
    pub(crate) search: Search,
    /// Network identifier, 0 to 16777215.
    #[arg(long, value_name = "VNI", conflicts_with = "vnis", value_hint = ValueHint::Other)]
    pub(crate) vni: Option<u32>,
    /// A network identifier for each VLAN of a filtering bridge.
    #[arg(long, value_name = "VLAN=VNI,...", value_hint = ValueHint::Other)]
    pub(crate) vnis: Option<String>,
    /// Largest inner packet, in bytes.
    #[arg(long, value_name = "BYTES", value_hint = ValueHint::Other)]
    pub(crate) mtu: Option<u32>,
    /// Network namespace of the underlay [default: the daemon's own].
    #[arg(long, value_name = "NETNS", value_hint = ValueHint::Other)]
    pub(crate) underlay_netns: Option<String>,
    /// Set properties; may be repeated. "show-props" lists them.
    #[arg(long, value_name = "KEY=VALUE,...", value_hint = ValueHint::Other)]
    pub(crate) set: Vec<String>,
    #[command(flatten)]
    pub(crate) how: CreateHow,
}

/// Arguments of `overlay show`.
#[derive(Debug, Args)]
pub(crate) struct OverlayShow {
    #[command(flatten)]
    pub(crate) names: OverlayNames,
    /// Their states: online, or degraded and why.
    #[arg(short = 'f', long)]
    pub(crate) faults: bool,
    /// Addresses behind their targets, and the targets that get what is flooded.
    #[arg(short = 't', long, conflicts_with = "faults")]
    pub(crate) targets: bool,
    #[command(flatten)]
    pub(crate) counted: Counted,
}

/// Arguments of `overlay set`.
#[derive(Debug, Args)]
pub(crate) struct OverlaySet {
    #[command(flatten)]
    pub(crate) name: OverlayName,
    /// Properties to set; KEY=auto forgets what was set.
    #[arg(value_name = "KEY=VALUE,...", required = true, value_hint = ValueHint::Other)]
    pub(crate) settings: Vec<String>,
    /// Change nothing, and write what would be.
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// What may be done with addresses behind targets.
#[derive(Debug, Subcommand)]
pub(crate) enum TargetVerb {
    /// List addresses behind targets, and the targets that get what is flooded.
    Show(TargetShow),
    /// Say behind which host an address is; it holds before what the search says.
    Set(TargetSet),
    /// Forget what set has said.
    Delete(TargetDelete),
    /// Forget what was learned, or answered by a plugin.
    Flush(TargetFlush),
}

/// Arguments of `overlay target show`.
#[derive(Debug, Args)]
pub(crate) struct TargetShow {
    #[command(flatten)]
    pub(crate) names: OverlayNames,
    #[command(flatten)]
    pub(crate) of: TargetsOf,
}

/// Which targets.
#[derive(Debug, Args)]
pub(crate) struct TargetsOf {
    /// Only this address.
    #[arg(long, value_hint = ValueHint::Other)]
    pub(crate) mac: Option<MacAddr>,
    /// Only those of this VLAN.
    #[arg(long, value_hint = ValueHint::Other)]
    pub(crate) vlan: Option<u16>,
}

/// Arguments of `overlay target set`.
#[derive(Debug, Args)]
pub(crate) struct TargetSet {
    #[command(flatten)]
    pub(crate) name: OverlayName,
    /// The address.
    #[arg(value_hint = ValueHint::Other)]
    pub(crate) mac: MacAddr,
    /// The host behind which it is.
    #[arg(value_name = "IP:PORT", value_hint = ValueHint::Other)]
    pub(crate) target: SocketAddr,
    /// VLAN, of an overlay with a network for each VLAN.
    #[arg(long, value_hint = ValueHint::Other)]
    pub(crate) vlan: Option<u16>,
}

/// Arguments of `overlay target delete`.
#[derive(Debug, Args)]
pub(crate) struct TargetDelete {
    #[command(flatten)]
    pub(crate) name: OverlayName,
    /// The address.
    #[arg(value_hint = ValueHint::Other)]
    pub(crate) mac: MacAddr,
    /// VLAN, of an overlay with a network for each VLAN.
    #[arg(long, value_hint = ValueHint::Other)]
    pub(crate) vlan: Option<u16>,
    /// Succeed if nothing was set.
    #[arg(long)]
    pub(crate) if_exists: bool,
}

/// Arguments of `overlay target flush`.
#[derive(Debug, Args)]
pub(crate) struct TargetFlush {
    #[command(flatten)]
    pub(crate) name: OverlayName,
    #[command(flatten)]
    pub(crate) of: TargetsOf,
}
