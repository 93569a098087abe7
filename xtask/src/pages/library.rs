//! Section 3: the calls of libwindlass.
//!
//! # Model
//! Prototypes are read from the header, so that a page shows what a program compiles.

use super::Page;
use super::roff::Roff;

const HEADER: &str = include_str!("../../../crates/programs/framed/dist/windlass.h");

/// One page: its calls (the first names it), what they are for, what they do, and their errors.
struct Calls {
    names: &'static [&'static str],
    about: &'static str,
    description: &'static [&'static str],
    errors: &'static [(&'static str, &'static str)],
}

const BAD_POINTER: (&str, &str) = (
    "EFAULT",
    "A pointer is NULL. Other pointers are not checked: one that leads nowhere ends the program with SIGSEGV.",
);
const GONE: (&str, &str) = (
    "ENXIO",
    "The device is gone for good, or the handle was opened by the parent of this process.",
);
const INTERRUPTED: (&str, &str) = (
    "EINTR",
    "A signal handler ran while the call slept. Nothing was done.",
);

const PAGES: &[Calls] = &[
    Calls {
        names: &[
            "windlass_create",
            "windlass_unlink",
            "windlass_walk",
            "windlass_prop_get",
            "windlass_prop_set",
            "windlass_prop_iter",
        ],
        about: "make, remove and list vnd devices, and set their properties",
        description: &[
            "These calls ask the daemon through its control socket: that of $WINDLASS_SOCKET, else the first of the usual ones, as windlass(8). A set-user-ID program asks the system's daemon. They wait for its answer, \
             at most 30 s.",
            "windlass_create() makes the device name over the VNIC datalink, which belongs to the zone and has no attachment. windlass_unlink() takes its name away; a program that has it \
             open keeps it.",
            "windlass_walk() calls each for every device that the caller may see. A device that was unlinked and is still open has the name \"<unknown>\". windlass_prop_iter() calls each for \
             every property. Both end with 1 as soon as each returns another number than 0. What they give is valid during the call of each.",
            "Properties are numbers of bytes: rxbuf and txbuf can be set; maxsize, mintu and maxtu are read only. See windlass-vnd(8). A program that has the device open sees a change at its next open.",
        ],
        errors: &[
            (
                "WINDLASS_E_NODATALINK",
                "There is no such VNIC in the zone.",
            ),
            ("WINDLASS_E_NODEV", "There is no such device in the zone."),
            (
                "WINDLASS_E_BADNAME",
                "A name has 1 to 31 letters, digits, \":\", \"-\" and \"_\", and is neither ctl nor zone.",
            ),
            ("WINDLASS_E_PERM", "The zone is another user's."),
            ("WINDLASS_E_NOZONE", "There is no such zone."),
            (
                "WINDLASS_E_LINKEXISTS",
                "The zone has a device of this name.",
            ),
            ("WINDLASS_E_BUFTOOBIG", "More than maxsize."),
            ("WINDLASS_E_BUFTOOSMALL", "Less than maxtu."),
            (
                "WINDLASS_E_DLEXCL",
                "The VNIC has an attachment or another device.",
            ),
            ("WINDLASS_E_BADPROP", "There is no such property."),
            ("WINDLASS_E_PROPRDONLY", "The property cannot be set."),
            (
                "WINDLASS_E_SYS",
                "See errno: ECONNREFUSED without a daemon, ETIMEDOUT without an answer, EFAULT for a pointer that is NULL.",
            ),
        ],
    },
    Calls {
        names: &[
            "windlass_open",
            "windlass_open_socket",
            "windlass_close",
            "windlass_set_nonblock",
            "windlass_set_patience",
        ],
        about: "open and close devices of windlassd",
        description: &[
            "windlass_open() asks the daemon for the vnd device of this name in this zone, \"global\" or another, and opens it with rings as large as its rxbuf and its txbuf ask for. It can fail \
             as windlass_create(3), too.",
            "windlass_open_socket() opens the device behind a memif socket: that of a vnd device, which \"windlass vnd list -o all\" shows, or of a VNIC made with \"--attach memif,role=server\". A device has \
             one consumer at a time. A handle is NULL after a failure: see windlass_errno(3).",
            "flags is 0 or a sum. With WINDLASS_NONBLOCK, calls return EAGAIN where they would sleep; windlass_set_nonblock() changes that. \
             WINDLASS_OFFLOAD_CSUM and WINDLASS_OFFLOAD_GSO ask for frames that are not finished: see windlass_frameio_read_offload(3).",
            "windlass_close() waits until the daemon has taken every frame that was written, at most 1 s. No other thread may use the handle then. \
             A program that ends without it loses the frames that the daemon has not taken.",
            "A handle survives its daemon. While there is none, calls sleep or return EAGAIN; frames that were written stay in the ring. The calls of \
             the program connect again, and the next daemon gets these frames first, in order. A daemon that is killed between its delivery of a burst \
             and its note of that delivers this burst again: at most 64 frames.",
            "A device that is absent for longer than a time is gone for good: there is no socket, no interface, it is another's, or it may not be \
             opened. Calls return ENXIO then. windlass_set_patience() sets the time in milliseconds; it is 10 s. A socket at which no daemon answers is \
             waited for without a limit.",
            "Many threads may write to one handle at a time; one may read. A child of fork(2) cannot use its parent's handles: calls fail with ENXIO, \
             windlass_close() frees the child's copy. Every descriptor of a handle is closed by execve(2).",
        ],
        errors: &[
            (
                "WINDLASS_E_NODEV",
                "Nothing listens at the path, or there is no such interface.",
            ),
            (
                "WINDLASS_E_BADNAME",
                "The path is empty, too long, or another kind of socket's.",
            ),
            ("WINDLASS_E_PERM", "The socket may not be opened."),
            (
                "WINDLASS_E_DLEXCL",
                "Another program has the device, and had it for half a second.",
            ),
            (
                "WINDLASS_E_SYS",
                "See errno: EFAULT for a path that is NULL, EINVAL for unknown flags, EOPNOTSUPP for a server that does not offer the offloads, EPROTO for \
                 one that is none of memif.",
            ),
        ],
    },
    Calls {
        names: &[
            "windlass_frameio_read",
            "windlass_frameio_write",
            "windlass_drain",
        ],
        about: "read and write whole frames, many a call",
        description: &[
            "A call moves frames between vectors and the device. nvpf vectors make one frame, and there are nvecs of them: 1 to 32, a multiple of nvpf. \
             So a call moves at most 32 frames of one vector, or 16 with a header and a payload apart. version is WINDLASS_FRAMEIO_VERSION. On return, nvecs is \
             the number of vectors that were used. Frames are never merged, split or reordered.",
            "windlass_frameio_read() returns as soon as there is some frame. actlen of each vector says how many bytes are in it; a short frame leaves the later \
             vectors of its group empty.",
            "windlass_frameio_write() sends all frames, or none where there is no room for all. buflen is the length of the data. A frame has at least 14 bytes. \
             Frames of one call leave together; calls of several threads leave in the order in which they got room. Once the call has returned 0, only \
             the bridge drops a frame, under a reason that \"windlass stat\" shows.",
            "windlass_drain() waits until the daemon has taken every frame, at most ms milliseconds.",
        ],
        errors: &[
            (
                "EAGAIN",
                "The handle is nonblocking, and there is no frame, or no room. windlass_drain(): not in that time.",
            ),
            (
                "EBUSY",
                "windlass_frameio_read(): another thread reads, or frames are lent.",
            ),
            BAD_POINTER,
            INTERRUPTED,
            (
                "EINVAL",
                "Another version; no vector or more than 32; nvpf is 0 or nvecs no multiple of it; a vector without a buffer or a length; a frame to write \
             that is shorter than 14 bytes, or more frames than the ring ever holds. windlass_frameio_read(): the handle has asked for offloads.",
            ),
            GONE,
            (
                "EOVERFLOW",
                "The first frame to read is longer than its vectors: it stays, and fits a larger group. A frame to write is longer than 65557 bytes.",
            ),
        ],
    },
    Calls {
        names: &[
            "windlass_frameio_read_offload",
            "windlass_frameio_write_offload",
            "windlass_peek_offload",
            "windlass_commit_offload",
        ],
        about: "frames whose checksums or segments are not finished",
        description: &[
            "These are the calls without _offload, with one windlass_offload_t for each frame: what is still to be done with it, or was done. It has the layout and \
             the constants of struct virtio_net_hdr in linux/virtio_net.h.",
            "A handle that was opened with WINDLASS_OFFLOAD_CSUM reads frames as their senders gave them. With WINDLASS_NEEDS_CSUM in flags, the two bytes at csum_start + \
             csum_offset hold the sum of the pseudo header, and the checksum from csum_start to the end of the packet is to be put there. With WINDLASS_DATA_VALID it is known to be \
             right. With neither it is as it came over a wire.",
            "With WINDLASS_OFFLOAD_GSO, which includes that, a frame may be a segment of up to 64 KiB that is to be cut: into gso_size bytes of payload, each \
             behind a copy of the first hdr_len bytes. gso_type says of what. Vectors of 65557 bytes have room for any. Each ring has at least 64 slots then.",
            "A frame that is written may ask for the same. Kernels and guests that take segments get it as it is; for others the bridge computes the checksum and cuts the \
             segment. The bridge checks each request as a guest's, and takes nobody's word for WINDLASS_DATA_VALID. It drops a frame whose request does not hold, and counts it as bad-offload: csum_start \
             is not the start of the TCP or UDP header, or the frame is no segment of this type.",
            "Without these flags, frames are whole, checksums are computed, segments are cut, and every windlass_offload_t that is read is zero.",
        ],
        errors: &[
            (
                "EINVAL",
                "As the calls without _offload; a request that no frame can make: unknown flags or gso_type, csum_start above 2047, a segment without gso_size, without \
                 WINDLASS_NEEDS_CSUM, or with a checksum elsewhere than in its TCP or UDP header; a request for which the handle was not opened. Nothing is sent.",
            ),
            (
                "EOVERFLOW",
                "As the calls without _offload. A segment of more than WINDLASS_BUF_MAX bytes cannot be lent: windlass_frameio_read_offload() reads it.",
            ),
            BAD_POINTER,
        ],
    },
    Calls {
        names: &["windlass_pollfd"],
        about: "a descriptor that tells when a device is ready",
        description: &[
            "The descriptor is for poll(2), select(2), epoll(7) and event loops. POLLIN is what to wait for on it, whatever events is. With events POLLIN, the descriptor \
             is readable when a frame can be read; with POLLOUT, unless a write has returned EAGAIN and would again; with both, when one of the two is so.",
            "It belongs to the handle: do not read, write or close it. It may be readable for nothing; then the call returns EAGAIN, and it is not any more. It \
             becomes readable when the daemon goes and comes, too: the call that follows connects again.",
            "Another process that gets it (fork(2), SCM_RIGHTS) can wait on it, and nothing else.",
        ],
        errors: &[("EINVAL", "events is something else."), BAD_POINTER, GONE],
    },
    Calls {
        names: &[
            "windlass_peek",
            "windlass_release",
            "windlass_reserve",
            "windlass_commit",
        ],
        about: "frames in the memory of the ring, without a copy",
        description: &[
            "windlass_peek() lends the next frames, up to count and at most 32, and returns how many: bufs says where they lie. windlass_release() takes the first count of \
             them as read; the others are no longer lent, and come again. Nothing else can be read while frames are lent.",
            "windlass_reserve() reserves count buffers, 1 to 32, all or none, each of WINDLASS_BUF_MAX bytes. The program writes frames there, puts their lengths into \
             the len of the first bufs, and calls windlass_commit() with the number of these frames, at least one. Frames leave in the order of reservations: those \
             that other threads reserve later wait for this commit. At most 16 reservations are out at a time.",
            "The daemon can write to this memory at any time: read each byte once where a decision depends on it.",
        ],
        errors: &[
            (
                "EAGAIN",
                "The handle is nonblocking, and there is no frame, no room, or no reservation left.",
            ),
            (
                "EBUSY",
                "windlass_peek(): another thread reads, or frames are lent.",
            ),
            BAD_POINTER,
            INTERRUPTED,
            (
                "EINVAL",
                "count is 0 or above 32, or above what is lent; a length is not within 14 to WINDLASS_BUF_MAX; windlass_peek(): the handle has asked for offloads. What windlass_commit() refuses is given back: the daemon \
             drops it as a runt.",
            ),
            GONE,
            (
                "EOVERFLOW",
                "windlass_peek(): the first frame is in several buffers. windlass_frameio_read() reads it.",
            ),
        ],
    },
    Calls {
        names: &["windlass_errno", "windlass_strerror"],
        about: "why the last call failed",
        description: &[
            "windlass_errno() gives the number of the last failure of the calling thread: that of libvnd for the same. After WINDLASS_E_SYS errno has the reason, \
             and it has one after the others too. windlass_strerror() says it in English; the text is constant.",
        ],
        errors: &[],
    },
];

