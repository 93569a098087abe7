// What debugging words do: `words WHAT`. Exits with 1 after a sentence if something is wrong.
#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what) do { if (!(what)) { printf("line %d: %s\n", __LINE__, #what); exit(1); } } while (0)
static char *volatile hidden;
static char *hide(void *p) { hidden = p; return hidden; }
static void release(char *p) { free(hide(p)); }

__attribute__((noinline)) void frees_it(char *p) { release(p); }
__attribute__((noinline)) char *makes_it(void) { char *p = hide(malloc(64)); memcpy(p, "the contents", 13); return p; }

static void patterns(void) {
    uint32_t *p = (uint32_t *)hide(malloc(64));
    CHECK(p[0] == 0xbaddcafe && p[15] == 0xbaddcafe);
    release((char *)p);
    CHECK(p[0] == 0xdeadbeef && p[15] == 0xdeadbeef);
    char *zeros = hide(calloc(7, 9));
    for (int i = 0; i < 63; i++) CHECK(zeros[i] == 0);
    release(zeros);
}

// Every byte of malloc_usable_size may be written, and it is what was asked for.
static void usable(void) {
    for (size_t n = 0; n < 5 << 20; n = n * 5 / 4 + 1) {
        char *p = hide(malloc(n));
        CHECK(malloc_usable_size(p) == n);
        memset(p, 'x', n);
        CHECK(p = hide(realloc(p, n + 1)));
        for (size_t i = 0; i < n; i++) CHECK(p[i] == 'x');
        release(p);
    }
}

static void sooner(void) {
    // Long before the program ends: 5,000 others are freed.
    char *p = makes_it();
    release(p);
    p[5] = 1;
    for (int i = 0; i < 5000; i++) release(hide(malloc(64)));
    puts("unnoticed");
    fflush(stdout);
    _exit(0);
}

static void *frees_many(void *seed) {
    unsigned random = (unsigned)(uintptr_t)seed;
    for (int i = 0; i < 200000; i++) {
        char *volatile p = malloc(20 + rand_r(&random) % 64);
        p[0] = 1;
        free(p);
    }
    return 0;
}

// Threads that free at the same time keep no more freed buffers than one.
static void many(void) {
    pthread_t all[8];
    for (long k = 0; k < 8; k++) CHECK(!pthread_create(&all[k], 0, frees_many, (void *)k));
    for (int k = 0; k < 8; k++) pthread_join(all[k], 0);
    unsigned long pages = 0;
    FILE *statm = fopen("/proc/self/statm", "r");
    CHECK(statm && fscanf(statm, "%*u %lu", &pages) == 1);
    CHECK(pages < (32 << 20) / 4096);
}

static void *frees_for_ever(void *none) {
    for (;;) {
        char *volatile p = malloc(3000);
        free(p);
    }
}

// The program ends while threads free: nothing is wrong with what they are about to overwrite.
static void ends_meanwhile(void) {
    pthread_t thread;
    for (int k = 0; k < 3; k++) CHECK(!pthread_create(&thread, 0, frees_for_ever, 0));
    usleep(3000);
}

static void goes_on(void) {
    char *p = makes_it();
    p[64] = 1;
    release(p);
    release(p);
    release(p + 8);
    char there[64] __attribute__((aligned(16)));
    release(there);
    CHECK(!realloc(hide(p), 10));
    puts("went on");
}

static void fails(void) {
    int failed = 0;
    for (int i = 0; i < 10000; i++) {
        errno = 0;
        char *p = hide(malloc(100));
        if (!p) { CHECK(errno == ENOMEM); failed++; }
        release(p);
    }
    printf("%s\n", failed > 900 && failed < 1100 ? "about a tenth" : "no");
}

static void fails_once(void) {
    CHECK(!malloc((uintptr_t)hide(0) - 1000));
    char *p = makes_it();
    release(p);
    release(p);
}

static void handler(int signal) { release(hide(malloc(10 + signal))); }
static void in_handler(void) {
    signal(SIGUSR1, handler);
    raise(SIGUSR1);
    puts("handled");
}

static void in_child(void) {
    char *freed = makes_it(), *live = makes_it();
    int status;
    release(freed);
    pid_t child = fork();
    if (child == 0) { release(live); _exit(0); }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    child = fork();
    if (child == 0) { release(freed); _exit(0); }
    CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    release(live);
}

static void walls(void) {
    for (int n = 16; n < 100000; n = n * 3 & ~15) {
        char *p = hide(malloc(n));
        CHECK(((uintptr_t)p + n) % 4096 == 0);
        p[n - 1] = 1;
        release(p);
    }
    // More than the kernel has areas for: the rest is without.
    static char *all[60000];
    for (int i = 0; i < 60000; i++) { CHECK(all[i] = malloc(32)); all[i][31] = 1; }
    for (int i = 0; i < 60000; i++) release(all[i]);
}

static void *allocates(void *unused) {
    for (;;) {
        void *p = malloc(100), *q = malloc(5000);
        free(p);
        free(q);
        pthread_testcancel();
    }
    return unused;
}
static void cancelled(void) {
    for (int i = 0; i < 200; i++) {
        pthread_t all[4];
        for (int k = 0; k < 4; k++) pthread_create(&all[k], 0, allocates, 0);
        for (int k = 0; k < 4; k++) pthread_cancel(all[k]);
        for (int k = 0; k < 4; k++) pthread_join(all[k], 0);
    }
    CHECK(hide(malloc(100)));
}

static void without_descriptors(void) {
    char *p = makes_it();
    closefrom(0);
    release(p);
    release(p);
}

// The program's resolver runs before every constructor.
static void *resolved;
static void implementation(void) {}
static void (*resolver(void))(void) { resolved = malloc(64); return implementation; }
void chosen(void) __attribute__((ifunc("resolver")));
static void early(void) {
    chosen();
    CHECK(resolved);
    memset(resolved, 1, 64);
    CHECK(resolved = realloc(resolved, 5000));
    free(resolved);
    puts("early");
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    if (!strcmp(what, "patterns")) patterns();
    else if (!strcmp(what, "usable")) usable();
    else if (!strcmp(what, "twice")) { char *p = makes_it(); frees_it(p); release(p); }
    else if (!strcmp(what, "sooner")) sooner();
    else if (!strcmp(what, "many")) many();
    else if (!strcmp(what, "ends-meanwhile")) ends_meanwhile();
    else if (!strcmp(what, "goes-on")) goes_on();
    else if (!strcmp(what, "fails")) fails();
    else if (!strcmp(what, "fails-once")) fails_once();
    else if (!strcmp(what, "handler")) in_handler();
    else if (!strcmp(what, "child")) in_child();
    else if (!strcmp(what, "walls")) walls();
    else if (!strcmp(what, "cancelled")) cancelled();
    else if (!strcmp(what, "descriptors")) without_descriptors();
    else if (!strcmp(what, "early")) early();
    else if (!strcmp(what, "after")) { char *p = makes_it(); release(p); p[atoi(argv[2])] = 1; }
    else return 2;
    return 0;
}
