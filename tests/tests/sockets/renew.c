/* A server that replaces itself by a new image of itself, and keeps its listener and a connection.
 *
 * renew serve PORT-FILE [LISTENER CONNECTION]
 * renew ask PORT-FILE ROUNDS
 *
 * serve: answers one connection with what it gets, until it is told to renew itself: then it executes itself, goes on with
 * that connection, and takes a second one when it has ended. ask: at least ROUNDS exchanges on one connection, until
 * PORT-FILE.renew is there; the order to renew, ROUNDS exchanges on the same connection, and at least ROUNDS on a new one, until
 * PORT-FILE.end is there; prints `done` when every answer was right. */
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

#include "meet.h"
#include "message.h"

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

static uint64_t made;

static void exchange(int fd, uint64_t rounds)
{
	for (uint64_t last = made + rounds; made < last; made++) {
		char asked[MESSAGE] = { 0 }, got[MESSAGE];
		snprintf(asked, sizeof asked, "%llu", (unsigned long long)(made * 0x9e3779b97f4a7c15ull));
		move(fd, asked, 1);
		if (!move(fd, got, 0) || memcmp(asked, got, MESSAGE)) {
			printf("WRONG %s instead of %s\n", got, asked);
			exit(1);
		}
	}
}

/* At least so many exchanges, and more until a file is there. */
static void exchange_until(int fd, uint64_t rounds, const char *path, const char *what)
{
	char name[4096];
	snprintf(name, sizeof name, "%s.%s", path, what);
	do
		exchange(fd, rounds);
	while (access(name, F_OK));
}

static int ask(const char *path, uint64_t rounds)
{
	char order[MESSAGE] = "renew";
	int fd = dial(path);
	exchange_until(fd, rounds, path, "renew");
	move(fd, order, 1);
	move(fd, order, 0);
	exchange(fd, rounds);
	close(fd);
	fd = dial(path);
	exchange_until(fd, rounds, path, "end");
	close(fd);
	puts("done");
	return 0;
}

static int serve(char **words)
{
	char numbers[2][16];
	int fd = listen_at(words[2]);
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
