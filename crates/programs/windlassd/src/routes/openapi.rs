//! The description of the API, in OpenAPI 3.1, made from the table of resources and the schemas of the
//! types.

use std::sync::OnceLock;

use axum::response::Response;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value, json};
use windlass_api::{
    AddressClaim, AddressRelease, Applied, Bridge, BridgePatch, BridgeView, ClaimedAddresses,
    DaemonView, Document, ErrorBody, FdbAdd, FdbPage, FdbQuery, Flow, FlowPatch, FlowView, Flushed,
    HostView, MigrationCheck, MigrationChecked, MonitorEvent, Moved, Overlay, OverlayPatch,
    OverlayView, RecentDrops, RegionView, RuleView, Stats, TargetQuery, TargetView, Uplink,
    UplinkPatch, UplinkView, VndCreate, VndPatch, VndView, Vnic, VnicPatch, VnicView, WorkerMove,
    WorkerStats, Zone, ZonePatch, ZoneView,
};

use super::document::ApplyQuery;
use crate::http::json_text;

type SchemaOf = fn(&mut SchemaGenerator) -> Value;

fn of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Value {
    generator.subschema_for::<T>().to_value()
}

struct Operation {
    method: &'static str,
    path: String,
    summary: String,
    query: Option<SchemaOf>,
    body: Option<SchemaOf>,
    status: &'static str,
    answer: SchemaOf,
    media: &'static str,
}

fn operation(method: &'static str, path: &str, summary: &str, answer: SchemaOf) -> Operation {
    Operation {
        method,
        path: path.into(),
        summary: summary.into(),
        query: None,
        body: None,
        status: "200",
        answer,
        media: "application/json",
    }
}

impl Operation {
    fn body(mut self, body: SchemaOf) -> Self {
        self.body = Some(body);
        self
    }

    fn query(mut self, query: SchemaOf) -> Self {
        self.query = Some(query);
        self
    }

    fn created(mut self) -> Self {
        self.status = "201";
        self
    }
}

struct Schemas {
    config: SchemaOf,
    patch: SchemaOf,
    view: SchemaOf,
    views: SchemaOf,
}

fn objects(operations: &mut Vec<Operation>, word: &str, schemas: &Schemas) {
    let all = format!("/v1/{word}s");
    let one = format!("{all}/{{name}}");
    let Schemas {
        config,
        patch,
        view,
        views,
    } = *schemas;
    let applied = of::<Applied>;
    operations.extend([
        operation(
            "get",
            &all,
            &format!("Show every {word} that the peer may see."),
            views,
        ),
        operation("post", &all, &format!("Create a {word}."), applied)
            .body(config)
            .created(),
        operation("get", &one, &format!("Show a {word}."), view),
        operation(
            "put",
            &one,
            &format!("Create a {word}, or make it so."),
            applied,
        )
        .body(config),
        operation("patch", &one, &format!("Change a {word}."), applied).body(patch),
        operation("delete", &one, &format!("Delete a {word}."), applied),
    ]);
}

fn object_operations(list: &mut Vec<Operation>) {
    let zone = Schemas {
        config: of::<Zone>,
        patch: of::<ZonePatch>,
        view: of::<ZoneView>,
        views: of::<Vec<ZoneView>>,
    };
    let bridge = Schemas {
        config: of::<Bridge>,
        patch: of::<BridgePatch>,
        view: of::<BridgeView>,
        views: of::<Vec<BridgeView>>,
    };
    let uplink = Schemas {
        config: of::<Uplink>,
        patch: of::<UplinkPatch>,
        view: of::<UplinkView>,
        views: of::<Vec<UplinkView>>,
    };
    let overlay = Schemas {
        config: of::<Overlay>,
        patch: of::<OverlayPatch>,
        view: of::<OverlayView>,
        views: of::<Vec<OverlayView>>,
    };
    let vnic = Schemas {
        config: of::<Vnic>,
        patch: of::<VnicPatch>,
        view: of::<VnicView>,
        views: of::<Vec<VnicView>>,
    };
    let flow = Schemas {
        config: of::<Flow>,
        patch: of::<FlowPatch>,
        view: of::<FlowView>,
        views: of::<Vec<FlowView>>,
    };
    for (word, schemas) in [
        ("zone", zone),
        ("bridge", bridge),
        ("uplink", uplink),
        ("overlay", overlay),
        ("vnic", vnic),
        ("flow", flow),
    ] {
        objects(list, word, &schemas);
    }
}

