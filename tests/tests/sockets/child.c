/* Forked children that touch a joined connection at a bad moment.
 *
 * child listen|connect PORT-FILE WAY BYTES CHUNK WINDOW (the last three mean nothing)
 *
 * The end that connects has a process for each round, which sends; the one that listens has the children. WAY:
 *   late   bytes lie unread in the ring while or after the broker stands still, for each of STOP_US: the child finds them, by poll
 *          or by recv
 *   dead   the peer is killed, and children are forked while threads meet its death: they come back at once
 * Each end prints `max NAME VALUE` for what it has measured. The environment's WINDLASS_SOCKETS says where the broker listens. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "meet.h"
#include "message.h"

enum { WARM = 100, PAUSES = 10, ROUNDS = 12, DEATHS = 10, THREADS = 4, CHILDREN = 40, IN_VAIN = 40 };

/* For how long the broker stands still, by turns; 0: it did before, and left this process's requests unanswered. */
static const int STOP_US[] = { 60000, 300000, 0 };

static const char *port;

static int64_t now_us(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000000ll + time.tv_nsec / 1000;
}

static void tell(const char *name, int64_t value)
{
	printf("max %s %lld\n", name, (long long)value);
	fflush(stdout);
}

/* Messages there and back, with time for the broker to answer in between. */
static void warm(int fd, int begins)
{
	char message[MESSAGE] = { 0 };
	for (int i = 0; i < WARM; i++) {
		if (!move(fd, message, begins) || !move(fd, message, !begins))
			fail("warm");
		if (begins && i % (WARM / PAUSES) == 0)
			usleep(10000);
	}
}

/* A process that plays the peer in one round, and the connection in it. */
static void peers(int rounds, void (*play)(int))
{
	for (int round = 0; round < rounds; round++) {
		pid_t peer = fork();
		if (!peer) {
			play(dial(port));
			_exit(0);
		}
		if (peer < 0 || waitpid(peer, 0, 0) != peer)
			fail("peer");
	}
}

/* The connection of the next round. */
static int next(int listener)
{
	int one = 1, fd = accept(listener, 0, 0);
	if (fd < 0)
		fail("accept");
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	return fd;
}

/* late */

/* 0: there is none. */
static pid_t broker(void)
{
	struct sockaddr_un name = { .sun_family = AF_UNIX };
	struct ucred who;
	socklen_t length = sizeof who;
	const char *path = getenv("WINDLASS_SOCKETS");
	int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
	strncpy(name.sun_path, path ? path : "", sizeof name.sun_path - 1);
	if (connect(fd, (void *)&name, sizeof name) || getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &length))
		return 0;
	close(fd);
	return who.pid;
}

/* What the kernel has of a stream, asked by the instruction: not what lies in the ring. */
static int in_kernel(int fd)
{
	long result;
	int count = 0;
	__asm__ volatile("syscall" : "=a"(result) : "0"(SYS_ioctl), "D"(fd), "S"(FIONREAD), "d"(&count) : "rcx", "r11", "memory");
	return result ? -1 : count;
}

static void late_peer(int fd)
{
	char message[MESSAGE] = { 0 };
	warm(fd, 1);
	if (!move(fd, message, 0) || !move(fd, message, 1))
		fail("go");
	/* It does not help meanwhile: its next call would. */
	sleep(1);
}

/* A connection of this process with itself, which wants to join while the broker stands still. */
static void ask_in_vain(pid_t stopped)
{
	struct sockaddr_in name = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t length = sizeof name;
	char message[MESSAGE] = { 0 };
	int listener = socket(AF_INET, SOCK_STREAM, 0), near = socket(AF_INET, SOCK_STREAM, 0);
	if (bind(listener, (void *)&name, length) || listen(listener, 1) || getsockname(listener, (void *)&name, &length)
			|| connect(near, (void *)&name, length))
		fail("own connection");
	int far = accept(listener, 0, 0);
	kill(stopped, SIGSTOP);
	for (int i = 0; i < IN_VAIN; i++) {
		if (!move(near, message, 1) || !move(far, message, 0) || !move(far, message, 1) || !move(near, message, 0))
			fail("in vain");
		usleep(5000);
	}
	kill(stopped, SIGCONT);
	close(near);
	close(far);
	close(listener);
}

/* Whether a new child finds the message, while the broker stands still. */
static int is_found(int fd, int by_recv, pid_t stopped, int stop_us)
{
	struct pollfd one = { fd, POLLIN, 0 };
	struct timespec now = { 0, 0 };
	char message[MESSAGE];
	int start[2], status;
	if (pipe(start))
		fail("pipe");
	pid_t child = fork();
	if (!child) {
		close(start[1]);
		if (read(start[0], message, 1))
			_exit(2);
		_exit(by_recv ? recv(fd, message, MESSAGE, MSG_DONTWAIT) != MESSAGE : ppoll(&one, 1, &now, 0) != 1);
	}
	if (stopped)
		kill(stopped, SIGSTOP);
	close(start[1]);
	usleep(stop_us);
	if (stopped)
		kill(stopped, SIGCONT);
	close(start[0]);
	if (child < 0 || waitpid(child, &status, 0) != child || (status && WEXITSTATUS(status) != 1))
		fail("child");
	return !status;
}

