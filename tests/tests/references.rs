//! What a frame costs in atomic read-modify-writes: none. Memory that it lies in is a region that is held as a whole, so nothing counts
//! references to frames, pages or buffers.
#![cfg(target_arch = "x86_64")]

use core::arch::asm;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::path::PathBuf;
use std::time::Instant;

use windlass_attach::endpoint::{Endpoint, Event, Rings};
use windlass_attach::memif::msg::Secret;
use windlass_attach::memif::{ClientConfig, MemifClient, Offloads};
use windlass_attach::port::{Lane, Limit, Stop};
use windlass_frame::{Claim, HEADROOM, Heads, Pick, RxId, Tick};
use windlass_shm::{HugePages, SegStore, Tails};
use windlass_sync::qsbr::Domain;
use windlass_tests::{Lab, frame, mac, until, until_some};

const A: &str = "02:00:00:00:00:0a";
const B: &str = "02:00:00:00:00:0b";
const ALONE: Lane = Lane {
    worker: 0,
    workers: 1,
};

static IS_WATCHED: AtomicBool = AtomicBool::new(false);
static STEPS: AtomicU64 = AtomicU64::new(0);
static LOCKED: AtomicU64 = AtomicU64::new(0);

/// Looks at the instruction that is next, behind each one while the trap flag is set.
extern "C" fn on_trap(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let context = context.cast::<libc::ucontext_t>();
    // SAFETY: the kernel passes the context of this signal, which nobody else has.
    let registers = unsafe { &mut (*context).uc_mcontext.gregs };
    if !IS_WATCHED.load(Relaxed) {
        registers[libc::REG_EFL as usize] &= !0x100;
        return;
    }
    let at = registers[libc::REG_RIP as usize] as *const [u8; 8];
    // SAFETY: the processor is about to run these bytes; the last ones of a page of code are followed by more of the program's file.
    let text = unsafe { at.read_unaligned() };
    STEPS.fetch_add(1, Relaxed);
    LOCKED.fetch_add(u64::from(is_locked(text)), Relaxed);
}

/// How many instructions `work` runs, and how many of them are atomic read-modify-writes.
fn watch<T>(work: impl FnOnce() -> T) -> (T, u64, u64) {
    STEPS.store(0, Relaxed);
    LOCKED.store(0, Relaxed);
    IS_WATCHED.store(true, Relaxed);
    // SAFETY: sets the trap flag: from the next instruction on each one ends in `on_trap`, until that takes the flag away.
    unsafe { asm!("pushfq", "or qword ptr [rsp], 0x100", "popfq") };
    let result = work();
    IS_WATCHED.store(false, Relaxed);
    (result, STEPS.load(Relaxed), LOCKED.load(Relaxed))
}

/// Whether an instruction is an atomic read-modify-write: it has a lock prefix, or is an exchange with memory.
fn is_locked(text: [u8; 8]) -> bool {
    let is_prefix =
        |byte: &u8| matches!(byte, 0x26 | 0x2e | 0x36 | 0x3e | 0x64..=0x67 | 0xf2 | 0xf3);
    let mut rest = text.into_iter().skip_while(is_prefix).peekable();
    if rest.next_if_eq(&0xf0).is_some() {
        return true;
    }
    rest.next_if(|byte| byte & 0xf0 == 0x40);
    let (opcode, operand) = (rest.next(), rest.next());
    matches!(opcode, Some(0x86 | 0x87)) && operand.is_some_and(|byte| byte < 0xc0)
}

/// Locked instructions and exchanges are found, and what looks like them is not.
#[test]
fn atomic_instructions_are_found() {
    let padded = |text: &[u8]| {
        let mut all = [0x90; 8];
        all[..text.len()].copy_from_slice(text);
        is_locked(all)
    };
    // lock xadd, lock cmpxchg with a 16-bit operand, xchg with memory.
    assert!(padded(&[0xf0, 0x48, 0x0f, 0xc1, 0x07]));
    assert!(padded(&[0x66, 0xf0, 0x0f, 0xb1, 0x0f]));
    assert!(padded(&[0x48, 0x87, 0x07]) && padded(&[0x86, 0x07]));
    // xchg of registers, mov, rep movsb, a nop.
    assert!(!padded(&[0x48, 0x87, 0xd8]) && !padded(&[0x48, 0x89, 0xf0]));
    assert!(!padded(&[0xf3, 0xa4]) && !padded(&[0x66, 0x90]));
}

