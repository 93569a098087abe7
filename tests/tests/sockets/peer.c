/* One end of a TCP connection (built with -DUNIX: of an AF_UNIX stream), as an ordinary program: sends bytes that depend on
 * their place, and checks what comes.
 *
 * peer listen|connect|pair PORT-FILE WAY BYTES CHUNK WINDOW
 *
 * WAY: block (a thread each way), poll, select, level, edge, oneshot, fork (a process each way), bare (reads by a bare
 * system call), heir (as block, and a forked process goes on where this one is killed). BYTES 0: until the connection ends. WINDOW: so many bytes
 * at most are sent beyond those received (0: no limit). Prints `sent N`, `got N END`; exit code 1 if a byte was wrong. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
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
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "meet.h"

enum { CHUNK_MAX = 1 << 17 };

static int side, fd, bare;
/* Role pair: the process at the other end. */
static pid_t other_end;
static uint64_t limit, window;
/* Shared with a forked writer; in the file that PEER_STATE names, for whoever asks after a kill. */
static volatile uint64_t *taken;
#define got (taken[0])
#define over (taken[1])
#define sent (taken[2])
static size_t chunk;
static const char *ending = "none";

static unsigned char at(int from, uint64_t place)
{
	return (place + ((uint64_t)from << 60)) * 0x9e3779b97f4a7c15ull >> 56;
}

static void check(const unsigned char *bytes, ssize_t n)
{
	uint64_t place = got;
	for (ssize_t i = 0; i < n; i++)
		if (bytes[i] != at(!side, place + i)) {
			printf("WRONG byte %llu: %d, not %d\n", (unsigned long long)(place + i), bytes[i], at(!side, place + i));
			fflush(stdout);
			_exit(1);
		}
	got = place + n;
}

static size_t random_size(uint64_t *state)
{
	*state ^= *state >> 12, *state ^= *state << 25, *state ^= *state >> 27;
	return 1 + (*state * 0x2545f4914f6cdd1dull >> 20) % chunk;
}

static void print_state(void)
{
	printf("sent %llu\ngot %llu %s\n", (unsigned long long)sent, (unsigned long long)got, ending);
	fflush(stdout);
}

/* One send; 0: no room; -1: over. */
static int send_some(uint64_t *state)
{
	static unsigned char bytes[CHUNK_MAX];
	size_t n = random_size(state);
	if (limit && sent + n > limit)
		n = limit - sent;
	if (!n)
		return -1;
	for (size_t i = 0; i < n; i++)
		bytes[i] = at(side, sent + i);
	size_t done = 0;
	while (done < n) {
		ssize_t r = send(fd, bytes + done, n - done, MSG_NOSIGNAL);
		if (r < 0 && errno == EINTR)
			continue;
		if (r < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
			sent += done;
			return 0;
		}
		if (r < 0) {
			sent += done;
			return -1;
		}
		done += r;
		if (fcntl(fd, F_GETFL) & O_NONBLOCK)
			break;
	}
	sent += done;
	return 1;
}

static ssize_t read_some(unsigned char *into, size_t n)
{
	if (!bare)
		return recv(fd, into, n, 0);
	long r;
	register long number __asm__("rax") = SYS_read;
	__asm__ volatile("syscall" : "=a"(r) : "a"(number), "D"(fd), "S"(into), "d"(n) : "rcx", "r11", "memory");
	if (r < 0) {
		errno = -r;
		return -1;
	}
	return r;
}


