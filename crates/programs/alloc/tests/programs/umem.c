// What tests of object caches run: `umem WHAT`, linked with the library. Exits with 1 after a sentence if something is wrong.
#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <windlass/umem.h>

#define CHECK(what) do { if (!(what)) { printf("line %d: %s\n", __LINE__, #what); exit(1); } } while (0)
static void *volatile hidden;
static void *hide(void *p) { hidden = p; return hidden; }

static uint64_t next(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

// An object that knows whether it is constructed, by whom, and who has it.
#define CONSTRUCTED 0xc0257c7edull
struct object { uint64_t state, kind; _Atomic uint64_t owner; uint64_t rest[]; };
// What a cache's callbacks know of it.
struct kind { uint64_t number; atomic_long constructed, destructed; size_t size; int fails; _Atomic uint64_t calls; umem_cache_t *cache; };

static int construct(void *object, void *data, int flags) {
    struct object *o = object;
    struct kind *kind = data;
    CHECK(flags == UMEM_DEFAULT || flags == UMEM_NOFAIL);
    // Nobody's constructed object: the destructor was called in between.
    CHECK(o->state != CONSTRUCTED);
    uint64_t call = kind->calls++;
    if (kind->fails && call % kind->fails == 0) return 1;
    o->state = CONSTRUCTED;
    o->kind = kind->number;
    o->owner = 0;
    kind->constructed++;
    return 0;
}

static void destruct(void *object, void *data) {
    struct object *o = object;
    struct kind *kind = data;
    CHECK(o->state == CONSTRUCTED && o->kind == kind->number && o->owner == 0);
    o->state = 0;
    kind->destructed++;
}

static struct kind *make(uint64_t number, size_t size, size_t align, int fails, int flags) {
    struct kind *kind = calloc(1, sizeof *kind);
    char name[64];
    snprintf(name, sizeof name, "kind %lu", (unsigned long)number);
    *kind = (struct kind){.number = number, .size = size, .fails = fails};
    CHECK(kind->cache = umem_cache_create(name, size, align, construct, destruct, 0, kind, 0, flags));
    return kind;
}

static void end(struct kind *kind) {
    umem_cache_destroy(kind->cache);
    CHECK(kind->constructed == kind->destructed);
    free(kind);
}

static struct object *get(struct kind *kind, uint64_t owner) {
    struct object *o = umem_cache_alloc(kind->cache, UMEM_DEFAULT);
    if (!o) { CHECK(kind->fails); return 0; }
    CHECK(o->state == CONSTRUCTED && o->kind == kind->number);
    uint64_t nobody = 0;
    CHECK(atomic_compare_exchange_strong(&o->owner, &nobody, owner));
    size_t words = (kind->size - sizeof *o) / 8;
    if (words) o->rest[0] = o->rest[words - 1] = owner;
    return o;
}

static void put(struct kind *kind, struct object *o, uint64_t owner) {
    size_t words = (kind->size - sizeof *o) / 8;
    CHECK(o->state == CONSTRUCTED && o->kind == kind->number && o->owner == owner);
    CHECK(!words || (o->rest[0] == owner && o->rest[words - 1] == owner));
    o->owner = 0;
    umem_cache_free(kind->cache, o);
}

// Threads allocate and free objects of all kinds, their own and each other's.
enum { KINDS = 30, SHARED = 256 };
static struct kind *kinds[KINDS];
struct parcel { struct kind *kind; struct object *o; uint64_t owner; };
static _Atomic(struct parcel *) shared[SHARED];
static int rounds = 40000, children = 100;

static void unpack(struct parcel *parcel) {
    put(parcel->kind, parcel->o, parcel->owner);
    free(parcel);
}

static void *random_calls(void *seed) {
    uint64_t r = (uintptr_t)seed, owner = r + 1;
    struct parcel own[200] = {0};
    for (int i = 0; i < rounds; i++) {
        struct parcel *p = &own[next(&r) % 200];
        if (p->o) {
            if (next(&r) % 4) put(p->kind, p->o, owner);
            else {
                struct parcel *sent = malloc(sizeof *sent);
                *sent = *p;
                sent = atomic_exchange(&shared[next(&r) % SHARED], sent);
                if (sent) unpack(sent);
            }
            p->o = 0;
        } else {
            struct kind *kind = kinds[next(&r) % (next(&r) % 2 ? 3 : KINDS)];
            *p = (struct parcel){kind, get(kind, owner), owner};
        }
        if (next(&r) % 1000 == 0) free(malloc(next(&r) % 60000));
    }
    for (int i = 0; i < 200; i++) if (own[i].o) put(own[i].kind, own[i].o, owner);
    return 0;
}

static void threads(void) {
    size_t sizes[] = {24, 200, 64, 4096, 1000, 5000, 40000, 100000, 32, 48};
    for (int round = 0; round < 3; round++) {
        // The last ones have no number; every seventh has a constructor that fails.
        for (int i = 0; i < KINDS; i++) kinds[i] = make(i, sizes[(i + round) % 10], i % 3 ? 0 : 64, i % 7 == 6 ? 50 : 0, i % 11 == 5 ? UMC_NOMAGAZINE : 0);
        pthread_t all[6];
        for (uintptr_t i = 0; i < 6; i++) CHECK(!pthread_create(&all[i], 0, random_calls, (void *)(i + 7 * round)));
        for (int i = 0; i < 6; i++) pthread_join(all[i], 0);
        for (int i = 0; i < SHARED; i++) { struct parcel *p = atomic_exchange(&shared[i], 0); if (p) unpack(p); }
        for (int i = 0; i < KINDS; i++) end(kinds[i]);
    }
}

// Caches come and go while other threads use theirs, and malloc, which makes magazines give way.
static atomic_int stop;
static void *coming_and_going(void *seed) {
    uint64_t r = (uintptr_t)seed, owner = r + 1;
    while (!stop) {
        struct kind *kind = make(owner, 24 + next(&r) % 3000, 0, 0, 0);
        struct object *all[300];
        int n = next(&r) % 300;
        for (int i = 0; i < n; i++) all[i] = get(kind, owner);
        for (int i = 0; i < n; i++) put(kind, all[i], owner);
        for (int i = 0; i < 200; i++) { void *p = malloc(next(&r) % 30000); hide(p); free(p); }
        end(kind);
    }
    return 0;
}

static void churn(void) {
    pthread_t all[6];
    kinds[0] = make(1000, 200, 0, 0, 0);
    kinds[1] = make(1001, 100, 0, 0, 0);
    kinds[2] = make(1002, 3000, 0, 0, 0);
    for (int i = 3; i < KINDS; i++) kinds[i] = kinds[i % 3];
    for (uintptr_t i = 0; i < 6; i++) CHECK(!pthread_create(&all[i], 0, i < 3 ? random_calls : coming_and_going, (void *)(i + 1)));
    for (int i = 0; i < 3; i++) pthread_join(all[i], 0);
    stop = 1;
    for (int i = 3; i < 6; i++) pthread_join(all[i], 0);
    for (int i = 0; i < SHARED; i++) { struct parcel *p = atomic_exchange(&shared[i], 0); if (p) unpack(p); }
    for (int i = 0; i < 3; i++) end(kinds[i]);
}

static void many(void) {
    enum { N = 10000 };
    static struct kind *all[N];
    struct object *one[N];
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < N; i++) { all[i] = make(i, 24 + i % 5000, 0, 0, 0); one[i] = i % 16 ? 0 : get(all[i], 1); }
        for (int i = 0; i < N; i++) { if (one[i]) put(all[i], one[i], 1); end(all[i]); }
    }
}

