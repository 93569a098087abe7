//! Forwarding tables.

use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use windlass_api::{
    Applied, ErrorBody, ErrorCode, FdbAdd, FdbPage, FdbQuery, Flushed, MacAddr, StaticEntry,
};

use crate::authority::Peer;
use crate::engine::{Engine, no_such};
use crate::http::{Answer, App, Failure, Json, Named, Query, answer};

/// `GET /v1/bridges/NAME/fdb`
pub async fn show(
    State(app): State<App>,
    Extension(peer): Extension<Peer>,
    Named(bridge): Named,
    Query(query): Query<FdbQuery>,
) -> Answer<FdbPage> {
    answer(
        app.engine
            .call(&peer, move |engine| engine.fdb_show(&peer, &bridge, &query))
            .await,
    )
}

/// `POST /v1/bridges/NAME/fdb`
pub async fn add(
    State(app): State<App>,
    Extension(peer): Extension<Peer>,
    Named(bridge): Named,
    Json(add): Json<FdbAdd>,
) -> Result<(StatusCode, axum::Json<Applied>), Failure> {
    let call = move |engine: &mut Engine| {
        engine.change(&peer, None, false, move |document| {
            let Some(found) = document.bridge(&bridge) else {
                return Err(no_such("bridge", &bridge));
            };
            let FdbAdd {
                vlan,
                mac,
                member,
                kind,
                target,
            } = add;
            let untagged = || match found.settings().vlan_filtering {
                true => document
                    .member(member.as_str())
                    .and_then(|m| m.settings().vlan),
                false => None,
            };
            let vlan = vlan.or_else(untagged).unwrap_or(0);
            let entry = StaticEntry {
                bridge: found.name.clone(),
                vlan,
                mac,
                member,
                kind,
                target,
            };
            if document.fdb.iter().any(|other| other.key() == entry.key()) {
                let message = format!("bridge \"{bridge}\" has an entry {mac} vlan {vlan} already");
                return Err(ErrorBody::plain(ErrorCode::Exists, message));
            }
            document.fdb.push(entry);
            Ok(())
        })
    };
    let applied = app.engine.call(&peer, call).await?;
    Ok((StatusCode::CREATED, axum::Json(applied)))
}

/// The VLAN of the entry that is meant, if the query does not say.
fn vlan_of(
    engine: &mut Engine,
    peer: &Peer,
    bridge: &str,
    query: &FdbQuery,
    mac: MacAddr,
) -> Result<u16, ErrorBody> {
    if let Some(vlan) = query.vlan {
        return Ok(vlan);
    }
    let wanted = FdbQuery {
        mac: Some(mac),
        limit: Some(2),
        ..FdbQuery::default()
    };
    let page = engine.fdb_show(peer, bridge, &wanted)?;
    match page.entries.as_slice() {
        [] => Err(no_such("entry", &format!("{bridge} {mac}"))),
        [entry] => Ok(entry.vlan),
        _ => {
            let message = format!("{mac} is there in several VLANs: say which (vlan=)");
            Err(ErrorBody::plain(ErrorCode::Invalid, message))
        }
    }
}

/// `DELETE /v1/bridges/NAME/fdb?mac=MAC&vlan=VLAN`: a static entry, else a learned one.
pub async fn delete(
    State(app): State<App>,
    Extension(peer): Extension<Peer>,
    Named(bridge): Named,
    Query(query): Query<FdbQuery>,
) -> Answer<Applied> {
    let call = move |engine: &mut Engine| {
        let Some(mac) = query.mac else {
            let message = "say which entry (mac=), or flush the table";
            return Err(ErrorBody::plain(ErrorCode::Invalid, message));
        };
        let vlan = vlan_of(engine, &peer, &bridge, &query, mac)?;
        let of = bridge.clone();
        let is_it = move |entry: &StaticEntry| {
            entry.bridge == *of && entry.mac == mac && entry.vlan == vlan
        };
        if engine.document().fdb.iter().any(&is_it) {
            return engine.change(&peer, None, false, move |document| {
                document.fdb.retain(|entry| !is_it(entry));
                Ok(())
            });
        }
        engine.fdb_forget(&peer, &bridge, vlan, mac)?;
        Ok(Applied {
            revision: engine.revision(),
            ..Applied::default()
        })
    };
    answer(app.engine.call(&peer, call).await)
}

/// `POST /v1/bridges/NAME/fdb/flush`
pub async fn flush(
    State(app): State<App>,
    Extension(peer): Extension<Peer>,
    Named(bridge): Named,
    Json(query): Json<FdbQuery>,
) -> Answer<Flushed> {
    answer(
        app.engine
            .call(&peer, move |engine| {
                engine.fdb_flush(&peer, &bridge, &query)
            })
            .await,
    )
}
