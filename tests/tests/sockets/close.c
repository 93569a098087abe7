/* A thread is in the middle of a call on a connection when another thread closes its descriptor and gets the number for another
 * connection. What the call began with is what it ends with.
 *
 * close listen|connect PORT-FILE WAY BYTES CHUNK WINDOW
 *
 * WAY: `send`, `sendfile`, `sendmmsg`: so many BYTES are sent that nobody reads before the number has changed its meaning.
 * `recv`: a receive sleeps. `rest`: it has left an unread message behind. `all`: it has a part of what it waits for. `jump`: a
 * signal handler has jumped out of it before. `cancel`: its thread is cancelled.
 *
 * Before that, each connection carries messages until PORT-FILE.joined is there. It exchanges them again and again, resting now and
 * then: the join needs an answer of the broker.
 *
 * The bytes of the first connection are `a`, those of the second one `b`. Prints `right`. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <unistd.h>
#include "meet.h"
#include "message.h"
#include "joined.h"

enum { HALF = MESSAGE / 2, MESSAGES = 64 };

static const char *way;
static size_t bytes;
static int first, tells[2];
/* The thread that makes the call, once it is about to. */
static volatile pid_t caller;
static sigjmp_buf back;

static void wrong(const char *what, long a, long b)
{
	printf("WRONG %s: %ld %ld\n", what, a, b);
	fflush(stdout);
	_exit(1);
}

static int is(const char *name)
{
	return !strcmp(way, name);
}

static int sends(void)
{
	return is("send") || is("sendfile") || is("sendmmsg");
}

/* All of a stream, which has only one kind of bytes. */
static void drain(int fd, char kind, size_t expected)
{
	static char chunk[65536];
	size_t got = 0;
	for (ssize_t n; (n = recv(fd, chunk, sizeof chunk, 0)) != 0; got += n) {
		if (n < 0)
			fail("drain");
		for (ssize_t i = 0; i < n; i++)
			if (chunk[i] != kind)
				wrong("byte of another connection", chunk[i], got + i);
	}
	if (got != expected)
		wrong("bytes", got, expected);
}

static ssize_t send_pieces(int fd, char *data)
{
	struct mmsghdr messages[MESSAGES] = { 0 };
	struct iovec pieces[MESSAGES];
	for (int i = 0; i < MESSAGES; i++) {
		pieces[i] = (struct iovec){ data + i * (bytes / MESSAGES), bytes / MESSAGES };
		messages[i].msg_hdr.msg_iov = &pieces[i];
		messages[i].msg_hdr.msg_iovlen = 1;
	}
	ssize_t sent = 0;
	for (int i = 0, n = sendmmsg(fd, messages, MESSAGES, 0); i < n; i++)
		sent += messages[i].msg_len;
	return sent;
}

static void *sender(void *unused)
{
	int file = memfd_create("file", 0);
	if (file < 0 || ftruncate(file, bytes))
		fail("file");
	char *data = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	memset(data, 'a', bytes);
	caller = gettid();
	ssize_t sent = is("send") ? send(first, data, bytes, 0)
		: is("sendfile") ? sendfile(first, file, 0, bytes)
		: send_pieces(first, data);
	if (sent != (ssize_t)bytes)
		wrong("sent", sent, bytes);
	return unused;
}

static void jump(int signal)
{
	(void)signal;
	siglongjmp(back, 1);
}

static void *receiver(void *unused)
{
	char message[MESSAGE];
	memset(message, 'a', sizeof message);
	if (is("rest") && !move(first, message, 1))
		fail("request");
	memset(message, 0, sizeof message);
	caller = gettid();
	if (is("jump") && !sigsetjmp(back, 1)) {
		recv(first, message, MESSAGE, 0);
		wrong("not jumped", 0, 0);
	}
	if (is("jump")) {
		close(first);
		write(tells[1], "j", 1);
		return unused;
	}
	ssize_t got = recv(first, message, MESSAGE, is("all") ? MSG_WAITALL : 0);
	if (got != MESSAGE)
		wrong("received", got, MESSAGE);
	for (int i = 0; i < MESSAGE; i++)
		if (message[i] != 'a')
			wrong("byte received", message[i], i);
	return unused;
}

/* Waits until the call sleeps. */
static void until_asleep(void)
{
	for (char state = 'R'; state != 'S';) {
		char name[64];
		snprintf(name, sizeof name, "/proc/self/task/%d/stat", caller);
		FILE *file = caller ? fopen(name, "r") : 0;
		if (file && fscanf(file, "%*d (%*[^)]) %c", &state) != 1)
			fail("stat");
		if (file)
			fclose(file);
		usleep(500);
	}
}

static void connects(const char *port)
{
	pthread_t thread;
	char message[MESSAGE], kept;
	first = dial(port);
	int second = dial(port);
	warm(first, second, port, 1);
	signal(SIGUSR1, jump);
	pthread_create(&thread, 0, sends() ? sender : receiver, 0);
	/* The broker moves what is left unread by then. */
	if (!is("rest"))
		usleep(300000);
	until_asleep();
	if (is("jump")) {
		pthread_kill(thread, SIGUSR1);
		if (read(tells[0], &kept, 1) != 1)
			fail("jump");
	} else if (is("cancel")) {
		pthread_cancel(thread);
		pthread_join(thread, 0);
	}
	/* The first connection's number is the second one's from now on. */
	int number = first;
	if (!is("jump") && close(first))
		fail("close");
	if (dup(second) != number)
		fail("number");
	close(second);
	memset(message, 'b', sizeof message);
	if (!move(number, message, 1))
		fail("news");
	if (is("jump"))
		pthread_join(thread, 0);
	else if (!is("cancel"))
		pthread_join(thread, 0);
	if (!move(number, message, 1))
		fail("last");
	close(number);
}

static void listens(const char *port)
{
	char message[MESSAGE];
	int listener = listen_at(port), one = accept(listener, 0, 0);
	int two = accept(listener, 0, 0);
	warm(one, two, port, 0);
	memset(message, 'a', sizeof message);
	if (is("all") && send(one, message, HALF, 0) != HALF)
		fail("half");
	if (!move(two, message, 0) || message[0] != 'b')
		wrong("news", message[0], 0);
	if (sends()) {
		drain(one, 'a', bytes);
	} else if (is("jump") || is("cancel")) {
		/* Nobody has it any more. */
		drain(one, 'a', 0);
	} else {
		size_t rest = is("all") ? HALF : MESSAGE;
		memset(message, 'a', sizeof message);
		if (send(one, message, rest, 0) != (ssize_t)rest)
			fail("answer");
		drain(one, 'a', is("rest") ? MESSAGE : 0);
	}
	drain(two, 'b', MESSAGE);
}

int main(int argc, char **argv)
{
	if (argc != 7)
		return 3;
	signal(SIGPIPE, SIG_IGN);
	way = argv[3];
	bytes = strtoul(argv[4], 0, 10);
	if (pipe(tells))
		fail("pipe");
	if (!strcmp(argv[1], "listen"))
		listens(argv[2]);
	else
		connects(argv[2]);
	puts("right");
	return 0;
}
