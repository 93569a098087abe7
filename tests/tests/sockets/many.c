/* One end of many connections: each carries some messages there and back, then all stay open and idle.
 *
 * many listen|connect PORT-FILE CONNECTIONS MESSAGES
 *
 * Prints `limit` where so many descriptors may not be had, `ready` before the first connection, `idle` after the last
 * message; ends when its standard input does. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BYTES = 64 };

static void fail(const char *what)
{
	printf("FAIL %s: %s\n", what, strerror(errno));
	fflush(stdout);
	exit(2);
}

static void say(const char *what)
{
	printf("%s\n", what);
	fflush(stdout);
}

static void message(int fd, int sends)
{
	char bytes[BYTES] = "message";
	ssize_t n = sends ? send(fd, bytes, BYTES, MSG_NOSIGNAL) : recv(fd, bytes, BYTES, MSG_WAITALL);
	if (n != BYTES)
		fail(sends ? "send" : "recv");
}

static void serve(int listener, int connections)
{
	for (int i = 0; i < connections; i++) {
		int fd = accept(listener, 0, 0), one = 1;
		if (fd < 0)
			fail("accept");
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
		char bytes[BYTES];
		for (ssize_t n; (n = recv(fd, bytes, 1, MSG_WAITALL)) == 1;) {
			if (bytes[0] == 'e')
				break;
			if (recv(fd, bytes, BYTES - 1, MSG_WAITALL) != BYTES - 1)
				fail("recv");
			message(fd, 1);
		}
	}
}

int main(int argc, char **argv)
{
	if (argc != 5)
		return 64;
	int connections = atoi(argv[3]), messages = atoi(argv[4]), listens = !strcmp(argv[1], "listen"), one = 1;
	struct rlimit limit = { connections + 100, connections + 100 };
	if (setrlimit(RLIMIT_NOFILE, &limit)) {
		say("limit");
		return 0;
	}
	struct sockaddr_in name = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t length = sizeof name;
	if (listens) {
		int listener = socket(AF_INET, SOCK_STREAM, 0);
		if (bind(listener, (void *)&name, length) || listen(listener, 64)
		    || getsockname(listener, (void *)&name, &length))
			fail("listen");
		char temporary[4096];
		snprintf(temporary, sizeof temporary, "%s.new", argv[2]);
		FILE *file = fopen(temporary, "w");
		fprintf(file, "%d", ntohs(name.sin_port));
		fclose(file);
		rename(temporary, argv[2]);
		say("ready");
		serve(listener, connections);
	} else {
		FILE *file = fopen(argv[2], "r");
		int port = 0;
		if (!file || fscanf(file, "%d", &port) != 1)
			fail("port");
		name.sin_port = htons(port);
		say("ready");
		if (getchar() != 'g')
			return 0;
		for (int i = 0; i < connections; i++) {
			int fd = socket(AF_INET, SOCK_STREAM, 0);
			if (fd < 0 || connect(fd, (void *)&name, length))
				fail("connect");
			setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
			for (int j = 0; j < messages; j++)
				message(fd, 1), message(fd, 0);
			if (send(fd, "e", 1, MSG_NOSIGNAL) != 1)
				fail("send");
		}
	}
	say("idle");
	while (getchar() != EOF)
		;
	return 0;
}
