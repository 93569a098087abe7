// Calls made by the instruction itself, mixed with calls through libc: the same as without the library.
//   strict calls                     each kind of call that cannot be made from a handler; prints what it saw
//   strict listen|connect FILE N     N rounds of numbers each way, by two threads on two connections
//   strict listen|connect FILE N M   then the listener hands each socket to a program of its own, which echoes M numbers
//   strict echo                      that program: from descriptor 0 to 1, to the end
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

static long raw(long n, long a, long b, long c, long d, long e, long f) {
    long result;
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
    __asm__ volatile("syscall" : "=a"(result) : "0"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}
#define RAW(n, a, b, c, d) raw(n, (long)(a), (long)(b), (long)(c), (long)(d), 0, 0)

// ---- what cannot be made from a handler

struct kernel_action { void (*handler)(int, siginfo_t *, void *); unsigned long flags; void (*restorer)(void); uint64_t mask; };
void own_restorer(void);
__asm__(".globl own_restorer\nown_restorer:\nmov $15, %eax\nsyscall\n");

static volatile int seen, seen_on;
static char other[65536] __attribute__((aligned(16)));
static void handler(int signal, siginfo_t *info, void *context) {
    char here;
    seen = signal;
    seen_on = &here >= other && &here < other + sizeof other;
    RAW(SYS_getpid, 0, 0, 0, 0);
}
static sigjmp_buf back;
static void jumper(int signal) { RAW(SYS_getpid, 0, 0, 0, 0); siglongjmp(back, 1); }

static volatile int ran;
static int in_thread(void *argument) { ran = (int)(intptr_t)argument; return 0; }

// clone(2) by the instruction: the child runs on a stack of its own, calls the function and ends.
static long raw_clone(unsigned long flags, void *top, int (*run)(void *), void *argument, int *tid) {
    long result;
    void **stack = top;
    *--stack = argument;
    *--stack = (void *)run;
    register long r10 __asm__("r10") = (long)tid, r8 __asm__("r8") = 0;
    __asm__ volatile("syscall\n test %%rax, %%rax\n jnz 1f\n pop %%rax\n pop %%rdi\n call *%%rax\n"
                     "mov $60, %%eax\n xor %%edi, %%edi\n syscall\n1:"
                     : "=a"(result) : "0"(SYS_clone), "D"(flags), "S"(stack), "d"(tid), "r"(r10), "r"(r8)
                     : "rcx", "r11", "memory");
    return result;
}

static void *starts(void *argument) {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, NULL);
    int fd = RAW(SYS_openat, AT_FDCWD, "/dev/null", O_WRONLY, 0);
    long wrote = RAW(SYS_write, fd, "x", 1, 0);
    RAW(SYS_close, fd, 0, 0, 0);
    return (void *)wrote;
}

static void check(const char *what, long value) { printf("%s %ld\n", what, value); fflush(stdout); }

