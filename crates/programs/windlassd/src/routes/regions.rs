//! The memory through which the daemon forwards, and the pages behind it.

use axum::Extension;
use axum::extract::State;
use windlass_api::{ErrorBody, ErrorCode, RegionView};
use windlass_shm::{Backing, Extent, HUGE_PAGE_BYTES, Pages};

use crate::authority::Peer;
use crate::backend::Region;
use crate::http::{Answer, App, answer};

/// `GET /v1/regions`
pub async fn show(
    State(app): State<App>,
    Extension(peer): Extension<Peer>,
) -> Answer<Vec<RegionView>> {
    let regions = app
        .engine
        .call(&peer, move |engine| Ok(engine.regions(&peer)));
    let regions = regions.await?;
    // The kernel walks the page tables of all guests: neither the engine nor this thread waits for that.
    let read = tokio::task::spawn_blocking(move || views(&regions)).await;
    let failed = |error: String| ErrorBody::plain(ErrorCode::Host, error);
    answer(match read {
        Ok(views) => views.map_err(|error| failed(format!("/proc/self/smaps: {error}"))),
        Err(error) => Err(failed(error.to_string())),
    })
}

fn views(regions: &[Region]) -> std::io::Result<Vec<RegionView>> {
    let extents: Vec<_> = regions.iter().map(|region| region.extent).collect();
    let backings = windlass_shm::backings(&extents)?;
    let found = regions.iter().zip(backings);
    Ok(found
        .filter_map(|(region, backing)| Some(view(region, backing?)))
        .collect())
}

fn view(region: &Region, backing: Backing) -> RegionView {
    let Extent { len, pages, .. } = region.extent;
    let asked = match pages {
        Pages::Small => "4k",
        Pages::Peers => "peer",
        Pages::Refused { .. } | Pages::Transparent | Pages::Hugetlb => "huge",
    };
    let had = match backing {
        Backing { page_bytes, .. } if page_bytes >= HUGE_PAGE_BYTES as u64 => "hugetlb",
        Backing { huge, .. } if huge > 0 => "thp",
        _ => "4k",
    };
    let costs = || {
        (region.kind == "guest" && had == "4k" && len >= HUGE_PAGE_BYTES).then(|| {
            "guest memory in 4 KiB pages: 512 TLB entries and 4 KiB of page tables for every 2 MiB".to_owned()
        })
    };
    RegionView {
        owner: region.owner.clone(),
        kind: region.kind.to_owned(),
        bytes: len as u64,
        asked: asked.to_owned(),
        had: had.to_owned(),
        page_bytes: backing.page_bytes,
        resident_bytes: backing.resident,
        huge_bytes: backing.huge,
        page_table_bytes: backing.page_tables,
        reason: windlass_shm::reason(pages).or_else(costs),
    }
}
