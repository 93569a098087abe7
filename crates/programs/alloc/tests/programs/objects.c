// Small errors with object caches and umem_alloc: `objects` lists them, `objects NAME` makes one, goes on for a while, and exits with 0 if nobody has
// noticed. `objects -rules` says what callbacks were called, and what objects hold.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <windlass/umem.h>

#define CHECK(what) do { if (!(what)) { printf("line %d: %s\n", __LINE__, #what); exit(1); } } while (0)
enum { SIZE = 64 };
static char *volatile hidden;
static char *hide(void *p) { hidden = p; return hidden; }
static void put(volatile char *at, int bytes) { for (int i = 0; i < bytes; i++) at[i] = 'x'; }
static void look(volatile char *at, int bytes) { for (int i = 0; i < bytes; i++) (void)at[i]; }

static int constructed, destructed;
static int construct(void *object, void *data, int flags) { memset(object, 'c', SIZE); constructed++; return 0; }
static int refuse(void *object, void *data, int flags) { return 1; }
static void destruct(void *object, void *data) { destructed++; }
// Without a constructor, with one, of an odd size, and without magazines.
static umem_cache_t *plain, *built, *odd, *locked;
static char *object(umem_cache_t *cache) { return hide(umem_cache_alloc(cache, UMEM_DEFAULT)); }
static void release(umem_cache_t *cache, char *p) { umem_cache_free(cache, hide(p)); }

static void behind(umem_cache_t *cache, int size, int bytes) { char *p = object(cache); put(p + size, bytes); release(cache, p); }
static void behind_1(void) { behind(plain, SIZE, 1); }
static void behind_8(void) { behind(plain, SIZE, 8); }
static void behind_odd(void) { behind(odd, 61, 1); }
static void behind_built(void) { behind(built, SIZE, 1); }
static void behind_locked(void) { behind(locked, SIZE, 1); }
static void before_1(void) { char *p = object(plain); put(p - 1, 1); release(plain, p); }
static void before_8(void) { char *p = object(built); put(p - 8, 8); release(built, p); }
static void read_behind(void) { char *p = object(plain); look(p + SIZE, 1); release(plain, p); }

static void after(umem_cache_t *cache, int at, int bytes) { char *p = object(cache); release(cache, p); put(p + at, bytes); }
static void after_1(void) { after(plain, 20, 1); }
static void after_all(void) { after(plain, 0, SIZE); }
static void after_built(void) { after(built, 20, 1); }
static void after_locked(void) { after(locked, 20, 1); }
static void after_reuse(void) { char *p = object(plain), *q; release(plain, p); q = object(plain); put(p, 8); release(plain, q); }
static void after_read(void) { char *p = object(plain); release(plain, p); look(p, 1); }

static void twice(void) { char *p = object(plain); release(plain, p); release(plain, p); }
static void twice_between(umem_cache_t *cache, int count) {
    char *all[100], *p = object(cache);
    for (int i = 0; i < count; i++) all[i] = object(cache);
    release(cache, p);
    for (int i = 0; i < count; i++) release(cache, all[i]);
    release(cache, p);
}
static void twice_apart(void) { twice_between(plain, 1); }
static void twice_far(void) { twice_between(plain, 100); }
static void twice_built(void) { twice_between(built, 1); }
static void twice_locked(void) { twice_between(locked, 1); }
static void *releases(void *p) { release(plain, p); return 0; }
static void twice_thread(void) {
    pthread_t thread;
    char *p = object(plain);
    pthread_create(&thread, 0, releases, p);
    pthread_join(thread, 0);
    release(plain, p);
}
static void twice_reused(void) { char *p = object(plain), *q; release(plain, p); q = object(plain); release(plain, p); release(plain, q); }

static void other_cache(void) { release(built, object(plain)); }
static void other_locked(void) { release(plain, object(locked)); }
static void to_locked(void) { release(locked, object(plain)); }
static void other_size(void) { release(odd, object(plain)); }
static void malloced(void) { release(plain, malloc(SIZE)); }
static void umem_alloced(void) { release(plain, umem_alloc(SIZE, 0)); }
static void freed_by_free(void) { free(object(plain)); }
static void locked_by_free(void) { free(object(locked)); }
static void freed_by_umem_free(void) { umem_free(object(plain), SIZE); }
static void resized(void) { hide(realloc(object(plain), 100)); }
static void interior_8(void) { release(plain, object(plain) + 8); }
static void unaligned(void) { release(plain, object(plain) + 1); }
static void on_stack(void) { char there[SIZE] __attribute__((aligned(16))); release(plain, there + 16); }
static void mapped(void) { release(plain, mmap(0, 65536, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)); }
static void null(void) { release(plain, 0); }

static umem_cache_t *one(void) { return umem_cache_create("one", SIZE, 0, 0, 0, 0, 0, 0, 0); }
static void left(void) { umem_cache_t *cache = one(); object(cache); umem_cache_destroy(cache); }
static void gone_alloc(void) { umem_cache_t *cache = one(); umem_cache_destroy(cache); object(cache); }
static void gone_free(void) { umem_cache_t *cache = one(); char *p = object(cache); release(cache, p); umem_cache_destroy(cache); release(cache, p); }
static void gone_write(void) { umem_cache_t *cache = one(); char *p = object(cache); release(cache, p); umem_cache_destroy(cache); put(p, 1); one(); }

