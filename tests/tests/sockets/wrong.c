/* Calls with wrong arguments on a connection that has joined, and their results, which are the same without the library: what each
 * returns, what it leaves in its arguments, and which bytes it has moved.
 *
 * wrong listen|connect PORT-FILE tcp|unix BYTES CHUNK WINDOW (the last three mean nothing)
 *
 * The end that listens makes the calls. Bytes count up, so that the next one tells how many are gone. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include "meet.h"
#include "message.h"

enum { ROUNDS = 200, UNREAD = 2000, EACH = 10, LIST = 1025 };

static int fd, turns;
static char message[MESSAGE], into[EACH];
/* Nothing is mapped there. */
static void *const nowhere = (void *)8;
/* A page that cannot be written, and one that can, before one that is not mapped. */
static char *fixed, *last;

static void say(const char *what, long result)
{
	printf("%s: %ld %s\n", what, result, result < 0 ? strerrorname_np(errno) : "");
}

/* The result of a receive, and the byte that is next. */
static void got(const char *what, long result)
{
	unsigned char next = 0;
	say(what, result);
	int there = recv(fd, &next, 1, MSG_PEEK | MSG_DONTWAIT);
	printf("next %d %d\n", there, next);
}

static void receives(void)
{
	struct sockaddr_storage from;
	socklen_t wrong = -1, right = sizeof from, none = 0;
	got("read into nothing", read(fd, 0, EACH));
	got("recv into nothing", recv(fd, 0, EACH, 0));
	got("recv nothing into nothing", recv(fd, 0, 0, 0));
	got("recv into nowhere", recv(fd, nowhere, EACH, 0));
	got("recv into what is not there at its end", recv(fd, last + 4096 - EACH / 2, EACH, 0));
	got("recv with an unknown flag", recv(fd, into, EACH, 0x8000000));
	got("recvfrom, negative length", recvfrom(fd, into, EACH, 0, (void *)&from, &wrong));
	printf("length %d\n", wrong);
	got("recvfrom, peek, negative length", recvfrom(fd, into, EACH, MSG_PEEK, (void *)&from, &wrong));
	got("recvfrom, no length", recvfrom(fd, into, EACH, 0, (void *)&from, 0));
	got("recvfrom, length nowhere", recvfrom(fd, into, EACH, 0, (void *)&from, nowhere));
	got("recvfrom, length fixed", recvfrom(fd, into, EACH, 0, (void *)&from, (void *)fixed));
	got("recvfrom, name nowhere", recvfrom(fd, into, EACH, 0, nowhere, &right));
	printf("length %d\n", right);
	got("recvfrom, length of 0", recvfrom(fd, into, EACH, 0, (void *)&from, &none));
	got("recvfrom, no name", recvfrom(fd, into, EACH, 0, 0, nowhere));
	got("recvfrom of nothing, negative length", recvfrom(fd, into, 0, 0, (void *)&from, &wrong));
}

static struct iovec list[LIST];

static void received(const char *what, struct msghdr *head, int flags)
{
	got(what, recvmsg(fd, head, flags));
	if (head && head != nowhere)
		printf("name %d control %zu flags %x\n", head->msg_namelen, head->msg_controllen, head->msg_flags);
}

static struct msghdr head(void)
{
	static char piece[EACH];
	for (int i = 0; i < LIST; i++)
		list[i] = (struct iovec){ piece, 1 };
	list[0].iov_len = EACH;
	return (struct msghdr){ .msg_iov = list, .msg_iovlen = 1, .msg_flags = 0x55 };
}

