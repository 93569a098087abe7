/* One end of two TCP connections, the second of which only says whose turn it is: options, messages and files on a connection that
 * the library has joined, and their results, which are the same without it.
 *
 * options listen|connect PORT-FILE CASE BYTES CHUNK WINDOW (the last three mean nothing)
 *
 * Prints a line for each result. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "meet.h"

enum { WARM = 100, MESSAGE = 100, FILE_BYTES = 3000000, STACK = 8192 };

static int fd, turns, listens;
static char bytes[1 << 16];

static const char *which;

static int is(const char *what)
{
	return !strcmp(which, what);
}

static void must(int ok, const char *what)
{
	if (!ok)
		fail(what);
}

static void say(const char *what, long result)
{
	printf("%s %ld %s\n", what, result, result < 0 ? strerrorname_np(errno) : "");
	fflush(stdout);
}

static void whole(int from, void *at, size_t length)
{
	for (size_t done = 0; done < length;) {
		ssize_t n = recv(from, (char *)at + done, length - done, 0);
		must(n > 0, "recv");
		done += n;
	}
}

/* The other end goes on from here. */
static void tell(void)
{
	must(send(turns, "t", 1, 0) == 1, "tell");
}

static void await(void)
{
	char turn;
	whole(turns, &turn, 1);
}

static void exchange(int rounds, size_t length)
{
	for (int i = 0; i < rounds; i++) {
		if (!listens)
			must(send(fd, bytes, length, 0) == (ssize_t)length, "send");
		whole(fd, bytes, length);
		if (listens)
			must(send(fd, bytes, length, 0) == (ssize_t)length, "send");
	}
}

static int readable(int millis)
{
	fd_set set;
	struct timeval time = { 0, millis * 1000 };
	FD_ZERO(&set);
	FD_SET(fd, &set);
	return select(fd + 1, &set, 0, 0, &time);
}

static void number(int on, int level, int name, int value)
{
	must(setsockopt(on, level, name, &value, sizeof value) == 0, "setsockopt");
}

static void few_bytes(void)
{
	if (!listens) {
		must(send(fd, bytes, 10, 0) == 10, "send");
		tell();
		await();
		must(send(fd, bytes, MESSAGE - 10, 0) == MESSAGE - 10, "send");
		return;
	}
	await();
	say("readable with few", readable(50));
	tell();
	say("readable with all", readable(2000));
	whole(fd, bytes, MESSAGE);
}

/* Which control data comes with a message. */
static void control_data(void)
{
	if (!listens) {
		must(send(fd, bytes, 10, 0) == 10, "send");
		return;
	}
	char control[256], into[10];
	struct iovec piece = { into, sizeof into };
	struct msghdr head = { .msg_iov = &piece, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control };
	say("recvmsg", recvmsg(fd, &head, MSG_WAITALL));
	for (struct cmsghdr *at = CMSG_FIRSTHDR(&head); at; at = CMSG_NXTHDR(&head, at))
		printf("control %d %d\n", at->cmsg_level, at->cmsg_type);
	printf("flags %x\n", head.msg_flags);
}

static void unknown_control(void)
{
	if (!listens) {
		whole(fd, bytes, 2);
		return;
	}
	union {
		struct cmsghdr head;
		char space[CMSG_SPACE(4)];
	} item = { .head = { CMSG_LEN(4), SOL_SOCKET, 9999 } };
	struct iovec piece = { bytes, 10 };
	struct msghdr head = { .msg_iov = &piece, .msg_iovlen = 1, .msg_control = &item, .msg_controllen = sizeof item };
	say("sendmsg", sendmsg(fd, &head, MSG_NOSIGNAL));
	say("after it", send(fd, bytes, 2, 0));
}

