/* A server that replaces itself by a new image of itself, and keeps its listener and a connection.
 *
 * renew serve PORT-FILE [LISTENER CONNECTION]
 * renew ask PORT-FILE ROUNDS
 *
 * serve: answers one connection with what it gets, until it is told to renew itself: then it executes itself, goes on with
 * that connection, and takes a second one when it has ended. ask: ROUNDS exchanges on one connection, the order to renew,
 * ROUNDS exchanges on the same connection, and ROUNDS on a new one; prints `done` when every answer was right. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MESSAGE = 32 };

static void fail(const char *what)
{
	printf("FAIL %s: %s\n", what, strerror(errno));
	fflush(stdout);
	exit(2);
}

static void move(int fd, char *bytes, int is_send)
{
	for (int at = 0; at < MESSAGE;) {
		ssize_t n = is_send ? send(fd, bytes + at, MESSAGE - at, 0) : recv(fd, bytes + at, MESSAGE - at, 0);
		if (n <= 0)
			fail(is_send ? "send" : "recv");
		at += n;
	}
}

/* Answers until the end of the connection; whether it was told to renew itself. */
static int answer(int fd)
{
	char bytes[MESSAGE];
	for (;;) {
		char first;
		ssize_t n = recv(fd, &first, 1, MSG_PEEK);
		if (n < 0)
			fail("recv");
		if (!n)
			return 0;
		move(fd, bytes, 0);
		move(fd, bytes, 1);
		if (!strcmp(bytes, "renew"))
			return 1;
	}
}

static void exchange(int fd, uint64_t first, uint64_t rounds)
{
	for (uint64_t round = first; round < first + rounds; round++) {
		char asked[MESSAGE] = { 0 }, got[MESSAGE];
		snprintf(asked, sizeof asked, "%llu", (unsigned long long)round * 0x9e3779b97f4a7c15ull);
		move(fd, asked, 1);
		move(fd, got, 0);
		if (memcmp(asked, got, MESSAGE)) {
			printf("WRONG %s instead of %s\n", got, asked);
			exit(1);
		}
	}
}

static int dial(const char *path)
{
	struct sockaddr_in name = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	FILE *file = 0;
	int port, fd = socket(AF_INET, SOCK_STREAM, 0);
	for (int i = 0; i < 8000 && !(file = fopen(path, "r")); i++)
		usleep(5000);
	if (!file || fscanf(file, "%d", &port) != 1)
		fail("port");
	fclose(file);
	name.sin_port = htons(port);
	if (connect(fd, (void *)&name, sizeof name))
		fail("connect");
	return fd;
}

static int ask(const char *path, uint64_t rounds)
{
	char order[MESSAGE] = "renew";
	int fd = dial(path);
	exchange(fd, 0, rounds);
	move(fd, order, 1);
	move(fd, order, 0);
	exchange(fd, rounds, rounds);
	close(fd);
	fd = dial(path);
	exchange(fd, 2 * rounds, rounds);
	close(fd);
	puts("done");
	return 0;
}

static int serve(char **words)
{
	struct sockaddr_in name = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t length = sizeof name;
	char temporary[4096], numbers[2][16];
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	if (bind(fd, (void *)&name, length) || listen(fd, 4) || getsockname(fd, (void *)&name, &length))
		fail("listen");
	snprintf(temporary, sizeof temporary, "%s.new", words[2]);
	FILE *file = fopen(temporary, "w");
	fprintf(file, "%d", ntohs(name.sin_port));
	fclose(file);
	rename(temporary, words[2]);
	int connection = accept(fd, 0, 0);
	if (connection < 0 || !answer(connection))
		fail("the first connection");
	snprintf(numbers[0], sizeof numbers[0], "%d", fd);
	snprintf(numbers[1], sizeof numbers[1], "%d", connection);
	execv(words[0], (char *[]){ words[0], "serve", words[2], numbers[0], numbers[1], 0 });
	fail("execv");
	return 2;
}

static int serve_on(int listener, int connection)
{
	answer(connection);
	close(connection);
	connection = accept(listener, 0, 0);
	if (connection < 0)
		fail("accept");
	answer(connection);
	puts("done");
	return 0;
}

int main(int count, char **words)
{
	if (count == 5)
		return serve_on(atoi(words[3]), atoi(words[4]));
	if (count == 4)
		return ask(words[2], strtoull(words[3], 0, 10));
	return serve(words);
}
