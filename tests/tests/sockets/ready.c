/* Readiness of joined connections, at both ends of them.
 *
 * ready listen|connect PORT-FILE WAY BYTES CHUNK WINDOW
 *
 * The end that listens waits; the one that connects drives it, and never sleeps in a call that waits for bytes, so it does not
 * help a reader that has lost a wake-up. WAY:
 *   exact   a level-triggered epoll reader takes one message a wait, ring bytes behind kernel bytes
 *   child   a forked child runs an epoll loop of its own beside its parent's
 *   times   waits with a time limit or a mask, with unread bytes in the ring of their own end
 *   order   two connections are written to one after the other
 *   mixed   the same, and the first one is on the kernel
 *   crowd   a pipe is ready beside connections that nobody reads from, and a wait takes one event
 *   stack   waits in a handler on a signal stack of 8 KiB
 *   shared  a child waits in the parent's own instance
 *   polled  poll() on an epoll instance
 *   fifo    a real-time receiver has one core together with its sender
 * Each end prints `warm` once its connections have had time to join, and `max NAME VALUE` for what it has measured. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "meet.h"

enum { MESSAGE = 100, WARM = 300, ENDS_MAX = 8, STUCK_US = 30000000 };

static char message[MESSAGE];

static int64_t now_us(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000000ll + time.tv_nsec / 1000;
}

static void busy_us(int64_t time)
{
	for (int64_t end = now_us() + time; now_us() < end;)
		;
}

static void tell(const char *name, int64_t value)
{
	printf("max %s %lld\n", name, (long long)value);
	fflush(stdout);
}

static void give(int fd)
{
	if (send(fd, message, MESSAGE, 0) != MESSAGE)
		fail("send");
}

/* Takes a whole message. */
static void take(int fd)
{
	if (recv(fd, message, MESSAGE, MSG_WAITALL) != MESSAGE)
		fail("recv");
}

/* The same without a wait of which the library knows. */
static void take_awake(int fd)
{
	int64_t begin = now_us();
	for (int got = 0; got < MESSAGE;) {
		ssize_t more = recv(fd, message + got, MESSAGE - got, MSG_DONTWAIT);
		if (more == 0 || (more < 0 && errno != EAGAIN))
			fail("recv");
		if (more > 0)
			got += more;
		else if (now_us() - begin > STUCK_US) {
			puts("STUCK");
			fflush(stdout);
			_exit(3);
		} else
			usleep(20);
	}
}

/* Exchanges; the first byte of the end that begins says whether they are the last ones, which both ends give. */
static int warm(int fd, int first, int is_last)
{
	for (int round = 0; round < WARM; round++) {
		if (first) {
			message[0] = is_last;
			give(fd);
		}
		take(fd);
		if (!first) {
			is_last = message[0];
			give(fd);
		}
	}
	return is_last;
}

/* With PEER_HOLD, whatever it says, connections are warmed until PORT-FILE.go is there. */
static int is_warm(const char *path)
{
	char go[4096];
	snprintf(go, sizeof go, "%s.go", path);
	return !getenv("PEER_HOLD") || !access(go, F_OK);
}

