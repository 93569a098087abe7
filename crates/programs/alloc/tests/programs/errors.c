// 37 small errors with objects of 64 bytes: `errors` lists them, `errors NAME` makes one, goes on for a while, and exits with 0 if nobody has noticed.
#define _GNU_SOURCE
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { SIZE = 64 };
// The compiler knows neither where an object is nor what is in it.
static char *volatile hidden;
static char *hide(void *p) { hidden = p; return hidden; }
static char *object(void) { return hide(malloc(SIZE)); }
static void release(char *p) { free(hide(p)); }
static void put(volatile char *at, int bytes) { for (int i = 0; i < bytes; i++) at[i] = 'x'; }
static void look(volatile char *at, int bytes) { for (int i = 0; i < bytes; i++) (void)at[i]; }

static void behind(int at, int bytes, int size) {
    char *p = hide(malloc(size));
    put(p + size + at, bytes);
    release(p);
}
static void behind_1(void) { behind(0, 1, SIZE); }
static void behind_8(void) { behind(0, 8, SIZE); }
static void behind_64(void) { behind(0, 64, SIZE); }
static void behind_far(void) { behind(64, 1, SIZE); }
static void behind_odd(void) { behind(0, 1, SIZE - 3); }
static void behind_nothing(void) { behind(0, 1, 0); }
static void read_behind_1(void) { char *p = object(); look(p + SIZE, 1); release(p); }
static void read_behind_64(void) { char *p = object(); look(p + SIZE, 64); release(p); }

static void before(int bytes) { char *p = object(); put(p - bytes, bytes); release(p); }
static void before_1(void) { before(1); }
static void before_8(void) { before(8); }
static void before_64(void) { before(64); }
static void read_before_1(void) { char *p = object(); look(p - 1, 1); release(p); }
static void read_before_64(void) { char *p = object(); look(p - 64, 64); release(p); }

static void after(int at, int bytes) { char *p = object(); release(p); put(p + at, bytes); }
static void after_1(void) { after(20, 1); }
static void after_64(void) { after(0, 64); }
static void after_reuse(void) {
    char *p = object(), *q;
    release(p);
    q = object();
    put(p, 8);
    release(q);
}
static int number;
static void after_follow(void) {
    int **p = (int **)object();
    *p = &number;
    release((char *)p);
    look((char *)*(int *volatile *)p, 1);
}
static void after_read(void) { char *p = object(); release(p); look(p, 1); }
static void moved_write(void) { char *p = object(); hide(realloc(p, 10000)); put(p, 8); }
static void moved_read(void) { char *p = object(); hide(realloc(p, 10000)); look(p, 8); }
static void resize_freed(void) { char *p = object(); release(p); hide(realloc(p, 100)); }
static void measure_freed(void) { char *p = object(); release(p); malloc_usable_size(hide(p)); }

static void twice(void) { char *p = object(); release(p); release(p); }
static void twice_between(int count) {
    char *all[100], *p = object();
    for (int i = 0; i < count; i++) all[i] = object();
    release(p);
    for (int i = 0; i < count; i++) release(all[i]);
    release(p);
}
static void twice_apart(void) { twice_between(1); }
static void twice_far(void) { twice_between(100); }
static void *releases(void *p) { release(p); return 0; }
static void twice_thread(void) {
    pthread_t thread;
    char *p = object();
    pthread_create(&thread, 0, releases, p);
    pthread_join(thread, 0);
    release(p);
}
static void twice_gone(void) {
    static char *all[20000];
    for (int i = 0; i < 20000; i++) all[i] = object();
    for (int i = 0; i < 20000; i++) release(all[i]);
    release(all[7]);
}
static void twice_moved(void) { char *p = object(); hide(realloc(p, 10000)); release(p); }
static void twice_reused(void) {
    char *p = object(), *q;
    release(p);
    q = object();
    release(p);
    release(q);
}

static void interior_8(void) { release(object() + 8); }
static void interior_16(void) { release(object() + 16); }
static void unaligned(void) { release(object() + 1); }
static void on_stack(void) { char there[SIZE] __attribute__((aligned(16))); release(there + 16); }
static void in_data(void) { static char there[SIZE] __attribute__((aligned(16))); release(there); }
static void mapped(void) { release(mmap(0, 65536, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)); }

static void unset_follow(void) {
    int **p = (int **)object(), **q;
    *p = &number;
    release((char *)p);
    q = (int **)object();
    look((char *)*(int *volatile *)q, 1);
}
static void unset_read(void) { char *p = object(); look(p, 1); release(p); }

#define ROW(name) { #name, name }
static const struct { const char *name; void (*make)(void); } errors[] = {
    ROW(behind_1), ROW(behind_8), ROW(behind_64), ROW(behind_far), ROW(behind_odd), ROW(behind_nothing), ROW(read_behind_1), ROW(read_behind_64),
    ROW(before_1), ROW(before_8), ROW(before_64), ROW(read_before_1), ROW(read_before_64),
    ROW(after_1), ROW(after_64), ROW(after_reuse), ROW(after_follow), ROW(after_read), ROW(moved_write), ROW(moved_read), ROW(resize_freed), ROW(measure_freed),
    ROW(twice), ROW(twice_apart), ROW(twice_far), ROW(twice_thread), ROW(twice_gone), ROW(twice_moved), ROW(twice_reused),
    ROW(interior_8), ROW(interior_16), ROW(unaligned), ROW(on_stack), ROW(in_data), ROW(mapped),
    ROW(unset_follow), ROW(unset_read),
};

// A program that goes on: the neighbours of what is wrong are used and freed.
static void go_on(void) {
    static char *all[3000];
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 3000; i++) memset(all[i] = object(), 'y', SIZE);
        for (int i = 0; i < 3000; i++) release(all[i * 1009 % 3000]);
    }
}

int main(int argc, char **argv) {
    int count = sizeof errors / sizeof *errors;
    char *neighbours[8];
    for (int i = 0; i < 8; i++) neighbours[i] = object();
    for (int i = 0; i < count; i++) {
        if (argc == 1) puts(errors[i].name);
        else if (!strcmp(argv[1], errors[i].name)) { errors[i].make(); go_on(); }
    }
    for (int i = 0; i < 8; i++) release(neighbours[i]);
    return 0;
}
