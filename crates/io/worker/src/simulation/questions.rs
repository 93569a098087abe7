//! An overlay whose search answers, and whose targets come and go meanwhile.

use std::net::UdpSocket;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use windlass_attach::vxlan::{Tos, Vtep, VtepConf};
use windlass_bridge::fdb::Limits;
use windlass_bridge::member::MemberConf;
use windlass_frame::TxId;
use windlass_overlay::Vni;

use super::port::Pipe;
use super::within;
use super::world::World;
use crate::dataplane::overlays::{OverlayTuning, SourceCheck, TargetTuning, Unknown};
use crate::dataplane::{BridgeTuning, DataPlane, MemberTuning};
use crate::questions::Question;

/// Whose place nobody knows.
const DST: u64 = 0x0900_0000_0002;

/// A member, an overlay whose search is asked, and two remote hosts.
struct Scene {
    world: Rc<World>,
    pipe: Arc<Pipe>,
    overlay: u16,
    hosts: [UdpSocket; 2],
}

impl Scene {
    fn start(workers: usize) -> Scene {
        let world = World::start(1, workers, 8);
        let host = || {
            let host = UdpSocket::bind("127.0.0.1:0").expect("a port");
            host.set_nonblocking(true).expect("a socket");
            host
        };
        let local = host().local_addr().expect("an address");
        let conf = VtepConf {
            local,
            ttl: 64,
            tos: Tos::Inherit,
            ports: 1,
        };
        let tuning = OverlayTuning {
            vtep: Vtep::open(&conf, workers as u16).expect("an endpoint"),
            vnis: vec![(0, vni())],
            keep_inner_tag: false,
            unknown: Unknown::Lookup,
            broadcast: false,
            source_check: SourceCheck::Vtep,
            learn: false,
            mtu: 1450,
            member: MemberTuning::default(),
        };
        let mut plane = world.plane.take().expect("the control thread rests");
        let bridge = plane.add_bridge(BridgeTuning::default(), Limits::new(64, [1, 7]));
        let conf = MemberConf::new(TxId(0), 0);
        let overlay = plane.add_overlay(bridge, conf, tuning);
        world.plane.replace(Some(plane));
        let pipe = world.join(bridge, 64);
        world.run_until_quiet();
        Scene {
            world,
            pipe,
            overlay: overlay.expect("an overlay"),
            hosts: [host(), host()],
        }
    }

    fn plane<T>(&self, work: impl FnOnce(&mut DataPlane) -> T) -> T {
        let mut plane = self.world.plane.take().expect("the control thread rests");
        let done = work(&mut plane);
        self.world.plane.replace(Some(plane));
        done
    }

    /// Makes a host a target; its place.
    fn add(&self, host: usize) -> u16 {
        let target = TargetTuning {
            to: self.hosts[host].local_addr().expect("an address"),
            vni: vni(),
            bum: false,
            mtu: 1450,
        };
        let place = self.plane(|plane| plane.add_target(self.overlay, target));
        place.expect("a target")
    }

    /// The member sends a frame to [`DST`]: what is asked then.
    fn send(&self) -> Vec<Question> {
        self.world.put(0, &self.pipe, DST);
        self.world.run_until_quiet();
        let asked = self.plane(DataPlane::take_questions);
        asked.into_iter().map(|(question, _)| question).collect()
    }

    /// Whether a datagram has come to a host; a busy kernel is late.
    fn has_come(&self, host: usize, patience: Duration) -> bool {
        let begun = Instant::now();
        loop {
            let has_come = self.hosts[host].recv(&mut [0; 2048]).is_ok();
            if has_come || begun.elapsed() > patience {
                return has_come;
            }
        }
    }

    fn end(self) {
        drop(self.world.plane.take());
        World::end();
    }
}

fn vni() -> Vni {
    Vni::new(9).expect("24 bits")
}

/// A target goes while a worker sends to it for an answer. What comes then is asked for again, and does not go to the host that has the number
/// of its place.
#[test]
fn a_place_is_sent_to_no_longer_than_it_is_there() {
    within(|| {
        let scene = Scene::start(1);
        let place = scene.add(0);
        let [question] = scene.send()[..] else {
            panic!("one question");
        };
        scene.plane(|plane| plane.answer_question(question, Some(place)));
        scene.world.run_until_quiet();
        assert!(scene.has_come(0, Duration::from_secs(10)), "what was held");
        scene
            .plane(|plane| plane.remove_targets(&[place]))
            .expect("removed");
        assert_eq!(scene.add(1), place);
        assert_eq!(scene.send(), [question]);
        assert!(!scene.has_come(1, Duration::from_millis(1)));
        scene.end();
    });
}

/// The table is written when all workers have what was answered last, not what was answered before.
#[test]
fn an_answer_waits_for_all_workers() {
    within(|| {
        let scene = Scene::start(2);
        let [first, second] = [0, 1].map(|host| scene.add(host));
        let [question] = scene.send()[..] else {
            panic!("one question");
        };
        scene.plane(|plane| plane.answer_question(question, Some(first)));
        scene.world.run_until_quiet();
        scene.plane(|plane| plane.answer_question(question, Some(second)));
        assert_eq!(scene.plane(DataPlane::take_answered), []);
        scene.world.run_until_quiet();
        assert_eq!(scene.plane(DataPlane::take_answered), [question]);
        scene.end();
    });
}