static int connections(const char *path, int listens, int count, int *end, int *listener)
{
	int one = 1, heard = -1;
	if (listens)
		heard = listen_at(path);
	for (int at = 0; at < count; at++) {
		end[at] = listens ? accept(heard, 0, 0) : dial(path);
		if (end[at] < 0)
			fail("connection");
		setsockopt(end[at], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	}
	printf("connections %d\n", count);
	fflush(stdout);
	for (int is_last = 0; !is_last;) {
		int said = is_warm(path);
		for (int at = 0; at < count; at++)
			is_last = warm(end[at], !listens, said);
	}
	memset(message, 0, sizeof message);
	puts("warm");
	fflush(stdout);
	if (listener)
		*listener = heard;
	return heard;
}

static int instance(const int *end, int count)
{
	int set = epoll_create1(0);
	for (int at = 0; at < count; at++) {
		struct epoll_event event = { EPOLLIN, { .u32 = at } };
		if (epoll_ctl(set, EPOLL_CTL_ADD, end[at], &event))
			fail("add");
	}
	return set;
}

static int wait_one(int set)
{
	struct epoll_event event;
	int found;
	do
		found = epoll_wait(set, &event, 1, -1);
	while (found < 0 && errno == EINTR);
	if (found != 1)
		fail("wait");
	return event.data.u32;
}

/* exact */

enum { BURSTS = 40, FIRST = 4, SECOND = 10, BUSY_US = 2000 };

/* The first messages of a burst come while the reader sleeps, so by the kernel. The second ones come while it is busy with the first of
 * them, so by the ring: too few for stream mode, in which no news are needed. */
static void exact(const char *path, int listens)
{
	int fd;
	connections(path, listens, 1, &fd, 0);
	for (int burst = 0; burst < BURSTS && listens; burst++) {
		int set = instance(&fd, 1);
		for (int at = 0; at < FIRST + SECOND; at++) {
			wait_one(set);
			take(fd);
			if (!at) {
				give(fd);
				busy_us(BUSY_US);
			}
		}
		give(fd);
		close(set);
	}
	for (int burst = 0; burst < BURSTS && !listens; burst++) {
		usleep(5000);
		for (int at = 0; at < FIRST; at++)
			give(fd);
		take_awake(fd);
		for (int at = 0; at < SECOND; at++)
			give(fd);
		take_awake(fd);
	}
}

/* child */

enum { PINGS = 3000 };

static void answer(int fd, int count)
{
	int set = instance(&fd, 1);
	for (int at = 0; at < count; at++) {
		wait_one(set);
		take(fd);
		give(fd);
	}
}

static void child(const char *path, int listens)
{
	int fd, other, listener;
	connections(path, listens, 1, &fd, &listener);
	if (listens) {
		pid_t pid = fork();
		if (!pid) {
			if ((other = accept(listener, 0, 0)) < 0)
				fail("accept");
			warm(other, 0, 1);
			answer(other, PINGS);
			exit(0);
		}
		answer(fd, PINGS);
		waitpid(pid, 0, 0);
		return;
	}
	other = dial(path);
	warm(other, 1, 1);
	for (int at = 0; at < PINGS; at++) {
		give(other);
		busy_us(at % 40);
		give(fd);
		take_awake(fd);
		take_awake(other);
	}
}

/* times */

static void nothing(int signal)
{
	(void)signal;
}

/* Leaves bytes in the own ring that the peer does not read for now. */
static void leave(int fd)
{
	for (int at = 0; at < 20; at++)
		give(fd);
}

enum { WAITS = 9 };
enum { POLL_1, PPOLL_1, EPOLL_20, PPOLL_MASK, EPOLL_MASK, POLL_15, RECV_3, KINDS };

/* The latest wait of each kind, in microseconds, or one that ended too early. */
static int64_t late[KINDS];
static int64_t began, waited;

/* How long this thread has been ready and had no core, by proc(5). */
static int64_t without_core_us(void)
{
	unsigned long long run, wait;
	FILE *file = fopen("/proc/thread-self/schedstat", "r");
	if (!file || fscanf(file, "%llu %llu", &run, &wait) != 2)
		fail("schedstat");
	fclose(file);
	return wait / 1000;
}

static void begin_wait(void)
{
	waited = without_core_us();
	began = now_us();
}

static void end_wait(int kind, int64_t limit)
{
	int64_t much = now_us() - began - limit, without = without_core_us() - waited;
	if (much > 0)
		much = much > without ? much - without : 0;
	if (late[kind] >= 0 && (much < 0 || much > late[kind]))
		late[kind] = much;
}

static void time_limits(int fd)
{
	struct timespec time = { 0, 1000000 }, second = { 1, 0 };
	struct timeval limit = { 0, 3000 };
	struct pollfd one = { fd, POLLIN, 0 };
	struct epoll_event event;
	struct sigaction action = { .sa_handler = nothing };
	sigset_t blocked, none;
	int set = instance(&fd, 1);
	sigemptyset(&none);
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGUSR1);
	sigaction(SIGUSR1, &action, 0);
	sigprocmask(SIG_BLOCK, &blocked, 0);
	for (int at = 0; at < WAITS; at++) {
		leave(fd);
		begin_wait();
		poll(&one, 1, 1);
		end_wait(POLL_1, 1000);
		leave(fd);
		begin_wait();
		ppoll(&one, 1, &time, 0);
		end_wait(PPOLL_1, 1000);
		leave(fd);
		begin_wait();
		epoll_wait(set, &event, 1, 20);
		end_wait(EPOLL_20, 20000);
		raise(SIGUSR1);
		leave(fd);
		begin_wait();
		if (ppoll(&one, 1, &second, &none) != -1 || errno != EINTR)
			fail("ppoll with a mask");
		end_wait(PPOLL_MASK, 0);
		raise(SIGUSR1);
		leave(fd);
		begin_wait();
		if (epoll_pwait(set, &event, 1, 1000, &none) != -1 || errno != EINTR)
			fail("epoll_pwait with a mask");
		end_wait(EPOLL_MASK, 0);
		leave(fd);
		begin_wait();
		poll(&one, 1, 15);
		end_wait(POLL_15, 15000);
		setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
		leave(fd);
		begin_wait();
		if (recv(fd, message, 1, 0) != -1 || errno != EAGAIN)
			fail("recv with a limit");
		end_wait(RECV_3, 3000);
		struct timeval endless = { 0, 0 };
		setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &endless, sizeof endless);
	}
	tell("poll_1", late[POLL_1]);
	tell("ppoll_1", late[PPOLL_1]);
	tell("epoll_20", late[EPOLL_20]);
	tell("ppoll_mask", late[PPOLL_MASK]);
	tell("epoll_mask", late[EPOLL_MASK]);
	tell("poll_15", late[POLL_15]);
	tell("recv_3", late[RECV_3]);
}

