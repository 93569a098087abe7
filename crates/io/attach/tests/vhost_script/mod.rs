//! What the message handler must survive: any bytes as a front end's words, with any kind of descriptor beside them. The
//! fuzz target `vhost_message` and its replay run this.
#![allow(dead_code, missing_docs)]

use std::fs::File;
use std::os::fd::OwnedFd;

use windlass_attach::endpoint::Rings;
use windlass_attach::port::Limit;
use windlass_attach::vhost_user::SessionConf;
use windlass_attach::vhost_user::message::{Code, HEADER_BYTES, Header, Request};
use windlass_attach::vhost_user::session::{RingChange, Session};
use windlass_attach::vhost_user::wire::Incoming;
use windlass_frame::{Heads, RxId, Tick};
use windlass_shm::{HugePages, Mapping, Section, SegStore, Tails};
use windlass_sync::qsbr::Domain;
use windlass_sys::eventfd;
use windlass_sys::unix::{self, SocketKind};

/// Bytes of the memory that comes with a message.
const MEMORY: usize = 1 << 20;

/// What a message can be accompanied by.
struct Props {
    memory: OwnedFd,
    socket: OwnedFd,
    _peer: OwnedFd,
    plain: File,
}

impl Props {
    fn new() -> Props {
        let made = Mapping::create("vhost-script", MEMORY, HugePages::No);
        let (socket, peer) = unix::pair(SocketKind::Stream).expect("a pair");
        Props {
            memory: made.expect("memory").1,
            socket,
            _peer: peer,
            plain: File::open("/proc/self/exe").expect("a file"),
        }
    }

    fn fd(&self, kind: u8) -> OwnedFd {
        let again = |fd: &OwnedFd| fd.try_clone().expect("a descriptor");
        match kind % 8 {
            0 | 1 | 5 => again(&self.memory),
            4 => again(&self.socket),
            2 | 6 => eventfd::create().expect("an eventfd"),
            _ => self.plain.try_clone().expect("a descriptor").into(),
        }
    }
}

/// A worker looks at each ring.
fn visit(rings: &mut Rings, section: &Section<'_>, (heads, store): (&mut Heads, &mut SegStore)) {
    for rx in &mut rings.rx {
        let mut tails = Tails::bind(store, section);
        heads.clear(RxId(0), Tick(0));
        let (loan, _) = rx.rx_burst(section, heads, &mut tails, Limit::FULL);
        rx.release(section, loan);
    }
}

/// Says `bytes` to a session: a sequence of {kind of descriptors, their number, header, payload}. Rings are made
/// whenever the session wishes so, and a worker looks at them.
pub fn run(mut bytes: &[u8]) {
    let props = Props::new();
    let conf = SessionConf {
        pairs: 2,
        mtu: 1500,
    };
    let mut session = Session::new(conf, windlass_shm::Quota::new(2048));
    let mut rings = None;
    let domain = Domain::new(1);
    let mut worker = domain.register();
    let (mut heads, mut store) = (Heads::boxed(), SegStore::default());
    while let Some((&[kind, count], rest)) = bytes.split_first_chunk::<2>() {
        let Some((header, rest)) = rest.split_first_chunk::<HEADER_BYTES>() else {
            return;
        };
        let Ok(header) = Header::decode(header) else {
            return;
        };
        let Some((payload, rest)) = rest.split_at_checked(header.payload) else {
            return;
        };
        bytes = rest;
        let fds: Vec<OwnedFd> = (0..count % 10)
            .map(|i| props.fd(kind.wrapping_add(i / 8)))
            .collect();
        let Ok(request) = Request::decode(header.code, payload, fds.len()) else {
            return;
        };
        if session.disturbs(&request) {
            rings = None;
            session.stopped();
        }
        let message = Incoming {
            code: header.code,
            request,
            need_reply: header.need_reply,
            fds,
            channel: None,
            bytes: payload.len(),
        };
        let Ok(taken) = session.take(message) else {
            return;
        };
        // Nobody is in the middle of a visit.
        assert!(!taken.waits || session.is_clear());
        if session.ask().is_err() {
            return;
        }
        if let Some(reply) = taken.reply {
            assert!((HEADER_BYTES..=HEADER_BYTES + 64).contains(&reply.bytes.len()));
        }
        match session.ring_change() {
            RingChange::None => {}
            RingChange::Restart => {
                rings = None;
                session.stopped();
            }
            RingChange::Start => {
                let alarm = eventfd::create().expect("an eventfd");
                rings = session.start(alarm).ok();
            }
        }
        if let Some(rings) = &mut rings {
            let section = worker.section();
            visit(rings, &section, (&mut heads, &mut store));
        }
        let _ = (session.describe(), session.missing());
    }
}

/// One message of a script.
pub fn line(kind: u8, fds: u8, code: Code, payload: &[u8]) -> Vec<u8> {
    let message = windlass_attach::vhost_user::message::request(code, true, payload);
    [&[kind, fds][..], &message].concat()
}
