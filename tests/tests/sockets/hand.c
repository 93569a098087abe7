/* A stream whose reader changes in the middle: it becomes another program, or gives its descriptor away.
 *
 * hand send PORT-FILE BYTES
 * hand exec|pass|confine PORT-FILE BYTES TAKES PLAIN
 * hand drain BYTES TAKEN [CHANNEL]
 *
 * send: connects, sends BYTES that depend on their place, and ends when the reader has closed. exec and pass: accept,
 * read TAKES bytes, leave the rest for a moment, then PLAIN reads it: by exec with the connection as descriptor 9, or by
 * a process that was started before and gets the descriptor over a Unix socket (CHANNEL). confine: the reader itself goes
 * on, under a seccomp filter that kills whoever does more than read, write and exit. Whoever reads last prints
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

static int drain(int fd, uint64_t bytes, uint64_t taken)
{
	uint64_t got = take(fd, taken, UINT64_MAX);
	char text[64];
	int length = snprintf(text, sizeof text, "got %llu eof\n", (unsigned long long)got);
	return write(1, text, length) != length || got != bytes;
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

/* Passes time without a system call that sleeps. */
static void stay_awake(int milliseconds)
{
	struct timespec begin, now;
	clock_gettime(CLOCK_MONOTONIC, &begin);
	do
		clock_gettime(CLOCK_MONOTONIC, &now);
	while ((now.tv_sec - begin.tv_sec) * 1000 + (now.tv_nsec - begin.tv_nsec) / 1000000 < milliseconds);
}

static int send_all(const char *path, uint64_t bytes)
{
	static unsigned char space[1000];
	int fd = connection(path, 0);
	char answer;
	for (uint64_t place = 0; place < bytes;) {
		size_t n = bytes - place < sizeof space ? bytes - place : sizeof space;
		for (size_t i = 0; i < n; i++)
			space[i] = at(place + i);
		for (size_t done = 0; done < n;) {
			ssize_t r = send(fd, space + done, n - done, MSG_NOSIGNAL);
			if (r < 0)
				fail("send");
			done += r;
		}
		place += n;
		/* Small exchanges at first, so that the ends join. */
		if (place <= 20000 && read(fd, &answer, 1) != 1)
			fail("answer");
	}
	shutdown(fd, SHUT_WR);
	if (read(fd, &answer, 1) != 0)
		fail("end");
	printf("sent %llu\n", (unsigned long long)bytes);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc >= 4 && !strcmp(argv[1], "drain")) {
		int fd = argc > 4 ? pass(atoi(argv[4]), -1) : 9;
		return drain(fd, strtoull(argv[2], 0, 10), strtoull(argv[3], 0, 10));
	}
	if (argc == 4 && !strcmp(argv[1], "send"))
		return send_all(argv[2], strtoull(argv[3], 0, 10));
	if (argc != 6)
		return 64;
	int channels[2], passes = !strcmp(argv[1], "pass");
	char taken[32], channel[32];
	snprintf(taken, sizeof taken, "%s", argv[4]);
	pid_t child = 0;
	if (passes) {
		socketpair(AF_UNIX, SOCK_STREAM, 0, channels);
		snprintf(channel, sizeof channel, "%d", channels[1]);
		if (!(child = fork())) {
			execl(argv[5], argv[5], "drain", argv[3], taken, channel, (char *)0);
			fail("exec");
		}
		close(channels[1]);
	}
	uint64_t takes = strtoull(argv[4], 0, 10);
	int fd = connection(argv[2], 1);
	/* As many programs ask whether there is seccomp: no filter is entered by it. */
	if (!prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, 0) || errno != EFAULT)
		fail("no seccomp");
	for (uint64_t place = 0; place < takes;) {
		place = take(fd, place, place + 1000 < takes ? place + 1000 : takes);
		if (place <= 20000 && place % 1000 == 0 && send(fd, "a", 1, MSG_NOSIGNAL) != 1)
			fail("answer");
	}
	stay_awake(20);
	if (!strcmp(argv[1], "confine")) {
		confine();
		return drain(fd, strtoull(argv[3], 0, 10), takes);
	}
	if (!passes) {
		dup2(fd, 9);
		close(fd);
		execl(argv[5], argv[5], "drain", argv[3], taken, (char *)0);
		fail("exec");
	}
	if (pass(channels[0], fd) != 1)
		fail("sendmsg");
	close(fd);
	int status;
	waitpid(child, &status, 0);
	return status != 0;
}