/* One receive; 0: nothing there; -1: over. */
static int take_some(uint64_t *state)
{
	static unsigned char bytes[CHUNK_MAX];
	ssize_t r = read_some(bytes, random_size(state));
	if (r > 0) {
		check(bytes, r);
		return 1;
	}
	if (r < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
		return 0;
	if (r < 0 && errno == EINTR)
		return 1;
	ending = r == 0 ? "eof" : errno == ECONNRESET ? "reset" : strerror(errno);
	return -1;
}

static int may_send(void)
{
	return !window || sent < got + window;
}

static void *write_all(void *state)
{
	do
		for (int i = 0; !may_send() && !over; i++)
			if (i > 1000)
				usleep(20);
	while (send_some(state) > 0);
	shutdown(fd, SHUT_WR);
	return 0;
}

static void read_all(uint64_t *state)
{
	while (take_some(state) >= 0)
		;
	over = 1;
}

/* Waits by the way's call; bits of POLLIN and POLLOUT. */
static int wait_by(const char *way, int epoll, int wanted)
{
	if (!strcmp(way, "poll")) {
		struct pollfd one = { fd, wanted, 0 };
		while (poll(&one, 1, 10000) < 0 && errno == EINTR)
			;
		return one.revents;
	}
	if (!strcmp(way, "select")) {
		fd_set in, out;
		int n;
		do {
			FD_ZERO(&in);
			FD_ZERO(&out);
			if (wanted & POLLIN)
				FD_SET(fd, &in);
			if (wanted & POLLOUT)
				FD_SET(fd, &out);
			struct timeval most = { 10, 0 };
			n = select(fd + 1, &in, &out, 0, &most);
		} while (n < 0 && errno == EINTR);
		return (FD_ISSET(fd, &in) ? POLLIN : 0) | (FD_ISSET(fd, &out) ? POLLOUT : 0);
	}
	struct epoll_event event = { wanted, { .fd = fd } };
	if (!strcmp(way, "edge"))
		event.events = EPOLLIN | EPOLLOUT | EPOLLET;
	if (!strcmp(way, "oneshot"))
		event.events |= EPOLLONESHOT;
	static int last = -1;
	if (strcmp(way, "edge") || last < 0)
		if ((last != (int)event.events || !strcmp(way, "oneshot"))
		    && epoll_ctl(epoll, last < 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, fd, &event))
			fail("epoll_ctl");
	last = event.events;
	struct epoll_event found;
	int n;
	/* A stop ends it, too. */
	while ((n = epoll_wait(epoll, &found, 1, 10000)) < 0 && errno == EINTR)
		;
	return n > 0 ? (int)found.events : 0;
}

static void loop(const char *way, uint64_t *mine, uint64_t *theirs)
{
	int epoll = epoll_create1(0), reading = 1, writing = 1, edge = !strcmp(way, "edge");
	fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
	while (reading || writing) {
		int found = wait_by(way, epoll, (reading ? POLLIN : 0) | (writing && (may_send() || !reading) ? POLLOUT : 0));
		if (!found) {
			printf("STUCK way %s sent %llu got %llu reading %d writing %d\n", way, (unsigned long long)sent,
			       (unsigned long long)got, reading, writing);
			exit(3);
		}
		int r = 1;
		if (reading && found & (POLLIN | POLLERR | POLLHUP | POLLRDHUP)) {
			do
				r = take_some(theirs);
			while (edge && r > 0);
			if (r < 0)
				reading = 0;
		}
		if (writing && (may_send() || !reading) && (found & (POLLOUT | POLLERR | POLLHUP) || edge)) {
			do
				r = send_some(mine);
			while (edge && r > 0 && may_send() && (!limit || sent < limit));
			if (r < 0 || (limit && sent == limit)) {
				writing = 0;
				shutdown(fd, SHUT_WR);
			}
		}
	}
}

#ifdef UNIX
#include "open_unix.h"
#else
static void open_connection(const char *role, const char *path)
{
	int one = 1;
	side = !strcmp(role, "connect");
	fd = side ? dial(path) : accept_at(path);
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}
#endif

/* Messages of the warm-up, at least. */
enum { WARM = 50 };

/* What the other end notes, as PEER_STATE does of this one. */
static volatile uint64_t *others(const char *path)
{
	char name[4096];
	snprintf(name, sizeof name, "%.*s/%s.state", (int)(strrchr(path, '/') - path), path, side ? "listen" : "connect");
	int file;
	struct stat is = { 0 };
	while ((file = open(name, O_RDONLY | O_CLOEXEC)) < 0 || fstat(file, &is) || is.st_size < 4096) {
		close(file);
		usleep(1000);
	}
	void *at = mmap(0, 4096, PROT_READ, MAP_SHARED, file, 0);
	if (at == MAP_FAILED)
		fail(name);
	close(file);
	return at;
}

/* Some small messages there and back, so that what follows meets a joined connection. With PEER_HOLD, whatever it says, they go on
 * until PORT-FILE.go is there, and each is taken once it has been sent, so that nobody sleeps for it: the ring carries them once
 * the ends have joined. The last one of the end that listens says so by its first byte. */
static void warm_up(const char *path)
{
	char go[4096];
	int is_last = !getenv("PEER_HOLD");
	volatile uint64_t *other = is_last ? 0 : others(path);
	snprintf(go, sizeof go, "%s.go", path);
	for (int i = 0; i < WARM || !is_last; i++) {
		unsigned char bytes[8];
		for (int half = 0; half < 2; half++) {
			if (half == side) {
				for (int j = 0; j < 8; j++)
					bytes[j] = at(side, sent + j);
				if (other && !side && i + 1 >= WARM && !access(go, F_OK)) {
					is_last = 1;
					bytes[0] ^= 0xff;
				}
				if (send(fd, bytes, 8, MSG_NOSIGNAL) != 8)
					fail("warm-up send");
				sent += 8;
			} else {
				while (other && other[2] < got + 8)
					usleep(10);
				ssize_t r = recv(fd, bytes, 8, MSG_WAITALL);
				if (r != 8)
					fail("warm-up recv");
				if (other && side && bytes[0] == (at(0, got) ^ 0xff)) {
					is_last = 1;
					bytes[0] ^= 0xff;
				}
				check(bytes, 8);
			}
		}
	}
}

/* How many bytes a killed process had sent, at most a call more than it noted: as many as come at the other end until nothing
 * comes any more. */
static void find_sent(const char *path, const char *role)
{
	char name[4096];
	const char *other = strcmp(role, "listen") ? "listen" : "connect";
	snprintf(name, sizeof name, "%.*s/%s.state", (int)(strrchr(path, '/') - path), path, other);
	int file = open(name, O_RDONLY | O_CLOEXEC);
	volatile uint64_t *others = mmap(0, 4096, PROT_READ, MAP_SHARED, file, 0);
	if (file < 0 || others == MAP_FAILED)
		fail(name);
	uint64_t come = others[0];
	for (int still = 0; still < 70; still++) {
		usleep(10000);
		if (come != others[0])
			come = others[0], still = 0;
	}
	if (come < sent || come > sent + chunk) {
		printf("WRONG: %llu bytes came of %llu\n", (unsigned long long)come, (unsigned long long)sent);
		exit(1);
	}
	sent = come;
}

/* How many it had taken, at most a call more than it noted: the next bytes show it. */
static void find_got(void)
{
	unsigned char first[64];
	ssize_t r = recv(fd, first, sizeof first, MSG_WAITALL);
	uint64_t least = got;
	if (r == 0 && limit - got <= chunk)
		got = limit;
	for (uint64_t place = least; r > 0 && got == least; place++) {
		ssize_t same = 0;
		while (same < r && first[same] == at(!side, place + same))
			same++;
		if (same == r)
			got = place + r;
		else if (place > least + chunk) {
			printf("WRONG bytes after %llu\n", (unsigned long long)least);
			exit(1);
		}
	}
}

static void exchange(uint64_t *mine, uint64_t *theirs, int takes_over)
{
	pthread_t writer;
	pthread_create(&writer, 0, write_all, mine);
	if (takes_over)
		find_got();
	read_all(theirs);
	pthread_join(writer, 0);
}

int main(int argc, char **argv)
{
	if (argc != 7)
		return 64;
	const char *way = argv[3];
	limit = strtoull(argv[4], 0, 10), chunk = strtoull(argv[5], 0, 10);
	window = strtoull(argv[6], 0, 10);
	int state = getenv("PEER_STATE") ? open(getenv("PEER_STATE"), O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;
	if (state >= 0 && ftruncate(state, 4096))
		fail("PEER_STATE");
	taken = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | (state < 0 ? MAP_ANONYMOUS : 0), state, 0);
	if (state >= 0)
		close(state);
	if (!chunk || chunk > CHUNK_MAX)
		return 64;
	signal(SIGPIPE, SIG_IGN);
	open_connection(argv[1], argv[2]);
	uint64_t mine = 0x1234567 + side, theirs = 0x7654321 + side;
	warm_up(argv[2]);
	printf("warm\n");
	fflush(stdout);
	if (!strcmp(way, "block") || !strcmp(way, "bare")) {
		bare = !strcmp(way, "bare");
		exchange(&mine, &theirs, 0);
	} else if (!strcmp(way, "heir")) {
		int life[2];
		char none;
		if (pipe(life))
			fail("pipe");
		pid_t heir = fork();
		/* The group is killed. */
		setpgid(heir, 0);
		if (!heir) {
			alarm(60);
			close(life[1]);
			while (read(life[0], &none, 1) < 0)
				;
			if (over && sent == limit)
				return 0;
			find_sent(argv[2], argv[1]);
		}
		exchange(&mine, &theirs, !heir);
	} else if (!strcmp(way, "fork")) {
		pid_t child = fork();
		if (!child) {
			write_all(&mine);
			printf("sent %llu\n", (unsigned long long)sent);
			fflush(stdout);
			exit(0);
		}
		read_all(&theirs);
		int status;
		waitpid(child, &status, 0);
		printf("got %llu %s\n", (unsigned long long)got, ending);
		return status != 0;
#ifdef UNIX
	} else if (!strcmp(way, "rights")) {
		pthread_t writer;
		pthread_create(&writer, 0, write_rights, &mine);
		read_rights(&theirs);
		pthread_join(writer, 0);
#endif
	} else {
		loop(way, &mine, &theirs);
	}
	close(fd);
	print_state();
	int status = 0;
	if (other_end)
		waitpid(other_end, &status, 0);
	return status != 0;
}
