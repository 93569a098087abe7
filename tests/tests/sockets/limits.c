/* What keeps a joined connection on the ring, and what returns it to the kernel: each act has a connection of its own.
 *
 * limits listen|connect PORT-FILE ACT,ACT,... BYTES CHUNK WINDOW (the last three mean nothing)
 *
 * Acts whose names begin with `u-` have a Unix stream, others TCP, and some a socket that does not join. Both ends print `socket ACT COOKIE` for each, and exchange messages
 * on all until PORT-FILE.go is there: `held`. Once PORT-FILE.act is there, the end that listens acts and the other one does its part;
 * then both exchange AFTER more messages on each (after `bare` LATE ones, which may be late): `acted`. They end when PORT-FILE.end is there. Nobody sleeps in a receive, so what is
 * joined goes by the ring.
 *
 * limits forbid PROGRAM ARGUMENT...: executes a program to which pidfd_getfd(2) is forbidden. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/net_tstamp.h>
#include <linux/seccomp.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "meet.h"

enum { MESSAGE = 32, LARGE = 4096, AFTER = 200, LATE = 5, PART = 5000, ACTS_MAX = 64 };

static int listens, turns;
static const char *path;
static char bytes[1 << 20];

static void must(int ok, const char *what)
{
	if (!ok)
		fail(what);
}

static int is_there(const char *what)
{
	char name[4096];
	snprintf(name, sizeof name, "%s.%s", path, what);
	return !access(name, F_OK);
}

static void hold(const char *said, const char *what)
{
	puts(said);
	fflush(stdout);
	while (!is_there(what))
		usleep(2000);
}

static void take(int fd, char *at, size_t length)
{
	for (size_t done = 0; done < length;) {
		ssize_t n = recv(fd, at + done, length - done, MSG_DONTWAIT);
		must(n > 0 || (n < 0 && errno == EAGAIN), "recv");
		if (n > 0)
			done += n;
		else
			usleep(10);
	}
}

static void give(int fd, size_t length)
{
	must(send(fd, bytes, length, MSG_NOSIGNAL) == (ssize_t)length, "send");
}

/* The other end goes on from here. */
static void tell(void)
{
	give(turns, 1);
}

static void await(void)
{
	char turn;
	take(turns, &turn, 1);
}

/* A message there and back; whether it was the last one. */
static int exchange(int fd, int is_last)
{
	static uint64_t round;
	char sent[MESSAGE], got[MESSAGE];
	memset(sent, 'a' + round++ % 26, MESSAGE);
	sent[0] = is_last;
	if (listens) {
		take(fd, got, MESSAGE);
		must(send(fd, got, MESSAGE, MSG_NOSIGNAL) == MESSAGE, "answer");
		return got[0];
	}
	must(send(fd, sent, MESSAGE, MSG_NOSIGNAL) == MESSAGE, "question");
	take(fd, got, MESSAGE);
	must(!memcmp(sent, got, MESSAGE), "WRONG answer");
	return is_last;
}

static void set(int fd, int level, int name, int value)
{
	must(setsockopt(fd, level, name, &value, sizeof value) == 0, "setsockopt");
}

static const struct {
	const char *act;
	int level, name, value;
} options[] = {
	{ "keepalive", SOL_SOCKET, SO_KEEPALIVE, 1 },
	{ "lowat-1", SOL_SOCKET, SO_RCVLOWAT, 1 },
	{ "lowat-2", SOL_SOCKET, SO_RCVLOWAT, 2 },
	{ "timestamp", SOL_SOCKET, SO_TIMESTAMP, 1 },
	{ "timestampns", SOL_SOCKET, SO_TIMESTAMPNS, 1 },
	{ "timestamping", SOL_SOCKET, SO_TIMESTAMPING, SOF_TIMESTAMPING_SOFTWARE },
	{ "oobinline", SOL_SOCKET, SO_OOBINLINE, 1 },
	{ "busy-poll", SOL_SOCKET, SO_BUSY_POLL, 1 },
	{ "zerocopy", SOL_SOCKET, SO_ZEROCOPY, 1 },
	{ "unknown", SOL_SOCKET, SO_SELECT_ERR_QUEUE, 1 },
	{ "inq", IPPROTO_TCP, TCP_INQ, 1 },
	{ "u-peek-off", SOL_SOCKET, SO_PEEK_OFF, 0 },
	{ "u-passcred", SOL_SOCKET, SO_PASSCRED, 1 },
	{ "u-passsec", SOL_SOCKET, SO_PASSSEC, 1 },
	{ "u-passpidfd", SOL_SOCKET, 76, 1 },
	{ "u-little-room", SOL_SOCKET, SO_SNDBUF, 192 * 512 - 1 },
	{ "u-room", SOL_SOCKET, SO_SNDBUF, 192 * 512 },
};

