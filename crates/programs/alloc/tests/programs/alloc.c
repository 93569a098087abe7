// What tests run under the library: `alloc WHAT`. Prints what must be the same every time; exits with 1 after a sentence if something is wrong.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
#define CHECK(what) do { if (!(what)) { printf("line %d: %s\n", __LINE__, #what); exit(1); } } while (0)
// Hides an address from the compiler, which knows what free means.
static void *volatile hidden;
static void *hide(void *p) { hidden = p; return hidden; }

static uint64_t next(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

static size_t resident(void) {
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file && fscanf(file, "%*d %ld", &pages) == 1);
    fclose(file);
    return (size_t)pages * sysconf(_SC_PAGESIZE);
}

// An object: its length and a mark in each word, so that two that overlap are seen.
struct object { size_t words; uint64_t mark; uint64_t rest[]; };

static size_t some_size(uint64_t *r) {
    uint64_t kind = next(r) % 100;
    size_t words = kind < 80 ? next(r) % 60 : kind < 97 ? next(r) % 3000 : kind < 99 ? next(r) % 40000 : next(r) % 400000;
    return words;
}

static void fill(struct object *o, size_t words, uint64_t mark) {
    o->words = words;
    o->mark = mark;
    for (size_t i = 0; i < words; i += words > 512 ? 97 : 1) o->rest[i] = mark + i;
    if (words) o->rest[words - 1] = mark + words - 1;
}

static void verify(struct object *o) {
    size_t words = o->words;
    for (size_t i = 0; i < words; i += words > 512 ? 97 : 1) CHECK(o->rest[i] == o->mark + i);
    if (words) CHECK(o->rest[words - 1] == o->mark + words - 1);
}

#define SHARED 512
static struct object *shared[SHARED];
static int rounds = 60000, children = 300;

static void *random_calls(void *seed) {
    uint64_t r = (uint64_t)(uintptr_t)seed;
    struct object *own[300] = {0};
    for (int i = 0; i < rounds; i++) {
        struct object **slot = &own[next(&r) % 300];
        size_t words = some_size(&r), bytes = sizeof(struct object) + words * 8;
        switch (next(&r) % 8) {
        case 0: case 1: case 2:
            if (*slot) { verify(*slot); free(*slot); }
            CHECK(*slot = malloc(bytes));
            fill(*slot, words, next(&r));
            break;
        case 3:
            if (*slot) { verify(*slot); free(*slot); *slot = 0; }
            break;
        case 4:
            if (*slot) {
                struct object *o = *slot;
                verify(o);
                size_t kept = o->words < words ? o->words : words;
                CHECK(o = realloc(o, bytes));
                if (o->words <= 512) for (size_t k = 0; k < kept; k++) CHECK(o->rest[k] == o->mark + k);
                fill(o, words, next(&r));
                *slot = o;
            }
            break;
        case 5: {
            if (*slot) { verify(*slot); free(*slot); }
            unsigned char *zeros = calloc(1, bytes);
            CHECK(zeros);
            for (size_t k = 0; k < bytes; k += bytes > 4096 ? 251 : 1) CHECK(zeros[k] == 0);
            *slot = (struct object *)zeros;
            fill(*slot, words, next(&r));
            break;
        }
        case 6: {
            size_t align = (size_t)8 << next(&r) % 14;
            if (*slot) { verify(*slot); free(*slot); }
            CHECK(posix_memalign((void **)slot, align, bytes) == 0);
            CHECK((uintptr_t)*slot % align == 0);
            fill(*slot, words, next(&r));
            break;
        }
        default: // To another thread: who finds it there frees it.
            if (*slot) {
                struct object *other = __atomic_exchange_n(&shared[next(&r) % SHARED], *slot, __ATOMIC_ACQ_REL);
                *slot = 0;
                if (other) { verify(other); free(other); }
            }
        }
    }
    for (int i = 0; i < 300; i++) if (own[i]) { verify(own[i]); free(own[i]); }
    return 0;
}