/// Every page of the section.
pub(crate) fn pages() -> Vec<Page> {
    PAGES.iter().map(page).collect()
}

/// The prototype of a call in the header.
fn prototype(name: &str) -> &'static str {
    let calls = |line: &&str| line.ends_with(");") && line.contains(&format!("{name}("));
    HEADER.lines().find(calls).unwrap_or_default()
}

fn page(calls: &Calls) -> Page {
    let mut page = Roff::page_of(calls.names, 3, calls.about);
    page.heading("LIBRARY");
    page.paragraph("libwindlass (-lwindlass; pkg-config: windlass)");
    page.heading("SYNOPSIS");
    let prototypes = calls.names.iter().map(|name| prototype(name));
    let lines: Vec<_> = core::iter::once("#include <windlass.h>")
        .chain(prototypes)
        .collect();
    page.literal(&lines.join("\n"));
    page.heading("DESCRIPTION");
    for text in calls.description {
        page.paragraph(text);
    }
    page.heading("RETURN VALUE");
    page.paragraph(match calls.names {
        ["windlass_errno", ..] => "A number, and a string. Neither call fails.",
        ["windlass_create", ..] => "0; 1 where each ended a walk; -1 with errno set: see windlass_errno(3).",
        ["windlass_open", ..] => "A handle, or NULL; 0, or -1 with errno set.",
        ["windlass_frameio_read_offload", ..] => {
            "windlass_peek_offload(): the number of frames. The others: 0. -1 with errno set after a failure."
        }
        ["windlass_peek", ..] => "windlass_peek(): the number of frames. The others: 0. -1 with errno set after a failure.",
        ["windlass_pollfd"] => "A descriptor, or -1 with errno set.",
        _ => "0, or -1 with errno set.",
    });
    if !calls.errors.is_empty() {
        page.heading("ERRORS");
        for (name, text) in calls.errors {
            page.term(name, text);
        }
    }
    let others = PAGES.iter().filter_map(|other| other.names.first());
    let others: Vec<_> = others.map(|name| format!("{name}.3")).collect();
    page.see_also(&others.iter().map(String::as_str).collect::<Vec<_>>());
    page.done()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each call of the header is on one page, and each on a page is in the header.
    #[test]
    fn every_call_has_a_page() {
        let names = PAGES.iter().flat_map(|calls| calls.names);
        for name in names.clone() {
            assert!(prototype(name).ends_with(';'), "{name}");
        }
        let declared = HEADER
            .lines()
            .filter(|line| line.ends_with(");") && !line.starts_with(' '));
        assert_eq!(names.count(), declared.count());
    }

    /// Each number of the header's errors is on the page that can bring it.
    #[test]
    fn every_error_is_told() {
        let told: Vec<_> = PAGES
            .iter()
            .flat_map(|calls| calls.errors)
            .map(|row| row.0)
            .collect();
        let lines = HEADER
            .lines()
            .map(str::trim)
            .filter(|line| line.starts_with("WINDLASS_E_"));
        for line in lines {
            let name = line.split(' ').next().unwrap_or_default();
            assert!(
                name == "WINDLASS_E_SUCCESS" || told.contains(&name),
                "{name}"
            );
        }
    }
}
