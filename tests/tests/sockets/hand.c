/* A stream whose reader changes in the middle: it becomes another program, or gives its descriptor away.
 *
 * hand send PORT-FILE BYTES
 * hand exec|pass|confine PORT-FILE LEFT PLAIN
 * hand drain TAKEN [CHANNEL]
 *
 * send: connects, sends bytes that depend on their place, BYTES of them at the end, prints `sent N`, and ends when the reader
 * has closed. exec and pass: accept, answer each
 * thousand bytes with a byte until PORT-FILE.joined is there, have LEFT bytes sent that they do not take, stay awake until
 * PORT-FILE.left is there; then PLAIN reads on, and gets the rest from PORT-FILE.rest on: by exec with the connection as
 * descriptor 9, or by a process that was started before and gets the descriptor over a Unix socket (CHANNEL). confine: the reader
 * itself goes on, under a seccomp filter that kills whoever does more than read, write and exit. Whoever reads last prints
 * `got N eof`. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/tcp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "meet.h"

static unsigned char at(uint64_t place)
{
	return place * 0x9e3779b97f4a7c15ull >> 56;
}

/* Reads up to `limit` bytes of the stream; where it then is. */
static uint64_t take(int fd, uint64_t place, uint64_t limit)
{
	static unsigned char bytes[4096];
	while (place < limit) {
		size_t most = limit - place < sizeof bytes ? limit - place : sizeof bytes;
		ssize_t n = read(fd, bytes, most);
		if (n < 0)
			fail("read");
		if (!n)
			break;
		for (ssize_t i = 0; i < n; i++)
			if (bytes[i] != at(place + i)) {
				printf("WRONG byte %llu\n", (unsigned long long)(place + i));
				fflush(stdout);
				_exit(1);
			}
		place += n;
	}
	return place;
}

static int drain(int fd, uint64_t taken)
{
	uint64_t got = take(fd, taken, UINT64_MAX);
	char text[64];
	int length = snprintf(text, sizeof text, "got %llu eof\n", (unsigned long long)got);
	return write(1, text, length) != length;
}

/* Sends or receives a descriptor. */
static int pass(int channel, int fd)
{
	char byte = 'x', space[CMSG_SPACE(sizeof(int))] = { 0 };
	struct iovec data = { &byte, 1 };
	struct msghdr message = { .msg_iov = &data, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space };
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);
	if (fd >= 0) {
		*header = (struct cmsghdr){ CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS };
		memcpy(CMSG_DATA(header), &fd, sizeof fd);
		return sendmsg(channel, &message, 0);
	}
	if (recvmsg(channel, &message, 0) != 1 || !(header = CMSG_FIRSTHDR(&message)))
		fail("recvmsg");
	memcpy(&fd, CMSG_DATA(header), sizeof fd);
	return fd;
}

static void confine(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_read, 3, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_write, 2, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 1, 0),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog filter = { sizeof code / sizeof *code, code };
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter))
		fail("seccomp");
}

static int connection(const char *path, int listens)
{
	int fd = listens ? accept_at(path) : dial(path), one = 1;
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	return fd;
}

enum { PIECE = 1000 };

static int is_there(const char *path, const char *what)
{
	char name[4096];
	snprintf(name, sizeof name, "%s.%s", path, what);
	return !access(name, F_OK);
}

static uint64_t send_up_to(int fd, uint64_t place, uint64_t limit)
{
	static unsigned char space[PIECE];
	while (place < limit) {
		size_t n = limit - place < sizeof space ? limit - place : sizeof space;
		for (size_t i = 0; i < n; i++)
			space[i] = at(place + i);
		ssize_t r = send(fd, space, n, MSG_NOSIGNAL);
		if (r < 0)
			fail("send");
		place += r;
	}
	return place;
}

/* Pieces for as long as the reader says `a`; then as many bytes as it says, which it leaves, and the rest once it may be sent. */
static int send_all(const char *path, uint64_t bytes)
{
	int fd = connection(path, 0);
	uint64_t place = 0, left;
	char answer;
	do {
		place = send_up_to(fd, place, place + PIECE);
		if (read(fd, &answer, 1) != 1)
			fail("answer");
	} while (answer == 'a');
	if (recv(fd, &left, sizeof left, MSG_WAITALL) != sizeof left)
		fail("how many");
	place = send_up_to(fd, place, place + left);
	while (!is_there(path, "rest"))
		usleep(1000);
	place = send_up_to(fd, place, place + bytes);
	shutdown(fd, SHUT_WR);
	if (read(fd, &answer, 1) != 0)
		fail("end");
	printf("sent %llu\n", (unsigned long long)place);
	return 0;
}

/* Takes and answers pieces until the ends have joined, and has so many bytes sent that it does not take; how many it has taken. */
static uint64_t answer_until_joined(int fd, const char *path, uint64_t left)
{
	char answer[1 + sizeof left] = "a";
	uint64_t place = 0;
	do {
		place = take(fd, place, place + PIECE);
		if (is_there(path, "joined")) {
			answer[0] = 'b';
			memcpy(answer + 1, &left, sizeof left);
		}
		ssize_t length = *answer == 'a' ? 1 : sizeof answer;
		if (send(fd, answer, length, MSG_NOSIGNAL) != length)
			fail("answer");
	} while (*answer == 'a');
	/* Awake: no sleeper is to be woken through the kernel. */
	while (!is_there(path, "left"))
		;
	return place;
}

int main(int argc, char **argv)
{
	if (argc >= 3 && !strcmp(argv[1], "drain")) {
		int fd = argc > 3 ? atoi(argv[3]) : -1;
		uint64_t taken = strtoull(argv[2], 0, 10);
		if (fd < 0)
			return drain(9, taken);
		char place[32] = { 0 };
		int connection = pass(fd, -1);
		if (read(fd, place, sizeof place - 1) <= 0)
			fail("place");
		return drain(connection, strtoull(place, 0, 10));
	}
	if (argc == 4 && !strcmp(argv[1], "send"))
		return send_all(argv[2], strtoull(argv[3], 0, 10));
	if (argc != 5)
		return 64;
	int channels[2], passes = !strcmp(argv[1], "pass");
	char taken[32], channel[32];
	pid_t child = 0;
	if (passes) {
		socketpair(AF_UNIX, SOCK_STREAM, 0, channels);
		snprintf(channel, sizeof channel, "%d", channels[1]);
		if (!(child = fork())) {
			execl(argv[4], argv[4], "drain", "0", channel, (char *)0);
			fail("exec");
		}
		close(channels[1]);
	}
	int fd = connection(argv[2], 1);
	/* As many programs ask whether there is seccomp: no filter is entered by it. */
	if (!prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, 0) || errno != EFAULT)
		fail("no seccomp");
	uint64_t place = answer_until_joined(fd, argv[2], strtoull(argv[3], 0, 10));
	int length = snprintf(taken, sizeof taken, "%llu", (unsigned long long)place);
	if (!strcmp(argv[1], "confine")) {
		confine();
		return drain(fd, place);
	}
	if (!passes) {
		dup2(fd, 9);
		close(fd);
		execl(argv[4], argv[4], "drain", taken, (char *)0);
		fail("exec");
	}
	if (pass(channels[0], fd) != 1 || write(channels[0], taken, length) != length)
		fail("sendmsg");
	close(fd);
	int status;
	waitpid(child, &status, 0);
	return status != 0;
}
