/* Calls on a number that fail, and a number that becomes another socket's behind the library's back.
 *
 * number listen|connect PORT-FILE WAY BYTES CHUNK WINDOW
 *
 * WAY: `refused`: dup3 and close_range are refused by the kernel. `unseen`: a bare system call puts a second connection at the number
 * of the first one, to which the peer has still to send. Prints `right`. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "meet.h"
#include "message.h"
#include "joined.h"

enum { WARM = 400 };

static void wrong(const char *what, long a, long b)
{
	printf("WRONG %s: %ld %ld\n", what, a, b);
	fflush(stdout);
	_exit(1);
}

static void exchange(int fd, int begins)
{
	char message[MESSAGE] = { 0 };
	for (int i = 0; i < WARM; i++)
		if (!move(fd, message, begins) || !move(fd, message, !begins))
			fail("exchange");
}

/* dup2 by the instruction. */
static long double_unseen(int old, int number)
{
	long result;
	__asm__ volatile("syscall" : "=a"(result) : "0"(SYS_dup2), "D"(old), "S"(number) : "rcx", "r11", "memory");
	return result;
}

static void refused(int fd)
{
	int other = dup(1);
	struct { int result; const char *what; } calls[] = {
		{ dup3(other, fd, 0x40), "dup3 with a flag" },
		{ dup3(fd, fd, 0), "dup3 to itself" },
		{ syscall(SYS_dup3, other, fd, 0x40), "dup3 by number" },
		{ close_range(fd, fd, 0x4000), "close_range with a flag" },
		{ close_range(fd, fd - 1, 0), "close_range of nothing" },
		{ syscall(SYS_close_range, fd, fd, 0x4000), "close_range by number" },
	};
	for (unsigned i = 0; i < sizeof calls / sizeof *calls; i++)
		if (calls[i].result != -1 || errno != EINVAL)
			wrong(calls[i].what, calls[i].result, errno);
}

static void connects(const char *port, int is_unseen)
{
	char message[MESSAGE];
	int fd = dial(port);
	warm(fd, fd, port, 1);
	if (!is_unseen) {
		refused(fd);
		exchange(fd, 1);
		return;
	}
	int second = dial(port);
	exchange(second, 1);
	memset(message, 'a', MESSAGE);
	if (!move(fd, message, 1))
		fail("request");
	if (double_unseen(second, fd) != fd)
		fail("dup2");
	usleep(1000);
	ssize_t got = recv(fd, message, MESSAGE, MSG_DONTWAIT);
	if (got != -1 || errno != EAGAIN)
		wrong("early bytes", got, errno);
	memset(message, 'g', MESSAGE);
	if (!move(second, message, 1))
		fail("go");
	/* The answer of the first connection is nobody's. */
	usleep(50000);
	got = recv(fd, message, MESSAGE, MSG_DONTWAIT);
	if (got != -1 || errno != EAGAIN)
		wrong("bytes of another connection", got, message[0]);
	memset(message, 'b', MESSAGE);
	if (!move(second, message, 1) || !move(fd, message, 0))
		fail("last");
	if (message[0] != 'b')
		wrong("last", message[0], 0);
}

static void listens(const char *port, int is_unseen)
{
	char message[MESSAGE];
	int listener = listen_at(port), one = accept(listener, 0, 0);
	warm(one, one, port, 0);
	if (!is_unseen) {
		exchange(one, 0);
		return;
	}
	int two = accept(listener, 0, 0);
	exchange(two, 0);
	if (!move(two, message, 0) || message[0] != 'g')
		fail("go");
	if (!move(one, message, 0) || message[0] != 'a')
		fail("request");
	/* The kernel may know already that nobody reads it. */
	memset(message, 'x', MESSAGE);
	send(one, message, MESSAGE, MSG_NOSIGNAL);
	if (!move(two, message, 0) || !move(two, message, 1))
		fail("last");
}

int main(int argc, char **argv)
{
	if (argc != 7)
		return 3;
	int is_unseen = !strcmp(argv[3], "unseen");
	if (!strcmp(argv[1], "listen"))
		listens(argv[2], is_unseen);
	else
		connects(argv[2], is_unseen);
	puts("right");
	return 0;
}