static void cork(int fd)
{
	set(fd, IPPROTO_TCP, TCP_CORK, 1);
	set(fd, IPPROTO_TCP, TCP_CORK, 0);
}

static void filter(int fd)
{
	struct sock_filter all = { BPF_RET | BPF_K, 0, 0, -1 };
	struct sock_fprog program = { 1, &all };
	must(setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) == 0, "filter");
}

/* What the program has left off is on underneath. */
static void no_delay(int fd)
{
	int value = -1;
	socklen_t length = sizeof value;
	register long value_at __asm__("r10") = (long)&value, length_at __asm__("r8") = (long)&length;
	long result = SYS_getsockopt;
	__asm__ volatile("syscall" : "+a"(result) : "D"((long)fd), "S"((long)IPPROTO_TCP), "d"((long)TCP_NODELAY), "r"(value_at),
			 "r"(length_at) : "rcx", "r11", "memory");
	must(result == 0, "getsockopt");
	printf("underneath %d\n", value != 0);
	must(getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &value, &length) == 0, "getsockopt");
	printf("program's %d\n", value != 0);
}

/* A handler's address in the kernel, after this one has been installed by a bare call if it is one. */
static void *handler_in_kernel(int signal, void (*installed)(int))
{
	struct { void *handler; unsigned long flags; void *restorer; unsigned long mask; } action = { installed, 0, 0, 0 };
	register long size __asm__("r10") = sizeof action.mask;
	long result = SYS_rt_sigaction;
	__asm__ volatile("syscall" : "+a"(result) : "D"((long)signal), "S"(installed ? &action : 0), "d"(installed ? 0 : &action), "r"(size)
			 : "rcx", "r11", "memory");
	must(result == 0, "rt_sigaction");
	return installed ? handler_in_kernel(signal, 0) : action.handler;
}

static void handle(int signal)
{
	(void)signal;
}

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
/* The library puts off those handlers alone that it has seen come. */
static void handlers(int fd)
{
	struct sigaction action = { .sa_handler = handle };
	(void)fd;
	must(sigaction(SIGUSR1, &action, 0) == 0 && sigset(SIGUSR2, handle) != SIG_ERR, "handlers");
	printf("put off by sigaction %d\n", handler_in_kernel(SIGUSR1, 0) != handle);
	printf("put off by sigset %d\n", handler_in_kernel(SIGUSR2, 0) != handle);
	printf("put off by a bare call %d\n", handler_in_kernel(SIGWINCH, handle) != handle);
}

/* What the program has set before the join. */
static void room(int fd)
{
	int value;
	socklen_t length = sizeof value;
	must(getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &value, &length) == 0, "getsockopt");
	printf("send buffer %d\n", value);
}

static void file(int fd)
{
	int file = memfd_create("file", 0);
	must(write(file, bytes, PART) == PART && lseek(file, 0, SEEK_SET) == 0 && sendfile(fd, file, 0, PART) == PART, "sendfile");
}

static void splice_with(int fd, int flags)
{
	int tube[2];
	must(pipe(tube) == 0 && write(tube[1], bytes, PART) == PART && splice(tube[0], 0, fd, 0, PART, flags) == PART, "splice");
}

static void piped(int fd)
{
	splice_with(fd, 0);
}

static void piped_more(int fd)
{
	splice_with(fd, SPLICE_F_MORE);
}

