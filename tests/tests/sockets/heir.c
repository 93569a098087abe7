/* A server whose connection is gone on with by another program, and its client.
 *
 * heir serve PORT-FILE HOW [CONNECTION]
 * heir ask PORT-FILE ROUNDS [threads]
 *
 * serve: answers with what it gets; at the message `exec` it does as HOW says. `exec`: it executes itself. `fail`: it tries to,
 * with more arguments than the kernel takes. `fork`: a child of it executes itself, while the parent closes the connection and
 * waits for it. `sibling`: it executes itself while a child has the connection, too. `inetd`: a child of it executes itself
 * before the first message, when the parent has closed the connection. ask: ROUNDS exchanges three times, with `exec` in
 * between; `threads`: it has a second one, which does nothing. Prints `done` when every answer was right. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "meet.h"
#include "message.h"

enum { ARGUMENTS = 40000, LONG = 100000 };

static void execute(char **words, int fd)
{
	char number[16];
	snprintf(number, sizeof number, "%d", fd);
	execv(words[0], (char *[]){ words[0], "serve", words[2], words[3], number, 0 });
	fail("execv");
}

static void execute_in_vain(char **words)
{
	static char *arguments[ARGUMENTS + 1], text[LONG];
	memset(text, 'a', sizeof text - 1);
	for (int i = 0; i < ARGUMENTS; i++)
		arguments[i] = text;
	execv(words[0], arguments);
	if (errno != E2BIG)
		fail("execv");
}

static void serve(char **words, int fd)
{
	char bytes[MESSAGE];
	const char *how = words[3];
	while (move(fd, bytes, 0)) {
		move(fd, bytes, 1);
		if (strcmp(bytes, "exec"))
			continue;
		if (!strcmp(how, "fail"))
			execute_in_vain(words);
		if (!strcmp(how, "exec") || !strcmp(how, "inetd"))
			execute(words, fd);
		if (!strcmp(how, "sibling")) {
			if (!fork()) {
				usleep(300000);
				_exit(0);
			}
			execute(words, fd);
		}
		if (!strcmp(how, "fork")) {
			if (!fork()) {
				usleep(20000);
				execute(words, fd);
			}
			close(fd);
			wait(0);
			exit(0);
		}
	}
	exit(0);
}

static void *idle(void *nothing)
{
	pause();
	return nothing;
}

static int ask(const char *path, uint64_t rounds, int has_threads)
{
	int fd = dial(path);
	pthread_t thread;
	if (has_threads && pthread_create(&thread, 0, idle, 0))
		fail("pthread_create");
	for (uint64_t round = 0; round < 3 * rounds; round++) {
		char asked[MESSAGE] = "exec", got[MESSAGE];
		if (round != rounds && round != 2 * rounds)
			snprintf(asked, sizeof asked, "%llu", (unsigned long long)round * 0x9e3779b97f4a7c15ull);
		move(fd, asked, 1);
		if (!move(fd, got, 0) || memcmp(asked, got, MESSAGE)) {
			puts("WRONG");
			return 1;
		}
	}
	puts("done");
	return 0;
}

int main(int count, char **words)
{
	if (!strcmp(words[1], "ask"))
		return ask(words[2], strtoull(words[3], 0, 10), count > 4);
	if (count == 5)
		serve(words, atoi(words[4]));
	int fd = accept_at(words[2]);
	if (strcmp(words[3], "inetd"))
		serve(words, fd);
	if (!fork()) {
		usleep(20000);
		execute(words, fd);
	}
	close(fd);
	wait(0);
	return 0;
}
