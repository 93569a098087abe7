// What pages a heap has: words on the command line, sentences on stdout.
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void **heap;
static size_t blocks;

// Sum of a field of smaps, in KiB.
static long kib(const char *field) {
    char line[512];
    long sum = 0;
    size_t len = strlen(field);
    FILE *file = fopen("/proc/self/smaps", "r");
    while (fgets(line, sizeof line, file))
        if (!strncmp(line, field, len) && line[len] == ':')
            sum += atol(line + len + 1);
    fclose(file);
    return sum;
}

// Grows the heap to this many MiB, in blocks of 1000 bytes, all written.
static void grow(long mib) {
    for (; blocks * 1000 < (size_t)mib << 20; blocks++) {
        heap[blocks] = malloc(1000);
        memset(heap[blocks], 1, 1000);
    }
}

// Frees all but one block in so many.
static void thin(size_t kept) {
    for (size_t at = 0; at < blocks; at++)
        if (at % kept) {
            free(heap[at]);
            heap[at] = 0;
        }
}

static void check(void) {
    for (size_t at = 0; at < blocks; at++)
        if (heap[at] && (((char *)heap[at])[0] != 1 || ((char *)heap[at])[999] != 1))
            abort();
}

static volatile int is_over;

// Maps memory, and finds in it what it wrote.
static void *maps(void *none) {
    enum { LEN = 64 << 10, MANY = 32 };
    while (!is_over) {
        volatile long *at[MANY];
        for (int k = 0; k < MANY; k++) {
            at[k] = mmap(0, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            *at[k] = 1;
        }
        for (int k = 0; k < MANY; k++) {
            if (*at[k] != 1)
                abort();
            munmap((void *)at[k], LEN);
        }
    }
    return none;
}

// Takes and frees spans while other threads map memory of their own.
static void strangers(void) {
    pthread_t threads[2];
    for (int at = 0; at < 2; at++)
        pthread_create(&threads[at], 0, maps, 0);
    // More than is kept.
    char *volatile blocks[16];
    for (int round = 0; round < 150; round++) {
        for (int at = 0; at < 16; at++)
            *(blocks[at] = malloc(2000000)) = 1;
        for (int at = 0; at < 16; at++)
            free(blocks[at]);
    }
    is_over = 1;
    for (int at = 0; at < 2; at++)
        pthread_join(threads[at], 0);
}

static void wait_ms(long ms) {
    struct timespec time = {ms / 1000, ms % 1000 * 1000000};
    while (nanosleep(&time, &time) && errno == EINTR)
        ;
}

// A child: "exec" executes another program at once, "stay" goes on until the parent has seen it.
static pid_t child(const char *what) {
    pid_t pid = fork();
    if (pid == 0) {
        if (!strcmp(what, "exec"))
            execlp("sleep", "sleep", "60", (char *)0);
        grow(blocks * 1000 / (1 << 20) + 2);
        check();
        pause();
    }
    return pid;
}

int main(int count, char **words) {
    pid_t pids[64];
    int children = 0;
    heap = calloc(1 << 20, sizeof *heap);
    for (int at = 1; at < count; at++) {
        char *word = words[at];
        if (!strncmp(word, "grow=", 5))
            grow(atol(word + 5));
        else if (!strncmp(word, "thin=", 5))
            thin(strtoul(word + 5, 0, 10));
        else if (!strncmp(word, "wait=", 5))
            wait_ms(atol(word + 5));
        else if (!strcmp(word, "nothp"))
            prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
        else if (!strcmp(word, "large"))
            memset(malloc(16 << 20), 1, 16 << 20);
        else if (!strcmp(word, "strangers"))
            strangers();
        else if (!strcmp(word, "show"))
            printf("%ld %ld %ld\n", kib("AnonHugePages"), kib("Private_Hugetlb"), kib("Rss"));
        else
            pids[children++] = child(word);
        check();
    }
    while (children--) {
        kill(pids[children], 9);
        waitpid(pids[children], 0, 0);
    }
    return 0;
}