// A thread that ends with full magazines; its objects stay constructed, and others get them.
static struct object *from_thread[1000];
static void *fills(void *kind) {
    for (int i = 0; i < 1000; i++) from_thread[i] = get(kind, 1);
    for (int i = 0; i < 1000; i++) put(kind, from_thread[i], 1);
    return 0;
}
static void exits(void) {
    struct kind *kind = make(1, 200, 0, 0, 0);
    pthread_t thread;
    for (int i = 0; i < 50; i++) { pthread_create(&thread, 0, fills, kind); pthread_join(thread, 0); }
    struct object *o = get(kind, 1);
    CHECK(kind->constructed - kind->destructed < 1000);
    put(kind, o, 1);
    end(kind);
}

// A thread that ends, or makes magazines give way, while the cache whose objects it holds is destroyed.
static pthread_barrier_t barrier;
static void *fills_and_ends(void *kind) {
    struct object *all[60];
    for (int i = 0; i < 60; i++) all[i] = get(kind, 1);
    for (int i = 0; i < 60; i++) put(kind, all[i], 1);
    pthread_barrier_wait(&barrier);
    return 0;
}
static void races(void) {
    pthread_t thread;
    pthread_barrier_init(&barrier, 0, 2);
    for (int i = 0; i < 10000; i++) {
        struct kind *kind = make(i, 64 + i % 500 * 8, 0, 0, 0);
        CHECK(!pthread_create(&thread, 0, fills_and_ends, kind));
        pthread_barrier_wait(&barrier);
        // At another moment of the other thread's end each time.
        for (volatile int k = 0; k < i % 500 * 20; k++) ;
        end(kind);
        pthread_join(thread, 0);
    }
}

