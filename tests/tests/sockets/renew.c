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

static void exchange(int fd, uint64_t first, uint64_t rounds)
{
	for (uint64_t round = first; round < first + rounds; round++) {
		char asked[MESSAGE] = { 0 }, got[MESSAGE];
		snprintf(asked, sizeof asked, "%llu", (unsigned long long)round * 0x9e3779b97f4a7c15ull);
		move(fd, asked, 1);
		if (!move(fd, got, 0) || memcmp(asked, got, MESSAGE)) {
			printf("WRONG %s instead of %s\n", got, asked);
			exit(1);
		}
	}
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