fn overlay_operations(list: &mut Vec<Operation>) {
    let applied = of::<Applied>;
    list.extend([
        operation(
            "get",
            "/v1/overlays/{name}/hosts",
            "Show the hosts of an overlay's registry.",
            of::<Vec<HostView>>,
        ),
        operation(
            "delete",
            "/v1/overlays/{name}/hosts/{host}",
            "Take a host's records out of the registry.",
            applied,
        ),
        operation(
            "post",
            "/v1/overlays/{name}/addresses",
            "Have an overlay's registry give this host addresses.",
            of::<ClaimedAddresses>,
        )
        .body(of::<AddressClaim>),
        operation(
            "post",
            "/v1/overlays/{name}/addresses/release",
            "Give addresses back for which no VNIC was made.",
            applied,
        )
        .body(of::<AddressRelease>),
        operation(
            "post",
            "/v1/overlays/{name}/resync",
            "Take the registry as it is, though it is younger than what is known.",
            applied,
        ),
        operation(
            "get",
            "/v1/overlays/{name}/targets",
            "Show the targets of an overlay, and the addresses behind them.",
            of::<Vec<TargetView>>,
        ),
        operation(
            "post",
            "/v1/overlays/{name}/targets/flush",
            "Forget learned addresses behind targets, and answers of a plugin.",
            of::<Flushed>,
        )
        .body(of::<TargetQuery>),
    ]);
}

fn vnd_operations(list: &mut Vec<Operation>) {
    let (all, one) = ("/v1/vnds", "/v1/vnds/{zone}/{name}");
    let applied = of::<Applied>;
    list.extend([
        operation(
            "get",
            all,
            "Show every vnd device that the peer may see.",
            of::<Vec<VndView>>,
        ),
        operation("post", all, "Create a vnd device.", applied)
            .body(of::<VndCreate>)
            .created(),
        operation("get", one, "Show a vnd device.", of::<VndView>),
        operation("patch", one, "Change or rename a vnd device.", applied).body(of::<VndPatch>),
        operation("delete", one, "Destroy a vnd device.", applied),
    ]);
}

fn live_operations(list: &mut Vec<Operation>) {
    list.extend([
        operation(
            "get",
            "/v1/stats",
            "All counters at this moment.",
            of::<Stats>,
        ),
        operation(
            "get",
            "/v1/workers",
            "What the workers did.",
            of::<Vec<WorkerStats>>,
        ),
        operation(
            "post",
            "/v1/workers/move",
            "Have a worker serve a ring or a table.",
            of::<Moved>,
        )
        .body(of::<WorkerMove>),
        operation(
            "get",
            "/v1/daemon",
            "The daemon, and who the peer is.",
            of::<DaemonView>,
        ),
        operation(
            "get",
            "/v1/vnics/{name}/rules",
            "Show the rules that packets of a VNIC have to pass.",
            of::<Vec<RuleView>>,
        ),
        operation(
            "get",
            "/v1/drops",
            "Frames dropped in the last minute.",
            of::<RecentDrops>,
        ),
        Operation {
            media: "text/plain",
            ..operation(
                "get",
                "/v1/metrics",
                "The counters as text for Prometheus.",
                of::<String>,
            )
        },
        Operation {
            media: "application/x-ndjson",
            ..operation(
                "get",
                "/v1/monitor",
                "Events, one a line, for ever.",
                of::<MonitorEvent>,
            )
        },
        operation(
            "get",
            "/v1/openapi.json",
            "This description.",
            of::<Map<String, Value>>,
        ),
    ]);
}

