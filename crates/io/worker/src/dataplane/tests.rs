use windlass_bridge::fdb::Limits;

use super::*;

/// Lets no time pass.
struct Never;

impl Wait for Never {
    fn until(&self, _: Duration, is_done: &mut dyn FnMut() -> bool) -> bool {
        is_done()
    }
}

/// A thousand members come in one publication, and go in one. What was published before is kept as long as a worker may
/// read it, so that it can be counted.
#[test]
fn a_thousand_members_are_published_at_once() {
    let options = DataPlaneOptions {
        workers: vec![None],
        members_max: 1000,
    };
    let (mut plane, _seats) = DataPlane::wire(&options, &Never, || 1).expect("a plane");
    let bridge = plane.add_bridge(BridgeTuning::default(), Limits::new(1000, [1, 2]));
    let mut reader = plane.shared.domain.register();
    reader.online();
    let published = |plane: &DataPlane| plane.limbo.len();
    let before = published(&plane);
    plane.begin_batch();
    let add = |_| plane.add_member(bridge, MemberConf::new(TxId(0), 0), MemberTuning::default());
    let ids: Vec<u16> = (0..1000).map(add).collect::<Result<_, _>>().expect("added");
    plane.end_batch();
    assert_eq!(published(&plane), before + 1);
    let removed = plane.remove_members(&ids);
    assert!(
        matches!(removed, Err(DataPlaneError::Stuck)),
        "no worker runs"
    );
    assert_eq!(published(&plane), before + 2);
    assert!(plane.published.iter().all(Option::is_none));
}