// Free objects stay constructed through the magazines: many rounds, few constructors.
static void stays(void) {
    struct kind *kind = make(1, 200, 0, 0, 0);
    struct object *all[100];
    for (int round = 0; round < 1000; round++) {
        for (int i = 0; i < 100; i++) all[i] = get(kind, 1);
        for (int i = 0; i < 100; i++) put(kind, all[i], 1);
    }
    CHECK(kind->constructed < 300);
    // Most of many go back at once.
    enum { MANY = 20000 };
    static struct object *many[MANY];
    for (int i = 0; i < MANY; i++) many[i] = get(kind, 1);
    CHECK(kind->constructed >= MANY && kind->constructed < MANY + 300);
    for (int i = 0; i < MANY; i++) put(kind, many[i], 1);
    CHECK(kind->destructed > MANY - 3000);
    end(kind);
    // One at a time, without magazines.
    kind = make(2, 200, 0, 0, UMC_NOMAGAZINE);
    for (int round = 0; round < 1000; round++) put(kind, get(kind, 1), 1);
    CHECK(kind->constructed == 1);
    malloc_trim(0);
    CHECK(kind->destructed == 1);
    end(kind);
    // 200 bytes are 200 bytes.
    umem_cache_t *plain = umem_cache_create("plain", 200, 0, 0, 0, 0, 0, 0, 0);
    char *lowest = (char *)UINTPTR_MAX, *highest = 0, *each[320];
    for (int i = 0; i < 320; i++) {
        CHECK(each[i] = umem_cache_alloc(plain, UMEM_NOFAIL));
        CHECK((uintptr_t)each[i] % 8 == 0);
        if (each[i] < lowest) lowest = each[i];
        if (each[i] > highest) highest = each[i];
    }
    CHECK(highest - lowest == 319 * 200);
    CHECK(malloc_usable_size(each[0]) == 200);
    for (int i = 0; i < 320; i++) umem_cache_free(plain, each[i]);
    umem_cache_destroy(plain);
}

static void arguments(void) {
    int errors = 0;
#define REFUSED(error, ...) errno = 0; CHECK(!umem_cache_create(__VA_ARGS__) && errno == error)
    REFUSED(EINVAL, 0, 8, 0, 0, 0, 0, 0, 0, 0);
    REFUSED(EINVAL, "none", 0, 0, 0, 0, 0, 0, 0, 0);
    REFUSED(EINVAL, "align", 8, 3, 0, 0, 0, 0, 0, 0);
    REFUSED(EINVAL, "align", 8, 128 << 10, 0, 0, 0, 0, 0, 0);
    REFUSED(EINVAL, "source", 8, 0, 0, 0, 0, 0, (vmem_t *)&errors, 0);
    REFUSED(EINVAL, "flags", 8, 0, 0, 0, 0, 0, 0, 1);
    REFUSED(ENOMEM, "large", (2 << 20) + 1, 0, 0, 0, 0, 0, 0, 0);
    REFUSED(ENOMEM, "huge", SIZE_MAX, 0, 0, 0, 0, 0, 0, 0);
    char name[] = "\033[31m\xff a name that is longer than names may be, by far";
    for (size_t size = 1; size <= 2 << 20; size = size * 5 / 3 + 1)
        for (size_t align = 0; align <= 64 << 10; align = align ? align * 4 : 1) {
            umem_cache_t *cache = umem_cache_create(name, size, align, 0, 0, 0, 0, 0, 0);
            CHECK(cache || (size > (2 << 20) - align && errno == ENOMEM));
            if (!cache) continue;
            char *a = umem_cache_alloc(cache, 0), *b = umem_cache_alloc(cache, 0);
            CHECK(a && b && (align == 0 || ((uintptr_t)a | (uintptr_t)b) % align == 0));
            memset(a, 1, size);
            memset(b, 2, size);
            CHECK(a[0] == 1 && a[size - 1] == 1 && b[0] == 2);
            umem_cache_free(cache, a);
            umem_cache_free(cache, b);
            umem_cache_destroy(cache);
        }
    umem_cache_destroy(0);
    CHECK(!umem_alloc(0, UMEM_DEFAULT) && !umem_zalloc(0, UMEM_NOFAIL));
    umem_free(0, 0);
    for (size_t size = 1; size < 10 << 20; size = size * 5 / 4 + 1) {
        unsigned char *p = umem_alloc(size, UMEM_DEFAULT), *z = umem_zalloc(size, UMEM_NOFAIL), *a = umem_alloc_align(size, 256, 0);
        CHECK(p && z && a && (uintptr_t)a % 256 == 0);
        for (size_t i = 0; i < size; i += size / 100 + 1) CHECK(z[i] == 0);
        memset(p, 1, size);
        memset(z, 1, size);
        memset(a, 1, size);
        umem_free(p, size);
        umem_free(z, size);
        umem_free_align(a, size);
    }
    errno = 0;
    CHECK(!umem_alloc(SIZE_MAX, UMEM_DEFAULT) && errno == ENOMEM);
    umem_reap();
}