static void more(int fd)
{
	must(send(fd, bytes, PART, MSG_MORE) == PART, "send");
}

static void message(int fd, void *name, socklen_t name_length, void *control, size_t control_length)
{
	struct iovec piece = { bytes, PART };
	struct msghdr head = { name, name_length, &piece, 1, control, control_length, 0 };
	must(sendmsg(fd, &head, 0) == PART, "sendmsg");
}

static void many(int fd)
{
	struct iovec pieces[2] = { { bytes, PART / 2 }, { bytes, PART / 2 } };
	struct mmsghdr list[2] = { { .msg_hdr = { .msg_iov = pieces, .msg_iovlen = 1 } },
		{ .msg_hdr = { .msg_iov = pieces + 1, .msg_iovlen = 1 } } };
	must(sendmmsg(fd, list, 2, 0) == 2, "sendmmsg");
}

static void to_name(int fd)
{
	struct sockaddr_in name;
	socklen_t length = sizeof name;
	must(getpeername(fd, (void *)&name, &length) == 0, "getpeername");
	must(sendto(fd, bytes, PART, 0, (void *)&name, length) == PART, "sendto");
}

static void message_to_name(int fd)
{
	struct sockaddr_in name;
	socklen_t length = sizeof name;
	must(getpeername(fd, (void *)&name, &length) == 0, "getpeername");
	message(fd, &name, length, 0, 0);
}

static void with_control(int fd)
{
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(4)];
	} item = { .head = { CMSG_LEN(4), SOL_SOCKET, SO_TIMESTAMPING } };
	message(fd, 0, 0, &item, sizeof item);
}

static void with_descriptor(int fd)
{
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(4)];
	} item = { .head = { CMSG_LEN(4), SOL_SOCKET, SCM_RIGHTS } };
	int file = 1;
	memcpy(CMSG_DATA(&item.head), &file, sizeof file);
	message(fd, 0, 0, &item, sizeof item);
}

/* A write of 64 KiB while others are unread in the kernel; the other end stands still. */
static void large(int fd)
{
	give(fd, 60000), give(fd, 1 << 16), give(fd, 1 << 16);
	tell();
}

static void take_large(int fd)
{
	await();
	take(fd, bytes, 60000), take(fd, bytes, 1 << 16), take(fd, bytes, 1 << 16);
}

static void named(int fd)
{
	char into[PART];
	struct sockaddr_un name;
	socklen_t length = sizeof name;
	must(recvfrom(fd, into, PART, MSG_WAITALL, (void *)&name, &length) == PART, "recvfrom");
}

static void many_taken(int fd)
{
	char into[PART];
	struct iovec piece = { into, PART };
	struct mmsghdr one = { .msg_hdr = { .msg_iov = &piece, .msg_iovlen = 1 } };
	must(recvmmsg(fd, &one, 1, MSG_WAITALL, 0) == 1 && one.msg_len == PART, "recvmmsg");
}

static ssize_t take_message(int fd, size_t room, int flags, int *said)
{
	char into[PART], control[256];
	struct iovec piece = { into, PART };
	struct msghdr head = { .msg_iov = &piece, .msg_iovlen = 1, .msg_control = room ? control : 0, .msg_controllen = room };
	ssize_t n = recvmsg(fd, &head, flags);
	*said = head.msg_flags;
	return n;
}

static void control_of_nothing(int fd)
{
	int flags;
	must(take_message(fd, 256, MSG_DONTWAIT, &flags) < 0 && errno == EAGAIN, "recvmsg");
}

static void control_of_ring(int fd)
{
	int flags;
	await();
	must(take_message(fd, 256, 0, &flags) == MESSAGE, "recvmsg");
}

/* No more than a ring has room for. */
static void give_and_tell(int fd)
{
	give(fd, MESSAGE);
	tell();
}

static void cut_off(int fd)
{
	int flags;
	await();
	must(take_message(fd, 0, 0, &flags) == PART, "recvmsg");
	printf("cut off %d\n", !!(flags & MSG_CTRUNC));
}

