// Three programs of the literature on allocators, written anew: `alloc-threads larson|random|pool THREADS` prints nanoseconds for a pair.
//   larson  A server (Larson and Krishnan 1998): a thread replaces random objects of its own, ends, and leaves them to the next thread.
//   random  alloc-test: few places are used often, small sizes too; what is allocated is written, and read before it is freed.
//   pool    xmalloc-test (Lever and Boreham 2000): some threads allocate batches, as many others free them.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int threads;
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}
static uint64_t next(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}
static pthread_t start(void *(*body)(void *), void *argument) {
    pthread_t thread;
    if (pthread_create(&thread, 0, body, argument)) exit(1);
    return thread;
}

enum { LARSON_LIVE = 5000, LARSON_TURNS = 100 * LARSON_LIVE, LARSON_GENERATIONS = 60, LARSON_MIN = 8, LARSON_MAX = 1000 };
struct larson { uint64_t state; char *live[LARSON_LIVE]; };
static size_t larson_size(struct larson *own) { return LARSON_MIN + next(&own->state) % (LARSON_MAX - LARSON_MIN); }
static void *larson_generation(void *argument) {
    struct larson *own = argument;
    for (int i = 0; i < LARSON_TURNS; i++) {
        uint64_t victim = next(&own->state) % LARSON_LIVE;
        free(own->live[victim]);
        size_t size = larson_size(own);
        char *p = own->live[victim] = malloc(size);
        p[0] = p[size - 1] = 1;
    }
    return 0;
}
static void *larson(void *argument) {
    struct larson *own = argument;
    for (int i = 0; i < LARSON_LIVE; i++) own->live[i] = malloc(larson_size(own));
    for (int i = 0; i < LARSON_GENERATIONS; i++) pthread_join(start(larson_generation, own), 0);
    return 0;
}

enum { RANDOM_PLACES = 1 << 15, RANDOM_TURNS = 10000000, RANDOM_BITS = 10 };
struct place { char *at; uint32_t size; };
static void *random_places(void *argument) {
    uint64_t state = (uintptr_t)argument, sum = 0;
    struct place *all = calloc(RANDOM_PLACES, sizeof *all);
    for (int i = 0; i < RANDOM_TURNS; i++) {
        uint64_t r = next(&state);
        // A number that is squared twice is small most of the time.
        double x = (r >> 32) / 4294967296.0;
        struct place *place = &all[(size_t)(x * x * x * x * RANDOM_PLACES)];
        if (place->at) {
            for (uint32_t k = 0; k < place->size; k += 64) sum += place->at[k];
            free(place->at);
            place->at = 0;
            continue;
        }
        // Each doubling is half as likely as the one before.
        int bits = __builtin_ctz((uint32_t)r | 1u << (RANDOM_BITS - 3)) + 3;
        place->size = (1u << bits) + (r >> 16) % (1u << bits);
        place->at = malloc(place->size);
        memset(place->at, 1, place->size);
    }
    for (int i = 0; i < RANDOM_PLACES; i++) free(all[i].at);
    free(all);
    return (void *)(uintptr_t)(sum == 1);
}

enum { POOL_BATCH = 4096, POOL_MOST = 100, POOL_BATCHES = 4000, POOL_SIZE = 64 };
struct batch { struct batch *next; void *objects[POOL_BATCH]; };
static pthread_mutex_t pool_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t pool_has = PTHREAD_COND_INITIALIZER, pool_wants = PTHREAD_COND_INITIALIZER;
static struct batch *pool;
static int pool_len;
static void *pool_fills(void *unused) {
    for (int n = 0; n < POOL_BATCHES; n++) {
        struct batch *batch = malloc(sizeof *batch);
        for (int i = 0; i < POOL_BATCH; i++) *(char *)(batch->objects[i] = malloc(POOL_SIZE)) = 1;
        pthread_mutex_lock(&pool_lock);
        while (pool_len >= POOL_MOST) pthread_cond_wait(&pool_wants, &pool_lock);
        batch->next = pool;
        pool = batch;
        pool_len++;
        pthread_cond_signal(&pool_has);
        pthread_mutex_unlock(&pool_lock);
    }
    return unused;
}
static void *pool_empties(void *unused) {
    for (int n = 0; n < POOL_BATCHES; n++) {
        pthread_mutex_lock(&pool_lock);
        while (!pool) pthread_cond_wait(&pool_has, &pool_lock);
        struct batch *batch = pool;
        pool = batch->next;
        pool_len--;
        pthread_cond_signal(&pool_wants);
        pthread_mutex_unlock(&pool_lock);
        for (int i = 0; i < POOL_BATCH; i++) free(batch->objects[i]);
        free(batch);
    }
    return unused;
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    threads = argc > 2 ? atoi(argv[2]) : 1;
    if (threads < 1 || threads > 64) return 1;
    void *(*body)(void *) = !strcmp(what, "larson") ? larson : !strcmp(what, "random") ? random_places
        : !strcmp(what, "pool") ? pool_fills : 0;
    if (!body) return 1;
    pthread_t all[2][64];
    double pairs = body == larson ? (double)LARSON_TURNS * LARSON_GENERATIONS
        : body == random_places ? RANDOM_TURNS / 2.0 : (double)POOL_BATCH * POOL_BATCHES;
    static struct larson larsons[64];
    double begin = now();
    for (intptr_t i = 0; i < threads; i++) {
        larsons[i].state = i + 1;
        all[0][i] = start(body, body == larson ? (void *)&larsons[i] : (void *)(i + 1));
        if (body == pool_fills) all[1][i] = start(pool_empties, 0);
    }
    for (int i = 0; i < threads; i++) {
        pthread_join(all[0][i], 0);
        if (body == pool_fills) pthread_join(all[1][i], 0);
    }
    printf("%.3f\n", (now() - begin) / pairs);
    return 0;
}