static void messages_received(int has_names)
{
	struct sockaddr_storage from;
	struct msghdr one = head();
	received("recvmsg", &one, 0);
	received("recvmsg without a header", 0, 0);
	received("recvmsg, header nowhere", nowhere, 0);
	one = head(), one.msg_namelen = -1;
	received("recvmsg, no name of negative length", &one, 0);
	one = head(), one.msg_namelen = 77;
	received("recvmsg, no name of some length", &one, 0);
	one = head(), one.msg_iovlen = LIST;
	received("recvmsg, too many pieces", &one, 0);
	one = head(), one.msg_iovlen = -1;
	received("recvmsg, negative pieces", &one, 0);
	one = head(), one.msg_iov = 0;
	received("recvmsg, no list", &one, 0);
	one = head(), one.msg_iov = nowhere, one.msg_iovlen = 0;
	received("recvmsg, list of nothing nowhere", &one, 0);
	one = head(), list[0].iov_base = 0;
	received("recvmsg, no piece", &one, 0);
	one = head(), one.msg_iovlen = 2, list[0].iov_len = -1;
	received("recvmsg, negative piece", &one, 0);
	one = head(), one.msg_controllen = 64;
	received("recvmsg, no control data of some length", &one, 0);
	one = head();
	memcpy(last, &one, sizeof one);
	mprotect(last, 4096, PROT_READ);
	received("recvmsg, fixed header", (void *)last, 0);
	mprotect(last, 4096, PROT_READ | PROT_WRITE);
	got("readv, no list", readv(fd, 0, 1));
	got("readv, no list of nothing", readv(fd, 0, 0));
	got("readv, negative list", readv(fd, list, -1));
	head();
	got("readv, too long a list", readv(fd, list, LIST));
	list[0] = (struct iovec){ 0, 0 };
	got("readv, an empty piece nowhere", readv(fd, list, 2));
	if (!has_names)
		return;
	one = head(), one.msg_name = &from, one.msg_namelen = -1;
	received("recvmsg, negative length", &one, 0);
	one = head(), one.msg_name = nowhere, one.msg_namelen = 16;
	received("recvmsg, name nowhere", &one, 0);
	one = head(), one.msg_name = &from, one.msg_namelen = 4000;
	received("recvmsg, long name", &one, 0);
}

static void sends(void)
{
	union {
		struct sockaddr_in in;
		struct sockaddr_storage all;
	} to = { .in = { .sin_family = AF_INET, .sin_port = 1 } };
	struct msghdr one;
	say("write of nothing", write(fd, 0, EACH));
	say("send from nothing", send(fd, 0, EACH, 0));
	say("send of nothing from nothing", send(fd, 0, 0, 0));
	say("send", send(fd, "a", 1, 0));
	say("sendto, name nowhere", sendto(fd, "b", 1, 0, nowhere, 16));
	say("sendto, too long a name", sendto(fd, "c", 1, 0, (void *)&to, 4000));
	say("sendto, negative length", sendto(fd, "d", 1, 0, (void *)&to, -1));
	say("send", send(fd, "e", 1, 0));
	say("sendto, name of length 0", sendto(fd, "f", 1, 0, (void *)&to, 0));
	say("send", send(fd, "g", 1, 0));
	say("sendto, name", sendto(fd, "h", 1, 0, (void *)&to, sizeof to.in));
	say("sendto, no name of some length", sendto(fd, "i", 1, 0, 0, 16));
	say("sendmsg without a header", sendmsg(fd, 0, 0));
	say("sendmsg, header nowhere", sendmsg(fd, nowhere, 0));
	one = head(), one.msg_name = &to, one.msg_namelen = -1;
	say("sendmsg, negative length", sendmsg(fd, &one, 0));
	one = head(), one.msg_name = nowhere, one.msg_namelen = 16;
	say("sendmsg, name nowhere", sendmsg(fd, &one, 0));
	one = head(), one.msg_namelen = -1, list[0] = (struct iovec){ "k", 1 };
	say("sendmsg, no name of negative length", sendmsg(fd, &one, 0));
	one = head(), one.msg_iovlen = LIST;
	say("sendmsg, too many pieces", sendmsg(fd, &one, 0));
	one = head(), one.msg_iovlen = -1;
	say("sendmsg, negative pieces", sendmsg(fd, &one, 0));
	one = head(), one.msg_iov = 0;
	say("sendmsg, no list", sendmsg(fd, &one, 0));
	one = head(), list[0].iov_base = 0;
	say("sendmsg, no piece", sendmsg(fd, &one, 0));
	one = head(), one.msg_controllen = 24, list[0] = (struct iovec){ "l", 1 };
	say("sendmsg, no control data of some length", sendmsg(fd, &one, 0));
	one = head(), one.msg_control = nowhere, one.msg_controllen = 24;
	say("sendmsg, control data nowhere", sendmsg(fd, &one, 0));
	say("writev, no list", writev(fd, 0, 1));
	say("writev, no list of nothing", writev(fd, 0, 0));
	say("writev, negative list", writev(fd, list, -1));
	head();
	say("writev, too long a list", writev(fd, list, LIST));
	say("send", send(fd, "z", 1, 0));
}