static void sized(int size, int as) { umem_free(hide(umem_alloc(size, 0)), as); }
static void sized_far(void) { sized(100, 200); }
static void sized_near(void) { sized(60, 64); }
static void sized_twice(void) { char *p = hide(umem_alloc(SIZE, 0)); umem_free(p, SIZE); umem_free(p, SIZE); }
static void sized_behind(void) { char *p = hide(umem_alloc(61, 0)); put(p + 61, 1); umem_free(p, 61); }
static void sized_after(void) { char *p = hide(umem_alloc(SIZE, 0)); umem_free(p, SIZE); put(p + 20, 1); }

#define ROW(name) { #name, name }
static const struct { const char *name; void (*make)(void); } errors[] = {
    ROW(behind_1), ROW(behind_8), ROW(behind_odd), ROW(behind_built), ROW(behind_locked), ROW(before_1), ROW(before_8), ROW(read_behind),
    ROW(after_1), ROW(after_all), ROW(after_built), ROW(after_locked), ROW(after_reuse), ROW(after_read),
    ROW(twice), ROW(twice_apart), ROW(twice_far), ROW(twice_built), ROW(twice_locked), ROW(twice_thread), ROW(twice_reused),
    ROW(other_cache), ROW(other_locked), ROW(to_locked), ROW(other_size), ROW(malloced), ROW(umem_alloced),
    ROW(freed_by_free), ROW(locked_by_free), ROW(freed_by_umem_free), ROW(resized),
    ROW(interior_8), ROW(unaligned), ROW(on_stack), ROW(mapped), ROW(null),
    ROW(left), ROW(gone_alloc), ROW(gone_free), ROW(gone_write),
    ROW(sized_far), ROW(sized_near), ROW(sized_twice), ROW(sized_behind), ROW(sized_after),
};

// A program that goes on: the neighbours of what is wrong are used and freed.
static void go_on(void) {
    static char *all[3000];
    umem_cache_t *caches[] = {plain, built, odd, locked};
    // What is freed first in a round stays deep in a magazine: another object each time.
    int steps[] = {1009, 1013, 1019};
    for (int round = 0; round < 12; round++) {
        umem_cache_t *cache = caches[round % 4];
        for (int i = 0; i < 3000; i++) memset(all[i] = object(cache), 'y', 61);
        for (int i = 0; i < 3000; i++) release(cache, all[(i + 1000) * steps[round / 4] % 3000]);
    }
}

// With guards: each allocation is constructed, each free is destructed, and nothing of an object is left in between.
static void rules(void) {
    umem_cache_t *dark = umem_cache_create("dark", SIZE, 0, construct, destruct, 0, 0, 0, UMC_NODEBUG);
    int before = constructed, after = destructed;
    uint32_t *p = (uint32_t *)object(built);
    CHECK(p[0] == 0x63636363 && constructed == before + 1);
    release(built, (char *)p);
    CHECK(p[0] == 0xdeadbeef && p[15] == 0xdeadbeef && destructed == after + 1);
    p = (uint32_t *)object(plain);
    CHECK(p[0] == 0xbaddcafe && p[15] == 0xbaddcafe);
    release(plain, (char *)p);
    // A constructor that refuses: nothing is destructed, and nothing is out.
    umem_cache_t *picky = umem_cache_create("picky", SIZE, 0, refuse, destruct, 0, 0, 0, 0);
    after = destructed;
    CHECK(!object(picky) && destructed == after);
    umem_cache_destroy(picky);
    // One that debugging words leave alone stays constructed as long as its slab does.
    char *keeps = object(dark);
    p = (uint32_t *)object(dark);
    before = constructed;
    after = destructed;
    for (int i = 0; i < 100; i++) { release(dark, (char *)p); CHECK(p[0] == 0x63636363); p = (uint32_t *)object(dark); }
    CHECK(constructed == before && destructed == after);
    release(dark, (char *)p);
    release(dark, keeps);
    umem_cache_destroy(dark);
    puts("as they are");
}

int main(int argc, char **argv) {
    int count = sizeof errors / sizeof *errors;
    char *neighbours[8];
    plain = umem_cache_create("plain", SIZE, 0, 0, 0, 0, 0, 0, 0);
    built = umem_cache_create("built", SIZE, 0, construct, destruct, 0, 0, 0, 0);
    odd = umem_cache_create("odd", 61, 0, 0, 0, 0, 0, 0, 0);
    locked = umem_cache_create("locked", SIZE, 0, 0, 0, 0, 0, 0, UMC_NOMAGAZINE);
    for (int i = 0; i < 8; i++) neighbours[i] = object(plain);
    if (argc > 1 && !strcmp(argv[1], "-rules")) rules();
    for (int i = 0; i < count; i++) {
        if (argc == 1) puts(errors[i].name);
        else if (!strcmp(argv[1], errors[i].name)) { errors[i].make(); go_on(); }
    }
    for (int i = 0; i < 8; i++) release(plain, neighbours[i]);
    return 0;
}
