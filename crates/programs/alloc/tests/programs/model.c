// Threads against a plain model: `model SEED THREADS PHASES`. Each object has a pattern of its own in all its bytes, and after each phase, when every
// thread stands still or has ended, mallinfo2 is what lives, to the byte. Prints that number at the end, and waits until its input ends.
#define _GNU_SOURCE
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(what) do { if (!(what)) { printf("seed %s, line %d: %s\n", seed, __LINE__, #what); exit(1); } } while (0)
enum { THREADS = 4, OWN = 200, MAILBOX = 64, STEPS = 2000, UNIT = 64 << 10, SMALL = 32 << 10 };
static const char *seed;

static uint64_t next(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

// What the model knows of an object: nothing of it lies in the object.
struct object { unsigned char *at; size_t size; uint64_t mark; };

static unsigned char mark_at(struct object *o, size_t i) { return o->mark + i * 7; }
// Each byte of a small one; of a large one some of each page, and the last.
static size_t step(struct object *o) { return o->size > SMALL ? 509 : 1; }

static void fill(struct object *o) {
    for (size_t i = 0; i < o->size; i += step(o)) o->at[i] = mark_at(o, i);
    if (o->size) o->at[o->size - 1] = mark_at(o, o->size - 1);
}

static void verify(struct object *o, size_t size) {
    for (size_t i = 0; i < size; i += step(o)) CHECK(o->at[i] == mark_at(o, i));
    if (size == o->size && size) CHECK(o->at[size - 1] == mark_at(o, size - 1));
}

// What mallinfo2 counts of it.
static size_t footprint(struct object *o) {
    if (!o->at) return 0;
    size_t usable = malloc_usable_size(o->at);
    return usable > SMALL ? (usable + UNIT - 1) / UNIT * UNIT : usable;
}

static size_t some_size(uint64_t *r) {
    uint64_t kind = next(r) % 1000;
    return kind < 600 ? next(r) % 300 : kind < 900 ? next(r) % 8000 : kind < 980 ? next(r) % 70000 : kind < 998 ? next(r) % 600000 : next(r) % (5 << 20);
}

// What a thread leaves, the next one of its place goes on with.
struct thread { pthread_t id; int lives, ends; uint64_t state; struct object own[OWN]; };
static struct thread all[THREADS];
static struct slot { int busy; struct object object; } mailbox[MAILBOX];
static pthread_barrier_t begins, ended;
static int last;
static struct object last_ones[8][8];

static void release(struct object *o) {
    if (!o->at) return;
    verify(o, o->size);
    free(o->at);
    o->at = 0;
}

static void allocate(struct object *o, uint64_t *r) {
    release(o);
    o->size = some_size(r);
    switch (next(r) % 5) {
    case 0: {
        CHECK(o->at = calloc(1, o->size));
        for (size_t i = 0; i < o->size; i += step(o)) CHECK(!o->at[i]);
        break;
    }
    case 1: {
        size_t align = (size_t)16 << next(r) % 10;
        CHECK(o->at = memalign(align, o->size));
        CHECK((uintptr_t)o->at % align == 0);
        break;
    }
    default: CHECK(o->at = malloc(o->size));
    }
    o->mark = next(r);
    fill(o);
}

static void resize(struct object *o, uint64_t *r) {
    if (!o->at) return;
    size_t old = o->size, size = some_size(r) + 1;
    verify(o, old);
    CHECK(o->at = realloc(o->at, size));
    // Bytes of a large one between those that were written are not known.
    for (size_t i = 0; i < old && i < size; i += step(o)) CHECK(o->at[i] == mark_at(o, i));
    o->size = size;
    o->mark = next(r);
    fill(o);
}

// Gives an object to whoever finds it there, and takes what was there.
static void exchange(struct object *o, struct slot *slot) {
    if (__atomic_exchange_n(&slot->busy, 1, __ATOMIC_ACQUIRE)) return;
    struct object mine = *o;
    *o = slot->object;
    slot->object = mine;
    __atomic_store_n(&slot->busy, 0, __ATOMIC_RELEASE);
}

static void *runs(void *argument) {
    struct thread *own = argument;
    uint64_t *r = &own->state;
    do {
        pthread_barrier_wait(&begins);
        for (int i = 0; i < STEPS; i++) {
            struct object *o = &own->own[next(r) % OWN];
            switch (next(r) % 8) {
            case 0: case 1: case 2: allocate(o, r); break;
            case 3: release(o); break;
            case 4: resize(o, r); break;
            default: exchange(o, &mailbox[next(r) % MAILBOX]);
            }
        }
        own->ends = last || next(r) % 3 == 0;
        pthread_barrier_wait(&ended);
    } while (!own->ends);
    return 0;
}

static size_t footprints(void) {
    size_t sum = 0;
    for (int t = 0; t < THREADS; t++) for (int i = 0; i < OWN; i++) sum += footprint(&all[t].own[i]);
    for (int i = 0; i < MAILBOX; i++) sum += footprint(&mailbox[i].object);
    return sum;
}

int main(int argc, char **argv) {
    seed = argv[1];
    int threads = atoi(argv[2]), phases = atoi(argv[3]);
    // With debugging words each object is larger than it says.
    int is_exact = !getenv("WINDLASS_MEMORY");
    size_t base = 0;
    pthread_barrier_init(&begins, 0, threads + 1);
    pthread_barrier_init(&ended, 0, threads + 1);
    for (int t = 0; t < threads; t++) all[t].state = strtoull(seed, 0, 10) * 1000 + t;
    for (int phase = 0; phase < phases; phase++) {
        for (int t = 0; t < threads; t++) {
            if (all[t].lives) continue;
            CHECK(!pthread_create(&all[t].id, 0, runs, &all[t]));
            all[t].lives = 1;
        }
        // The C library keeps what it needs for so many threads.
        last = phase + 1 == phases;
        if (phase == 0) base = mallinfo2().uordblks;
        pthread_barrier_wait(&begins);
        pthread_barrier_wait(&ended);
        for (int t = 0; t < threads; t++) {
            if (!all[t].ends) continue;
            pthread_join(all[t].id, 0);
            all[t].lives = 0;
        }
        size_t expected = base + footprints(), said = mallinfo2().uordblks;
        if (is_exact && said != expected) { printf("seed %s, phase %d: %zu instead of %zu\n", seed, phase, said, expected); return 1; }
    }
    for (int i = 0; i < MAILBOX; i++) release(&mailbox[i].object);
    size_t expected = base + footprints(), said = mallinfo2().uordblks;
    if (is_exact && said != expected) { printf("seed %s: %zu instead of %zu\n", seed, said, expected); return 1; }
    // Magazines that are empty again after the reader was told of them: one of these numbers takes all that was fetched.
    for (size_t n = 1; n <= 8; n++) for (size_t i = 0; i < n; i++) { struct object *o = &last_ones[n - 1][i]; o->at = malloc(o->size = 1500 + n * 1000); fill(o); }
    malloc_trim(0);
    // By write: a stream allocates its buffer.
    char line[32];
    int len = snprintf(line, sizeof line, "%zu\n", mallinfo2().uordblks);
    CHECK(write(1, line, len) == len);
    while (read(0, line, 1) > 0);
    for (int t = 0; t < THREADS; t++) for (int i = 0; i < OWN; i++) release(&all[t].own[i]);
    return 0;
}