static void descriptor_and_tell(int fd)
{
	with_descriptor(fd);
	tell();
}

static void poll_often(int fd, int count)
{
	struct pollfd entries[256];
	for (int i = 0; i < count; i++)
		entries[i] = (struct pollfd){ fd, POLLIN, 0 };
	must(poll(entries, count, 0) == 0, "poll");
}

static void poll_128(int fd)
{
	poll_often(fd, 128);
}

static void poll_129(int fd)
{
	poll_often(fd, 129);
}

static int in_a_set(int fd, unsigned events)
{
	struct epoll_event event = { events, { .fd = fd } };
	int set = epoll_create1(0);
	must(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0, "epoll_ctl");
	return set;
}

static void level_and_edge(int fd)
{
	struct epoll_event event = { EPOLLIN | EPOLLET, { .fd = fd } };
	int set = in_a_set(fd, EPOLLIN);
	must(epoll_ctl(set, EPOLL_CTL_MOD, fd, &event) == 0, "epoll_ctl");
}

static void two_sets(int fd)
{
	in_a_set(fd, EPOLLIN), in_a_set(fd, EPOLLIN);
}

static void one_shot(int fd)
{
	in_a_set(fd, EPOLLIN | EPOLLONESHOT);
}

static void exclusive(int fd)
{
	in_a_set(fd, EPOLLIN | EPOLLEXCLUSIVE);
}

static void others_set(int fd)
{
	struct epoll_event event;
	int set = in_a_set(fd, EPOLLIN), status;
	pid_t child = fork();
	if (!child)
		_exit(epoll_wait(set, &event, 1, 0) != 0);
	must(waitpid(child, &status, 0) == child && status == 0, "child");
}

/* The kernel's part of an instance still has what the program has changed. */
static void late_interest(int fd)
{
	char name[64], line[256];
	unsigned mask = 0;
	struct epoll_event event = { EPOLLIN | EPOLLPRI, { .fd = fd } };
	int set = in_a_set(fd, EPOLLIN);
	must(epoll_wait(set, &event, 1, 0) == 0, "epoll_wait");
	event.events = EPOLLIN | EPOLLPRI;
	must(epoll_ctl(set, EPOLL_CTL_MOD, fd, &event) == 0, "epoll_ctl");
	snprintf(name, sizeof name, "/proc/self/fdinfo/%d", set);
	FILE *info = fopen(name, "r");
	while (fgets(line, sizeof line, info))
		sscanf(line, "tfd: %*d events: %x", &mask);
	fclose(info);
	printf("changed in the kernel %d\n", !!(mask & EPOLLPRI));
	must(epoll_wait(set, &event, 1, 0) == 0, "epoll_wait");
}

static void by_stdio(int fd)
{
	FILE *file = fdopen(fd, "w");
	must(file && fwrite(bytes, PART, 1, file) == 1 && fflush(file) == 0, "stdio");
}

static void low_number(int fd)
{
	must(dup2(fd, 0) == 0, "dup2");
}

static void passed(int fd)
{
	int both[2];
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(4)];
	} item = { .head = { CMSG_LEN(4), SOL_SOCKET, SCM_RIGHTS } };
	memcpy(CMSG_DATA(&item.head), &fd, sizeof fd);
	must(socketpair(AF_UNIX, SOCK_STREAM, 0, both) == 0, "pair");
	message(both[0], 0, 0, &item, sizeof item);
}

static void bare(int fd)
{
	long result;
	__asm__ volatile("syscall" : "=a"(result) : "0"(SYS_write), "D"((long)fd), "S"(bytes), "d"((long)PART)
			 : "rcx", "r11", "memory");
	must(result == PART, "write");
}

/* Nothing more is sent, and the library does not know. */
static void bare_shutdown(int fd)
{
	long result;
	__asm__ volatile("syscall" : "=a"(result) : "0"(SYS_shutdown), "D"((long)fd), "S"((long)SHUT_WR) : "rcx", "r11", "memory");
	must(result == 0, "shutdown");
}

