/* Two UDP sockets that are connected to each other, of which one sends more than the other has room for. The datagrams carry
 * their numbers, lengths and bytes follow from these, and what comes has to be whole, in order and each once.
 *
 * peer listen|connect PORT-FILE WAY DATAGRAMS CHUNK ROOM
 *
 * `connect` sends so many datagrams in each round, each of which has to succeed; `listen` has a receive buffer (SO_RCVBUF) of ROOM
 * bytes. WAY: late (it does nothing but compute until all were sent, and then reads; all have CHUNK bytes), slow (it reads and
 * computes by turns; they have CHUNK bytes at most). Both are always awake: they receive without waiting. Prints `sent N`;
 * `got N`, `lost N` of which the kernel says that it has dropped them, and `most N` that came in one round. Exit code 1
 * if something was wrong. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/sock_diag.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "meet.h"

enum { CHUNK_MAX = 4096, ROUNDS = 20, EXCHANGES = 400 };

static int side, fd;
static size_t chunk;
static int is_late;
/* Rounds of which all was sent: in memory of both, so that it is seen without a call. */
static _Atomic uint32_t *done;

static void wrong(const char *what, uint64_t number, uint64_t other)
{
	printf("WRONG %s: %llu, %llu\n", what, (unsigned long long)number, (unsigned long long)other);
	exit(1);
}

static uint64_t now_us(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000ull + now.tv_nsec / 1000;
}

#include "open_udp.h"

/* Bytes of a datagram, of which the first eight are its number. */
static size_t size_of(uint64_t number)
{
	return is_late ? chunk : 8 + (number * 0x9e3779b97f4a7c15ull >> 32) % (chunk - 7);
}

static unsigned char byte_at(uint64_t number, size_t place)
{
	return (number * 0x2545f4914f6cdd1dull + place * 0x9e3779b97f4a7c15ull) >> 56;
}

static void send_one(uint64_t number, size_t n)
{
	unsigned char bytes[CHUNK_MAX];
	memcpy(bytes, &number, 8);
	for (size_t i = 8; i < n; i++)
		bytes[i] = byte_at(number, i);
	if (send(fd, bytes, n, 0) != (ssize_t)n)
		fail("send");
}

/* The number of a datagram that has come; -1: none has. */
static int64_t take(void)
{
	static unsigned char bytes[CHUNK_MAX + 1];
	uint64_t number;
	ssize_t n = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
	if (n < 0 && errno == EAGAIN)
		return -1;
	if (n < 8)
		fail("recv");
	memcpy(&number, bytes, 8);
	if ((size_t)n != (number ? size_of(number) : 8))
		wrong("length", n, number);
	for (ssize_t i = 8; i < n; i++)
		if (bytes[i] != byte_at(number, i))
			wrong("byte", i, number);
	return number;
}

/* Waits for a datagram with the number 0 and nothing else. */
static void take_word(void)
{
	int64_t number;
	for (uint64_t begun = now_us(); (number = take()) < 0; sched_yield())
		if (now_us() - begun > 10000000)
			fail("a word that did not come");
	if (number)
		wrong("no word", number, 0);
}

/* Words there and back: the kernel has nothing more then. */
static void exchange_words(int times)
{
	for (int i = 0; i < times; i++) {
		if (!side)
			send_one(0, 8);
		take_word();
		if (side)
			send_one(0, 8);
	}
}

/* Receives until all was sent and nothing has come for a while. */
static uint64_t take_round(int round, uint64_t first, uint64_t *last)
{
	uint64_t got = 0, begun = now_us(), quiet = 0;
	while (is_late && *done <= (uint32_t)round)
		;
	/* If it took long the broker has moved what was unread, and there was room again. */
	int is_prefix = is_late && now_us() - begun < 100000;
	for (;;) {
		int is_sent = *done > (uint32_t)round;
		int64_t number = take();
		if (number >= 0) {
			if ((uint64_t)number <= *last)
				wrong("not in order", number, *last);
			if (is_prefix && (uint64_t)number != first + got)
				wrong("not what fitted first", number, first + got);
			*last = number;
			got++, quiet = 0;
			for (volatile int i = 0; !is_late && i < 20000; i++)
				;
		} else if (!is_sent) {
			quiet = 0;
		} else if (!quiet) {
			quiet = now_us();
		} else if (now_us() - quiet > 5000) {
			return got;
		}
	}
}

static uint32_t dropped_by_kernel(void)
{
	uint32_t words[SK_MEMINFO_VARS];
	socklen_t length = sizeof words;
	if (getsockopt(fd, SOL_SOCKET, SO_MEMINFO, words, &length))
		fail("SO_MEMINFO");
	return words[SK_MEMINFO_DROPS];
}

int main(int argc, char **argv)
{
	if (argc != 7)
		return 64;
	uint64_t each = strtoull(argv[4], 0, 10), got = 0, most = 0, last = 0;
	int room = atoi(argv[6]);
	char shared[4096];
	is_late = !strcmp(argv[3], "late");
	chunk = strtoull(argv[5], 0, 10);
	if (chunk < 8 || chunk > CHUNK_MAX)
		return 64;
	snprintf(shared, sizeof shared, "%s.done", argv[2]);
	int file = open(shared, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (file < 0 || ftruncate(file, 4096))
		fail(shared);
	done = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	if (done == MAP_FAILED)
		fail(shared);
	open_connection(argv[1], argv[2]);
	if (!side && setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &room, sizeof room))
		fail("SO_RCVBUF");
	/* A word that comes before the other end has connected is refused. */
	snprintf(shared, sizeof shared, "%s.%d.connected", argv[2], side);
	close(open(shared, O_RDWR | O_CREAT, 0600));
	snprintf(shared, sizeof shared, "%s.%d.connected", argv[2], !side);
	for (int i = 0; i < 2000 && access(shared, F_OK); i++)
		usleep(5000);
	for (int round = 0; round < ROUNDS; round++) {
		/* What follows the first ones meets a joined connection. */
		exchange_words(round ? 4 : EXCHANGES);
		uint64_t first = 1 + round * each;
		if (side) {
			take_word();
			for (uint64_t i = 0; i < each; i++)
				send_one(first + i, size_of(first + i));
			*done = round + 1;
		} else {
			send_one(0, 8);
			uint64_t now = take_round(round, first, &last);
			got += now;
			if (now > most)
				most = now;
		}
	}
	exchange_words(4);
	if (side)
		printf("sent %llu\n", (unsigned long long)(ROUNDS * each));
	else
		printf("got %llu\nlost %u\nmost %llu\n", (unsigned long long)got, dropped_by_kernel(),
		       (unsigned long long)most);
	return 0;
}
