/*
 * Sends 64-byte frames at one place and receives them at another, as fast as it can, from one thread:
 *
 *     framed-gen framed|lent SOCKET SOCKET FRAMES SECONDS    libwindlass: copies, or frames in the ring
 *     framed-gen tap INTERFACE INTERFACE 1 SECONDS           write(2) and read(2) at TAPs
 *     framed-gen packet INTERFACE INTERFACE FRAMES SECONDS   sendmmsg(2) and recvmmsg(2) at packet sockets
 *
 * FRAMES is the number of frames a call. Prints the frames received a second, and the share of those sent that came.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_packet.h>
#include <linux/if_tun.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include <windlass.h>

#define BATCH_MAX 32
#define FRAME     64
#define WINDOW    256

static unsigned char frame[FRAME] = { 2, 0, 0, 0, 0xf, 1, 2, 0, 0, 0, 0xf, 0, 0x88, 0xb5 };
static char rooms[BATCH_MAX][2048];
static unsigned batch;
static windlass_t *from, *to;
static int out, in;

static void
die(const char *what)
{
	perror(what);
	exit(1);
}

static int
is_ours(const void *bytes)
{
	return (memcmp(bytes, frame, 14) == 0);
}

static int
none(const char *what)
{
	if (errno != EAGAIN && errno != EINTR && errno != ENOBUFS)
		die(what);
	return (0);
}

static unsigned
framed_send(void)
{
	static WINDLASS_FRAMEIO(BATCH_MAX) call;

	call.io = (windlass_frameio_t){ WINDLASS_FRAMEIO_VERSION, 1, batch };
	for (unsigned i = 0; i < batch; i++)
		call.vecs[i] = (windlass_framevec_t){ frame, FRAME, 0 };
	return (windlass_frameio_write(from, &call.io) == 0 ? batch : (unsigned)none("write"));
}

static unsigned
framed_receive(unsigned *ours)
{
	static WINDLASS_FRAMEIO(BATCH_MAX) call;

	call.io = (windlass_frameio_t){ WINDLASS_FRAMEIO_VERSION, 1, batch };
	for (unsigned i = 0; i < batch; i++)
		call.vecs[i] = (windlass_framevec_t){ rooms[i], sizeof (rooms[i]), 0 };
	if (windlass_frameio_read(to, &call.io) != 0)
		return ((unsigned)none("read"));
	for (unsigned i = 0; i < call.io.nvecs; i++)
		*ours += (unsigned)is_ours(rooms[i]);
	return (call.io.nvecs);
}

static unsigned
lent_send(void)
{
	windlass_buf_t bufs[BATCH_MAX];
	windlass_lease_t lease;

	if (windlass_reserve(from, &lease, bufs, batch) != 0)
		return ((unsigned)none("reserve"));
	for (unsigned i = 0; i < batch; i++) {
		memcpy(bufs[i].buf, frame, FRAME);
		bufs[i].len = FRAME;
	}
	return (windlass_commit(from, &lease, bufs, batch) == 0 ? batch : (unsigned)none("commit"));
}

static unsigned
lent_receive(unsigned *ours)
{
	windlass_buf_t bufs[BATCH_MAX];
	int got = windlass_peek(to, bufs, batch);

	if (got < 0)
		return ((unsigned)none("peek"));
	for (int i = 0; i < got; i++)
		*ours += (unsigned)is_ours(bufs[i].buf);
	windlass_release(to, (unsigned)got);
	return ((unsigned)got);
}

static unsigned
tap_send(void)
{
	return (write(out, frame, FRAME) == FRAME ? 1 : (unsigned)none("write"));
}

static unsigned
tap_receive(unsigned *ours)
{
	if (read(in, rooms[0], sizeof (rooms[0])) < 14)
		return ((unsigned)none("read"));
	*ours += (unsigned)is_ours(rooms[0]);
	return (1);
}

static unsigned
packet_send(void)
{
	struct mmsghdr messages[BATCH_MAX] = { 0 };
	struct iovec iov = { frame, FRAME };
	int sent;

	for (unsigned i = 0; i < batch; i++)
		messages[i].msg_hdr = (struct msghdr){ .msg_iov = &iov, .msg_iovlen = 1 };
	sent = sendmmsg(out, messages, batch, MSG_DONTWAIT);
	return (sent > 0 ? (unsigned)sent : (unsigned)none("sendmmsg"));
}

static unsigned
packet_receive(unsigned *ours)
{
	struct mmsghdr messages[BATCH_MAX] = { 0 };
	struct iovec iov[BATCH_MAX];
	int got;

	for (unsigned i = 0; i < batch; i++) {
		iov[i] = (struct iovec){ rooms[i], sizeof (rooms[i]) };
		messages[i].msg_hdr = (struct msghdr){ .msg_iov = &iov[i], .msg_iovlen = 1 };
	}
	if ((got = recvmmsg(in, messages, batch, MSG_DONTWAIT, NULL)) <= 0)
		return ((unsigned)none("recvmmsg"));
	for (int i = 0; i < got; i++)
		*ours += (unsigned)is_ours(rooms[i]);
	return ((unsigned)got);
}

static windlass_t *
device(const char *path)
{
	windlass_t *opened = windlass_open_socket(path, WINDLASS_NONBLOCK);

	if (opened == NULL)
		die(path);
	return (opened);
}

static int
tap(const char *name)
{
	struct ifreq request = { .ifr_flags = IFF_TAP | IFF_NO_PI };
	int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK);

	strncpy(request.ifr_name, name, sizeof (request.ifr_name) - 1);
	if (fd < 0 || ioctl(fd, TUNSETIFF, &request) != 0)
		die(name);
	return (fd);
}

static int
packet(const char *name)
{
	struct sockaddr_ll address = { .sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL) };
	int one = 1, room = 8 << 20, fd = socket(AF_PACKET, SOCK_RAW, 0);

	address.sll_ifindex = (int)if_nametoindex(name);
	setsockopt(fd, SOL_PACKET, PACKET_QDISC_BYPASS, &one, sizeof (one));
	setsockopt(fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &one, sizeof (one));
	setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof (room));
	if (address.sll_ifindex == 0 || bind(fd, (struct sockaddr *)&address, sizeof (address)) != 0)
		die(name);
	return (fd);
}

static double
now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return ((double)time.tv_sec + (double)time.tv_nsec / 1e9);
}

int
main(int argc, char **argv)
{
	unsigned (*send_some)(void), (*receive_some)(unsigned *);
	unsigned long sent = 0, received = 0, before_sent = 0, before_received = 0;
	double began, end;

	if (argc != 6)
		return (2);
	batch = (unsigned)atoi(argv[4]);
	if (strcmp(argv[1], "framed") == 0 || strcmp(argv[1], "lent") == 0) {
		int lent = argv[1][0] == 'l';

		send_some = lent ? lent_send : framed_send;
		receive_some = lent ? lent_receive : framed_receive;
		from = device(argv[2]);
		to = device(argv[3]);
	} else {
		int is_tap = strcmp(argv[1], "tap") == 0;

		send_some = is_tap ? tap_send : packet_send;
		receive_some = is_tap ? tap_receive : packet_receive;
		out = is_tap ? tap(argv[2]) : packet(argv[2]);
		in = is_tap ? tap(argv[3]) : packet(argv[3]);
	}
	/* The first second is not counted: rings come to the daemon, addresses are learned. */
	began = now();
	end = began + 1 + atof(argv[5]);
	for (int warm = 1; now() < end;) {
		if (warm && now() >= began + 1) {
			warm = 0;
			before_sent = sent;
			before_received = received;
			began = now();
		}
		for (int turn = 0; turn < 64; turn++) {
			unsigned ours = 0;

			/* Frames that were lost do not close the window for ever. */
			if (sent - received < WINDOW || turn == 63)
				sent += send_some();
			receive_some(&ours);
			received += ours;
			if (turn == 63 && sent - received >= 2 * WINDOW)
				sent = received;
		}
	}
	received -= before_received;
	printf("%.3f million frames/s, %lu sent\n", (double)received / (now() - began) / 1e6, sent - before_sent);
	return (0);
}
