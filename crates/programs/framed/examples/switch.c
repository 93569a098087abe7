/*
 * A learning switch: a frame goes to the device behind which its destination was seen, else to all others.
 *
 *     cc -o switch switch.c -lwindlass
 *     ./switch SOCKET SOCKET...
 *
 * Frames are looked at where they lie (windlass_peek) and copied once, into the ring of each device that they go to.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <windlass.h>

#define DEVICES_MAX 16
#define FRAMES      32
#define TABLE       4096

static windlass_t *devices[DEVICES_MAX];
static int count;

/* Where an address was last seen: one entry for each hash, the last address of it. */
static struct entry {
	unsigned char address[6];
	unsigned char device_plus_one;
} table[TABLE];

static struct entry *
find(const unsigned char *address)
{
	uint32_t hash = 2166136261u;

	for (int i = 0; i < 6; i++)
		hash = (hash ^ address[i]) * 16777619u;
	return (&table[hash % TABLE]);
}

static void
learn(const unsigned char *address, int device)
{
	struct entry *entry = find(address);

	if (address[0] & 1)
		return;
	memcpy(entry->address, address, 6);
	entry->device_plus_one = (unsigned char)(device + 1);
}

static void
send_to(int to, const windlass_buf_t *frame)
{
	WINDLASS_FRAMEIO(1) one = { { WINDLASS_FRAMEIO_VERSION, 1, 1 }, { { frame->buf, frame->len, 0 } } };

	if (windlass_frameio_write(devices[to], &one.io) != 0 && errno != EAGAIN)
		perror("write");
}

static void
forward(int from, const windlass_buf_t *frame)
{
	unsigned char header[12];
	struct entry *entry;

	if (frame->len < sizeof (header))
		return;
	/* Once: the memory is shared with the daemon. */
	memcpy(header, frame->buf, sizeof (header));
	learn(header + 6, from);
	entry = find(header);
	if (entry->device_plus_one != 0 && memcmp(entry->address, header, 6) == 0) {
		if (entry->device_plus_one - 1 != from)
			send_to(entry->device_plus_one - 1, frame);
		return;
	}
	for (int to = 0; to < count; to++)
		if (to != from)
			send_to(to, frame);
}

int
main(int argc, char **argv)
{
	struct pollfd fds[DEVICES_MAX];
	windlass_buf_t frames[FRAMES];

	if (argc < 3 || argc > DEVICES_MAX + 1) {
		fprintf(stderr, "usage: switch SOCKET SOCKET...\n");
		return (2);
	}
	for (int i = 1; i < argc; i++) {
		if ((devices[count] = windlass_open_socket(argv[i], WINDLASS_NONBLOCK)) == NULL) {
			fprintf(stderr, "switch: %s: %s\n", argv[i], windlass_strerror(windlass_errno()));
			return (1);
		}
		fds[count].fd = windlass_pollfd(devices[count], POLLIN);
		fds[count++].events = POLLIN;
	}
	printf("switch of %d devices\n", count);
	fflush(stdout);
	for (;;) {
		if (poll(fds, (nfds_t)count, -1) < 0 && errno != EINTR)
			return (1);
		for (int from = 0; from < count; from++) {
			int got;

			if (!(fds[from].revents & POLLIN))
				continue;
			got = windlass_peek(devices[from], frames, FRAMES);
			if (got < 0 && errno != EAGAIN && errno != EINTR) {
				perror("peek");
				return (1);
			}
			for (int i = 0; i < got; i++)
				forward(from, &frames[i]);
			if (got > 0)
				windlass_release(devices[from], (unsigned)got);
		}
	}
}