static int calls(void) {
    check("getpid", RAW(SYS_getpid, 0, 0, 0, 0) == getpid());
    check("error", RAW(SYS_read, -1, 0, 0, 0));
    struct kernel_action action = {handler, SA_SIGINFO | 0x04000000, own_restorer, ~0ul};
    check("action", RAW(SYS_rt_sigaction, SIGUSR1, &action, 0, 8));
    raise(SIGUSR1);
    check("raw handler", seen == SIGUSR1);
    struct kernel_action old;
    check("old action", RAW(SYS_rt_sigaction, SIGUSR1, 0, &old, 8));
    check("is ours", old.handler == handler);
    action.flags |= SA_ONSTACK;
    stack_t stack = {.ss_sp = other, .ss_size = sizeof other}, before;
    check("altstack", RAW(SYS_sigaltstack, &stack, 0, 0, 0));
    RAW(SYS_rt_sigaction, SIGUSR2, &action, 0, 8);
    raise(SIGUSR2);
    check("on the stack", seen == SIGUSR2 && seen_on);
    sigaltstack(NULL, &before);
    check("is kept", before.ss_sp == (void *)other);
    uint64_t mask = 1ul << (SIGUSR1 - 1), now = 0;
    check("block", RAW(SYS_rt_sigprocmask, SIG_BLOCK, &mask, 0, 8));
    seen = 0;
    raise(SIGUSR1);
    check("blocked", seen);
    check("mask", (RAW(SYS_rt_sigprocmask, SIG_BLOCK, 0, &now, 8), (now >> (SIGUSR1 - 1)) & 1));
    check("unblock", RAW(SYS_rt_sigprocmask, SIG_UNBLOCK, &mask, 0, 8));
    check("came", seen == SIGUSR1);
    uint64_t all = ~0ul;
    RAW(SYS_rt_sigprocmask, SIG_SETMASK, &all, &now, 8);
    check("all blocked", RAW(SYS_getppid, 0, 0, 0, 0) == getppid());
    RAW(SYS_rt_sigprocmask, SIG_SETMASK, &now, 0, 8);
    signal(SIGALRM, jumper);
    if (!sigsetjmp(back, 1)) {
        alarm(1);
        RAW(SYS_pause, 0, 0, 0, 0);
    }
    check("jumped out", RAW(SYS_getpid, 0, 0, 0, 0) == getpid());
    signal(SIGSYS, jumper);
    if (!sigsetjmp(back, 1)) {
        raise(SIGSYS);
        check("not reached", 0);
    }
    check("own SIGSYS", RAW(SYS_getpid, 0, 0, 0, 0) == getpid());
    signal(SIGSYS, SIG_DFL);

    int status = 0;
    long pid = RAW(SYS_fork, 0, 0, 0, 0);
    if (pid == 0) {
        RAW(SYS_exit_group, RAW(SYS_getpid, 0, 0, 0, 0) == getpid() ? 3 : 4, 0, 0, 0);
    }
    waitpid(pid, &status, 0);
    check("fork", WEXITSTATUS(status));
    if ((pid = fork()) == 0) {
        RAW(SYS_exit_group, RAW(SYS_read, -1, 0, 0, 0) == -EBADF ? 5 : 6, 0, 0, 0);
    }
    waitpid(pid, &status, 0);
    check("libc's fork", WEXITSTATUS(status));
    pid = vfork();
    if (pid == 0) {
        RAW(SYS_exit, RAW(SYS_getppid, 0, 0, 0, 0) > 0 ? 7 : 8, 0, 0, 0);
    }
    waitpid(pid, &status, 0);
    check("libc's vfork", WEXITSTATUS(status));
    pid = RAW(SYS_vfork, 0, 0, 0, 0);
    if (pid == 0) {
        raw(SYS_exit, 9, 0, 0, 0, 0, 0);
    }
    waitpid(pid, &status, 0);
    check("vfork", WEXITSTATUS(status));
    check("after vfork", RAW(SYS_getpid, 0, 0, 0, 0) == getpid());

    char *memory = mmap(0, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pid = raw_clone(CLONE_VM | SIGCHLD, memory + 65536, in_thread, (void *)11, 0);
    waitpid(pid, &status, 0);
    check("clone", ran);
    int tid = 1;
    unsigned long thread = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM;
    pid = raw_clone(thread | CLONE_PARENT_SETTID | CLONE_CHILD_CLEARTID, memory + 65536, in_thread, (void *)12, &tid);
    while (*(volatile int *)&tid != 0) {
        sched_yield();
    }
    check("thread by clone", ran);
    check("after clone", RAW(SYS_getpid, 0, 0, 0, 0) == getpid());

    pthread_t one;
    void *result = 0;
    pthread_create(&one, 0, starts, 0);
    pthread_join(one, &result);
    check("thread", (long)result);
    char *words[] = {"true", 0}, *none[] = {0};
    pid_t child;
    check("spawn", posix_spawnp(&child, "true", 0, 0, words, none));
    waitpid(child, &status, 0);
    check("spawned", status);
    check("system", system("exit 13"));
    int pair[2];
    check("socketpair", RAW(SYS_socketpair, AF_UNIX, SOCK_STREAM, 0, pair));
    struct pollfd entry = {pair[0], POLLIN, 0};
    struct timespec time = {0, 2000000};
    check("ppoll", RAW(SYS_ppoll, &entry, 1, &time, 0));
    RAW(SYS_write, pair[1], "abc", 3, 0);
    char text[4] = {0};
    check("read", RAW(SYS_read, pair[0], text, 3, 0));
    int set = RAW(SYS_epoll_create1, 0, 0, 0, 0);
    struct epoll_event event = {EPOLLOUT, {.fd = 5}};
    check("epoll_ctl", RAW(SYS_epoll_ctl, set, EPOLL_CTL_ADD, pair[0], &event));
    check("epoll_pwait", raw(SYS_epoll_pwait, set, (long)&event, 1, 0, 0, 8));
    check("execve", RAW(SYS_execve, "/bin/true", words, none, 0));
    return 1;
}

// ---- bytes in order

#define ENDS 2
static int rounds, connects, echoes;
static uint64_t state(uint64_t *word) {
    *word ^= *word << 13, *word ^= *word >> 7, *word ^= *word << 17;
    return *word;
}

static void put(int fd, uint64_t value, uint64_t *random) {
    char *at = (char *)&value;
    for (size_t left = 8; left != 0;) {
        long done;
        size_t now = 1 + state(random) % left;
        struct iovec piece = {at, now};
        switch (state(random) % 6) {
        case 0: done = RAW(SYS_write, fd, at, now, 0); break;
        case 1: done = raw(SYS_sendto, fd, (long)at, now, MSG_NOSIGNAL, 0, 0); break;
        case 2: done = RAW(SYS_writev, fd, &piece, 1, 0); break;
        case 3: done = send(fd, at, now, MSG_NOSIGNAL); break;
        default: done = write(fd, at, now);
        }
        if (done <= 0) {
            printf("sent %ld\n", done), exit(1);
        }
        at += done, left -= done;
    }
}

static uint64_t get(int fd, uint64_t *random) {
    uint64_t value;
    char *at = (char *)&value;
    for (size_t left = 8; left != 0;) {
        long done;
        switch (state(random) % 4) {
        case 0: done = RAW(SYS_read, fd, at, left, 0); break;
        case 1: done = raw(SYS_recvfrom, fd, (long)at, left, 0, 0, 0); break;
        default: done = read(fd, at, left);
        }
        if (done <= 0) {
            printf("received %ld\n", done), exit(1);
        }
        at += done, left -= done;
    }
    return value;
}

static void *serve(void *argument) {
    int fd = (int)(intptr_t)argument;
    uint64_t random = 88172645463325252ull + fd;
    for (uint64_t round = 0; round < (uint64_t)rounds; round++) {
        int some = 1 + round % 3;
        for (int turn = 0; turn < 2; turn++) {
            for (int n = 0; n < some; n++) {
                uint64_t wanted = round * 8 + n + (turn ^ connects ? 0 : 1ull << 63);
                if (turn ^ connects) {
                    uint64_t value = get(fd, &random);
                    if (value != wanted) {
                        printf("round %lu: %lx instead of %lx\n", round, value, wanted), exit(1);
                    }
                } else {
                    put(fd, wanted & ~(1ull << 63), &random);
                }
            }
        }
    }
    if (echoes == 0) {
        return 0;
    }
    if (connects) {
        for (int n = 0; n < echoes; n++) {
            uint64_t value = n * 3ull, back;
            if (write(fd, &value, 8) != 8 || recv(fd, &back, 8, MSG_WAITALL) != 8 || back != value) {
                printf("echo %d differs\n", n), exit(1);
            }
        }
        shutdown(fd, SHUT_WR);
        return 0;
    }
    char *words[] = {"strict", "echo", 0};
    int status = 0;
    pid_t child;
    if (fd % 2) {
        posix_spawn_file_actions_t actions;
        posix_spawn_file_actions_init(&actions);
        posix_spawn_file_actions_adddup2(&actions, fd, 0);
        posix_spawn_file_actions_adddup2(&actions, fd, 1);
        posix_spawn(&child, "./strict", &actions, 0, words, environ);
    } else if ((child = vfork()) == 0) {
        dup2(fd, 0);
        dup2(fd, 1);
        execv("./strict", words);
        _exit(127);
    }
    waitpid(child, &status, 0);
    if (status != 0) {
        printf("the program ended with %d\n", status), exit(1);
    }
    return 0;
}

static int echo(void) {
    char bytes[64];
    for (long n; (n = read(0, bytes, sizeof bytes)) > 0;) {
        if (write(1, bytes, n) != n) {
            return 1;
        }
    }
    return 0;
}

int main(int count, char **words) {
    if (count == 2) {
        return strcmp(words[1], "echo") == 0 ? echo() : calls();
    }
    echoes = count > 4 ? atoi(words[4]) : 0;
    rounds = atoi(words[3]);
    connects = strcmp(words[1], "connect") == 0;
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof name;
    int fds[ENDS];
    if (connects) {
        int port = 0;
        for (FILE *file; port == 0; usleep(1000)) {
            if ((file = fopen(words[2], "r"))) {
                if (fscanf(file, "%d.", &port) != 1) port = 0;
                fclose(file);
            }
        }
        name.sin_port = htons(port);
        for (int n = 0; n < ENDS; n++) {
            fds[n] = n ? socket(AF_INET, SOCK_STREAM, 0) : RAW(SYS_socket, AF_INET, SOCK_STREAM, 0, 0);
            if (connect(fds[n], (void *)&name, sizeof name)) perror("connect"), exit(1);
        }
    } else {
        int listener = socket(AF_INET, SOCK_STREAM, 0);
        bind(listener, (void *)&name, sizeof name);
        listen(listener, ENDS);
        getsockname(listener, (void *)&name, &length);
        char part[4096];
        snprintf(part, sizeof part, "%s.part", words[2]);
        FILE *file = fopen(part, "w");
        fprintf(file, "%d.\n", ntohs(name.sin_port));
        fclose(file);
        rename(part, words[2]);
        for (int n = 0; n < ENDS; n++) {
            fds[n] = n ? accept(listener, 0, 0) : RAW(SYS_accept4, listener, 0, 0, 0);
        }
    }
    for (int n = 0, one = 1; n < ENDS; n++) {
        // Numbers go out in pieces: without it each would wait for an acknowledgement on the kernel.
        setsockopt(fds[n], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    }
    pthread_t threads[ENDS];
    for (int n = 0; n < ENDS; n++) pthread_create(&threads[n], 0, serve, (void *)(intptr_t)fds[n]);
    for (int n = 0; n < ENDS; n++) pthread_join(threads[n], 0);
    printf("right\n");
    return 0;
}
