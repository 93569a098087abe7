/* A signal while a join is being proved.
 *
 * proved listen|connect PORT-FILE ...
 *
 * Both exchange messages over one connection until PORT-FILE.again is there, and then over a second one, while a timer sends each of
 * them a signal every 5 ms. After ROUNDS messages the one that connects prints `asked`: by then either end has looked for the other,
 * and the broker, which is stopped, has been asked. They go on, without the timer, until PORT-FILE.end is there, and print `right`. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "meet.h"
#include "message.h"

enum { ROUNDS = 60, PERIOD_US = 5000 };

static int handled;

static void handle(int signal)
{
	handled++;
}

static void send_signals(int period_us)
{
	struct itimerval time = { .it_interval.tv_usec = period_us, .it_value.tv_usec = period_us };
	setitimer(ITIMER_REAL, &time, 0);
}

static int is_told(const char *path, const char *word)
{
	char file[4096];
	snprintf(file, sizeof file, "%s.%s", path, word);
	return !access(file, F_OK);
}

/* Asks until the word is there, or for so many rounds. */
static void ask(int fd, const char *path, const char *word, int rounds)
{
	char sent[MESSAGE], got[MESSAGE];
	for (int i = 0; word ? !is_told(path, word) : i < rounds; i++) {
		memset(sent, i % 128, sizeof sent);
		move(fd, sent, 1);
		if (!move(fd, got, 0) || memcmp(sent, got, sizeof got))
			fail("answer");
	}
}

/* Answers until the other end is silent for good; after so many rounds without the timer. */
static void answer(int fd, int rounds)
{
	char message[MESSAGE];
	for (int i = 0; move(fd, message, 0); i++) {
		move(fd, message, 1);
		if (i == rounds)
			send_signals(0);
	}
}

int main(int count, char **words)
{
	char second[4096];
	struct sigaction action = { .sa_handler = handle, .sa_flags = SA_RESTART };
	int listens = !strcmp(words[1], "listen");
	sigaction(SIGALRM, &action, 0);
	snprintf(second, sizeof second, "%s.2", words[2]);
	int first = listens ? accept_at(words[2]) : dial(words[2]);
	if (listens) {
		/* The second one begins while the first is open. */
		char message[MESSAGE];
		while (move(first, message, 0) && message[0] != -1)
			move(first, message, 1);
		int fd = accept_at(second);
		send_signals(PERIOD_US);
		answer(fd, ROUNDS);
	} else {
		char last[MESSAGE];
		ask(first, words[2], "again", 0);
		memset(last, -1, sizeof last);
		move(first, last, 1);
		int fd = dial(second);
		send_signals(PERIOD_US);
		ask(fd, words[2], 0, ROUNDS);
		send_signals(0);
		puts(handled ? "asked" : "no signal");
		fflush(stdout);
		ask(fd, words[2], "end", 0);
	}
	puts("right");
	return 0;
}