static void bad_buffer(void)
{
	if (!listens) {
		whole(fd, bytes, 2);
		say("bytes", bytes[0] == 'x' && bytes[1] == 'y');
		return;
	}
	char *pages = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	must(munmap(pages + 4096, 4096) == 0, "munmap");
	struct iovec list[2] = { { pages, 5 }, { pages + 4096, 5 } };
	say("send", send(fd, pages + 4000, 200, 0));
	say("writev", writev(fd, list, 2));
	say("after it", send(fd, "xy", 2, 0));
}

static void many_messages(void)
{
	enum { COUNT = 6 };
	struct timespec between = { 0, 20000000 };
	if (!listens) {
		for (int i = 0; i < COUNT; i++) {
			nanosleep(&between, 0);
			must(send(fd, bytes, 10, 0) == 10, "send");
		}
		await();
		whole(fd, bytes, 20);
		return;
	}
	char into[COUNT][10];
	struct iovec pieces[COUNT];
	struct mmsghdr list[COUNT];
	memset(list, 0, sizeof list);
	for (int i = 0; i < COUNT; i++) {
		pieces[i] = (struct iovec){ into[i], 10 };
		list[i].msg_hdr.msg_iov = &pieces[i];
		list[i].msg_hdr.msg_iovlen = 1;
	}
	struct timespec wrong = { 0, 2000000000 }, some = { 0, 50000000 };
	say("invalid time", recvmmsg(fd, list, COUNT, 0, &wrong));
	int got = recvmmsg(fd, list, COUNT, 0, &some);
	say("in time", got > 0 && got < COUNT);
	say("no time left", some.tv_sec == 0 && some.tv_nsec == 0);
	whole(fd, bytes, (COUNT - got) * 10);
	tell();
	say("sendmmsg", sendmmsg(fd, list, 2, 0));
}

static void more_to_come(void)
{
	if (!listens) {
		/* A late acknowledgement of what was sent before would push these bytes out. */
		usleep(100000);
		must(send(fd, bytes, 5, MSG_MORE) == 5, "send");
		tell();
		await();
		must(send(fd, bytes, 5, 0) == 5, "send");
		return;
	}
	await();
	say("readable before the rest", readable(50));
	tell();
	whole(fd, bytes, 10);
	say("all", 10);
}

/* Bytes that wait for more, of a connection that has not joined. */
static void early(void)
{
	struct iovec piece = { bytes, 5 };
	struct msghdr head = { .msg_iov = &piece, .msg_iovlen = 1 };
	int tube[2];
	if (listens) {
		whole(fd, bytes, 10);
		return;
	}
	must(pipe(tube) == 0 && write(tube[1], bytes, 5) == 5, "pipe");
	if (is("more-spliced"))
		must(splice(tube[0], 0, fd, 0, 5, SPLICE_F_MORE) == 5, "splice");
	else
		must(sendmsg(fd, &head, MSG_MORE) == 5, "sendmsg");
	must(send(fd, bytes, 5, 0) == 5, "send");
}

static void encrypted(void)
{
	if (listens)
		say("ulp", setsockopt(fd, IPPROTO_TCP, TCP_ULP, "tls", 4));
}

static char at(size_t place)
{
	return (char)(place * 0x9e3779b97f4a7c15ull >> 56);
}

static int a_file(void)
{
	int file = memfd_create("file", 0);
	static char all[FILE_BYTES];
	for (size_t i = 0; i < FILE_BYTES; i++)
		all[i] = at(i);
	must(file >= 0 && write(file, all, FILE_BYTES) == FILE_BYTES && lseek(file, 0, SEEK_SET) == 0, "file");
	return file;
}

static void expect_files(size_t count)
{
	for (size_t done = 0; done < count * FILE_BYTES;) {
		ssize_t n = recv(fd, bytes, sizeof bytes, 0);
		must(n > 0, "recv");
		for (ssize_t i = 0; i < n && done < count * FILE_BYTES; i++, done++)
			if (bytes[i] != at(done % FILE_BYTES)) {
				say("WRONG byte", done);
				_exit(1);
			}
	}
	say("bytes of files", count * FILE_BYTES);
}