static void late(int listener)
{
	int stood_still = 0, by_ring = 0, missed = 0;
	for (int round = 0; round < ROUNDS; round++) {
		char message[MESSAGE] = { 0 };
		int fd = next(listener);
		warm(fd, 0);
		if (!move(fd, message, 1))
			fail("go");
		/* Awake, so that the answer comes by the ring. */
		int there = 0;
		for (int64_t end = now_us() + 2000000; there < MESSAGE && now_us() < end;)
			ioctl(fd, FIONREAD, &there);
		by_ring += in_kernel(fd) == 0;
		pid_t stopped = broker();
		stood_still += stopped != 0;
		int stop_us = STOP_US[round / 2 % 3];
		if (stopped && !stop_us)
			ask_in_vain(stopped);
		missed += !is_found(fd, round % 2, stop_us ? stopped : 0, stop_us);
		close(fd);
	}
	tell("stood_still", stood_still);
	tell("by_ring", by_ring);
	tell("missed", missed);
}

/* dead */

/* Exchanges messages until the peer has died. */
static void *meet_death(void *fd)
{
	char message[MESSAGE] = { 0 };
	while (send(*(int *)fd, message, MESSAGE, MSG_NOSIGNAL) > 0 && recv(*(int *)fd, message, MESSAGE, 0) > 0)
		;
	return 0;
}

/* What a child does with a connection whose peer is dead; never waits. */
static void touch(int fd)
{
	struct pollfd one = { fd, POLLIN, 0 };
	char message[MESSAGE];
	poll(&one, 1, 0);
	recv(fd, message, MESSAGE, MSG_DONTWAIT);
	send(fd, message, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* The peer of all threads: each connection has joined before the next one begins. */
static void dead_peers(int fd)
{
	struct pollfd all[THREADS] = { { fd, POLLIN, 0 } };
	char message[MESSAGE] = { 0 };
	pid_t own = getpid();
	for (int at = 0; at < THREADS; at++) {
		if (at)
			all[at] = (struct pollfd){ dial(port), POLLIN, 0 };
		warm(all[at].fd, 1);
	}
	memcpy(message, &own, sizeof own);
	if (!move(fd, message, 1))
		fail("own number");
	for (;;) {
		poll(all, THREADS, -1);
		for (int at = 0; at < THREADS; at++)
			if (all[at].revents && (!move(all[at].fd, message, 0) || !move(all[at].fd, message, 1)))
				return;
	}
}

static void dead(int listener)
{
	int64_t longest = 0, cpu = 0;
	for (int round = 0; round < DEATHS; round++) {
		int fds[THREADS];
		pthread_t threads[THREADS];
		char message[MESSAGE];
		pid_t peer, children[CHILDREN];
		for (int at = 0; at < THREADS; at++)
			warm(fds[at] = next(listener), 0);
		if (!move(fds[0], message, 0))
			fail("own number");
		memcpy(&peer, message, sizeof peer);
		for (int at = 0; at < THREADS; at++)
			pthread_create(threads + at, 0, meet_death, fds + at);
		usleep(2000);
		kill(peer, SIGKILL);
		for (int at = 0; at < CHILDREN; at++) {
			children[at] = fork();
			if (!children[at]) {
				alarm(10);
				int64_t begin = now_us();
				for (int member = 0; member < THREADS; member++)
					touch(fds[member]);
				_exit((now_us() - begin) / 10000 > 250 ? 250 : (now_us() - begin) / 10000);
			}
		}
		for (int at = 0; at < CHILDREN; at++) {
			struct rusage used;
			int status;
			if (wait4(children[at], &status, 0, &used) != children[at] || !WIFEXITED(status))
				fail("a child hung");
			int64_t took = WEXITSTATUS(status) * 10;
			int64_t spent = used.ru_utime.tv_sec * 1000 + used.ru_utime.tv_usec / 1000 + used.ru_stime.tv_sec * 1000
					+ used.ru_stime.tv_usec / 1000;
			longest = took > longest ? took : longest;
			cpu = spent > cpu ? spent : cpu;
		}
		for (int at = 0; at < THREADS; at++) {
			pthread_join(threads[at], 0);
			close(fds[at]);
		}
	}
	tell("child_ms", longest);
	tell("child_cpu_ms", cpu);
}

int main(int count, char **words)
{
	if (count < 4)
		return 2;
	int is_late = !strcmp(words[3], "late");
	port = words[2];
	if (!strcmp(words[1], "connect"))
		peers(is_late ? ROUNDS : DEATHS, is_late ? late_peer : dead_peers);
	else if (is_late)
		late(listen_at(port));
	else
		dead(listen_at(port));
	puts("done");
	return 0;
}
