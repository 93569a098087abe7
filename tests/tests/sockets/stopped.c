/* A reader stands still inside a receive, with a page of its memory that does not come (userfaultfd(2)), for so many seconds; its
 * sender waits in one call.
 *
 * stopped listen|connect PORT-FILE WAY BYTES SECONDS WINDOW
 *
 * WAY: `wait`: the sender waits for as long as it takes. `limit`: SO_SNDTIMEO is one second, and the reader stands still until the send
 * has ended. `slow`: the same, and the reader takes 64 KiB each 300 ms until then. Prints `right`. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "meet.h"
#include "message.h"

enum { WARM = 400, PAGE = 4096, STEP = 65536 };

static int seconds, faults;
static const char *way;
/* The file that is there once the send has ended. */
static char sent_file[4096];

static double now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec / 1e9;
}

/* For how long this thread had something to do, and no core. */
static double without_core(void)
{
	unsigned long long ran, waited;
	FILE *file = fopen("/proc/thread-self/schedstat", "r");
	if (!file || fscanf(file, "%llu %llu", &ran, &waited) != 2)
		fail("schedstat");
	fclose(file);
	return waited / 1e9;
}

static void warm(int fd, int begins)
{
	char message[MESSAGE] = { 0 };
	for (int i = 0; i < WARM; i++)
		if (!move(fd, message, begins) || !move(fd, message, !begins))
			fail("warm");
}

/* Gives the page that is waited for when the time is over, or the send has ended. */
static void *late(void *page)
{
	struct uffd_msg fault;
	if (read(faults, &fault, sizeof fault) != sizeof fault)
		fail("fault");
	if (!strcmp(way, "wait"))
		sleep(seconds);
	else
		while (access(sent_file, F_OK))
			usleep(5000);
	struct uffdio_zeropage zero = { .range = { .start = (unsigned long)page, .len = PAGE } };
	if (ioctl(faults, UFFDIO_ZEROPAGE, &zero))
		fail("page");
	return page;
}

/* A page that comes late. */
static char *late_page(pthread_t *thread)
{
	struct uffdio_api api = { .api = UFFD_API };
	char *page = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct uffdio_register range = { .range = { .start = (unsigned long)page, .len = PAGE },
		.mode = UFFDIO_REGISTER_MODE_MISSING };
	faults = syscall(SYS_userfaultfd, O_CLOEXEC);
	if (faults < 0) {
		puts("SKIP userfaultfd");
		exit(0);
	}
	if (ioctl(faults, UFFDIO_API, &api) || ioctl(faults, UFFDIO_REGISTER, &range))
		fail("userfaultfd");
	pthread_create(thread, 0, late, page);
	return page;
}

static void listens(const char *port, size_t bytes)
{
	static char chunk[STEP];
	pthread_t thread;
	int fd = accept_at(port);
	warm(fd, 0);
	size_t got = 0;
	if (strcmp(way, "slow")) {
		char *page = late_page(&thread);
		ssize_t n = recv(fd, page, PAGE, 0);
		if (n <= 0)
			fail("late");
		got += n;
		pthread_join(thread, 0);
	}
	for (ssize_t n; (n = recv(fd, chunk, sizeof chunk, 0)) != 0; got += n) {
		if (n < 0)
			fail("recv");
		if (!strcmp(way, "slow") && access(sent_file, F_OK))
			usleep(300000);
	}
	if (got != bytes && !strcmp(way, "wait")) {
		printf("WRONG %zu of %zu bytes\n", got, bytes);
		exit(1);
	}
}

static void connects(const char *port, size_t bytes)
{
	int fd = dial(port);
	char *data = calloc(1, bytes);
	warm(fd, 1);
	if (strcmp(way, "wait")) {
		struct timeval limit = { .tv_sec = 1 };
		setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
	}
	double begun = now(), waited = without_core();
	ssize_t sent = send(fd, data, bytes, 0);
	double took = now() - begun, late = without_core() - waited;
	printf("sent %zd in %.2f s, %.2f s without a core: %s\n", sent, took, late, sent < 0 ? strerror(errno) : "");
	fclose(fopen(sent_file, "w"));
	if (!strcmp(way, "wait") ? sent != (ssize_t)bytes || took < seconds / 2
			: sent <= 0 || sent == (ssize_t)bytes || took < 0.9 || took - late > 2) {
		puts("WRONG");
		exit(1);
	}
}

int main(int argc, char **argv)
{
	if (argc != 7)
		return 3;
	way = argv[3];
	snprintf(sent_file, sizeof sent_file, "%s.sent", argv[2]);
	seconds = atoi(argv[5]);
	if (!strcmp(argv[1], "listen"))
		listens(argv[2], strtoul(argv[4], 0, 10));
	else
		connects(argv[2], strtoul(argv[4], 0, 10));
	puts("right");
	return 0;
}
