// Programs in narrow places: `environments WHAT [ARGUMENTS]`. Says "done" at the end, or a sentence, and exits with 1.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

// By write: a stream would allocate, and close a descriptor at the end.
static void say(const char *text) { if (write(1, text, strlen(text)) < 0) _exit(3); }
#define CHECK(what) do { if (!(what)) { say(#what "\n"); _exit(1); } } while (0)
static void *volatile hidden;
static void *hide(void *p) { hidden = p; return hidden; }

enum { OBJECTS = 3000 };
struct object { unsigned char *at; size_t size; };

static void verify(struct object *o) {
    for (size_t i = 0; i < o->size; i += 1 + o->size / 50) CHECK(o->at[i] == (unsigned char)(o->size + i));
}

static void fill(struct object *o) {
    for (size_t i = 0; i < o->size; i += 1 + o->size / 50) o->at[i] = o->size + i;
}

// Objects of all sizes: runs, mappings that move, samples, memory that goes back. Some 150 MiB.
static void *work(void *unused) {
    struct object *all = calloc(OBJECTS, sizeof *all);
    CHECK(all);
    for (int i = 0; i < OBJECTS; i++) {
        struct object *o = &all[i];
        o->size = i < 2000 ? 1 + i * 7 : i < 2900 ? i * 30 : i < 2995 ? 1 << 20 : 6 << 20;
        CHECK(o->at = malloc(o->size));
        fill(o);
    }
    for (int i = 0; i < OBJECTS; i += 3) {
        struct object *o = &all[i];
        verify(o);
        size_t size = o->size * 3 / 2;
        CHECK(o->at = realloc(o->at, size));
        verify(o);
        o->size = size;
        fill(o);
    }
    for (int i = 0; i < OBJECTS; i++) { verify(&all[i]); free(all[i].at); }
    free(all);
    return unused;
}

static void at_once(void) {
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) CHECK(!pthread_create(&threads[i], 0, work, 0));
    for (int i = 0; i < 2; i++) pthread_join(threads[i], 0);
}

static struct { const char *name; int number; } calls[] = {
#define CALL(name) {#name, SYS_##name}
    CALL(clock_gettime), CALL(close), CALL(flock), CALL(fstat), CALL(fstatfs), CALL(ftruncate), CALL(futex), CALL(getdents64), CALL(geteuid),
    CALL(getpid), CALL(gettid), CALL(kill), CALL(madvise), CALL(mkdirat), CALL(mmap), CALL(mprotect), CALL(mremap), CALL(munmap), CALL(openat),
    CALL(prctl), CALL(prlimit64), CALL(read), CALL(unlinkat),
};

// From now on every call but these, and the program's own end and words, has this consequence.
static void allow(char **names, uint32_t otherwise) {
    struct sock_filter filter[64];
    int len = 0;
    int own[] = {SYS_exit_group, SYS_write};
    filter[len++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
#define ALLOW(call) do { \
        filter[len++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1); \
        filter[len++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW); \
    } while (0)
    for (size_t i = 0; i < 2; i++) ALLOW(own[i]);
    for (; *names; names++) {
        size_t i = 0, count = sizeof calls / sizeof *calls;
        while (i < count && strcmp(calls[i].name, *names)) i++;
        if (i == count) { say("unknown call "); say(*names); say("\n"); _exit(2); }
        ALLOW(calls[i].number);
    }
    filter[len++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, otherwise);
    struct sock_fprog program = {len, filter};
    CHECK(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program)) { say("no seccomp\n"); _exit(77); }
}

