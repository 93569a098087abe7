//! Arguments of `gen` and `sink`.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueHint};
use windlass_api::MacAddr;

use super::{InZone, interval, number, seconds};
use crate::traffic::{Rate, Sizes, Station};

/// The device, and how long and how often.
#[derive(Debug, Args)]
pub(crate) struct At {
    /// vnd device; or a VNIC that has one, or that is attached by memif,role=server; or the path of such a socket.
    #[arg(value_name = "DEVICE", id = "vnd")]
    pub(crate) device: String,
    #[command(flatten)]
    pub(crate) within: InZone,
    /// End after so many frames.
    #[arg(short, long, value_name = "COUNT", value_parser = number(1..))]
    pub(crate) count: Option<u64>,
    /// End after so many seconds.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) time: Option<Duration>,
    /// Report each so many seconds.
    #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    pub(crate) interval: Duration,
}

/// Arguments of `gen`.
#[derive(Debug, Args)]
pub(crate) struct GenArgs {
    #[command(flatten)]
    pub(crate) at: At,
    /// Frames a second, with k, M or G; max: as many as the bridge takes [default: max; of a file, at its times].
    #[arg(long, value_name = "FRAMES", value_hint = ValueHint::Other, value_parser = Rate::frames)]
    pub(crate) rate: Option<Rate>,
    /// Bits of frames a second, without preamble and check sequence, with k, M or G.
    #[arg(long, value_name = "BITS", value_hint = ValueHint::Other, value_parser = Rate::bits, conflicts_with = "rate")]
    pub(crate) bps: Option<Rate>,
    /// Bytes of a frame without its check sequence; a range MIN-MAX; or imix: 7 of 60, 4 of 590 and 1 of 1514.
    #[arg(long, value_name = "BYTES", default_value = "64", value_hint = ValueHint::Other)]
    pub(crate) size: Sizes,
    /// Where they go: an address, or the VNIC that has it.
    #[arg(long, value_name = "MAC|VNIC", required_unless_present = "replay", value_hint = ValueHint::Other)]
    pub(crate) dst_mac: Option<Station>,
    /// Source address [default: the VNIC's own].
    #[arg(long, value_name = "MAC", value_hint = ValueHint::Other)]
    pub(crate) src_mac: Option<MacAddr>,
    /// IPv4 or IPv6 source [default: 198.18.0.1 or 2001:2::1].
    #[arg(long, value_name = "ADDRESS", value_hint = ValueHint::Other)]
    pub(crate) src_ip: Option<IpAddr>,
    /// IPv4 or IPv6 destination [default: 198.19.0.1 or 2001:2::2].
    #[arg(long, value_name = "ADDRESS", value_hint = ValueHint::Other)]
    pub(crate) dst_ip: Option<IpAddr>,
    /// UDP source port of the first flow; the others have those that follow.
    #[arg(long, value_name = "PORT", default_value_t = 49_152)]
    pub(crate) src_port: u16,
    /// UDP destination port.
    #[arg(long, value_name = "PORT", default_value_t = 9)]
    pub(crate) dst_port: u16,
    /// Flows that take turns.
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) flows: u32,
    /// Send the frames of a pcap or pcapng file instead, as they are.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath,
          conflicts_with_all = ["size", "dst_mac", "src_mac", "src_ip", "dst_ip", "src_port", "dst_port", "flows"])]
    pub(crate) replay: Option<PathBuf>,
}

/// Arguments of `sink`.
#[derive(Debug, Args)]
pub(crate) struct SinkArgs {
    #[command(flatten)]
    pub(crate) at: At,
}