/* Until there is no room: how much there was. */
static void fill(int fd, size_t piece)
{
	size_t sum = 0;
	for (ssize_t n; (n = send(fd, bytes, piece, MSG_DONTWAIT)) > 0;)
		sum += n;
	must(errno == EAGAIN, "send");
	printf("room %zu %zu\n", piece, sum);
	must(send(turns, &sum, sizeof sum, 0) == sizeof sum, "tell");
}

static void fill_largely(int fd)
{
	fill(fd, 4096);
}

static void fill_slowly(int fd)
{
	fill(fd, 100);
}

static void empty(int fd)
{
	size_t sum;
	take(turns, (char *)&sum, sizeof sum);
	take(fd, bytes, sum);
}

static void select_one(int fd, int count, int other)
{
	fd_set *in = calloc(1, 1 << 16), *copy = calloc(1, 1 << 16);
	struct timeval none = { 0 };
	((char *)in)[fd / 8] |= 1 << fd % 8;
	if (other >= 0)
		((char *)in)[other / 8] |= 1 << other % 8;
	memcpy(copy, in, 1 << 16);
	int found = select(count, in, 0, 0, &none);
	must(other >= 0 ? found < 0 && errno == EBADF : found == 0, "select");
}

static void select_known(int fd)
{
	select_one(fd, fd + 1, -1);
}

static void select_closed(int fd)
{
	int closed = dup(fd);
	close(closed);
	select_one(fd, closed + 1, closed);
}

static void select_far(int fd)
{
	int far = fcntl(1, F_DUPFD, FD_SETSIZE);
	must(far >= FD_SETSIZE, "fcntl");
	select_one(fd, far + 1, -1);
}

static void select_nowhere(int fd)
{
	struct timeval none = { 0 };
	must(select(fd + 1, (fd_set *)8, 0, 0, &none) < 0 && errno == EFAULT, "select");
}

static void *rest(void *nothing)
{
	return sleep(100), nothing;
}

/* Executes a program that may not have copies of others' descriptors. */
static int forbid(char **words)
{
	struct sock_filter rules[] = {
		{ BPF_LD | BPF_W | BPF_ABS, 0, 0, 0 },
		{ BPF_JMP | BPF_JEQ | BPF_K, 0, 1, SYS_pidfd_getfd },
		{ BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | EPERM },
		{ BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW },
	};
	struct sock_fprog program = { sizeof rules / sizeof *rules, rules };
	must(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0, "seccomp");
	execv(words[0], words);
	return 1;
}

static void cloned(int fd)
{
	pthread_t thread;
	(void)fd;
	must(pthread_create(&thread, 0, rest, 0) == 0 && unshare(CLONE_FILES) == 0, "unshare");
}

static void confined(int fd)
{
	struct sock_filter all = { BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW };
	struct sock_fprog program = { 1, &all };
	(void)fd;
	must(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0, "seccomp");
}

/* A ring of io_uring that the library does not follow. */
static void other_ring(int fd)
{
	uint32_t parameters[30] = { [2] = 1 << 10 /* IORING_SETUP_SQE128 */ };
	(void)fd;
	must(syscall(SYS_io_uring_setup, 4, parameters) >= 0, "io_uring");
}

static void shut(int fd)
{
	must(shutdown(fd, SHUT_RDWR) == 0, "shutdown");
}

/* The shared memory says that the peer has pushed more than any ring has (crates/io/channel/src/layout.rs). */
static void scribble(int fd)
{
	enum { HEADER = 4 << 12, CHANNEL = 1408, CHANNELS = 1024, END = 128, ENDS_AT = 128, DIRECTION = 512, DIRECTIONS_AT = 384 };
	char line[512], byte;
	uint64_t cookie, start;
	socklen_t length = sizeof cookie;
	FILE *maps = fopen("/proc/self/maps", "r");
	must(maps && getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &length) == 0, "cookie");
	while (fgets(line, sizeof line, maps))
		if (strstr(line, "windlass-slab") && sscanf(line, "%lx", &start) == 1)
			for (int i = 0; i < 2 * CHANNELS; i++) {
				char *channel = (char *)start + HEADER + i / 2 * CHANNEL;
				if (*(uint64_t *)(channel + ENDS_AT + i % 2 * END) == cookie)
					*(volatile uint64_t *)(channel + DIRECTIONS_AT + !(i % 2) * DIRECTION) += 1 << 30;
			}
	fclose(maps);
	must(recv(fd, &byte, 1, MSG_DONTWAIT) < 0 && errno != EAGAIN, "recv");
}

