/* One end of two TCP connections, the second of which only says whose turn it is: select and pselect on a connection that has joined,
 * and their results, which are the same without the library.
 *
 * select listen|connect PORT-FILE CASE BYTES CHUNK WINDOW (the last three mean nothing)
 *
 * The end that listens selects. Prints a line for each result: what the call returned, the bits that it left, and whether it waited. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "meet.h"
#include "message.h"

enum { ROUNDS = 20, EACH = 100, WAIT_US = 40000, PIPES = 100, FAR = 1000 };

static int fd, turns, handled;
static char message[MESSAGE];

static int64_t now_us(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000000ll + time.tv_nsec / 1000;
}

/* The other end goes on from here. */
static void tell(void)
{
	move(turns, message, 1);
}

static void await(void)
{
	if (!move(turns, message, 0))
		fail("turn");
}

/* By the ring if it can be: this end is awake. */
static void get_bytes(void)
{
	tell();
	for (int64_t end = now_us() + 20000; now_us() < end;)
		;
}

enum { READ = 1, WRITE = 2, EXCEPT = 4 };

/* A call with the connection and one more number, if it is not negative, in some of the sets. */
static void look(const char *what, int sets, int more, int count)
{
	fd_set all[3], *given[3];
	struct timeval time = { 0, WAIT_US };
	for (int set = 0; set < 3; set++) {
		FD_ZERO(all + set);
		given[set] = sets >> set & 1 ? all + set : 0;
		FD_SET(fd, all + set);
		if (more >= 0)
			FD_SET(more, all + set);
	}
	int64_t begin = now_us();
	int found = select(count, given[0], given[1], given[2], &time);
	const char *error = found < 0 ? strerrorname_np(errno) : "";
	int waited = now_us() - begin >= WAIT_US;
	printf("%s: %d %s waited %d, some time left %d, bits", what, found, error, waited, time.tv_usec > 0);
	for (int set = 0; set < 3; set++)
		printf(" %d%d", given[set] && FD_ISSET(fd, all + set), given[set] && more >= 0 && FD_ISSET(more, all + set));
	puts("");
	fflush(stdout);
}

static void bytes(void)
{
	look("nothing", READ, -1, fd + 1);
	look("room", READ | WRITE, -1, fd + 1);
	look("out of band", EXCEPT, -1, fd + 1);
	get_bytes();
	look("bytes", READ, -1, fd + 1);
	look("bytes in all sets", READ | WRITE | EXCEPT, -1, fd + 1);
	look("bytes, but out of band", EXCEPT, -1, fd + 1);
	look("no set", 0, -1, fd + 1);
	look("no descriptor", READ, -1, 0);
	look("numbers below", READ, -1, fd);
}

static void interrupted(int signal)
{
	(void)signal;
	handled++;
}

/* A call with a mask that lets a signal in that is held back. */
static void look_unmasked(const char *what, int raises)
{
	struct timespec time = { 0, WAIT_US * 1000 };
	sigset_t none;
	fd_set set;
	sigemptyset(&none);
	FD_ZERO(&set);
	FD_SET(fd, &set);
	handled = 0;
	if (raises)
		raise(SIGUSR1);
	int found = pselect(fd + 1, &set, 0, 0, &time, &none);
	printf("%s: %d %s, handled %d, bit %d, time %ld\n", what, found, found < 0 ? strerrorname_np(errno) : "", handled,
	       FD_ISSET(fd, &set), time.tv_nsec);
	sigpending(&none);
	printf("pending %d\n", sigismember(&none, SIGUSR1));
	sigemptyset(&none);
	sigprocmask(SIG_BLOCK, 0, &none);
	printf("held back %d\n", sigismember(&none, SIGUSR1));
	fflush(stdout);
}

static void masks(void)
{
	struct sigaction action = { .sa_handler = interrupted };
	sigset_t one;
	sigemptyset(&one);
	sigaddset(&one, SIGUSR1);
	sigaction(SIGUSR1, &action, 0);
	sigprocmask(SIG_BLOCK, &one, 0);
	look_unmasked("no signal", 0);
	look_unmasked("a signal", 1);
	get_bytes();
	look_unmasked("bytes", 0);
	look_unmasked("bytes and a signal", 1);
}

/* Numbers that are not open, which the kernel refuses up to where its table of them ends. */
static void closed(void)
{
	int closed = dup(1);
	close(closed);
	look("a closed number", READ, closed, (closed > fd ? closed : fd) + 1);
	look("a closed number, room", WRITE, closed, (closed > fd ? closed : fd) + 1);
	get_bytes();
	look("a closed number, bytes", READ, closed, (closed > fd ? closed : fd) + 1);
	look("a closed number beyond the open ones", READ, FAR, FD_SETSIZE);
}

static void far(void)
{
	look("a closed number beyond the open ones", READ, FAR, FD_SETSIZE);
	get_bytes();
	look("a closed number beyond the open ones, bytes", READ, FAR, FD_SETSIZE);
}

