/* Two ends of a connection, both of which execute themselves over and over, in the middle of streams in both directions.
 *
 * again accept|connect PORT-FILE BYTES IMAGES WAY [CONNECTION SENT RECEIVED IMAGE]
 *
 * Each end sends BYTES bytes that depend on their place and takes as many of the other's; IMAGES programs in a row do it. WAY
 * is how they wait: `block`, each in turn with a message of its own; `poll`; `epoll`, and `edge` for an edge-triggered
 * one; the instance is a new one in each image. Once both have met, PORT-FILE has `.met` at its end. Prints `done`, or `ended SENT RECEIVED` if the connection ended before. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "meet.h"

enum { MESSAGE = 512 };

static uint64_t bytes, sent, received;
static int is_connector;

static uint8_t at(uint64_t place, int of_connector)
{
	return (uint8_t)(place * 2654435761u >> 11) ^ (of_connector ? 0x5a : 0);
}

/* The connection is over before the streams are. */
static void ended(void)
{
	printf("ended %llu %llu\n", (unsigned long long)sent, (unsigned long long)received);
	fflush(stdout);
	exit(0);
}

/* Sends at most `most` bytes; 0: the kernel would wait. */
static int give(int fd, unsigned most)
{
	uint8_t message[MESSAGE];
	unsigned length = most < bytes - sent ? most : bytes - sent;
	for (unsigned i = 0; i < length; i++)
		message[i] = at(sent + i, is_connector);
	ssize_t n = send(fd, message, length, MSG_NOSIGNAL);
	if (n < 0 && (errno == EPIPE || errno == ECONNRESET))
		ended();
	if (n < 0 && errno != EAGAIN)
		fail("send");
	sent += n > 0 ? n : 0;
	return n > 0;
}

static int take(int fd, unsigned most)
{
	uint8_t message[MESSAGE];
	ssize_t n = recv(fd, message, most, 0);
	if (!n || (n < 0 && errno == ECONNRESET))
		ended();
	if (n < 0 && errno != EAGAIN)
		fail("recv");
	for (ssize_t i = 0; i < n; i++)
		if (message[i] != at(received + i, !is_connector)) {
			printf("WRONG at %llu\n", (unsigned long long)received + i);
			exit(1);
		}
	received += n > 0 ? n : 0;
	return n > 0;
}

static void wait_for(int fd, int set, const char *way, int wants_out)
{
	if (set < 0) {
		struct pollfd entry = { .fd = fd, .events = POLLIN | (wants_out ? POLLOUT : 0) };
		poll(&entry, 1, -1);
		return;
	}
	struct epoll_event event = { .events = EPOLLIN | (wants_out ? EPOLLOUT : 0) };
	if (strcmp(way, "edge"))
		epoll_ctl(set, EPOLL_CTL_MOD, fd, &event);
	epoll_wait(set, &event, 1, -1);
}

/* Goes on until all is sent and taken, or so much is sent. */
static void go_on(int fd, const char *way, uint64_t until)
{
	int set = -1;
	if (!strcmp(way, "block")) {
		while (sent < until || received < until) {
			if (sent <= received && sent < until)
				give(fd, MESSAGE);
			if (received < until)
				take(fd, MESSAGE);
		}
		return;
	}
	fcntl(fd, F_SETFL, O_NONBLOCK);
	if (strcmp(way, "poll")) {
		uint32_t edge = strcmp(way, "edge") ? 0 : EPOLLET | EPOLLOUT;
		struct epoll_event event = { .events = EPOLLIN | edge };
		set = epoll_create1(EPOLL_CLOEXEC);
		if (set < 0 || epoll_ctl(set, EPOLL_CTL_ADD, fd, &event))
			fail("epoll");
	}
	while (sent < until || (until == bytes && received < bytes)) {
		/* At most 16 messages ahead, so that both are awake. */
		int may_send = sent < until && sent < received + 16 * MESSAGE;
		int moved = may_send ? give(fd, 1 + sent * 7 % MESSAGE) : 0;
		moved |= received < bytes ? take(fd, MESSAGE) : 0;
		if (!moved)
			wait_for(fd, set, way, sent < until && sent < received + 16 * MESSAGE);
	}
}

static int meet(const char *path)
{
	if (is_connector)
		return dial(path);
	int connection = accept_at(path);
	char temporary[4096];
	snprintf(temporary, sizeof temporary, "%s.met", path);
	rename(path, temporary);
	return connection;
}

int main(int count, char **words)
{
	if (count != 6 && count != 10)
		return 2;
	char numbers[4][24];
	is_connector = !strcmp(words[1], "connect");
	bytes = strtoull(words[3], 0, 10);
	uint64_t images = strtoull(words[4], 0, 10), image = 0;
	int fd;
	if (count == 10) {
		fd = atoi(words[6]);
		sent = strtoull(words[7], 0, 10);
		received = strtoull(words[8], 0, 10);
		image = strtoull(words[9], 0, 10);
	} else {
		fd = meet(words[2]);
	}
	go_on(fd, words[5], bytes * (image + 1) / images);
	if (image + 1 == images) {
		puts("done");
		return 0;
	}
	uint64_t state[] = { fd, sent, received, image + 1 };
	for (int i = 0; i < 4; i++)
		snprintf(numbers[i], sizeof numbers[i], "%llu", (unsigned long long)state[i]);
	execv(words[0], (char *[]){ words[0], words[1], words[2], words[3], words[4], words[5], numbers[0], numbers[1],
				    numbers[2], numbers[3], 0 });
	fail("execv");
}