/* The other end has been killed. */
static void alone(int fd)
{
	while (send(fd, bytes, MESSAGE, MSG_NOSIGNAL) > 0)
		usleep(2000);
	hold("alone", "end");
	exit(0);
}

/* The kernel gets what the ring has, for which it has no room. */
static void raised(int fd)
{
	int value;
	struct sockaddr_in name;
	socklen_t length = sizeof name;
	must(getpeername(fd, (void *)&name, &length) == 0, "getpeername");
	for (int i = 0; i < 16; i++)
		sendto(fd, bytes, LARGE, MSG_DONTWAIT, (void *)&name, length);
	while (send(fd, bytes, MESSAGE, MSG_DONTWAIT) > 0)
		;
	must(sendto(fd, bytes, 1, MSG_DONTWAIT, (void *)&name, length) > 0 || errno == EAGAIN, "sendto");
	length = sizeof value;
	must(getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &value, &length) == 0, "getsockopt");
	printf("raised %d\n", value);
}

/* A program that is executed in a child has the connection. */
static void executed(int fd)
{
	int status;
	pid_t child = fork();
	(void)fd;
	if (!child)
		execl("/bin/true", "true", NULL);
	must(waitpid(child, &status, 0) == child && status == 0, "child");
}

static void take_part(int fd)
{
	take(fd, bytes, PART);
}

static void give_part(int fd)
{
	give(fd, PART);
}

static const struct {
	const char *name;
	void (*act)(int);
	/* What the other end does, if anything. */
	void (*other)(int);
} acts[] = {
	{ "cork", cork, 0 }, { "handlers", handlers, 0 }, { "filter", filter, 0 }, { "nodelay", no_delay, 0 }, { "sndbuf", room, 0 }, { "sendfile", file, take_part },
	{ "splice", piped, take_part }, { "splice-more", piped_more, take_part }, { "more", more, take_part },
	{ "sendmmsg", many, take_part }, { "sendto", to_name, take_part }, { "sendmsg-name", message_to_name, take_part },
	{ "sendmsg-control", with_control, take_part }, { "u-sendmsg-control", with_descriptor, take_part }, { "large", large, take_large },
	{ "recvfrom", named, give_part }, { "u-recvfrom", named, give_part }, { "recvmmsg", many_taken, give_part },
	{ "u-control", control_of_nothing, 0 }, { "u-control-ring", control_of_ring, give_and_tell },
	{ "u-cut-off", cut_off, descriptor_and_tell }, { "poll-128", poll_128, 0 }, { "poll-129", poll_129, 0 },
	{ "level-edge", level_and_edge, 0 }, { "two-sets", two_sets, 0 }, { "one-shot", one_shot, 0 }, { "exclusive", exclusive, 0 },
	{ "others-set", others_set, 0 }, { "late-interest", late_interest, 0 }, { "stdio", by_stdio, take_part },
	{ "low-number", low_number, 0 }, { "passed", passed, 0 }, { "bare", bare, take_part }, { "u-fill", fill_largely, empty },
	{ "u-fill-small", fill_slowly, empty }, { "select", select_known, 0 }, { "select-closed", select_closed, 0 },
	{ "select-far", select_far, 0 }, { "select-nowhere", select_nowhere, 0 }, { "cloned", cloned, 0 }, { "seccomp", confined, 0 }, { "exec", executed, 0 }, { "io-uring", other_ring, 0 }, { "closing", shut, 0 }, { "killed", alone, 0 },
	{ "broken", scribble, 0 }, { "sndbuf-raised", raised, 0 }, { "other", 0, 0 },
};

/* How each act's connection is made, and how often it is used before PORT-FILE.go; 0: until then. */
struct way {
	const char *act;
	int family, type, rounds;
};

