//! Types of the control API: the JSON that people script against.
//!
//! # Purpose
//! Everything that `windlassd` is asked and answers, and the document that holds the configuration. The
//! crate does no I/O: the daemon, the client, the command and whoever generates schemas share it.
//!
//! # Where it sits
//! ```text
//! windlass (command) -> windlass-client --HTTP over a Unix socket--> windlassd
//!        \_______________________ windlass-api ______________________/
//! ```
//!
//! # Model
//! - [`Document`] is the configuration: lists of [`Zone`], [`Bridge`], [`Uplink`], [`Overlay`], [`Vnic`], [`Flow`], [`Vnd`] and
//!   [`StaticEntry`]. Unknown keys are refused; in canonical form equal configurations have equal texts.
//! - [`validate`](validate()) says whether its objects fit together; [`diff`](diff()) says which
//!   [`Change`]s lead from one to another, in an order in which each can be made; [`patch`] makes them.
//! - [`PROPERTIES`] declares every property of every kind of object, [`DAEMON_OPTIONS`] every option of
//!   the daemon: once, with type, unit, default, limits and a sentence.
//! - An attachment is JSON (`{"kind": "tap", ...}`) or the text `tap,netns=a,address=10.0.0.1/24`.
//! - An error is an [`ErrorBody`] with an [`ErrorCode`], which maps to the command's exit code.
//!
//! # Limits
//! [`ZONES_MAX`](validate::ZONES_MAX), [`BRIDGES_MAX`](validate::BRIDGES_MAX),
//! [`UPLINKS_MAX`](validate::UPLINKS_MAX), [`VNICS_MAX`](validate::VNICS_MAX),
//! [`STATIC_ENTRIES_MAX`](validate::STATIC_ENTRIES_MAX), [`FLOWS_MAX`](flow::FLOWS_MAX),
//! [`FLOWS_OF_VNIC_MAX`](flow::FLOWS_OF_VNIC_MAX), [`FLOWS_OF_ZONE_MAX`](flow::FLOWS_OF_ZONE_MAX); names have at most
//! [`NAME_BYTES_MAX`](name::NAME_BYTES_MAX) bytes.
//!
//! # Failure modes
//! Text and JSON are foreign input: parsing returns errors that name the offending value, and never
//! panics.
//!
//! # Resources
//! | path | methods | body | answer |
//! | --- | --- | --- | --- |
//! | `/v1/daemon` | GET | | [`DaemonView`] |
//! | `/v1/zones` | GET, POST | [`Zone`] | list of [`ZoneView`]; [`Applied`] |
//! | `/v1/zones/NAME` | GET, PUT, PATCH, DELETE | [`Zone`], [`ZonePatch`] | [`ZoneView`]; [`Applied`] |
//! | `/v1/bridges`, `/v1/bridges/NAME` | the same | [`Bridge`], [`BridgePatch`] | [`BridgeView`]; [`Applied`] |
//! | `/v1/uplinks`, `/v1/uplinks/NAME` | the same | [`Uplink`], [`UplinkPatch`] | [`UplinkView`]; [`Applied`] |
//! | `/v1/overlays`, `/v1/overlays/NAME` | the same | [`Overlay`], [`OverlayPatch`] | [`OverlayView`]; [`Applied`] |
//! | `/v1/overlays/NAME/targets` | GET (query [`TargetQuery`]) | | list of [`TargetView`] |
//! | `/v1/overlays/NAME/hosts` | GET | | list of [`HostView`] |
//! | `/v1/overlays/NAME/hosts/HOST` | DELETE | | its records go out of the registry |
//! | `/v1/overlays/NAME/addresses` | POST | [`AddressClaim`] | [`ClaimedAddresses`] |
//! | `/v1/overlays/NAME/addresses/release` | POST | [`AddressRelease`] | [`Applied`] |
//! | `/v1/overlays/NAME/resync` | POST | | the registry is believed, though it is younger than what is known |
//! | `/v1/overlays/NAME/targets/flush` | POST | [`TargetQuery`] | [`Flushed`]: learned ones, answers of a plugin |
//! | `/v1/vnics`, `/v1/vnics/NAME` | the same | [`Vnic`], [`VnicPatch`] | [`VnicView`]; [`Applied`] |
//! | `/v1/flows`, `/v1/flows/NAME` | the same | [`Flow`], [`FlowPatch`] | [`FlowView`]; [`Applied`] |
//! | `/v1/vnds` | GET, POST | [`VndCreate`] | list of [`VndView`]; [`Applied`] |
//! | `/v1/vnds/ZONE/NAME` | GET, PATCH, DELETE | [`VndPatch`] | [`VndView`]; [`Applied`] |
//! | `/v1/bridges/NAME/fdb` | GET (query [`FdbQuery`]) | | [`FdbPage`] |
//! | | POST | [`FdbAdd`] | [`Applied`] |
//! | | DELETE (query [`FdbQuery`]) with `mac` | | [`Applied`]: a static entry, else the learned one |
//! | `/v1/bridges/NAME/mcheck` | POST | [`MigrationCheck`] | [`MigrationChecked`] |
//! | `/v1/bridges/NAME/fdb/flush` | POST | [`FdbQuery`] | [`Flushed`]: learned entries only |
//! | `/v1/document` | GET | | [`Document`]; header `ETag: "REVISION"` |
//! | | PUT (`?dry_run=true`, header `If-Match`) | [`Document`] | [`Applied`] |
//! | `/v1/stats` | GET | | [`Stats`] |
//! | `/v1/workers` | GET | | list of [`WorkerStats`] |
//! | `/v1/workers/move` | POST | [`WorkerMove`] | [`Moved`] |
//! | `/v1/regions` | GET | | list of [`RegionView`] |
//! | `/v1/monitor` | GET | | [`MonitorEvent`] in lines, for ever |
//! | `/v1/openapi.json` | GET | | the description of all this |

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing,
        clippy::string_slice
    )
)]