static void threads(void) {
    pthread_t all[8];
    for (uintptr_t i = 0; i < 8; i++) CHECK(!pthread_create(&all[i], 0, random_calls, (void *)(i + 1)));
    for (int i = 0; i < 8; i++) pthread_join(all[i], 0);
    for (int i = 0; i < SHARED; i++) if (shared[i]) { verify(shared[i]); free(shared[i]); }
}

static void *a_little(void *unused) {
    void *p[100];
    for (int i = 0; i < 100; i++) { CHECK(p[i] = malloc(16 + i * 8)); memset(p[i], i, 16 + i * 8); }
    for (int i = 0; i < 100; i++) free(p[i]);
    return unused;
}

static void short_threads(void) {
    for (int i = 0; i < 10000; i++) {
        pthread_t two[2];
        for (int k = 0; k < 2; k++) CHECK(!pthread_create(&two[k], 0, a_little, 0));
        for (int k = 0; k < 2; k++) pthread_join(two[k], 0);
    }
    size_t now = resident();
    if (now > 16 << 20) { printf("%zu KiB resident\n", now >> 10); exit(1); }
}

static volatile int stop;
static void *until_stop(void *seed) {
    uint64_t r = (uintptr_t)seed;
    void *live[64] = {0};
    while (!stop) {
        void **slot = &live[next(&r) % 64];
        free(*slot);
        CHECK(*slot = malloc(next(&r) % 40000));
    }
    for (int i = 0; i < 64; i++) free(live[i]);
    return 0;
}