/// A memif client and what bursts need.
struct Client {
    _client: MemifClient,
    rings: Rings,
    heads: Box<Heads>,
    store: SegStore,
}

fn connect(path: PathBuf) -> Client {
    let config = ClientConfig {
        path,
        owner: None,
        id: 0,
        secret: Secret::NONE,
        name: "client".to_owned(),
        rings: 1,
        log2_sizes: [10; 2],
        offloads: Offloads::None,
        huge: HugePages::Try,
    };
    let mut client = MemifClient::new(config).expect("a client");
    let rings = until_some("the memif is connected", || {
        match client.poll(Instant::now()).pop() {
            Some(Event::Up(rings)) => Some(rings),
            _ => None,
        }
    });
    Client {
        _client: client,
        rings,
        heads: Heads::boxed(),
        store: SegStore::default(),
    }
}

/// Neither end of a memif runs an atomic read-modify-write to send or receive a burst, whether that has one frame or 64.
#[test]
fn frames_are_not_counted_references() {
    let Some(lab) = Lab::start("frames_are_not_counted_references") else {
        return;
    };
    // SAFETY: an all-zero sigaction is a valid one.
    let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
    action.sa_sigaction = on_trap as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO;
    // SAFETY: the handler does nothing but look and count.
    unsafe { libc::sigaction(libc::SIGTRAP, &action, core::ptr::null_mut()) };

    let daemon = lab.daemon();
    daemon.must("bridge create br0");
    let [mut a, mut b] = [("a", A), ("b", B)].map(|(name, address)| {
        let socket = lab.directory().join(format!("{name}.sock"));
        let attach = format!("memif,socket={},role=server", socket.display());
        daemon.must(&format!(
            "vnic create {name} --bridge br0 --mac {address} --attach {attach}"
        ));
        let client = connect(socket);
        daemon.wait_for_state("vnic", name, "up");
        client
    });
    let text = frame(mac(B), mac(A), &[], "counted");
    let mut worker = Domain::new(1).register();
    let mut costs = Vec::new();
    // The first burst finds memory that nobody has touched, and is not counted.
    for count in [64, 1, 64] {
        let section = worker.section();
        let heads = &mut a.heads;
        let tails = Tails::bind(&mut a.store, &section);
        heads.clear(RxId(0), Tick(0));
        for i in 0..count {
            heads.snap[i].0[HEADROOM..HEADROOM + text.len()].copy_from_slice(&text);
            heads.admit(i, text.len() as u32, Claim::NONE);
        }
        heads.n = count;
        let picks: Vec<_> = (0..count).map(|i| Pick::frame(i, false)).collect();
        let tx = &a.rings.tx;
        let (sent, steps, locked) = watch(|| tx.tx_burst(&section, ALONE, heads, &tails, &picks));
        assert_eq!(sent.stop, Stop::Done);
        tx.kick(ALONE);
        costs.push(("sent", count, steps, locked));

        until("the frames are delivered", || {
            daemon.counters("b")["tx_frames"].as_u64()
                == Some(match costs.len() {
                    1 => 64,
                    3 => 65,
                    _ => 129,
                })
        });
        let mut tails = Tails::bind(&mut b.store, &section);
        b.heads.clear(RxId(0), Tick(0));
        let (heads, rx) = (&mut b.heads, b.rings.rx[0].as_mut());
        let (_, steps, locked) = watch(|| {
            let (loan, _) = rx.rx_burst(&section, heads, &mut tails, Limit::FULL);
            rx.release(&section, loan);
        });
        assert_eq!(b.heads.n, count);
        costs.push(("received", count, steps, locked));
        worker.quiesce();
    }
    println!("direction, frames, instructions, atomic ones: {costs:?}");
    for (one, many) in costs[2..4].iter().zip(&costs[4..6]) {
        assert!(many.2 > one.2 + 64, "{costs:?}");
        assert_eq!((one.3, many.3), (0, 0), "{costs:?}");
    }
}