static const struct way ways[] = {
	{ "udp", AF_INET, SOCK_DGRAM, 0 }, { "datagrams", AF_UNIX, SOCK_DGRAM, 0 }, { "seqpacket", AF_UNIX, SOCK_SEQPACKET, 0 },
	{ "u-little-before", AF_UNIX, SOCK_STREAM, 0 }, { "u-passcred-before", AF_UNIX, SOCK_STREAM, 0 },
	{ "recvmmsg-before", AF_INET, SOCK_STREAM, 0 }, { "sendmmsg-before", AF_INET, SOCK_STREAM, 0 },
	{ "once", AF_INET, SOCK_STREAM, 1 }, { "twice", AF_INET, SOCK_STREAM, 2 }, { "three-calls", AF_INET, SOCK_STREAM, 2 }, { "little", AF_INET, SOCK_STREAM, 15 },
	{ "much", AF_INET, SOCK_STREAM, 400 }, { "one-process", AF_UNIX, SOCK_STREAM, 0 }, { "self-connected", AF_INET, SOCK_STREAM, 0 },
	{ "not-established", AF_INET, SOCK_STREAM, 400 },
	{ "closing", AF_INET, SOCK_STREAM, 50 }, { "broken", AF_INET, SOCK_STREAM, 50 }, { "sndbuf-raised", AF_INET, SOCK_STREAM, 50 },
};

static void act(const char *name, int fd)
{
	for (size_t i = 0; i < sizeof options / sizeof *options; i++)
		if (!strcmp(name, options[i].act)) {
			if (listens)
				set(fd, options[i].level, options[i].name, options[i].value);
			return;
		}
	for (size_t i = 0; i < sizeof acts / sizeof *acts; i++)
		if (!strcmp(name, acts[i].name)) {
			void (*part)(int) = listens ? acts[i].act : acts[i].other;
			if (part)
				part(fd);
			return;
		}
	for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
		if (!strcmp(name, ways[i].act))
			return;
	fail(name);
}

static struct way way_of(const char *act)
{
	for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
		if (!strcmp(act, ways[i].act))
			return ways[i];
	return (struct way){ act, strncmp(act, "u-", 2) ? AF_INET : AF_UNIX, SOCK_STREAM, 0 };
}

static void give_name(int fd)
{
	char name[128] = { 0 };
	socklen_t length = sizeof name;
	must(getsockname(fd, (void *)name, &length) == 0, "getsockname");
	must(send(turns, &length, sizeof length, 0) == sizeof length && send(turns, name, length, 0) == (ssize_t)length, "name");
}

static void connect_to_name(int fd)
{
	char name[128];
	socklen_t length;
	take(turns, (char *)&length, sizeof length), take(turns, name, length);
	must(connect(fd, (void *)name, length) == 0, "connect");
}

/* A connection to the other end that is not over TCP. */
static int meet_by(const struct way *way)
{
	struct sockaddr_in loopback = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct sockaddr_un any = { .sun_family = AF_UNIX };
	int is_inet = way->family == AF_INET, fd = socket(way->family, way->type, 0), listener = fd, both[2];
	void *name = is_inet ? (void *)&loopback : &any;
	must(fd >= 0, "socket");
	if (!strcmp(way->act, "one-process")) {
		must(socketpair(AF_UNIX, SOCK_STREAM, 0, both) == 0, "pair");
		return both[0] | both[1] << 16;
	}
	if (!strcmp(way->act, "self-connected")) {
		socklen_t length = sizeof loopback;
		must(bind(fd, name, length) == 0 && getsockname(fd, name, &length) == 0 && connect(fd, name, length) == 0, "itself");
		set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
		return fd;
	}
	if (way->type == SOCK_DGRAM || listens)
		must(bind(fd, name, is_inet ? sizeof loopback : sizeof any.sun_family) == 0, "bind");
	if (way->type == SOCK_DGRAM) {
		give_name(fd), connect_to_name(fd);
	} else if (listens) {
		must(listen(fd, 1) == 0, "listen");
		give_name(fd);
		fd = accept(listener, 0, 0);
		close(listener);
	} else {
		connect_to_name(fd);
	}
	if (!strcmp(way->act, "u-little-before"))
		set(fd, SOL_SOCKET, SO_SNDBUF, 192 * 512 - 1);
	if (!strcmp(way->act, "u-passcred-before"))
		set(fd, SOL_SOCKET, SO_PASSCRED, 1);
	return fd;
}

