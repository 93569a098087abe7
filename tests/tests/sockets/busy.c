/* A connection that several threads of both programs use from its first moment to its end.
 *
 * busy listen|connect PORT-FILE THREADS BYTES
 *
 * THREADS threads send at least BYTES each, and go on until PORT-FILE.end is there; as many receive until the end of the stream;
 * the last sender shuts the connection. With one thread every byte depends on its place. Prints `sent N SUM` and `got N SUM eof`,
 * with the sums of all bytes. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* How many chunks a thread sends until it looks whether it has to end. */
enum { CHUNK = 1024, LOOK = 64 };

static int fd, threads;
static uint64_t bytes;
static char end[4096];
static atomic_int senders;
static _Atomic uint64_t sent, sent_sum, got, got_sum;
static pthread_barrier_t begin;

static void fail(const char *what)
{
	printf("FAIL %s: %s\n", what, strerror(errno));
	fflush(stdout);
	exit(2);
}

static unsigned char at(uint64_t place)
{
	return place * 0x9e3779b97f4a7c15ull >> 56;
}

static void *sends(void *unused)
{
	unsigned char chunk[CHUNK];
	uint64_t place = 0, here = 0;
	(void)unused;
	pthread_barrier_wait(&begin);
	for (uint64_t count = 0; place < bytes || count % LOOK || access(end, F_OK); count++) {
		for (int i = 0; i < CHUNK; i++)
			chunk[i] = at(place + i);
		ssize_t n = send(fd, chunk, CHUNK, 0);
		if (n <= 0)
			fail("send");
		for (ssize_t i = 0; i < n; i++)
			here += chunk[i];
		place += n;
	}
	sent += place;
	sent_sum += here;
	if (--senders == 0)
		shutdown(fd, SHUT_WR);
	return 0;
}

static void *receives(void *unused)
{
	unsigned char chunk[4 * CHUNK];
	(void)unused;
	pthread_barrier_wait(&begin);
	for (;;) {
		ssize_t n = recv(fd, chunk, sizeof chunk, 0);
		if (n < 0)
			fail("recv");
		if (!n)
			return 0;
		uint64_t here = 0;
		for (ssize_t i = 0; i < n; i++) {
			here += chunk[i];
			if (threads == 1 && chunk[i] != at(got + i)) {
				printf("WRONG byte %llu\n", (unsigned long long)(got + i));
				fflush(stdout);
				_exit(1);
			}
		}
		got += n;
		got_sum += here;
	}
}

static int connection(const char *path, int listens)
{
	struct sockaddr_in name = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t length = sizeof name;
	int made = socket(AF_INET, SOCK_STREAM, 0), port;
	FILE *file;
	if (listens) {
		char temporary[4096];
		if (bind(made, (void *)&name, length) || listen(made, 1) || getsockname(made, (void *)&name, &length))
			fail("listen");
		snprintf(temporary, sizeof temporary, "%s.new", path);
		file = fopen(temporary, "w");
		fprintf(file, "%d", ntohs(name.sin_port));
		fclose(file);
		rename(temporary, path);
		return accept(made, 0, 0);
	}
	for (int i = 0; i < 8000 && access(path, F_OK); i++)
		usleep(5000);
	file = fopen(path, "r");
	if (!file || fscanf(file, "%d", &port) != 1)
		fail("port");
	fclose(file);
	name.sin_port = htons(port);
	if (connect(made, (void *)&name, length))
		fail("connect");
	return made;
}

int main(int count, char **words)
{
	pthread_t all[64];
	(void)count;
	threads = atoi(words[3]);
	bytes = strtoull(words[4], 0, 10);
	snprintf(end, sizeof end, "%s.end", words[2]);
	senders = threads;
	fd = connection(words[2], !strcmp(words[1], "listen"));
	if (fd < 0)
		fail("connection");
	pthread_barrier_init(&begin, 0, 2 * threads);
	for (int i = 0; i < 2 * threads; i++)
		if (pthread_create(all + i, 0, i % 2 ? receives : sends, 0))
			fail("pthread_create");
	for (int i = 0; i < 2 * threads; i++)
		pthread_join(all[i], 0);
	printf("sent %llu %llu\n", (unsigned long long)sent, (unsigned long long)sent_sum);
	printf("got %llu %llu eof\n", (unsigned long long)got, (unsigned long long)got_sum);
	return 0;
}