// What the cache of a thread holds that a fork leaves behind goes to the child's next thread.
static void *freed_last;
static pthread_barrier_t barrier;
static void *frees_and_waits(void *unused) {
    freed_last = malloc(64);
    free(freed_last);
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    return unused;
}
static void *takes_it(void *unused) {
    // Behind what the cache took and has not handed out.
    for (int i = 0; i < 64; i++) if (malloc(64) == freed_last) return unused;
    _exit(4);
}
static void inherits(void) {
    pthread_t thread;
    int status;
    pthread_barrier_init(&barrier, 0, 2);
    pthread_create(&thread, 0, frees_and_waits, 0);
    pthread_barrier_wait(&barrier);
    pid_t child = fork();
    if (child == 0) {
        pthread_create(&thread, 0, takes_it, 0);
        pthread_join(thread, 0);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    pthread_barrier_wait(&barrier);
    pthread_join(thread, 0);
}

// Pages that are locked cannot go back to the kernel. What calloc gets of them reads as zeros all the same.
static void locked(void) {
    enum { N = 64, LEN = 1 << 20 };
    char *all[N];
    for (int i = 0; i < N; i++) {
        CHECK(all[i] = malloc(LEN));
        memset(all[i], 1, LEN);
        if (i % 16 == 0) CHECK(!mlock(all[i], 1));
    }
    for (int i = 0; i < N; i++) free(all[i]);
    malloc_trim(0);
    for (int i = 0; i < N; i++) {
        CHECK(all[i] = calloc(1, LEN));
        for (int k = 0; k < LEN; k++) CHECK(all[i][k] == 0);
    }
}

static void forks(void) {
    // With debugging words there are no caches.
    if (!getenv("WINDLASS_MEMORY")) inherits();
    pthread_t all[4];
    for (uintptr_t i = 0; i < 4; i++) pthread_create(&all[i], 0, until_stop, (void *)(i + 1));
    for (int i = 0; i < children; i++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            alarm(30);
            a_little(0);
            rounds = 100;
            memset(shared, 0, sizeof shared);
            // More of them than caches that were left behind.
            pthread_t some[6];
            for (int k = 0; k < 6; k++) if (pthread_create(&some[k], 0, random_calls, (void *)(uintptr_t)(i + k + 1))) _exit(2);
            random_calls((void *)(uintptr_t)(i + 7));
            for (int k = 0; k < 6; k++) pthread_join(some[k], 0);
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child);
        CHECK(status == 0);
    }
    stop = 1;
    for (int i = 0; i < 4; i++) pthread_join(all[i], 0);
    for (int i = 0; i < 100; i++) {
        int status;
        pid_t child = vfork();
        if (child == 0) { execl("/bin/true", "true", (char *)0); _exit(3); }
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        char *words[] = {"true", 0};
        CHECK(!posix_spawn(&child, "/bin/true", 0, 0, words, environ));
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
}

static void calls(void) {
    // Each begins a cache line: a pair takes a tenth more elsewhere.
    CHECK((uintptr_t)malloc % 64 == 0 && (uintptr_t)free % 64 == 0);
    errno = 77;
    for (size_t n = 0; n < 70000; n += n < 2000 ? 1 : 509) {
        char *p = malloc(n);
        CHECK(p && malloc_usable_size(p) >= n && (uintptr_t)p % (n > 8 ? 16 : 8) == 0);
        memset(p, 1, malloc_usable_size(p));
        free(p);
    }
    free(malloc(100 << 20));
    free(0);
    CHECK(errno == 77);
    size_t huge[] = {SIZE_MAX, SIZE_MAX - 1, SIZE_MAX - 4096, SIZE_MAX / 2, SIZE_MAX / 2 + 1, (size_t)1 << 62, (size_t)PTRDIFF_MAX};
    for (size_t i = 0; i < sizeof huge / sizeof *huge; i++) {
        size_t volatile n = huge[i];
        char *p = malloc(100);
        strcpy(p, "kept");
        errno = 0; CHECK(!malloc(n) && errno == ENOMEM);
        errno = 0; CHECK(!calloc(n, 1) && errno == ENOMEM);
        errno = 0; CHECK(!calloc(n, n) && errno == ENOMEM);
        errno = 0; CHECK(!realloc(p, n) && errno == ENOMEM);
        errno = 0; CHECK(!reallocarray(p, n, 3) && errno == ENOMEM);
        errno = 0; CHECK(!memalign(4096, n) && errno == ENOMEM);
        errno = 0; CHECK(!memalign(n, 64) && errno == ENOMEM);
        errno = 0; CHECK(!valloc(n) && errno == ENOMEM);
        errno = 0; CHECK(!pvalloc(n) && errno == ENOMEM);
        CHECK(!strcmp(p, "kept"));
        free(p);
    }
    void *out = &out;
    CHECK(posix_memalign(&out, 3, 8) == EINVAL && posix_memalign(&out, 4, 8) == EINVAL && out == &out);
    CHECK(posix_memalign(&out, 64, SIZE_MAX) == ENOMEM && out == &out);
    errno = 0; CHECK(!hide(aligned_alloc(24, 48)) && errno == EINVAL);
    for (size_t align = 8; align <= 64 << 20; align *= 2)
        for (size_t n = 1; n < 8 << 20; n = n * 3 + 1) {
            char *p = memalign(align, n);
            CHECK(p && (uintptr_t)p % align == 0 && malloc_usable_size(p) >= n);
            p[0] = p[n - 1] = 1;
            free(p);
        }
    CHECK((uintptr_t)hide(memalign(3000, 10)) % 4096 == 0);
    CHECK((uintptr_t)hide(valloc(10)) % sysconf(_SC_PAGESIZE) == 0);
    char *p = pvalloc(10);
    CHECK(malloc_usable_size(p) >= (size_t)sysconf(_SC_PAGESIZE));
    CHECK(malloc_usable_size(0) == 0);
    free(p);
    // Through every size and back: the contents stay.
    p = malloc(1);
    *p = 'x';
    for (size_t n = 1; n < 300 << 20; n = n * 5 / 4 + 1) {
        CHECK(p = realloc(p, n));
        CHECK(*p == 'x');
        p[n - 1] = 'y';
        *p = 'x';
    }
    for (size_t n = 300 << 20; n > 0; n = n * 3 / 5) { CHECK(p = realloc(p, n)); CHECK(*p == 'x'); }
    CHECK(!hide(realloc(p, 0)));
    // With debugging words freed ones are kept for a while.
    CHECK(getenv("WINDLASS_MEMORY") || mallinfo2().hblks == 0);
    CHECK(mallopt(M_MMAP_THRESHOLD, 1) == 1);
}

static void figures(void) {
    enum { N = 100000 };
    static void *all[N];
    size_t before = mallinfo2().uordblks;
    size_t usable = 0;
    for (int i = 0; i < N; i++) { CHECK(all[i] = malloc(1000)); usable += malloc_usable_size(all[i]); }
    void *large = hide(malloc(50 << 20));
    struct mallinfo2 with = mallinfo2();
    // 1,000 bytes are of the class of 1,024, but for samples.
    CHECK(usable >= (size_t)N * 1024 && with.uordblks - before == usable + (50 << 20));
    CHECK(with.hblks == 1 && with.hblkhd == 50 << 20);
    CHECK(with.arena >= (size_t)N * 1024 && with.arena < (size_t)N * 1024 * 11 / 10 + (10 << 20));
    free(large);
    for (int i = 0; i < N; i++) free(all[i]);
    struct mallinfo2 without = mallinfo2();
    CHECK(without.uordblks == before && without.hblks == 0);
    CHECK(without.keepcost <= 8 << 20);
    // What was asked for in whole pages, and not in the units of 64 KiB that hold it.
    char *run = malloc(40000);
    CHECK(run && malloc_usable_size(run) >= 40000 && malloc_usable_size(run) <= 40960);
    CHECK((run = realloc(run, 50000)) && malloc_usable_size(run) >= 50000 && malloc_usable_size(run) <= 53248);
    free(run);
    CHECK(malloc_trim(0) == 1);
    CHECK(mallinfo2().keepcost == 0);
    CHECK(malloc_trim(0) == 0);
}

// What the status file counts of samples.
static uint64_t samples_taken(void) {
    char pattern[100];
    glob_t found;
    uint64_t taken = 0;
    snprintf(pattern, sizeof pattern, "%s/windlass/memory/%d.*", getenv("XDG_RUNTIME_DIR"), getpid());
    CHECK(!glob(pattern, 0, 0, &found) && found.gl_pathc == 1);
    int file = open(found.gl_pathv[0], O_RDONLY);
    // The row of samplings, its second word.
    CHECK(pread(file, &taken, sizeof taken, 232 + 8) == sizeof taken);
    close(file);
    globfree(&found);
    return taken;
}

// With `sample=256k` 256 samples are expected in 64 MiB, whatever the size, and calls that allocate are counted alike.
static void samples(void) {
    enum { ALL = 64 << 20, LESS = 256 - 5 * 16, MORE = 256 + 5 * 16 };
    size_t sizes[] = {16, 1000, 8000, 30000};
    for (int s = 0; s < 4; s++) {
        for (int call = 0; call < 4; call++) {
            uint64_t before = samples_taken();
            for (size_t bytes = 0; bytes < ALL; bytes += sizes[s]) {
                void *p = call == 0 ? malloc(sizes[s]) : call == 1 ? calloc(1, sizes[s])
                    : call == 2 ? aligned_alloc(64, sizes[s]) : realloc(0, sizes[s]);
                CHECK(p);
                free(hide(p));
            }
            int seen = samples_taken() - before;
            if (seen < LESS || seen > MORE) { printf("%zu, call %d: %d samples\n", sizes[s], call, seen); exit(1); }
        }
    }
}

// A gigabyte, freed: what is resident then, without waiting.
static void gigabyte(void) {
    enum { SIZES = 3 };
    size_t sizes[SIZES] = {64, 10000, 1 << 20};
    for (int s = 0; s < SIZES; s++) {
        size_t n = ((size_t)1 << 30) / sizes[s];
        char **all = malloc(n * sizeof *all);
        for (size_t i = 0; i < n; i++) { CHECK(all[i] = malloc(sizes[s])); memset(all[i], 1, sizes[s]); }
        CHECK(resident() > 1 << 30);
        for (size_t i = 0; i < n; i++) free(all[i]);
        free(all);
        size_t now = resident();
        // 8 MiB of kept units, the magazines, the depot, the tables (a 60th of a gigabyte), the program.
        if (now > 40 << 20) { printf("%zu: %zu KiB resident\n", sizes[s], now >> 10); exit(1); }
    }
}

// No more memory: NULL, ENOMEM, and what there is stays as it is.
static void limited(void) {
    struct rlimit limit = {120 << 20, 120 << 20};
    CHECK(!setrlimit(RLIMIT_DATA, &limit));
    enum { N = 1000000 };
    static struct object *all[N];
    size_t sizes[] = {0, 20, 500, 5000, 100000};
    for (int s = 0; s < 5; s++) {
        int n = 0;
        errno = 0;
        while (n < N && (all[n] = malloc(sizeof(struct object) + sizes[s] * 8))) fill(all[n], sizes[s], n), n++;
        CHECK(n == N || errno == ENOMEM);
        CHECK(s == 0 || (n > 0 && n < N));
        errno = 0;
        CHECK(n == N || (!calloc(1, 300 << 20) && errno == ENOMEM));
        CHECK(n < 2 || n == N || (!realloc(all[0], 300 << 20) && errno == ENOMEM));
        for (int i = 0; i < n; i++) { verify(all[i]); free(all[i]); }
    }
}

static pthread_key_t key;
static void late(void *seed) {
    // In a destructor after the library's own: there is no cache any more.
    random_calls(seed);
}
static void *with_key(void *seed) {
    pthread_setspecific(key, seed);
    a_little(0);
    pthread_exit(seed);
}
static void at_exit(void) { a_little(0); printf("exit handler\n"); }
static void ends(void) {
    pthread_key_create(&key, late);
    atexit(at_exit);
    rounds = 500;
    for (int i = 0; i < 50; i++) {
        pthread_t all[8];
        for (uintptr_t k = 0; k < 8; k++) pthread_create(&all[k], 0, with_key, (void *)(i * 8 + k + 1));
        for (int k = 0; k < 8; k++) pthread_join(all[k], 0);
    }
    // Every descriptor is closed: the library has none.
    closefrom(3);
    a_little(0);
}

static void wrong(const char *what) {
    char *p = malloc(64), *q = malloc(64), stack[64] __attribute__((aligned(16)));
    char *run = malloc(100000), *mapping = malloc(10 << 20);
    struct rlimit none = {0, 0};
    setrlimit(RLIMIT_CORE, &none);
    if (!strcmp(what, "twice")) { free(p); free(hide(p)); }
    if (!strcmp(what, "twice-apart")) { free(p); free(q); free(hide(p)); }
    if (!strcmp(what, "unaligned")) free(hide(p + 1));
    if (!strcmp(what, "interior")) free(hide(p + 16));
    if (!strcmp(what, "stack")) free(hide(stack));
    if (!strcmp(what, "run-interior")) free(hide(run + 65536));
    if (!strcmp(what, "run-twice")) { free(run); free(hide(run)); }
    if (!strcmp(what, "mapping-interior")) free(hide(mapping + 4096));
    if (!strcmp(what, "mapping-twice")) { free(mapping); free(hide(mapping)); }
    if (!strcmp(what, "realloc")) hide(realloc(hide(stack), 100));
    // Named at the latest when the batch reaches its slab.
    malloc_trim(0);
    printf("nothing was noticed\n");
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    // With debugging words each call takes a lock and a look.
    if (getenv("WINDLASS_MEMORY")) rounds = 10000, children = 50;
    if (!strcmp(what, "threads")) threads();
    else if (!strcmp(what, "short-threads")) short_threads();
    else if (!strcmp(what, "forks")) forks();
    else if (!strcmp(what, "locked")) locked();
    else if (!strcmp(what, "calls")) calls();
    else if (!strcmp(what, "figures")) figures();
    else if (!strcmp(what, "samples")) samples();
    else if (!strcmp(what, "gigabyte")) gigabyte();
    else if (!strcmp(what, "limited")) limited();
    else if (!strcmp(what, "ends")) ends();
    else if (!strcmp(what, "wrong")) wrong(argv[2]);
    else return 2;
    printf("done\n");
    return 0;
}