static int use(const struct way *way, int fd, int round, int is_last)
{
	int is_cut = !strcmp(way->act, "not-established"), is_one_way = !strcmp(way->act, "little") || !strcmp(way->act, "much");
	is_one_way |= (is_cut || !strcmp(way->act, "three-calls")) && round;
	if (way->rounds && round >= way->rounds)
		return is_last;
	if (!round && !strcmp(way->act, "recvmmsg-before"))
		(listens ? many_taken : give_part)(fd);
	if (!round && !strcmp(way->act, "sendmmsg-before"))
		(listens ? many : take_part)(fd);
	if (round == 1 && is_cut && listens)
		bare_shutdown(fd);
	if (!strcmp(way->act, "self-connected")) {
		give(fd, MESSAGE);
		take(fd, bytes, MESSAGE);
	} else if (!strcmp(way->act, "one-process")) {
		must(send(fd & 0xffff, bytes, MESSAGE, 0) == MESSAGE, "send");
		take(fd >> 16, bytes, MESSAGE);
		must(send(fd >> 16, bytes, MESSAGE, 0) == MESSAGE, "send");
		take(fd & 0xffff, bytes, MESSAGE);
	} else if (!is_one_way) {
		return exchange(fd, is_last);
	} else if (listens) {
		take(fd, bytes, LARGE);
	} else {
		give(fd, LARGE);
	}
	return is_last;
}

int main(int argc, char **argv)
{
	struct way all[ACTS_MAX];
	int fds[ACTS_MAX], count = 0, listener = -1, is_last = 0;
	uint64_t cookie;
	socklen_t length = sizeof cookie;
	if (argc > 2 && !strcmp(argv[1], "forbid"))
		return forbid(argv + 2);
	must(argc == 7, "arguments");
	path = argv[2], listens = !strcmp(argv[1], "listen");
	if (listens)
		listener = listen_at(path);
	turns = listens ? accept(listener, 0, 0) : dial(path);
	must(turns >= 0, "turns");
	for (char *name = strtok(argv[3], ","); name; name = strtok(0, ","), count++) {
		struct way way = way_of(name);
		int is_tcp = way.family == AF_INET && way.type == SOCK_STREAM && strcmp(name, "self-connected");
		int fd = !is_tcp ? meet_by(&way) : listens ? accept(listener, 0, 0) : dial(path);
		must(fd >= 0 && count < ACTS_MAX, "connection");
		if (is_tcp && strcmp(name, "nodelay"))
			set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
		if (!strcmp(name, "sndbuf"))
			set(fd, SOL_SOCKET, SO_SNDBUF, 50000);
		if (!strcmp(name, "sndbuf-raised"))
			set(fd, SOL_SOCKET, SO_SNDBUF, 1);
		all[count] = way, fds[count] = fd;
		must(getsockopt(fd & 0xffff, SOL_SOCKET, SO_COOKIE, &cookie, &length) == 0, "cookie");
		printf("socket %s %llu\n", name, (unsigned long long)cookie);
	}
	fflush(stdout);
	/* The last one of the acts says when it is over. */
	for (int round = 0; !is_last; round++) {
		is_last = is_there("go");
		for (int i = 0; i < count; i++)
			is_last = use(&all[i], fds[i], round, is_last);
	}
	hold("held", "act");
	for (int i = 0; i < count; i++) {
		act(all[i].act, fds[i]);
		tell(), await();
	}
	for (int i = 0; i < count; i++)
		for (int j = 0; j < (strcmp(all[i].act, "bare") ? AFTER : LATE) && !all[i].rounds; j++)
			use(&all[i], fds[i], 1, 0);
	hold("acted", "end");
	return 0;
}
