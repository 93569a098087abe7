/* What 512 MiB cost in one kind of pages, by the first argument: 4k, thp or hugetlb. Prints a line of figures: milliseconds to touch all of it,
   KiB of page tables, milliseconds to register it with io_uring, nanoseconds of a load whose address the load before it gave. */
#define _GNU_SOURCE
#include <linux/io_uring.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define HUGE (2UL << 20)
#define BYTES (512UL << 20)
#define LINE 64UL
#define LOADS 4000000

static double now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

static void die(const char *what) {
    perror(what);
    exit(1);
}

/* A line of /proc/self/FILE, or the sum of such lines, in KiB. */
static long kib(const char *name, const char *field) {
    char line[512];
    long sum = 0;
    FILE *file = fopen(name, "r");
    if (!file)
        die(name);
    while (fgets(line, sizeof line, file))
        if (!strncmp(line, field, strlen(field)) && line[strlen(field)] == ':')
            sum += atol(line + strlen(field) + 1);
    fclose(file);
    return sum;
}

static char *map(const char *pages) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS, huge = !strcmp(pages, "hugetlb");
    char *p = mmap(NULL, BYTES + (huge ? 0 : HUGE), PROT_READ | PROT_WRITE, flags | (huge ? MAP_HUGETLB : 0), -1, 0);
    if (p == MAP_FAILED)
        die("mmap");
    p = (char *)(((uintptr_t)p + HUGE - 1) & -HUGE);
    if (!huge && madvise(p, BYTES, strcmp(pages, "thp") ? MADV_NOHUGEPAGE : MADV_HUGEPAGE))
        die("madvise");
    return p;
}

/* One cycle through all lines, in random order (Sattolo). */
static void link_lines(char *p) {
    size_t count = BYTES / LINE;
    uint32_t *order = malloc(count * sizeof *order);
    uint64_t seed = 1;
    for (size_t i = 0; i < count; i++)
        order[i] = i;
    for (size_t i = count - 1; i > 0; i--) {
        seed = seed * 6364136223846793005 + 1442695040888963407;
        size_t j = (seed >> 33) % i;
        uint32_t k = order[i];
        order[i] = order[j];
        order[j] = k;
    }
    for (size_t i = 0; i < count; i++)
        *(char **)(p + order[i] * LINE) = p + order[(i + 1) % count] * LINE;
    free(order);
}

int main(int argc, char **argv) {
    if (argc != 2)
        return 2;
    char *p = map(argv[1]);
    long tables = kib("/proc/self/status", "VmPTE");
    double begun = now_ns();
    for (size_t at = 0; at < BYTES; at += 4096)
        p[at] = 1;
    double touched = (now_ns() - begun) / 1e6;
    tables = kib("/proc/self/status", "VmPTE") - tables;
    long huge = kib("/proc/self/smaps", "AnonHugePages") + kib("/proc/self/smaps", "Private_Hugetlb");
    if (huge != (strcmp(argv[1], "4k") ? (long)(BYTES >> 10) : 0)) {
        fprintf(stderr, "the kernel gave %ld KiB in huge pages\n", huge);
        return 1;
    }

    struct io_uring_params params = {0};
    int ring = syscall(SYS_io_uring_setup, 4, &params);
    if (ring < 0)
        die("io_uring_setup");
    struct iovec buffer = {p, BYTES};
    begun = now_ns();
    if (syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, &buffer, 1))
        die("io_uring_register");
    double registered = (now_ns() - begun) / 1e6;
    close(ring);

    link_lines(p);
    char *at = p;
    begun = now_ns();
    for (size_t i = 0; i < LOADS; i++)
        at = *(char *volatile *)at;
    double load = (now_ns() - begun) / LOADS;
    printf("%.3f %ld %.3f %.2f\n", touched, tables, registered, at ? load : 0);
    return 0;
}