fn operations() -> Vec<Operation> {
    let mut list = Vec::new();
    object_operations(&mut list);
    overlay_operations(&mut list);
    vnd_operations(&mut list);
    let fdb = "/v1/bridges/{name}/fdb";
    let applied = of::<Applied>;
    list.extend([
        operation("get", fdb, "Show a forwarding table.", of::<FdbPage>).query(of::<FdbQuery>),
        operation("post", fdb, "Add a static entry.", applied)
            .body(of::<FdbAdd>)
            .created(),
        operation("delete", fdb, "Delete an entry.", applied).query(of::<FdbQuery>),
        operation(
            "post",
            &format!("{fdb}/flush"),
            "Forget learned entries.",
            of::<Flushed>,
        )
        .body(of::<FdbQuery>),
        operation(
            "post",
            "/v1/bridges/{name}/mcheck",
            "Ask neighbours of a spanning tree again whether they speak RSTP.",
            of::<MigrationChecked>,
        )
        .body(of::<MigrationCheck>),
        operation(
            "get",
            "/v1/document",
            "Export the configuration.",
            of::<Document>,
        ),
        operation(
            "put",
            "/v1/document",
            "Make the host match a configuration.",
            applied,
        )
        .body(of::<Document>)
        .query(of::<ApplyQuery>),
    ]);
    live_operations(&mut list);
    list.push(operation(
        "get",
        "/v1/regions",
        "Memory through which the daemon forwards, and its pages.",
        of::<Vec<RegionView>>,
    ));
    list
}

fn parameters(operation: &Operation, generator: &mut SchemaGenerator) -> Vec<Value> {
    let mut list = Vec::new();
    for name in ["zone", "name"] {
        if operation.path.contains(&format!("{{{name}}}")) {
            list.push(
                json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}}),
            );
        }
    }
    if let Some(query) = operation.query {
        // Each field of the query's type is a parameter of its own.
        let schema = query(generator);
        let name = schema["$ref"]
            .as_str()
            .and_then(|r| r.rsplit('/').next())
            .unwrap_or_default();
        let fields = generator
            .definitions()
            .get(name)
            .map(|s| s["properties"].clone());
        for (field, schema) in fields
            .as_ref()
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
        {
            list.push(json!({"name": field, "in": "query", "schema": schema}));
        }
    }
    list
}

/// The description.
pub fn description() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
    });
    let mut generator = settings.into_generator();
    let error = of::<ErrorBody>(&mut generator);
    let mut paths: Map<String, Value> = Map::new();
    for operation in operations() {
        let answer = (operation.answer)(&mut generator);
        let mut entry = json!({
            "summary": operation.summary,
            "parameters": parameters(&operation, &mut generator),
            "responses": {
                operation.status: {
                    "description": "Done.",
                    "content": {operation.media: {"schema": answer}}
                },
                "default": {
                    "description": "Not done.",
                    "content": {"application/json": {"schema": error}}
                }
            }
        });
        if let Some(body) = operation.body {
            let schema = body(&mut generator);
            entry["requestBody"] =
                json!({"required": true, "content": {"application/json": {"schema": schema}}});
        }
        let path = paths.entry(operation.path).or_insert_with(|| json!({}));
        path[operation.method] = entry;
    }
    let schemas = generator.take_definitions(true);
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "windlass control API",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "HTTP/1.1 over the Unix socket of windlassd."
        },
        "paths": paths,
        "components": {"schemas": schemas}
    })
}

/// `GET /v1/openapi.json`
pub async fn show() -> Response {
    static TEXT: OnceLock<String> = OnceLock::new();
    json_text(TEXT.get_or_init(|| description().to_string()).as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every reference in the description leads to a schema that is there.
    #[test]
    fn references_resolve() {
        let description = description();
        fn walk(value: &Value, root: &Value, count: &mut usize) {
            match value {
                Value::Object(map) => {
                    if let Some(Value::String(reference)) = map.get("$ref") {
                        let pointer = reference.strip_prefix('#').expect("local reference");
                        assert!(root.pointer(pointer).is_some(), "{reference}");
                        *count += 1;
                    }
                    map.values().for_each(|value| walk(value, root, count));
                }
                Value::Array(list) => list.iter().for_each(|value| walk(value, root, count)),
                _ => {}
            }
        }
        let mut count = 0;
        walk(&description, &description, &mut count);
        assert!(count > 50, "{count} references");
        let fdb = &description["paths"]["/v1/bridges/{name}/fdb"]["get"]["parameters"];
        assert_eq!(fdb.as_array().expect("parameters").len(), 5);
    }
}
