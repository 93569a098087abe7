// Loops over malloc and free, for whichever allocator is preloaded: `alloc-loops CASE [SIZE]` prints nanoseconds a pair, `kept` bytes, `steady` seconds.
// With EMPTY=1 in the environment a pair of empty functions stands in their place.
#define _GNU_SOURCE
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#if defined(__x86_64__)
#define PAUSE() __builtin_ia32_pause()
#else
#define PAUSE() __asm__ volatile("yield")
#endif
static char block[1 << 16];
__attribute__((noinline)) static void *no_malloc(size_t size) { __asm__ volatile("" ::"r"(size)); return block; }
__attribute__((noinline)) static void no_free(void *p) { __asm__ volatile("" ::"r"(p)); }
// Called through pointers that the compiler cannot see through: it knows what malloc and free mean.
static void *(*volatile given_malloc)(size_t) = malloc;
static void (*volatile given_free)(void *) = free;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

// A pair after another, of one size, or of sizes 8 to 448 in turn. The best of some short rounds: what else the processor does only adds.
static double pairs(size_t size) {
    enum { N = 1000000, ROUNDS = 30 };
    void *(*take)(size_t) = given_malloc;
    void (*give)(void *) = given_free;
    double least = 1e9;
    for (int round = 0; round < ROUNDS; round++) {
        double start = now();
        size_t turn = 8;
        for (int i = 0; i < N; i++) {
            size_t n = size ? size : turn;
            turn = turn == 448 ? 8 : turn + 8;
            give(take(n));
        }
        double all = (now() - start) / N;
        if (all < least) least = all;
    }
    return least;
}

// Sizes 8 to 448 in turn, all of it timed: what happens now and then counts.
static double steady(void) {
    enum { N = 60000000 };
    void *(*take)(size_t) = given_malloc;
    void (*give)(void *) = given_free;
    double start = now();
    for (int i = 0; i < N; i++) give(take(8 + i % 56 * 8));
    return (now() - start) / 1e9;
}

struct replacing { uint64_t seed; double ns; };
static void *replace(void *argument) {
    enum { N = 5000000, LIVE = 1000 };
    struct replacing *own = argument;
    void *(*take)(size_t) = given_malloc;
    void (*give)(void *) = given_free;
    void *live[LIVE] = {0};
    uint64_t r = own->seed;
    for (int i = 0; i < LIVE; i++) live[i] = take(8 + i % 56 * 8);
    double start = now();
    for (int i = 0; i < N; i++) {
        r = r * 6364136223846793005ull + 1442695040888963407ull;
        void **slot = &live[(r >> 33) % LIVE];
        give(*slot);
        *slot = take(8 + (r >> 45) % 56 * 8);
    }
    own->ns = (now() - start) / N;
    return 0;
}

static double replaced(int threads) {
    pthread_t all[2];
    struct replacing own[2] = {{1, 0}, {2, 0}};
    double most = 0;
    for (int i = 0; i < threads; i++) pthread_create(&all[i], 0, replace, &own[i]);
    for (int i = 0; i < threads; i++) {
        pthread_join(all[i], 0);
        if (own[i].ns > most) most = own[i].ns;
    }
    return most;
}

// One thread allocates, the other frees, 256 at a time.
enum { HANDED = 256, PLACES = 4, HANDS = 8000 };
static void *places[PLACES][HANDED];
static _Alignas(64) uint64_t put;
static _Alignas(64) uint64_t taken;
static int is_read;
static void *other(void *unused) {
    void (*give)(void *) = given_free;
    uint64_t sum = 0;
    for (uint64_t n = 0; n < HANDS; n++) {
        while (__atomic_load_n(&put, __ATOMIC_ACQUIRE) == n) PAUSE();
        for (int i = 0; i < HANDED; i++) {
            if (is_read) sum += *(volatile uint64_t *)places[n % PLACES][i];
            give(places[n % PLACES][i]);
        }
        __atomic_store_n(&taken, n + 1, __ATOMIC_RELEASE);
    }
    return sum == 1 ? &put : unused;
}
static double handed(size_t size) {
    void *(*take)(size_t) = given_malloc;
    pthread_t thread;
    pthread_create(&thread, 0, other, 0);
    double start = now();
    for (uint64_t n = 0; n < HANDS; n++) {
        while (n - __atomic_load_n(&taken, __ATOMIC_ACQUIRE) == PLACES) PAUSE();
        for (int i = 0; i < HANDED; i++) {
            uint64_t *p = places[n % PLACES][i] = take(size);
            *p = i;
        }
        __atomic_store_n(&put, n + 1, __ATOMIC_RELEASE);
    }
    pthread_join(thread, 0);
    return (now() - start) / HANDS / HANDED;
}

// Resident bytes above those at the start, after a gigabyte was allocated, freed, and two seconds have passed.
static double kept(void) {
    enum { N = 1 << 20 };
    void **all = malloc(N * sizeof *all);
    memset(all, 0, N * sizeof *all);
    long before = 0, after = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (fscanf(file, "%*d %ld", &before) != 1) exit(1);
    for (int i = 0; i < N; i++) memset(all[i] = malloc(1000), 1, 1000);
    for (int i = 0; i < N; i++) free(all[i]);
    sleep(2);
    rewind(file);
    fflush(file);
    file = freopen("/proc/self/statm", "r", file);
    if (fscanf(file, "%*d %ld", &after) != 1) exit(1);
    return (double)(after - before) * sysconf(_SC_PAGESIZE);
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    size_t size = argc > 2 ? strtoul(argv[2], 0, 10) : 0;
    if (getenv("EMPTY")) given_malloc = no_malloc, given_free = no_free;
    double figure = !strcmp(what, "pairs") ? pairs(size)
        : !strcmp(what, "replaced") ? replaced(size)
        : !strcmp(what, "handed") ? handed(size)
        : !strcmp(what, "read") ? (is_read = 1, handed(size))
        : !strcmp(what, "steady") ? steady()
        : !strcmp(what, "kept") ? kept() : -1;
    printf("%.3f\n", figure);
    return figure < 0;
}
