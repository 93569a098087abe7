// What the tests of the status file run under the library: `status WHAT [NUMBER]`. It says when it has done that, and ends when its input does.
#define _GNU_SOURCE
#include <malloc.h>
#include <signal.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <windlass/umem.h>

// Resolved where the library is preloaded.
#pragma weak umem_cache_create
#pragma weak umem_cache_alloc
#pragma weak umem_cache_free
#pragma weak umem_cache_destroy
#pragma weak umem_alloc
#pragma weak umem_free

#define CHECK(what) do { if (!(what)) { printf("line %d: %s\n", __LINE__, #what); exit(1); } } while (0)
static void *volatile kept;

static void wait_for_end(void) {
    char byte;
    fflush(stdout);
    while (read(0, &byte, 1) > 0) {}
}

// The compiler may not leave it out.
static void touch_none(size_t bytes) {
    void *volatile object = malloc(bytes);
    free(object);
}

static void hold(long count) {
    for (long i = 0; i < count; i++) CHECK(kept = malloc(100));
}

#define SITE(n, bytes) \
    __attribute__((noinline)) static void site##n(long total) { \
        for (long left = total; left > 0; left -= (bytes)) CHECK(kept = malloc(bytes)); \
        __asm__ volatile(""); \
    }
SITE(0, 8) SITE(1, 24) SITE(2, 100) SITE(3, 700) SITE(4, 1500)
SITE(5, 9000) SITE(6, 30000) SITE(7, 100000) SITE(8, 700000) SITE(9, 5000000)
static void (*const sites[])(long) = {site0, site1, site2, site3, site4, site5, site6, site7, site8, site9};
static const long sizes[] = {8, 24, 100, 700, 1500, 9000, 30000, 100000, 700000, 5000000};

// Ten sites, 48 MiB each, of which nothing is touched but by chance; and as much that is freed.
static void ten_sites(void) {
    for (int site = 0; site < 10; site++) {
        long total = (48 << 20) / sizes[site] * sizes[site];
        sites[site](total);
        for (long freed = 0; freed < total; freed += sizes[site]) touch_none(sizes[site]);
        printf("%lu %ld\n", (unsigned long)sites[site], total);
    }
}

// Likewise of object caches: small and large ones, with and without magazines, some whose objects are constructed; and umem_alloc.
static int construct(void *object, void *data, int flags) { *(char *)object = 1; return 0; }
static void destruct(void *object, void *data) { CHECK(*(char *)object == 1); *(char *)object = 0; }
static const struct { size_t size; int constructs, flags; } kinds[9] = {
    {8, 0, 0}, {24, 1, 0}, {100, 0, 0}, {700, 1, 0}, {1500, 0, UMC_NOMAGAZINE}, {9000, 0, 0}, {30000, 1, 0}, {100000, 0, 0}, {700000, 1, 0},
};
static umem_cache_t *cached[9];

#define CACHE_SITE(n, take, size) \
    __attribute__((noinline)) static void cache_site##n(long total) { \
        for (long left = total; left > 0; left -= (size)) CHECK(kept = take); \
        __asm__ volatile(""); \
    }
#define OF_CACHE(n) CACHE_SITE(n, umem_cache_alloc(cached[n], UMEM_DEFAULT), kinds[n].size)
OF_CACHE(0) OF_CACHE(1) OF_CACHE(2) OF_CACHE(3) OF_CACHE(4) OF_CACHE(5) OF_CACHE(6) OF_CACHE(7) OF_CACHE(8)
CACHE_SITE(9, umem_alloc(3000, UMEM_DEFAULT), 3000)
static void (*const cache_sites[])(long) = {cache_site0, cache_site1, cache_site2, cache_site3, cache_site4, cache_site5, cache_site6, cache_site7, cache_site8, cache_site9};

static void ten_cache_sites(void) {
    char name[16];
    for (int site = 0; site < 9; site++) {
        snprintf(name, sizeof name, "kind %d", site);
        int constructs = kinds[site].constructs;
        cached[site] = umem_cache_create(name, kinds[site].size, 0, constructs ? construct : 0, constructs ? destruct : 0, 0, 0, 0, kinds[site].flags);
    }
    for (int site = 0; site < 10; site++) {
        long size = site < 9 ? kinds[site].size : 3000, total = (48 << 20) / size * size;
        cache_sites[site](total);
        for (long freed = 0; freed < total; freed += size) {
            void *object = site < 9 ? umem_cache_alloc(cached[site], UMEM_DEFAULT) : umem_alloc(size, UMEM_DEFAULT);
            if (site < 9) umem_cache_free(cached[site], object);
            else umem_free(object, size);
        }
        printf("%lu %ld\n", (unsigned long)cache_sites[site], total);
    }
}

static void *idle(void *barrier) {
    touch_none(100);
    pthread_barrier_wait(barrier);
    pause();
    return 0;
}

static void threads(long count) {
    static pthread_barrier_t barrier;
    pthread_attr_t small;
    pthread_barrier_init(&barrier, 0, count + 1);
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 64 << 10);
    for (long i = 0; i < count; i++) {
        pthread_t thread;
        CHECK(!pthread_create(&thread, &small, idle, &barrier));
    }
    pthread_barrier_wait(&barrier);
}

