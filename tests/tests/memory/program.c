/* A program whose memory is looked at: it does what its input says, a line at a time, and answers each with a line that begins with its number. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define APART __attribute__((noipa))

static void *small[1 << 17], *large[64], *freed, *run;
static size_t smalls, larges;

static inline __attribute__((always_inline)) void *touched(size_t size)
{
	volatile char *object = malloc(size);
	if (!object)
		abort();
	object[0] = 1;
	return (void *)object;
}

APART size_t keep_sessions(size_t count, size_t size)
{
	for (size_t at = 0; at < count; at++)
		small[smalls++] = touched(size);
	return smalls;
}

APART size_t late_sessions(size_t count, size_t size)
{
	for (size_t at = 0; at < count; at++)
		small[smalls++] = touched(size);
	return smalls;
}

APART size_t keep_large(size_t count, size_t size)
{
	for (size_t at = 0; at < count; at++)
		large[larges++] = touched(size);
	return larges;
}

/* Every other object; what stays is looked for by nobody but the scan. */
static void free_half(void)
{
	for (size_t at = 0; at < smalls; at += 2)
		free(small[at]), small[at] = NULL;
	for (size_t at = 0; at < larges; at += 2)
		free(large[at]), large[at] = NULL;
}

APART size_t lose(void)
{
	for (int at = 0; at < 17; at++)
		touched(64);
	touched(64 << 10);
	touched(5 << 20);
	return 19;
}

/* Overwrites what ended functions have left on the stack. */
APART size_t scrub(void)
{
	volatile char space[64 << 10];
	memset((void *)space, 0, sizeof space);
	return sizeof space;
}

APART int map(const char *path)
{
	struct stat about;
	int file = open(path, O_RDWR | O_NONBLOCK);
	if (file < 0 || fstat(file, &about) || !S_ISREG(about.st_mode))
		return 0;
	size_t len = about.st_size > 4096 ? about.st_size : 4096;
	return mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) != MAP_FAILED;
}

/* Memory in which every word is its own address: lists in it do not end. */
APART uintptr_t circle(size_t len)
{
	uintptr_t *space = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	for (size_t at = 0; at < len / sizeof *space; at++)
		space[at] = (uintptr_t)&space[at];
	return (uintptr_t)space;
}

static char line[4096];

APART void step(void)
{
	size_t count, size;
	char text[4000];

	printf("%d", getpid());
	if (sscanf(line, "small %zu %zu", &count, &size) == 2) {
		keep_sessions(count, size);
	} else if (sscanf(line, "late %zu %zu", &count, &size) == 2) {
		late_sessions(count, size);
	} else if (sscanf(line, "large %zu %zu", &count, &size) == 2) {
		keep_large(count, size);
	} else if (!strcmp(line, "half")) {
		free_half();
	} else if (!strcmp(line, "lose")) {
		lose();
	} else if (!strcmp(line, "addresses")) {
		freed = touched(3000);
		run = touched(100 << 10);
		printf(" %p %p %p %p %p %p", small[0], freed, large[0], run, (void *)&count, (void *)keep_sessions);
		free(freed);
	} else if (sscanf(line, "name %3999[^\n]", text) == 1) {
		prctl(PR_SET_NAME, text);
	} else if (sscanf(line, "map %3999[^\n]", text) == 1) {
		printf(" %d", map(text));
	} else if (sscanf(line, "circle %zu", &size) == 1) {
		printf(" %#lx", (unsigned long)circle(size));
	} else if (!strcmp(line, "abort")) {
		abort();
	}
	printf("\n");
	fflush(stdout);
}

int main(void)
{
	while (fgets(line, sizeof line, stdin)) {
		line[strcspn(line, "\n")] = 0;
		if (!strcmp(line, "end"))
			return 0;
		if (!strcmp(line, "fork")) {
			/* The child does what follows, up to "end". */
			pid_t child = fork();
			if (child > 0) {
				waitpid(child, NULL, 0);
			}
			strcpy(line, child ? "" : "large 1 5242880");
		}
		scrub();
		step();
		scrub();
	}
	return 0;
}