static void times(const char *path, int listens)
{
	static char much[1 << 16];
	int fd;
	connections(path, listens, 1, &fd, 0);
	if (listens) {
		time_limits(fd);
		close(fd);
		return;
	}
	for (;;) {
		usleep(30000);
		ssize_t got = recv(fd, much, sizeof much, MSG_DONTWAIT);
		if (got == 0 || (got < 0 && errno != EAGAIN))
			return;
	}
}

/* order */

enum { ROUNDS = 4000, MIXED_ROUNDS = 1000, APART_US = 20, MIXED_US = 60 };

/* A number that one program writes and the other one reads. */
static _Atomic uint32_t *shared_number(const char *path)
{
	char name[4096];
	snprintf(name, sizeof name, "%s.written", path);
	int file = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (file < 0 || ftruncate(file, sizeof(uint32_t)))
		fail(name);
	void *at = mmap(0, sizeof(uint32_t), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	if (at == MAP_FAILED)
		fail(name);
	close(file);
	return at;
}

/* A message that carries its number. */
static void give_number(int fd, uint32_t number)
{
	memcpy(message, &number, sizeof number);
	give(fd);
}

/* The ring's connection is reported alone, twice, and the reader falls asleep; the kernel's one wakes it. */
static void wake_by_kernel(const int *end, uint32_t *number)
{
	for (int again = 0; again < 2; again++) {
		give_number(end[1], ++*number);
		take_awake(end[1]);
	}
	usleep(200);
	give_number(end[0], ++*number);
	take_awake(end[0]);
}

/* Each round's last messages, of which the order is looked at, have been sent before the reader waits: it is awake meanwhile. */
static void order_of(const char *path, int listens, int is_mixed)
{
	int end[3], count = is_mixed ? 3 : 2, inverted = 0, on = 1;
	uint32_t number = 0, before = is_mixed ? 3 : 0, rounds = is_mixed ? MIXED_ROUNDS : ROUNDS;
	_Atomic uint32_t *written = shared_number(path);
	connections(path, listens, count, end, 0);
	if (is_mixed)
		setsockopt(end[0], SOL_SOCKET, SO_TIMESTAMP, &on, sizeof on);
	if (listens) {
		int set = instance(end, count);
		uint32_t taken = 0, all = rounds * (before + count);
		while (taken < all) {
			struct epoll_event events[8];
			while (taken % (before + count) == before && *written <= taken)
				usleep(20);
			int found = epoll_wait(set, events, 8, -1);
			for (int at = 0; at < found; at++) {
				int fd = end[events[at].data.u32];
				take(fd);
				memcpy(&number, message, sizeof number);
				inverted += number != ++taken;
				give(fd);
			}
		}
		tell("inverted", inverted);
		return;
	}
	for (uint32_t round = 0; round < rounds; round++) {
		int first = is_mixed ? 0 : round * 2654435761u >> 13 & 1;
		if (is_mixed)
			wake_by_kernel(end, &number);
		give_number(end[first], ++number);
		busy_us(is_mixed ? MIXED_US : APART_US);
		give_number(end[!first], ++number);
		/* News of two rings are looked at by their marks. */
		if (is_mixed)
			give_number(end[2], ++number);
		*written = number;
		for (int at = 0; at < count; at++)
			take_awake(end[at]);
	}
}

static void order(const char *path, int listens)
{
	order_of(path, listens, 0);
}

static void mixed(const char *path, int listens)
{
	order_of(path, listens, 1);
}

/* crowd */

static void crowd(const char *path, int listens)
{
	int end[4], tube[2];
	connections(path, listens, 4, end, 0);
	if (!listens) {
		for (int at = 0; at < 4; at++)
			give(end[at]);
		give(end[0]);
		take_awake(end[0]);
		return;
	}
	if (pipe(tube))
		fail("pipe");
	int set = instance(end, 4), seen[5] = { 0 };
	struct epoll_event event = { EPOLLIN, { .u32 = 4 } };
	epoll_ctl(set, EPOLL_CTL_ADD, tube[0], &event);
	usleep(20000);
	if (write(tube[1], "x", 1) != 1)
		fail("write");
	for (int at = 0; at < 500; at++) {
		seen[wait_one(set)]++;
		busy_us(at % 30);
	}
	for (int at = 0; at < 5; at++)
		if (seen[at] < 20)
			printf("FAIL member %d seen %d times\n", at, seen[at]);
	tell("pipe", seen[4]);
	give(end[0]);
}

/* stack */

static int ends[ENDS_MAX], set_of_ends, handled;

static void handler(int signal)
{
	struct pollfd some[ENDS_MAX];
	struct epoll_event events[4];
	struct timeval time = { 0, 1000 };
	fd_set all;
	(void)signal;
	FD_ZERO(&all);
	for (int at = 0; at < ENDS_MAX; at++) {
		some[at] = (struct pollfd){ ends[at], POLLIN, 0 };
		FD_SET(ends[at], &all);
	}
	poll(some, ENDS_MAX, 1);
	epoll_wait(set_of_ends, events, 4, 1);
	select(ends[ENDS_MAX - 1] + 1, &all, 0, 0, &time);
	handled++;
}

static void stack(const char *path, int listens)
{
	size_t page = 4096, bytes = 8192;
	connections(path, listens, ENDS_MAX, ends, 0);
	if (!listens) {
		for (int round = 0; round < 100; round++) {
			give(ends[round % ENDS_MAX]);
			take_awake(ends[round % ENDS_MAX]);
		}
		return;
	}
	char *memory = mmap(0, page + bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	stack_t own = { .ss_sp = memory + page, .ss_size = bytes };
	struct sigaction action = { .sa_handler = handler, .sa_flags = SA_ONSTACK };
	if (memory == MAP_FAILED || mprotect(memory, page, PROT_NONE) || sigaltstack(&own, 0) || sigaction(SIGUSR1, &action, 0))
		fail("signal stack");
	set_of_ends = instance(ends, ENDS_MAX);
	for (int round = 0; round < 100; round++) {
		raise(SIGUSR1);
		take(ends[round % ENDS_MAX]);
		raise(SIGUSR1);
		give(ends[round % ENDS_MAX]);
		raise(SIGUSR1);
	}
	tell("handled", handled);
}

/* shared */

static void shared(const char *path, int listens)
{
	int fd;
	connections(path, listens, 1, &fd, 0);
	if (listens) {
		int set = instance(&fd, 1);
		for (int at = 0; at < PINGS / 2; at++) {
			wait_one(set);
			take(fd);
			give(fd);
		}
		pid_t pid = fork();
		if (!pid) {
			for (int at = 0; at < PINGS / 2; at++) {
				wait_one(set);
				take(fd);
				give(fd);
			}
			exit(0);
		}
		waitpid(pid, 0, 0);
		return;
	}
	for (int at = 0; at < PINGS; at++) {
		give(fd);
		take_awake(fd);
	}
}

/* polled */

static void polled(const char *path, int listens)
{
	int fd;
	connections(path, listens, 1, &fd, 0);
	if (listens) {
		int set = instance(&fd, 1);
		struct pollfd one = { set, POLLIN, 0 };
		for (int at = 0; at < PINGS / 10; at++) {
			if (poll(&one, 1, -1) != 1 || wait_one(set) != 0)
				fail("poll");
			take(fd);
			give(fd);
		}
		return;
	}
	for (int at = 0; at < PINGS / 10; at++) {
		give(fd);
		take_awake(fd);
	}
}

/* fifo */

/* The processor's time that this process has had. */
static int64_t spent_us(void)
{
	struct timespec time;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
	return time.tv_sec * 1000000ll + time.tv_nsec / 1000;
}

/* The receiver spins at a higher priority than its sender has. */
static void fifo(const char *path, int listens)
{
	enum { EXCHANGES = 300 };
	int fd;
	cpu_set_t core;
	struct sched_param first = { 1 };
	connections(path, listens, 1, &fd, 0);
	struct pollfd one = { fd, POLLIN, 0 };
	CPU_ZERO(&core);
	CPU_SET(0, &core);
	int is_set = !sched_setaffinity(0, sizeof core, &core) && (!listens || !sched_setscheduler(0, SCHED_FIFO, &first));
	int64_t begin = spent_us();
	for (int at = 0; at < EXCHANGES; at++) {
		if (listens) {
			give(fd);
			if (poll(&one, 1, -1) != 1)
				fail("poll");
		}
		take(fd);
		if (!listens)
			give(fd);
	}
	if (listens && is_set)
		tell("spent", spent_us() - begin);
}

int main(int count, char **words)
{
	static const struct {
		const char *name;
		void (*run)(const char *, int);
	} ways[] = { { "exact", exact }, { "child", child }, { "times", times }, { "order", order }, { "mixed", mixed },
		     { "crowd", crowd }, { "stack", stack }, { "shared", shared }, { "polled", polled },
		     { "fifo", fifo } };
	if (count < 4)
		return 2;
	for (unsigned at = 0; at < sizeof ways / sizeof *ways; at++)
		if (!strcmp(words[3], ways[at].name)) {
			ways[at].run(words[2], !strcmp(words[1], "listen"));
			puts("done");
			return 0;
		}
	return 2;
}