// No call works any more: what is usable is handed out, then NULL and ENOMEM; nothing is lost.
static void refused(char **unused) {
    enum { MOST = 1000000 };
    static struct object all[MOST];
    char *none[] = {0};
    allow(none, SECCOMP_RET_ERRNO | EPERM);
    int count = 0;
    errno = 0;
    while (count < MOST && (all[count].at = malloc(10000))) { all[count].size = 10000; fill(&all[count++]); }
    CHECK(count > 100 && count < MOST && errno == ENOMEM);
    errno = 0;
    CHECK(!hide(malloc(50 << 20)) && errno == ENOMEM);
    for (int i = 0; i < count; i++) { verify(&all[i]); free(all[i].at); }
    for (int i = 0; i < 100; i++) { CHECK(all[i].at = malloc(1000)); fill(&all[i]); }
    for (int i = 0; i < 100; i++) { verify(&all[i]); free(all[i].at); }
}

// Runs it in a forked child.
static void in_child(void (*run)(char **), char **names) {
    pid_t pid = fork();
    if (pid == 0) { run(names); exit(0); }
    int status;
    CHECK(waitpid(pid, &status, 0) == pid);
    if (WIFSIGNALED(status)) raise(WTERMSIG(status));
    CHECK(status == 0);
}

static void killed(char **names) { allow(names, SECCOMP_RET_KILL_PROCESS); work(0); }

// What a vfork's child allocates is its parent's: the same memory, the same thread.
static void borrows(void) {
    pthread_t thread;
    static struct object child[100];
    CHECK(!pthread_create(&thread, 0, work, 0));
    for (int round = 0; round < 50; round++) {
        size_t before = malloc_usable_size(hide(malloc(5)));
        pid_t pid = vfork();
        if (pid == 0) {
            for (int i = 0; i < 100; i++) {
                child[i].at = malloc(child[i].size = i * 500);
                fill(&child[i]);
            }
            free(malloc(8 << 20));
            _exit(before ? 0 : 1);
        }
        int status;
        CHECK(waitpid(pid, &status, 0) == pid && status == 0);
        for (int i = 0; i < 100; i++) { verify(&child[i]); free(child[i].at); }
    }
    pthread_join(thread, 0);
}

// No descriptor may be opened any more, in a child, too.
static void no_files(void) {
    struct rlimit none = {0, 0};
    CHECK(!setrlimit(RLIMIT_NOFILE, &none));
    pid_t pid = fork();
    if (pid == 0) { work(0); _exit(0); }
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    at_once();
}

// Everything is locked, now and from now on.
static void locks(void) {
    CHECK(!mlockall(MCL_CURRENT | MCL_FUTURE));
    work(0);
    malloc_trim(0);
    for (int i = 0; i < 50; i++) {
        unsigned char *zeros = calloc(1, 1 << 20);
        CHECK(zeros);
        for (int k = 0; k < 1 << 20; k += 501) CHECK(!zeros[k]);
        memset(zeros, 1, 1 << 20);
        free(zeros);
    }
}

int main(int argc, char **argv) {
    const char *what = argv[1];
    if (!strcmp(what, "work")) at_once();
    else if (!strcmp(what, "killed")) killed(argv + 2);
    else if (!strcmp(what, "killed-child")) { work(0); in_child(killed, argv + 2); }
    else if (!strcmp(what, "refused")) { work(0); refused(0); }
    else if (!strcmp(what, "refused-child")) { work(0); in_child(refused, 0); }
    else if (!strcmp(what, "borrows")) borrows();
    else if (!strcmp(what, "no-files")) no_files();
    else if (!strcmp(what, "locks")) locks();
    else if (!strcmp(what, "to-file")) {
        // All three descriptors were closed: the first is the program's own.
        int file = open(argv[2], O_WRONLY | O_CREAT, 0600);
        if (file != 0 || open("/dev/null", O_WRONLY) != 1) _exit(4);
        at_once();
        if (write(file, "done\n", 5) != 5) _exit(5);
        return 0;
    }
    // An address of nobody's: without options it is named, and the program ends.
    else if (!strcmp(what, "stranger")) { say(getauxval(AT_SECURE) ? "secure\n" : "plain\n"); free(hide(argv)); }
    else return 2;
    say("done\n");
    return 0;
}
