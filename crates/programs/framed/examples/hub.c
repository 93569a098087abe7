/*
 * A hub: each frame that comes from one device goes to all others.
 *
 *     cc -o hub hub.c -lwindlass
 *     ./hub SOCKET SOCKET...
 *
 * A device that has no room loses the frame, as a hub does.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <windlass.h>

#define DEVICES_MAX 16
#define FRAMES      32
#define FRAME_MAX   2048

typedef WINDLASS_FRAMEIO(FRAMES) batch_t;

static windlass_t *devices[DEVICES_MAX];
static int count;
static char room[FRAMES][FRAME_MAX];

/* Reads what is there. Returns the number of frames, 0 if there is none, -1 if the device is gone. */
static int
receive(windlass_t *from, batch_t *batch)
{
	batch->io = (windlass_frameio_t){ WINDLASS_FRAMEIO_VERSION, 1, FRAMES };
	for (int i = 0; i < FRAMES; i++)
		batch->vecs[i] = (windlass_framevec_t){ room[i], FRAME_MAX, 0 };
	if (windlass_frameio_read(from, &batch->io) == 0)
		return ((int)batch->io.nvecs);
	if (errno == EAGAIN || errno == EINTR)
		return (0);
	perror("read");
	return (-1);
}

static void
repeat(int from, batch_t *batch)
{
	int frames = (int)batch->io.nvecs;

	for (int i = 0; i < frames; i++)
		batch->vecs[i].buflen = batch->vecs[i].actlen;
	for (int to = 0; to < count; to++) {
		batch->io.nvecs = (uint32_t)frames;
		if (to != from && windlass_frameio_write(devices[to], &batch->io) != 0 && errno != EAGAIN)
			perror("write");
	}
}

int
main(int argc, char **argv)
{
	static batch_t batch;
	struct pollfd fds[DEVICES_MAX];

	if (argc < 3 || argc > DEVICES_MAX + 1) {
		fprintf(stderr, "usage: hub SOCKET SOCKET...\n");
		return (2);
	}
	for (int i = 1; i < argc; i++) {
		windlass_t *device = windlass_open_socket(argv[i], WINDLASS_NONBLOCK);

		if (device == NULL) {
			fprintf(stderr, "hub: %s: %s\n", argv[i], windlass_strerror(windlass_errno()));
			return (1);
		}
		fds[count].fd = windlass_pollfd(device, POLLIN);
		fds[count].events = POLLIN;
		devices[count++] = device;
	}
	printf("hub of %d devices\n", count);
	fflush(stdout);
	for (;;) {
		if (poll(fds, (nfds_t)count, -1) < 0 && errno != EINTR)
			return (1);
		for (int from = 0; from < count; from++) {
			int got;

			if (!(fds[from].revents & POLLIN))
				continue;
			if ((got = receive(devices[from], &batch)) < 0)
				return (1);
			if (got > 0)
				repeat(from, &batch);
		}
	}
}