static void wrong(void)
{
	look("a closed number beyond the count", READ, FAR, fd + 1);
	look("a count beyond the open ones", READ, -1, FD_SETSIZE);
	look("a negative count", READ, -1, -1);
	get_bytes();
	look("a count beyond the open ones, bytes", READ, -1, FD_SETSIZE);
	struct pollfd one = { fd, POLLIN, 0 };
	struct timeval negative = { -1, 0 }, whole = { 0, 2000000 };
	struct timespec large = { 0, 2000000000 };
	fd_set set;
	FD_ZERO(&set);
	FD_SET(fd, &set);
	printf("a negative time: %d", select(fd + 1, &set, 0, 0, &negative));
	printf(" %s, bit %d\n", strerrorname_np(errno), FD_ISSET(fd, &set));
	printf("too many nanoseconds: %d", pselect(fd + 1, &set, 0, 0, &large, 0));
	printf(" %s, bit %d\n", strerrorname_np(errno), FD_ISSET(fd, &set));
	printf("too many nanoseconds for ppoll: %d", ppoll(&one, 1, &large, 0));
	printf(" %s, %d\n", strerrorname_np(errno), one.revents);
	printf("two million microseconds: %d\n", select(fd + 1, &set, 0, 0, &whole));
	printf("a set that is not there: %d", select(fd + 1, (fd_set *)8, 0, 0, 0));
	printf(" %s\n", strerrorname_np(errno));
	fflush(stdout);
}

/* More descriptors than the library looks at. */
static void many(void)
{
	int tubes[PIPES][2], last = fd;
	for (int at = 0; at < PIPES; at++) {
		if (pipe(tubes[at]))
			fail("pipe");
		last = tubes[at][1] > last ? tubes[at][1] : last;
	}
	get_bytes();
	fd_set read, write;
	struct timeval time = { 5, 0 };
	FD_ZERO(&read);
	FD_ZERO(&write);
	FD_SET(fd, &read);
	for (int at = 0; at < PIPES; at++)
		FD_SET(tubes[at][0], &read), FD_SET(tubes[at][1], &write);
	printf("many: %d", select(last + 1, &read, &write, 0, &time));
	printf(", bits %d %d %d\n", FD_ISSET(fd, &read), FD_ISSET(tubes[7][0], &read), FD_ISSET(tubes[7][1], &write));
	if (!move(fd, message, 0))
		fail("bytes");
	FD_ZERO(&write);
	FD_SET(fd, &read);
	for (int at = 0; at < PIPES; at++)
		FD_SET(tubes[at][0], &read);
	for (int at = 0; at < PIPES; at++)
		FD_SET(tubes[at][0], &write);
	tell();
	time = (struct timeval){ 5, 0 };
	printf("many that wait: %d", select(last + 1, &read, 0, &write, &time));
	printf(", bit %d\n", FD_ISSET(fd, &read));
	fflush(stdout);
}

/* The other end has gone. */
static void end(int is_reset)
{
	get_bytes();
	look(is_reset ? "reset" : "end", READ, -1, fd + 1);
	look("not out of band", EXCEPT, -1, fd + 1);
	look("all sets", READ | WRITE | EXCEPT, -1, fd + 1);
	if (is_reset)
		return;
	shutdown(fd, SHUT_WR);
	usleep(10000);
	look("both ends: read", READ, -1, fd + 1);
	look("both ends: write", WRITE, -1, fd + 1);
	look("both ends: not out of band", EXCEPT, -1, fd + 1);
	look("both ends: all sets", READ | WRITE | EXCEPT, -1, fd + 1);
}

int main(int count, char **words)
{
	if (count < 4)
		return 2;
	const char *which = words[3];
	int listens = !strcmp(words[1], "listen"), one = 1, listener = listens ? listen_at(words[2]) : -1;
	fd = listens ? accept(listener, 0, 0) : dial(words[2]);
	turns = listens ? accept(listener, 0, 0) : dial(words[2]);
	if (fd < 0 || turns < 0)
		fail("connection");
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	/* A join takes an answer of the broker. */
	for (int round = 0; round < ROUNDS; round++) {
		for (int at = 0; at < EACH; at++)
			if (!move(fd, message, !listens) || !move(fd, message, listens))
				fail("warm");
		usleep(15000);
	}
	if (!listens) {
		struct linger at_once = { 1, 0 };
		await();
		if (!strcmp(which, "reset"))
			setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
		if (!strcmp(which, "end") || !strcmp(which, "reset"))
			close(fd);
		else
			move(fd, message, 1);
		if (!strcmp(which, "many"))
			await(), move(fd, message, 1);
		/* Until the other end has ended. */
		move(turns, message, 0);
		return 0;
	}
	if (!strcmp(which, "bytes"))
		bytes();
	else if (!strcmp(which, "masks"))
		masks();
	else if (!strcmp(which, "wrong"))
		wrong();
	else if (!strcmp(which, "closed"))
		closed();
	else if (!strcmp(which, "far"))
		far();
	else if (!strcmp(which, "many"))
		many();
	else
		end(!strcmp(which, "reset"));
	puts("done");
	return 0;
}