pub mod attach;
pub mod capture;
pub mod diff;
pub mod error;
pub mod firewall;
pub mod flow;
pub mod guard;
pub mod name;
pub mod object;
pub mod option;
pub mod overlay;
pub mod property;
pub mod rss;
mod snoop;
pub mod stp;
pub mod validate;
pub mod vhost;
pub mod view;
pub mod vlan;
pub mod vnd;

pub use attach::{
    AttachError, Attachment, BUSY_POLL_US_MAX, Memif, Packet, Role, Tap, Unattached, Veth, Xdp,
    known_keys,
};
pub use capture::{
    CAPTURE_REQUEST_BYTES_MAX, CAPTURE_SUFFIX, CaptureAnswer, CaptureDirection, CaptureEnd,
    CaptureKind, CaptureOffer, CaptureRequest, CaptureStarted, TENANT_INSTRUCTIONS_MAX,
};
pub use diff::{Change, Object, diff, patch};
pub use error::{Detail, ErrorBody, ErrorCode};
pub use firewall::{FirewallSettings, RuleList, RuleView};
pub use flow::{Flow, FlowAttributes, FlowCounters, FlowPatch, FlowSettings, FlowView, Priority};
pub use guard::{AllowedError, AllowedIps, ClientIds, DynamicMethods, GuardSettings, Macs};
pub use name::{IfAddr, Ifname, MacAddr, Name, NameError, Netns, SocketPath, VndName, ZoneRef};
pub use object::{
    Bridge, BridgePatch, DOCUMENT_VERSION, Document, Member, StaticEntry, StaticKind, Uplink,
    UplinkPatch, Vnic, VnicPatch, Zone, ZonePatch,
};
pub use option::{AUTO, DAEMON_OPTIONS, OptionSpec, Value, ValueError, ValueKind};
pub use overlay::{
    AddressClaim, AddressRelease, ClaimedAddresses, Encap, HostLife, HostView, Overlay,
    OverlayPatch, OverlaySettings, OverlayView, Search, TargetKind, TargetQuery, TargetView,
    Unknown,
};
pub use property::{
    BridgeSettings, MemberSettings, PROPERTIES, Properties, PropertyError, PropertyPatch,
    PropertySpec, Scope, properties, property,
};
pub use rss::RssWeights;
pub use snoop::{McastRouter, SnoopBridge, SnoopMember, StaticGroups};
pub use stp::{StpBridge, StpMember};
pub use validate::validate;
pub use vhost::{SocketMode, SocketOwner, VHOST_QUEUES_MAX, VhostUser};
pub use view::{
    Applied, BridgePlace, BridgeStats, BridgeView, Counters, DaemonView, EventKind,
    FDB_PAGE_DEFAULT, FdbAdd, FdbEntry, FdbKind, FdbPage, FdbQuery, Flushed, GroupView,
    LearnedAddress, LearningMethod, LimitView, McastPortView, McastView, MemberDrops, MemberStats,
    MigrationCheck, MigrationChecked, MonitorEvent, Moved, NeighboursView, PeerView, RecentDrops,
    RegionView, State, Stats, Status, TableStats, TreePortView, TreeView, UplinkView, VnicView,
    WorkerMove, WorkerStats, ZoneView,
};
pub use vlan::VlanSet;
pub use vnd::{Vnd, VndCreate, VndErrno, VndError, VndPatch, VndStats, VndView};

