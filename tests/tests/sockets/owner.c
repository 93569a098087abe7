/* Who uses a connection: the process that accepted it, a child of it, or both.
 *
 * owner serve PORT-FILE WAY
 * owner ask PORT-FILE
 *
 * ask: exchanges messages until PORT-FILE.end is there, and prints `done`. serve answers each message. At the first one after
 * PORT-FILE.act is there it does, by WAY, and then prints `acted`:
 * child: nothing; a child serves from the first byte on, as PostgreSQL's, and its parent keeps nothing.
 * save: a child that touches nothing lives on. forks: four threads fork forty such children, which end at once.
 * names: a child asks for names and flags, copies the descriptor and closes both.
 * send, recv, poll, select, epoll, option: a child does just that, once. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "meet.h"
#include "message.h"

enum { FORKERS = 4, FORKS = 10 };

static void say(const char *what)
{
	puts(what);
	fflush(stdout);
}

/* Whether the file PORT-FILE.WORD is there. */
static int is_told(const char *path, const char *word)
{
	char file[4096];
	snprintf(file, sizeof file, "%s.%s", path, word);
	return !access(file, F_OK);
}

static void ask(const char *path)
{
	char sent[MESSAGE], got[MESSAGE];
	int one = 1, fd = dial(path);
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	for (int i = 0; !is_told(path, "end"); i++) {
		memset(sent, i, sizeof sent);
		move(fd, sent, 1);
		if (!move(fd, got, 0) || memcmp(sent, got, sizeof got))
			fail("answer");
	}
	say("done");
}

static void *fork_often(void *unused)
{
	static int ended;
	for (int i = 0; i < FORKS; i++) {
		pid_t child = fork();
		if (!child)
			_exit(0);
		if (child < 0 || waitpid(child, 0, 0) != child)
			fail("fork");
	}
	if (__atomic_add_fetch(&ended, 1, __ATOMIC_SEQ_CST) == FORKERS)
		say("acted");
	return unused;
}

/* What the child does with the connection. `message` is to be answered. */
static void touch(int fd, const char *way, char *message)
{
	struct sockaddr_in name;
	socklen_t length = sizeof name;
	struct pollfd entry = { .fd = fd, .events = POLLIN };
	struct timeval now = { 0 };
	struct epoll_event event = { .events = EPOLLIN };
	int one = 1;
	if (!strcmp(way, "names")) {
		int copy = dup(fd);
		if (copy < 0 || getsockname(fd, (void *)&name, &length) || getpeername(copy, (void *)&name, &length)
		    || fcntl(fd, F_GETFL) < 0 || fcntl(fd, F_SETFD, FD_CLOEXEC) || close(copy) || close(fd))
			fail(way);
	} else if (!strcmp(way, "send")) {
		move(fd, message, 1);
	} else if (!strcmp(way, "recv")) {
		char byte;
		if (recv(fd, &byte, 1, MSG_DONTWAIT) != -1 || errno != EAGAIN)
			fail(way);
	} else if (!strcmp(way, "poll")) {
		if (poll(&entry, 1, 0))
			fail(way);
	} else if (!strcmp(way, "select")) {
		fd_set set;
		FD_ZERO(&set);
		FD_SET(fd, &set);
		if (select(fd + 1, &set, 0, 0, &now))
			fail(way);
	} else if (!strcmp(way, "epoll")) {
		int set = epoll_create1(0);
		if (epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) || epoll_wait(set, &event, 1, 0))
			fail(way);
	} else if (!strcmp(way, "option")) {
		if (setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one))
			fail(way);
	}
}

/* A child touches the connection and lives on; returns when it has. */
static void let_child(int fd, const char *way, char *message)
{
	int ready[2];
	char byte = 1;
	if (pipe(ready))
		fail("pipe");
	if (!fork()) {
		touch(fd, way, message);
		if (write(ready[1], &byte, 1) != 1)
			_exit(2);
		for (;;)
			pause();
	}
	close(ready[1]);
	if (read(ready[0], &byte, 1) != 1)
		fail("child");
	close(ready[0]);
}

static void answer(int fd, const char *path, const char *way)
{
	char message[MESSAGE];
	pthread_t forkers[FORKERS];
	int one = 1, acts = 0, forks = !strcmp(way, "forks");
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	while (move(fd, message, 0)) {
		if (acts || !is_told(path, "act")) {
			move(fd, message, 1);
			continue;
		}
		acts = 1;
		for (int t = 0; forks && t < FORKERS; t++)
			pthread_create(forkers + t, 0, fork_often, 0);
		if (!forks && strcmp(way, "child"))
			let_child(fd, way, message);
		if (!forks)
			say("acted");
		if (strcmp(way, "send"))
			move(fd, message, 1);
	}
	for (int t = 0; acts && forks && t < FORKERS; t++)
		pthread_join(forkers[t], 0);
}

int main(int count, char **words)
{
	if (count == 3) {
		ask(words[2]);
		return 0;
	}
	int fd = accept_at(words[2]);
	if (!strcmp(words[3], "child")) {
		pid_t child = fork();
		if (child) {
			close(fd);
			signal(SIGTERM, SIG_IGN);
			return waitpid(child, 0, 0) != child;
		}
	}
	answer(fd, words[2], words[3]);
	say("done");
	signal(SIGTERM, SIG_IGN);
	kill(0, SIGTERM);
	return 0;
}