// Without memory: reclaim gives what the program holds back, then NULL; NOFAIL asks.
static void *held[1 << 16];
// The compiler knows that malloc changes nothing of the program; reclaim does.
static volatile int holds, reclaims, asked;
static umem_cache_t *holder;
static void give_back(void *data) {
    CHECK(data == (void *)&holds);
    reclaims++;
    while (holds > 0) umem_cache_free(holder, held[--holds]);
}
static int ask(void) {
    asked++;
    if (asked == 1) { give_back((void *)&holds); return UMEM_CALLBACK_RETRY; }
    return UMEM_CALLBACK_EXIT(7);
}
static void shortage(void) {
    struct rlimit limit = {100 << 20, 100 << 20};
    CHECK(!setrlimit(RLIMIT_DATA, &limit));
    holder = umem_cache_create("holder", 20000, 0, 0, 0, give_back, (void *)&holds, 0, 0);
    while (!reclaims) { void *p = umem_cache_alloc(holder, UMEM_DEFAULT); CHECK(p); held[holds++] = p; }
    // The object that came after the others were given back.
    CHECK(holds == 1 && reclaims == 1);
    while (reclaims == 1) { void *p = umem_cache_alloc(holder, UMEM_DEFAULT); CHECK(p); held[holds++] = p; }
    // And where malloc is short.
    CHECK(holds == 1);
    while (holds < 2000) { void *p = umem_cache_alloc(holder, UMEM_DEFAULT); CHECK(p); held[holds++] = p; }
    CHECK(reclaims == 2);
    for (int i = 0; reclaims == 2; i++) CHECK(i < 100 && hide(malloc(1 << 20)));
    CHECK(holds == 0);
    umem_cache_t *other = umem_cache_create("other", 500000, 0, 0, 0, 0, 0, 0, 0);
    void *last = 0;
    for (int i = 0; i < 1000; i++) { void *p = umem_cache_alloc(other, UMEM_DEFAULT); if (!p) break; last = p; }
    CHECK(last);
    errno = 0;
    CHECK(!umem_cache_alloc(other, UMEM_DEFAULT) && errno == ENOMEM);
    umem_nofail_callback(ask);
    umem_cache_free(other, last);
    CHECK(umem_cache_alloc(other, UMEM_NOFAIL) == last);
    umem_alloc(300 << 20, UMEM_NOFAIL);
    printf("it came back\n");
}

static void nofail(void) {
    umem_alloc((size_t)1 << 60, UMEM_NOFAIL);
    printf("it came back\n");
}