/* Files by sendfile between messages, on a descriptor that waits and on one that does not. */
static void files(void)
{
	int file = listens ? a_file() : -1;
	for (int round = 0; round < 4; round++) {
		exchange(20, MESSAGE);
		if (!listens) {
			expect_files(1);
			continue;
		}
		fcntl(fd, F_SETFL, round % 2 ? O_NONBLOCK : 0);
		off_t place = 0;
		lseek(file, 0, SEEK_SET);
		while (place < FILE_BYTES) {
			ssize_t n = round < 2 ? sendfile(fd, file, &place, FILE_BYTES - place) : sendfile(fd, file, 0, FILE_BYTES - place);
			struct pollfd one = { fd, POLLOUT, 0 };
			must(n > 0 || errno == EAGAIN, "sendfile");
			if (round >= 2 && n > 0)
				place += n;
			if (round % 2)
				must(poll(&one, 1, 2000) == 1, "room");
			else
				must(place == FILE_BYTES, "all at once");
		}
		fcntl(fd, F_SETFL, 0);
		say("file", place);
		say("position", lseek(file, 0, SEEK_CUR));
	}
	exchange(20, MESSAGE);
}

/* What the kernel itself says, past every library. */
static int kernels_no_delay(void)
{
	int value = -1;
	socklen_t length = sizeof value;
	register long value_at __asm__("r10") = (long)&value, length_at __asm__("r8") = (long)&length;
	long result = SYS_getsockopt;
	__asm__ volatile("syscall" : "+a"(result) : "D"((long)fd), "S"((long)IPPROTO_TCP), "d"((long)TCP_NODELAY), "r"(value_at),
			 "r"(length_at) : "rcx", "r11", "memory");
	return result == 0 ? value != 0 : -1;
}

static void *look_at_delay(void *none)
{
	int value = -1;
	socklen_t length = sizeof value;
	usleep(300000);
	say("without delay, the kernel's", kernels_no_delay());
	must(getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &value, &length) == 0, "getsockopt");
	say("without delay, the program's", value != 0);
	tell();
	return none;
}

/* Files that the receiver takes late, of a program that has left Nagle's algorithm on. */
static void delay(void)
{
	enum { FILES = 8 };
	pthread_t looks;
	if (!listens) {
		await();
		expect_files(FILES);
		return;
	}
	int file = a_file();
	must(pthread_create(&looks, 0, look_at_delay, 0) == 0, "thread");
	for (int i = 0; i < FILES; i++) {
		off_t place = 0;
		while (place < FILE_BYTES)
			must(sendfile(fd, file, &place, FILE_BYTES - place) > 0, "sendfile");
	}
	pthread_join(looks, 0);
}

/* Pieces of a pipe by splice between messages. */
static void spliced(void)
{
	int tube[2];
	must(pipe(tube) == 0, "pipe");
	for (int round = 0; round < 50; round++) {
		exchange(4, MESSAGE);
		if (!listens) {
			whole(fd, bytes, 3000);
			must(bytes[0] == 'a' + round % 26 && bytes[2999] == bytes[0], "the spliced bytes");
			continue;
		}
		memset(bytes, 'a' + round % 26, 3000);
		must(write(tube[1], bytes, 3000) == 3000 && splice(tube[0], 0, fd, 0, 3000, 0) == 3000, "splice");
	}
	say("spliced", 50);
}

static int file_in_handler;

