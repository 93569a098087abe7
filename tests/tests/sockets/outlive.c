/* Two programs that live longer than the daemon.
 *
 * outlive serve PORT-FILE
 * outlive ask PORT-FILE
 * outlive hold PORT-FILE
 * outlive keep PORT-FILE
 *
 * serve: one thread takes connections and puts them into an epoll instance, from which two others answer in turns: one of them
 * sleeps in it at any time. ask: exchanges on one connection until PORT-FILE.first is there, closes it and prints `alone`, waits for
 * PORT-FILE.second, exchanges on a new connection until PORT-FILE.end is there, and prints `done` when every answer was right.
 * hold: the same, but it keeps the first connection, and exchanges on both in turns until the end. The server ends after the second
 * connection. keep: has one more connection for each PORT-FILE.0, PORT-FILE.1 and so on that comes, exchanges on all, and closes the first
 * one once PORT-FILE.drop is there. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "meet.h"
#include "message.h"

static int is_there(const char *path, const char *what)
{
	char name[4096];
	snprintf(name, sizeof name, "%s.%s", path, what);
	return !access(name, F_OK);
}

static int ended;
static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;

static void answer_one(int set)
{
	struct epoll_event event;
	char bytes[MESSAGE];
	if (epoll_wait(set, &event, 1, -1) != 1)
		fail("epoll_wait");
	if (move(event.data.fd, bytes, 0)) {
		move(event.data.fd, bytes, 1);
		return;
	}
	close(event.data.fd);
	if (++ended == 2) {
		puts("done");
		fflush(stdout);
		exit(0);
	}
}

static void *answer(void *set)
{
	for (;;) {
		pthread_mutex_lock(&turn);
		answer_one(*(int *)set);
		pthread_mutex_unlock(&turn);
	}
}

static int serve(const char *path)
{
	int set = epoll_create1(0);
	pthread_t threads[2];
	for (int i = 0; i < 2; i++)
		if (pthread_create(threads + i, 0, answer, &set))
			fail("pthread_create");
	int fd = listen_at(path);
	for (;;) {
		struct epoll_event event = { .events = EPOLLIN };
		event.data.fd = accept(fd, 0, 0);
		if (event.data.fd < 0 || epoll_ctl(set, EPOLL_CTL_ADD, event.data.fd, &event))
			fail("accept");
	}
}

static void exchange(int fd, uint64_t round)
{
	char asked[MESSAGE] = { 0 }, got[MESSAGE];
	snprintf(asked, sizeof asked, "%llu", (unsigned long long)(round * 0x9e3779b97f4a7c15ull));
	move(fd, asked, 1);
	if (!move(fd, got, 0) || memcmp(asked, got, MESSAGE)) {
		printf("WRONG %.32s instead of %s\n", got, asked);
		exit(1);
	}
	/* The server's thread sleeps now and then. */
	if (round % 64 == 63)
		usleep(1000);
}

static void keep(const char *path)
{
	int fds[16], count = 0, first = 0;
	for (uint64_t round = 0; count < 16; round++) {
		char next[12];
		snprintf(next, sizeof next, "%d", count);
		if (is_there(path, next))
			fds[count++] = dial(path);
		if (!first && is_there(path, "drop"))
			close(fds[first++]);
		for (int i = first; i < count; i++)
			exchange(fds[i], round);
	}
}

int main(int count, char **words)
{
	if (count == 3 && !strcmp(words[1], "keep"))
		keep(words[2]);
	if (count == 3 && !strcmp(words[1], "serve"))
		return serve(words[2]);
	int holds = !strcmp(words[1], "hold"), first = dial(words[2]);
	uint64_t round = 0;
	while (!is_there(words[2], "first"))
		exchange(first, round++);
	if (!holds)
		close(first);
	puts("alone");
	fflush(stdout);
	while (!is_there(words[2], "second"))
		usleep(5000);
	int second = dial(words[2]);
	while (!is_there(words[2], "end")) {
		if (holds)
			exchange(first, round);
		exchange(second, round++);
	}
	if (holds)
		close(first);
	close(second);
	puts("done");
	return 0;
}
