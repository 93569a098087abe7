//! What spanning tree lets members do.

use std::time::Duration;

use windlass_bridge::member::{MemberConf, PortState};

use super::DataPlane;

/// How long [`DataPlane::set_states`] waits for workers: a visit takes microseconds.
const STOP_WAIT: Duration = Duration::from_millis(100);

/// A member's new configuration, with what outlives the one before.
pub(super) fn kept(former: &MemberConf, conf: MemberConf) -> MemberConf {
    MemberConf {
        paces: former.paces.clone(),
        state: former.state,
        ..conf
    }
}

impl DataPlane {
    /// Puts members into states, with one publication; those that are not there are left out. If one of them stops, this waits until
    /// no worker forwards by the state before; whether all have passed that point.
    pub fn set_states(&mut self, states: &[(u16, PortState)]) -> bool {
        let (mut changed, mut stops) = (false, false);
        for (id, state) in states {
            if let Ok(member) = self.draft_member(*id)
                && member.conf.state != *state
            {
                changed = true;
                stops |= member.conf.state == PortState::Forwarding;
                member.conf.state = *state;
            }
        }
        if changed {
            self.publish();
        }
        !stops || self.stuck(STOP_WAIT).is_none()
    }
}
