/* A thread is asleep in a receive whose descriptor another thread closes; then there is another broker, and the process has a
 * connection to another process. What the sleeper receives at last is its own connection's.
 *
 * asleep listen|connect PORT-FILE WAY BYTES MESSAGES WINDOW
 *
 * A second port is in PORT-FILE.2. Prints `closed` when nothing of the process has been joined for more than a second, and goes on
 * when there is a file PORT-FILE.go; prints `late` when the sleeper has come back, and goes on when there is a file
 * PORT-FILE.stopped; prints `right`. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include "meet.h"
#include "message.h"

enum { ROUNDS = 16 };

static int first;

static void exchange(int fd, int begins, int messages, char kind)
{
	char bytes[MESSAGE], expected[MESSAGE];
	memset(expected, kind, MESSAGE);
	for (int i = 0; i < 2 * messages; i++) {
		int sends = (i % 2 == 0) == begins;
		memset(bytes, sends ? kind : 0, MESSAGE);
		if (!move(fd, bytes, sends))
			fail("end");
		if (!sends && memcmp(bytes, expected, MESSAGE)) {
			puts("WRONG bytes");
			exit(1);
		}
	}
}

static void beside(char *into, const char *path, const char *ending)
{
	snprintf(into, 4096, "%s.%s", path, ending);
}

static void wait_for_file(const char *path, const char *ending)
{
	char name[4096];
	beside(name, path, ending);
	for (int i = 0; i < 8000 && access(name, F_OK); i++)
		usleep(5000);
}

static void make_file(const char *path, const char *ending)
{
	char name[4096];
	beside(name, path, ending);
	close(open(name, O_CREAT | O_WRONLY, 0600));
}

/* Messages whose sender makes no further call, and whose receiver does not wait: each comes at once, as there is nobody who would
 * move it later. */
static void exchange_at_once(const char *path, int fd, int begins)
{
	char bytes[MESSAGE] = { 0 }, taken[16];
	for (int i = 0; i < ROUNDS; i++) {
		snprintf(taken, sizeof taken, "taken%d", i);
		if ((i % 2 == 0) == begins) {
			if (!move(fd, bytes, 1))
				fail("at once");
			wait_for_file(path, taken);
			continue;
		}
		ssize_t got = -1;
		for (int tries = 0; tries < 3000 && got < 0; tries++) {
			got = recv(fd, bytes, MESSAGE, MSG_DONTWAIT);
			usleep(1000);
		}
		if (got != MESSAGE) {
			printf("WRONG: a message does not come, %zd\n", got);
			exit(1);
		}
		make_file(path, taken);
	}
}

static void *sleeper(void *unused)
{
	char bytes[MESSAGE];
	if (!move(first, bytes, 0) || bytes[0] != 'l' || bytes[MESSAGE - 1] != 'l') {
		puts("WRONG late bytes");
		exit(1);
	}
	return unused;
}

static void connects(const char *path, int messages)
{
	char other[4096];
	pthread_t thread;
	first = dial(path);
	exchange(first, 1, messages, 'a');
	pthread_create(&thread, 0, sleeper, 0);
	usleep(300000);
	close(first);
	usleep(1500000);
	puts("closed");
	fflush(stdout);
	wait_for_file(path, "go");
	beside(other, path, "2");
	int second = dial(other);
	exchange(second, 1, messages, 'b');
	make_file(path, "late");
	pthread_join(thread, 0);
	puts("late");
	fflush(stdout);
	wait_for_file(path, "stopped");
	exchange_at_once(path, second, 1);
	exchange(second, 1, messages, 'c');
}

static void listens(const char *path, int messages)
{
	char other[4096];
	beside(other, path, "2");
	pid_t child = fork();
	if (!child) {
		int second = accept_at(other);
		exchange(second, 0, messages, 'b');
		exchange_at_once(path, second, 0);
		exchange(second, 0, messages, 'c');
		_exit(0);
	}
	int one = accept_at(path), status;
	char late[MESSAGE];
	memset(late, 'l', MESSAGE);
	exchange(one, 0, messages, 'a');
	wait_for_file(path, "late");
	if (!move(one, late, 1))
		fail("late");
	if (waitpid(child, &status, 0) != child || status) {
		puts("WRONG child");
		exit(1);
	}
}

int main(int argc, char **argv)
{
	if (argc != 7)
		return 3;
	if (!strcmp(argv[1], "listen"))
		listens(argv[2], atoi(argv[5]));
	else
		connects(argv[2], atoi(argv[5]));
	puts("right");
	return 0;
}