static void handler(int signal)
{
	off_t place = 0;
	int value = 1;
	socklen_t length = sizeof value;
	(void)signal;
	must(sendfile(fd, file_in_handler, &place, 100000) > 0, "sendfile");
	must(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &value, sizeof value) == 0, "setsockopt");
	must(getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &value, &length) == 0, "getsockopt");
	must(fcntl(fd, F_SETFL, 0) == 0, "fcntl");
	struct iovec piece = { bytes, 10 };
	struct msghdr head = { .msg_iov = &piece, .msg_iovlen = 1 };
	must(sendmsg(fd, &head, 0) == 10, "sendmsg");
	char text[100];
	must(recvmsg(fd, &head, MSG_DONTWAIT) < 0 && errno == EAGAIN, "recvmsg");
	must(recv(fd, text, sizeof text, MSG_DONTWAIT) < 0 && errno == EAGAIN, "recv");
	must(write(fd, text, 10) == 10, "write");
}

static void small_stack(void)
{
	if (!listens) {
		whole(fd, bytes, 50000), whole(fd, bytes, 50000), whole(fd, bytes, 20);
		return;
	}
	file_in_handler = a_file();
	char *place = mmap(0, STACK + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	must(place != MAP_FAILED && mprotect(place, 4096, PROT_NONE) == 0, "stack");
	stack_t stack = { .ss_sp = place + 4096, .ss_size = STACK };
	struct sigaction action = { .sa_handler = handler, .sa_flags = SA_ONSTACK };
	must(sigaltstack(&stack, 0) == 0 && sigaction(SIGUSR1, &action, 0) == 0, "handler");
	raise(SIGUSR1);
	say("on a small stack", STACK);
}

/* A ring as libuv makes it: only to change an epoll instance. */
struct ring {
	int fd;
	unsigned *head, *tail, *mask, *array, *done_head, *done_tail, *done_mask;
	struct io_uring_sqe *entries;
	struct io_uring_cqe *done;
};

/* Whether the ring's own calls are made where no library sees them. */
static int is_hidden;

static long ring_call(long number, long a, long b, long c, long d)
{
	register long r10 __asm__("r10") = d, r8 __asm__("r8") = 0, r9 __asm__("r9") = 0;
	long result;
	if (!is_hidden)
		return syscall(number, a, b, c, d, 0, 0);
	__asm__ volatile("syscall"
			 : "=a"(result)
			 : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	return result;
}

static int make_ring(struct ring *ring)
{
	struct io_uring_params how;
	memset(&how, 0, sizeof how);
	ring->fd = ring_call(SYS_io_uring_setup, 64, (long)&how, 0, 0);
	if (ring->fd < 0)
		return 0;
	size_t length = how.sq_off.array + how.sq_entries * 4, other = how.cq_off.cqes + how.cq_entries * sizeof *ring->done;
	char *place = mmap(0, length > other ? length : other, PROT_READ | PROT_WRITE, MAP_SHARED, ring->fd, IORING_OFF_SQ_RING);
	ring->entries = mmap(0, how.sq_entries * sizeof *ring->entries, PROT_READ | PROT_WRITE, MAP_SHARED, ring->fd, IORING_OFF_SQES);
	must(place != MAP_FAILED && (void *)ring->entries != MAP_FAILED, "mmap");
	ring->head = (void *)(place + how.sq_off.head), ring->tail = (void *)(place + how.sq_off.tail);
	ring->mask = (void *)(place + how.sq_off.ring_mask), ring->array = (void *)(place + how.sq_off.array);
	ring->done_head = (void *)(place + how.cq_off.head), ring->done_tail = (void *)(place + how.cq_off.tail);
	ring->done_mask = (void *)(place + how.cq_off.ring_mask), ring->done = (void *)(place + how.cq_off.cqes);
	return 1;
}

static struct io_uring_sqe *next_entry(struct ring *ring)
{
	unsigned tail = *ring->tail, at = tail & *ring->mask;
	ring->array[at] = at;
	memset(&ring->entries[at], 0, sizeof ring->entries[at]);
	__atomic_store_n(ring->tail, tail + 1, __ATOMIC_RELEASE);
	return &ring->entries[at];
}

static int submit(struct ring *ring)
{
	must(ring_call(SYS_io_uring_enter, ring->fd, 1, 1, IORING_ENTER_GETEVENTS) == 1, "enter");
	unsigned head = *ring->done_head;
	must(head != __atomic_load_n(ring->done_tail, __ATOMIC_ACQUIRE), "an answer");
	int result = ring->done[head & *ring->done_mask].res;
	__atomic_store_n(ring->done_head, head + 1, __ATOMIC_RELEASE);
	return result;
}

static int control(struct ring *ring, int set, int operation, int member, struct epoll_event *event)
{
	struct io_uring_sqe *entry = next_entry(ring);
	entry->opcode = IORING_OP_EPOLL_CTL;
	entry->fd = set;
	entry->off = member;
	entry->len = operation;
	entry->addr = (uintptr_t)event;
	return submit(ring);
}

static struct ring ring;
static int has_ring;

/* An event loop that registers its sockets by the ring. */
static void loop(void)
{
	enum { ROUNDS = 2000 };
	if (!listens) {
		struct timespec now, then;
		long slow = 0;
		for (int i = 0; i < ROUNDS; i++) {
			clock_gettime(CLOCK_MONOTONIC, &then);
			exchange(1, MESSAGE);
			clock_gettime(CLOCK_MONOTONIC, &now);
			slow += (now.tv_sec - then.tv_sec) * 1000 + (now.tv_nsec - then.tv_nsec) / 1000000 >= 90;
		}
		say("many slow rounds", slow > ROUNDS / 100);
		return;
	}
	if (!has_ring) {
		say("no ring", 0);
		exchange(ROUNDS, MESSAGE);
		return;
	}
	int set = epoll_create1(0);
	struct epoll_event event = { EPOLLIN, { .u64 = 77 } };
	say("add", control(&ring, set, EPOLL_CTL_ADD, fd, &event));
	say("add again", control(&ring, set, EPOLL_CTL_ADD, fd, &event));
	for (int i = 0; i < ROUNDS; i++) {
		must(epoll_wait(set, &event, 1, 2000) == 1 && event.data.u64 == 77, "epoll_wait");
		whole(fd, bytes, MESSAGE);
		must(send(fd, bytes, MESSAGE, 0) == MESSAGE, "send");
	}
	event = (struct epoll_event){ EPOLLOUT, { .u64 = 78 } };
	say("mod", control(&ring, set, EPOLL_CTL_MOD, fd, &event));
	say("wait", epoll_wait(set, &event, 1, 2000));
	printf("event %x %d\n", event.events, (int)event.data.u64);
	say("del", control(&ring, set, EPOLL_CTL_DEL, fd, &event));
	say("wait", epoll_wait(set, &event, 1, 0));
}

/* A ring that sends: its process is the kernel's. */
static void sends_by_ring(void)
{
	if (!listens) {
		whole(fd, bytes, 30);
		say("order", bytes[0] == '1' && bytes[10] == '2' && bytes[20] == '3');
		return;
	}
	if (!has_ring && !make_ring(&ring)) {
		must(send(fd, "1.........2.........3.........", 30, 0) == 30, "send");
		return;
	}
	must(send(fd, "1.........", 10, 0) == 10, "send");
	struct io_uring_sqe *entry = next_entry(&ring);
	entry->opcode = IORING_OP_SEND;
	entry->fd = fd;
	entry->addr = (uintptr_t)"2.........";
	entry->len = 10;
	must(submit(&ring) == 10, "ring");
	must(send(fd, "3.........", 10, 0) == 10, "send");
}

/* What is done to the listener before it listens, and after. */
static void prepare(int listener, int has_begun)
{
	if (is(has_begun ? "lowat-late" : "lowat") || (!has_begun && is("lowat-exec")))
		number(listener, SOL_SOCKET, SO_RCVLOWAT, MESSAGE);
	if (!has_begun && is("stamp"))
		number(listener, SOL_SOCKET, SO_TIMESTAMP, 1);
	if (!has_begun && is("inq"))
		number(listener, IPPROTO_TCP, TCP_INQ, 1);
}

/* A listener whose port is told once it is prepared: what is connected takes its options over at that moment. */
static int prepared(const char *path)
{
	struct sockaddr_in name = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t length = sizeof name;
	int listener = socket(AF_INET, SOCK_STREAM, 0);
	prepare(listener, 0);
	must(bind(listener, (void *)&name, length) == 0 && listen(listener, 4) == 0, "listen");
	prepare(listener, 1);
	must(getsockname(listener, (void *)&name, &length) == 0, "name");
	tell_port(path, ntohs(name.sin_port));
	return listener;
}

static void act(void)
{
	if (is("more-early") || is("more-spliced"))
		early();
	/* A join takes an answer of the broker. */
	for (int i = 0; i < 40; i++)
		exchange(WARM, MESSAGE), usleep(15000);
	if (listens && is("stamp-after"))
		number(fd, SOL_SOCKET, SO_TIMESTAMP, 1);
	if (listens && is("inq-after"))
		number(fd, IPPROTO_TCP, TCP_INQ, 1);
	if (is("stamp") || is("stamp-after") || is("inq") || is("inq-after"))
		exchange(3, MESSAGE), control_data();
	else if (!strncmp(which, "lowat", 5))
		few_bytes();
	else if (is("unknown-control"))
		unknown_control();
	else if (is("bad-buffer"))
		bad_buffer();
	else if (is("many"))
		many_messages();
	else if (is("more"))
		more_to_come();
	else if (is("ulp"))
		encrypted();
	else if (is("files"))
		files();
	else if (is("splice"))
		spliced();
	else if (is("delay"))
		delay();
	else if (is("stack"))
		small_stack();
	else if (!strncmp(which, "loop", 4))
		has_ring = has_ring || (listens && make_ring(&ring)), loop();
	else if (is("hidden-late"))
		is_hidden = 1, has_ring = make_ring(&ring), exchange(WARM, MESSAGE);
	else if (is("hidden-far"))
		exchange(WARM, MESSAGE);
	else if (!strncmp(which, "ring", 4))
		sends_by_ring();
	say("done", 0);
}

int main(int argc, char **argv)
{
	if (argc < 4)
		return 64;
	which = argv[3];
	listens = !strcmp(argv[1], "listen");
	if (!listens) {
		fd = dial(argv[2]);
		turns = dial(argv[2]);
	} else {
		int listener = argc == 8 ? atoi(argv[7]) : prepared(argv[2]);
		if (argc != 8 && is("lowat-exec")) {
			char text[12];
			snprintf(text, sizeof text, "%d", listener);
			execl("/proc/self/exe", argv[0], argv[1], argv[2], argv[3], argv[4], argv[5], argv[6], text, NULL);
		}
		is_hidden = is("ring-hidden") || is("hidden-far");
		if (is("loop") || is_hidden)
			has_ring = make_ring(&ring);
		/* Put there where no library sees it, either. */
		if (is("hidden-far") && has_ring)
			ring_call(SYS_dup2, ring.fd, 200, 0, 0), ring_call(SYS_close, ring.fd, 0, 0, 0);
		fd = accept(listener, 0, 0);
		turns = accept(listener, 0, 0);
	}
	must(fd >= 0 && turns >= 0, "connection");
	if (!is("delay"))
		number(fd, IPPROTO_TCP, TCP_NODELAY, 1);
	number(turns, IPPROTO_TCP, TCP_NODELAY, 1);
	/* The kernel wakes nobody for fewer, whatever a receive asks for. */
	number(turns, SOL_SOCKET, SO_RCVLOWAT, 1);
	if (!strncmp(which, "stamp", 5)) {
		/* The kernel begins to stamp a while after the first one has asked. */
		number(turns, SOL_SOCKET, SO_TIMESTAMP, 1);
		usleep(100000);
	}
	act();
	close(fd);
	return 0;
}
