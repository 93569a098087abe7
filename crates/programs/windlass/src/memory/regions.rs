//! `windlass memory --regions`: the memory through which the daemon forwards.

use windlass_api::Name;

use crate::failure::Failure;
use crate::{Session, fields};

/// Shows the regions of these members and bridges; of all if there is none.
pub(crate) fn show(session: &mut Session<'_>, names: &[Name]) -> Result<(), Failure> {
    let Some(chosen) = session.choose(fields::REGION)? else {
        return Ok(());
    };
    let what = "show regions";
    let regions = session.client(what)?.regions();
    let mut regions = regions.map_err(|error| Failure::of(what, error))?;
    regions.retain(|region| names.is_empty() || names.contains(&region.owner));
    session.rows(&regions, &chosen)
}