// The child has what the parent had, in its own caches, and may destroy them though the threads' objects are lost.
static void forks(void) {
    for (int i = 0; i < KINDS; i++) kinds[i] = make(i, 24 + i * 100, 0, 0, 0);
    rounds = 1 << 30;
    pthread_t all[3];
    for (uintptr_t i = 0; i < 3; i++) pthread_create(&all[i], 0, random_calls, (void *)(i + 1));
    for (int i = 0; i < children; i++) {
        pid_t child = fork();
        if (child == 0) {
            alarm(30);
            rounds = 300;
            memset((void *)shared, 0, sizeof shared);
            pthread_t some[4];
            for (uintptr_t k = 0; k < 4; k++) if (pthread_create(&some[k], 0, random_calls, (void *)(k + 10))) _exit(2);
            for (int k = 0; k < 4; k++) pthread_join(some[k], 0);
            for (int k = 0; k < KINDS; k++) umem_cache_destroy(kinds[k]->cache);
            struct kind *own = make(99, 300, 0, 0, 0);
            put(own, get(own, 1), 1);
            end(own);
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child);
        if (status) { printf("child: %x\n", status); exit(1); }
    }
}

static void wrong(const char *what) {
    struct rlimit none = {0, 0};
    setrlimit(RLIMIT_CORE, &none);
    umem_cache_t *cache = umem_cache_create("ours", 200, 0, 0, 0, 0, 0, 0, 0), *other = umem_cache_create("other", 200, 0, 0, 0, 0, 0, 0, 0);
    umem_cache_t *locked = umem_cache_create("locked", 200, 0, 0, 0, 0, 0, 0, UMC_NOMAGAZINE), *locked2 = umem_cache_create("locked2", 200, 0, 0, 0, 0, 0, 0, UMC_NOMAGAZINE);
    char *p = umem_cache_alloc(cache, 0), *q = umem_cache_alloc(cache, 0), *l = umem_cache_alloc(locked, 0), *l2 = umem_cache_alloc(locked, 0);
    if (!strcmp(what, "twice")) { umem_cache_free(cache, p); umem_cache_free(cache, hide(p)); }
    if (!strcmp(what, "twice-apart")) { umem_cache_free(cache, p); umem_cache_free(cache, q); umem_cache_free(cache, hide(p)); umem_cache_destroy(cache); }
    if (!strcmp(what, "other")) umem_cache_free(other, p);
    if (!strcmp(what, "interior")) { umem_cache_free(cache, q); umem_cache_free(cache, p + 8); umem_cache_destroy(cache); }
    if (!strcmp(what, "unaligned")) umem_cache_free(cache, p + 1);
    if (!strcmp(what, "stack")) umem_cache_free(cache, &cache);
    if (!strcmp(what, "null")) umem_cache_free(cache, 0);
    if (!strcmp(what, "malloc")) umem_cache_free(cache, hide(malloc(200)));
    if (!strcmp(what, "out")) umem_cache_destroy(cache);
    if (!strcmp(what, "gone")) { umem_cache_destroy(other); umem_cache_alloc(other, 0); }
    if (!strcmp(what, "gone-twice")) { umem_cache_destroy(other); umem_cache_destroy(other); }
    if (!strcmp(what, "gone-free")) { umem_cache_destroy(other); umem_cache_free(other, p); }
    if (!strcmp(what, "locked-twice")) { umem_cache_free(locked, l); umem_cache_free(locked, hide(l)); }
    if (!strcmp(what, "locked-other")) umem_cache_free(locked2, l);
    if (!strcmp(what, "locked-interior")) umem_cache_free(locked, l2 + 8);
    if (!strcmp(what, "locked-free")) free(l2);
    if (!strcmp(what, "size")) umem_free(umem_alloc(100, 0), 200);
    printf("nothing was noticed\n");
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    // With debugging words each call takes a lock and a look.
    if (getenv("WINDLASS_MEMORY")) rounds = 10000, children = 25;
    if (!strcmp(what, "threads")) threads();
    else if (!strcmp(what, "churn")) churn();
    else if (!strcmp(what, "many")) many();
    else if (!strcmp(what, "exits")) exits();
    else if (!strcmp(what, "races")) races();
    else if (!strcmp(what, "stays")) stays();
    else if (!strcmp(what, "arguments")) arguments();
    else if (!strcmp(what, "shortage")) shortage();
    else if (!strcmp(what, "nofail")) nofail();
    else if (!strcmp(what, "forks")) forks();
    else if (!strcmp(what, "wrong")) wrong(argv[2]);
    else return 2;
    printf("done\n");
    return 0;
}