static void others(void)
{
	int value = 1;
	socklen_t wrong = -1, length = sizeof value;
	say("getsockopt, no value", getsockopt(fd, SOL_SOCKET, SO_ERROR, 0, &length));
	say("getsockopt, no length", getsockopt(fd, SOL_SOCKET, SO_ERROR, &value, 0));
	say("getsockopt, negative length", getsockopt(fd, SOL_SOCKET, SO_ERROR, &value, &wrong));
	say("setsockopt, no value", setsockopt(fd, SOL_SOCKET, SO_SNDBUF, 0, sizeof value));
	say("setsockopt, negative length", setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &value, -1));
	say("setsockopt, short", setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &value, 2));
	say("FIONREAD without a place", ioctl(fd, FIONREAD, 0));
	say("FIONBIO without a place", ioctl(fd, FIONBIO, 0));
	say("an unknown request", ioctl(fd, 0x12345, 0));
	say("getsockname, no name", getsockname(fd, 0, &length));
	say("getpeername, no length", getpeername(fd, (void *)message, 0));
	say("shutdown, unknown", shutdown(fd, 7));
	say("fcntl, unknown", fcntl(fd, 7777, 0));
}

static int unix_end(const char *path, int listens)
{
	struct sockaddr_un name = { .sun_family = AF_UNIX };
	int end = socket(AF_UNIX, SOCK_STREAM, 0), listener = end;
	snprintf(name.sun_path, sizeof name.sun_path, "%s.unix", path);
	if (!listens) {
		if (connect(end, (void *)&name, sizeof name))
			fail("connect");
		return end;
	}
	if (bind(listener, (void *)&name, sizeof name) || listen(listener, 1))
		fail("listen");
	return listener;
}

int main(int count, char **words)
{
	if (count < 4)
		return 64;
	int listens = !strcmp(words[1], "listen"), is_unix = !strcmp(words[3], "unix"), one = 1;
	int listener = listens && is_unix ? unix_end(words[2], 1) : -1;
	turns = listens ? accept_at(words[2]) : dial(words[2]);
	fd = turns;
	if (is_unix)
		fd = listens ? accept(listener, 0, 0) : unix_end(words[2], 0);
	else
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	for (int i = 0; i < ROUNDS; i++)
		if (!move(fd, message, !listens) || !move(fd, message, listens))
			fail("message");
	if (!listens) {
		char bytes[UNREAD], letter = 0;
		while (letter != 'z' && recv(fd, &letter, 1, 0) == 1)
			putchar(letter);
		for (int i = 0; i < UNREAD; i++)
			bytes[i] = i % 251;
		for (int part = 0; part < 2; part++) {
			if (!move(fd, message, 0) || send(fd, bytes, sizeof bytes, 0) != sizeof bytes)
				fail("bytes");
		}
		return 0;
	}
	fixed = mmap(0, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	last = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	munmap(last + 4096, 4096);
	static char all[UNREAD];
	sends();
	for (int part = 0; part < 2; part++) {
		move(fd, message, 1);
		/* All of it is there, by the ring where this end has waited for it awake. */
		for (int there = 0; there < UNREAD;)
			ioctl(fd, FIONREAD, &there);
		if (part)
			receives(), others();
		else
			messages_received(!is_unix);
		while (recv(fd, all, sizeof all, MSG_DONTWAIT) > 0)
			;
	}
	return 0;
}
