/*
 * windlass.h: framed I/O at a device of windlassd. Link with -lwindlass; see windlass_frameio_read(3).
 *
 * Calls return 0 (or a count) and -1; -1 sets errno. After WINDLASS_E_SYS errno has the reason. A handle may be used by many
 * threads: many write at a time, one reads.
 */
#ifndef WINDLASS_H
#define WINDLASS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define WINDLASS_FRAMEIO_VERSION   1
#define WINDLASS_FRAMEIO_NVECS_MAX 32
/* Room in each buffer of a ring. */
#define WINDLASS_BUF_MAX           2048
/* Flags of windlass_open() and windlass_open_socket(). Calls return EAGAIN where they would sleep. */
#define WINDLASS_NONBLOCK          1
/* Frames may have checksums that are still to be computed: windlass_frameio_read_offload(3). */
#define WINDLASS_OFFLOAD_CSUM      2
/* The same, and frames may be segments of up to 64 KiB that are still to be cut. */
#define WINDLASS_OFFLOAD_GSO       4

typedef enum windlass_error {
	WINDLASS_E_SUCCESS = 0,
	WINDLASS_E_NODATALINK = 2,	/* no such VNIC */
	WINDLASS_E_NODEV = 13,	/* no such device */
	WINDLASS_E_BADNAME = 18,	/* not a name of a device */
	WINDLASS_E_PERM = 19,	/* permission denied */
	WINDLASS_E_NOZONE = 20,	/* no such zone */
	WINDLASS_E_LINKEXISTS = 24,	/* the zone has a device of this name */
	WINDLASS_E_BUFTOOBIG = 26,	/* buffer larger than maxsize */
	WINDLASS_E_BUFTOOSMALL = 27,	/* buffer smaller than maxtu */
	WINDLASS_E_DLEXCL = 28,	/* device or VNIC in use */
	WINDLASS_E_BADPROP = 31,	/* no such property */
	WINDLASS_E_PROPRDONLY = 32,	/* property cannot be set */
	WINDLASS_E_SYS = 33	/* see errno */
} windlass_error_t;

typedef struct windlass windlass_t;

/* One vector: a buffer, its size, and on return how much of it was used. */
typedef struct windlass_framevec {
	void   *buf;
	size_t  buflen;
	size_t  actlen;
} windlass_framevec_t;

/* nvpf vectors make one frame; nvecs of them in all, 1 to 32, a multiple of nvpf. On return nvecs says how many were used. */
typedef struct windlass_frameio {
	uint32_t            version;
	uint32_t            nvpf;
	uint32_t            nvecs;
	windlass_framevec_t vecs[];
} windlass_frameio_t;

/* A call with n vectors in a variable: .io, .vecs[0] to .vecs[n - 1]. */
#define WINDLASS_FRAMEIO(n) struct { windlass_frameio_t io; windlass_framevec_t vecs[n]; }

/* windlass_offload_t: flags */
#define WINDLASS_NEEDS_CSUM        1	/* the checksum is to be computed */
#define WINDLASS_DATA_VALID        2	/* the checksum was verified */
/* gso_type; WINDLASS_GSO_ECN stands beside a TCP type */
#define WINDLASS_GSO_NONE          0
#define WINDLASS_GSO_TCPV4         1
#define WINDLASS_GSO_TCPV6         4
#define WINDLASS_GSO_UDP_L4        5
#define WINDLASS_GSO_ECN           0x80

/* What is still to be done with a frame: as struct virtio_net_hdr of linux/virtio_net.h, in the order of bytes of the host. */
typedef struct windlass_offload {
	uint8_t  flags;
	uint8_t  gso_type;
	uint16_t hdr_len;	/* with gso_type: bytes of all headers; ignored in a write */
	uint16_t gso_size;	/* with gso_type: bytes of payload in each segment */
	uint16_t csum_start;	/* with WINDLASS_NEEDS_CSUM: where the summed part begins, at most 2047 */
	uint16_t csum_offset;	/* where in that part the checksum is; it holds the sum of the pseudo header */
} windlass_offload_t;

/* A frame in the memory of a ring. */
typedef struct windlass_buf {
	void   *buf;
	size_t  len;
} windlass_buf_t;

/* A reservation; what is in it is the library's. */
typedef struct windlass_lease {
	uint64_t words[4];
} windlass_lease_t;

/* One device of windlass_walk(): version is 1; a device that was unlinked and is open has the name "<unknown>". */
typedef struct windlass_info {
	uint32_t    version;
	const char *name;
	const char *zone;
	const char *datalink;
} windlass_info_t;

/* windlass_create(3) */
int         windlass_create(const char *zone, const char *datalink, const char *name);
int         windlass_unlink(const char *zone, const char *name);
int         windlass_walk(int (*each)(const windlass_info_t *, void *), void *argument);
int         windlass_prop_get(const char *zone, const char *name, const char *prop, uint64_t *bytes);
int         windlass_prop_set(const char *zone, const char *name, const char *prop, uint64_t bytes);
int         windlass_prop_iter(int (*each)(const char *prop, int writable, void *), void *argument);

/* windlass_open(3) */
windlass_t *windlass_open(const char *zone, const char *name, int flags);
windlass_t *windlass_open_socket(const char *path, int flags);
void        windlass_close(windlass_t *);
int         windlass_set_nonblock(windlass_t *, int on);
int         windlass_set_patience(windlass_t *, unsigned int ms);

/* windlass_frameio_read(3) */
int         windlass_frameio_read(windlass_t *, windlass_frameio_t *);
int         windlass_frameio_write(windlass_t *, windlass_frameio_t *);
int         windlass_drain(windlass_t *, unsigned int ms);

/* windlass_frameio_read_offload(3): one windlass_offload_t for each frame */
int         windlass_frameio_read_offload(windlass_t *, windlass_frameio_t *, windlass_offload_t *);
int         windlass_frameio_write_offload(windlass_t *, windlass_frameio_t *, const windlass_offload_t *);
int         windlass_peek_offload(windlass_t *, windlass_buf_t *, windlass_offload_t *, unsigned int count);
int         windlass_commit_offload(windlass_t *, windlass_lease_t *, const windlass_buf_t *, const windlass_offload_t *, unsigned int count);

/* windlass_pollfd(3): events is POLLIN, POLLOUT or both */
int         windlass_pollfd(windlass_t *, int events);

/* windlass_peek(3) */
int         windlass_peek(windlass_t *, windlass_buf_t *, unsigned int count);
int         windlass_release(windlass_t *, unsigned int count);
int         windlass_reserve(windlass_t *, windlass_lease_t *, windlass_buf_t *, unsigned int count);
int         windlass_commit(windlass_t *, windlass_lease_t *, const windlass_buf_t *, unsigned int count);

/* windlass_errno(3) */
int         windlass_errno(void);
const char *windlass_strerror(int error);

#ifdef __cplusplus
}
#endif

#endif