static void *short_lived(void *nothing) {
    touch_none(5000);
    return nothing;
}

// Reallocates samples in every way.
static void resize(void) {
    for (int round = 0; round < 200; round++) {
        char *large = malloc(100000);
        for (size_t bytes = 100000; bytes < 20000000; bytes = bytes * 3 / 2) {
            CHECK(large = realloc(large, bytes));
            large[bytes - 1] = 1;
        }
        CHECK(large = realloc(large, 50));
        CHECK(malloc_usable_size(large) >= 50);
        free(large);
    }
}

static umem_cache_t *make(const char *name, size_t size, int flags) {
    umem_cache_t *cache = umem_cache_create(name, size, 0, 0, 0, 0, 0, 0, flags);
    CHECK(cache);
    return cache;
}

// Takes `count` objects and gives all but `left` of them back.
static void take(umem_cache_t *cache, int count, int left) {
    void *taken[1000];
    for (int i = 0; i < count; i++) CHECK(taken[i] = umem_cache_alloc(cache, UMEM_DEFAULT));
    for (int i = left; i < count; i++) umem_cache_free(cache, taken[i]);
}

static pthread_barrier_t passed;
static void *passing(void *cache) {
    take(cache, 300, 0);
    pthread_barrier_wait(&passed);
    pause();
    return 0;
}

// Caches with and without magazines. One is destroyed while an idle thread has objects of it, and leaves its number to another one.
static void caches(void) {
    pthread_t thread;
    umem_cache_t *gone = make("gone", 40, 0);
    pthread_barrier_init(&passed, 0, 2);
    CHECK(!pthread_create(&thread, 0, passing, gone));
    pthread_barrier_wait(&passed);
    umem_cache_t *gone_too = make("gone too", 200000, 0);
    take(gone_too, 3, 0);
    umem_cache_destroy(gone);
    umem_cache_destroy(gone_too);
    take(make("conn_cache", 192, 0), 1000, 900);
    take(make("large", 100000, 0), 10, 7);
    make("unused", 64, UMC_NOMAGAZINE);
    umem_cache_t *last = make("last", 56, 0);
    take(last, 100, 0);
    umem_cache_destroy(last);
}

// Samples of caches that are gone.
static void ending_caches(void) {
    for (int round = 0; round < 100; round++) {
        umem_cache_t *numbered = make("numbered", 192, 0), *locked = make("locked", 192, UMC_NOMAGAZINE);
        take(numbered, 1000, 0);
        take(locked, 1000, 0);
        umem_cache_destroy(numbered);
        umem_cache_destroy(locked);
    }
}

int main(int argc, char **argv) {
    const char *what = argv[1];
    long number = argc > 2 ? atol(argv[2]) : 0;
    // No buffer of stdio's: it would be an allocation.
    setvbuf(stdout, 0, _IONBF, 0);
    if (!strcmp(what, "hold")) hold(number);
    else if (!strcmp(what, "sites")) ten_sites();
    else if (!strcmp(what, "cache-sites")) ten_cache_sites();
    else if (!strcmp(what, "threads")) threads(number);
    else if (!strcmp(what, "ending-caches")) ending_caches();
    else if (!strcmp(what, "caches")) caches();
    else if (!strcmp(what, "caches-fork")) {
        caches();
        pid_t child = fork();
        if (child) CHECK(waitpid(child, 0, 0) == child);
        else take(make("child's", 72, 0), 10, 10);
        printf("%ld\n", (long)getpid());
    } else if (!strcmp(what, "resize")) resize();
    else if (!strcmp(what, "short")) {
        for (long i = 0; i < number; i++) {
            pthread_t thread;
            CHECK(!pthread_create(&thread, 0, short_lived, 0) && !pthread_join(thread, 0));
        }
    } else if (!strcmp(what, "exec")) {
        hold(number);
        execl("/proc/self/exe", argv[0], "hold", "10", NULL);
    } else if (!strcmp(what, "fork") || !strcmp(what, "raw-fork")) {
        hold(number);
        pid_t child = *what == 'f' ? fork() : syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
        CHECK(child >= 0);
        if (!child) {
            hold(2 * number);
            // _exit, as a test of its own: the file stays.
            printf("%ld\n", (long)getpid());
            wait_for_end();
            _exit(0);
        }
        hold(number / 2);
    } else if (!strcmp(what, "leave")) {
        // Children that end without a destructor.
        for (long i = 0; i < number; i++) {
            pid_t child = fork();
            if (!child) {
                hold(2000);
                if (i % 2) kill(getpid(), SIGKILL);
                _exit(0);
            }
            CHECK(waitpid(child, 0, 0) == child);
        }
    } else if (!strcmp(what, "closed")) {
        closefrom(3);
        hold(number);
    } else if (!strcmp(what, "chroot")) {
        CHECK(!chroot("/proc/self/fdinfo") && !chdir("/"));
        hold(number);
        pid_t child = fork();
        if (!child) {
            hold(number);
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    } else CHECK(!"a known word");
    printf("%zu\n", mallinfo2().uordblks);
    wait_for_end();
    return 0;
}