/// The JSON Schema (draft 2020-12) of [`Document`]: what `export` writes and `apply` reads.
pub fn document_schema() -> serde_json::Value {
    schemars::schema_for!(Document).to_value()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The schema knows every list of the document and every property, and refuses other keys.
    #[test]
    fn the_schema_is_closed() {
        let schema = document_schema();
        assert_eq!(schema["additionalProperties"], false);
        for list in ["zones", "bridges", "uplinks", "vnics", "flows", "fdb"] {
            assert!(schema["properties"][list].is_object(), "{list}");
        }
        for row in PROPERTIES {
            let property = &schema["$defs"]["Properties"]["properties"][row.option.name];
            assert!(property["description"].is_string(), "{}", row.option.name);
        }
    }

    /// What is written reads back as the same; equal documents have equal texts; a key that is not
    /// known is refused by its name.
    #[test]
    fn documents_are_strict_and_stable() {
        let text = r#"{"version":1,"zones":[{"name":"a","owner_uid":1000,"owner_gid":1000,
            "netns":"a","bridges":["br0"]}],"bridges":[{"name":"br0","properties":{"ageing":60}}],
            "vnics":[{"name":"v1","bridge":"br0","zone":"a"},
                     {"name":"v0","bridge":"br0","attach":{"kind":"tap","netns":"a"}}]}"#;
        let mut document: Document = serde_json::from_str(text).expect("document");
        document.complete(&Document::default(), {
            let mut next = 0;
            move || {
                next += 1;
                MacAddr::local([0, 0, 0, 0, 0, next])
            }
        });
        document.canonicalize();
        validate(&document, &Document::default()).expect("valid");
        assert_eq!(document.vnics[0].name, "v0");
        let json = serde_json::to_string_pretty(&document).expect("json");
        assert_eq!(
            serde_json::from_str::<Document>(&json).expect("own text"),
            document
        );
        let again = text.replace("\"zone\":", "\"zoen\":");
        let error = serde_json::from_str::<Document>(&again).expect_err("unknown key");
        assert!(error.to_string().contains("zoen"), "{error}");
    }

    /// A VNIC without an address keeps the one it had; the drawn ones differ.
    #[test]
    fn addresses_are_drawn_once() {
        let vnic = |name: &str| Vnic {
            name: name.parse().expect("name"),
            zone: ZoneRef::default(),
            bridge: "br0".parse().expect("name"),
            mac: None,
            attach: Attachment::default(),
            properties: Properties::default(),
        };
        let mut old = Document {
            vnics: vec![vnic("a")],
            ..Document::default()
        };
        old.complete(&Document::default(), || MacAddr([2, 0, 0, 0, 0, 1]));
        let mut new = Document {
            vnics: vec![vnic("a"), vnic("b"), vnic("c")],
            ..Document::default()
        };
        let mut draws = [1, 1, 2, 2, 3].into_iter();
        new.complete(&old, || {
            MacAddr([2, 0, 0, 0, 0, draws.next().expect("few draws")])
        });
        let macs: Vec<_> = new
            .vnics
            .iter()
            .map(|v| v.mac.expect("drawn").0[5])
            .collect();
        assert_eq!(macs, [1, 2, 3]);
    }
}
