/* Signals in the middle of calls: EINTR, SA_RESTART, jumps, handlers that send, and what sigaction shows. */
#include "show.h"

static int pair[2];
static sigjmp_buf out;
static volatile int count, on_stack, value;
static char stack[65536];

static void nothing(int signal) { count += signal == SIGALRM || signal == SIGUSR1; }
static void sends(int signal) { (void)signal; count++; (void)!write(pair[0], "h", 1); }
static void jumps(int signal) { siglongjmp(out, signal); }

static void looks(int signal)
{
    (void)signal;
    char here;
    on_stack = &here >= stack && &here < stack + sizeof stack;
}

static void informed(int signal, siginfo_t *info, void *context)
{
    (void)signal;
    value = info->si_code == SI_QUEUE ? info->si_value.sival_int : context != NULL ? -1 : -2;
}

static void *bad;
static void fault(int signal, siginfo_t *info, void *context)
{
    (void)context;
    printf("fault %d %d\n", signal, info->si_addr == bad);
    siglongjmp(out, 1);
}

static void after(long usec)
{
    struct itimerval timer = {{0, 0}, {0, usec}};
    setitimer(ITIMER_REAL, &timer, NULL);
}

static void install(int signal, void (*handler)(int), int flags)
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    sigemptyset(&action.sa_mask);
    TRY(sigaction(signal, &action, NULL));
}

static void shown(int signal, const void *expected)
{
    struct sigaction now;
    TRY(sigaction(signal, NULL, &now));
    printf("same %d flags %x\n", (void *)now.sa_handler == expected, now.sa_flags & ~0x04000000);
}

int main(void)
{
    char c;
    struct pollfd set;
    tcp_pair(pair);
    set = (struct pollfd){pair[1], POLLIN, 0};

    install(SIGALRM, nothing, 0);
    shown(SIGALRM, nothing);
    after(20000);
    TRY(recv(pair[1], &c, 1, 0));
    after(20000);
    TRY(read(pair[1], &c, 1));
    after(20000);
    TRY(poll(&set, 1, -1));
    int e = epoll_create1(0);
    epoll_ctl(e, EPOLL_CTL_ADD, pair[1], &(struct epoll_event){.events = EPOLLIN});
    after(20000);
    TRY(epoll_wait(e, &(struct epoll_event){0}, 1, -1));

    install(SIGALRM, sends, SA_RESTART);
    shown(SIGALRM, sends);
    after(20000);
    TRY(recv(pair[1], &c, 1, 0));
    printf("count %d %c\n", count, c);

    install(SIGALRM, jumps, 0);
    after(20000);
    if (!sigsetjmp(out, 1))
        TRY(recv(pair[1], &c, 1, 0));
    else
        puts("jumped");
    TRY(write(pair[0], "j", 1));
    TRY(recv(pair[1], &c, 1, 0));

    stack_t other = {.ss_sp = stack, .ss_size = sizeof stack};
    TRY(sigaltstack(&other, NULL));
    install(SIGALRM, looks, SA_ONSTACK | SA_RESETHAND);
    shown(SIGALRM, looks);
    after(20000);
    TRY(recv(pair[1], &c, 1, 0));
    printf("on stack %d\n", on_stack);
    shown(SIGALRM, SIG_DFL);

    struct sigaction action = {.sa_sigaction = informed, .sa_flags = SA_SIGINFO};
    TRY(sigaction(SIGUSR1, &action, NULL));
    shown(SIGUSR1, informed);
    TRY(sigqueue(getpid(), SIGUSR1, (union sigval){.sival_int = 42}));
    printf("value %d\n", value);
    TRY(raise(SIGUSR1));
    printf("value %d\n", value);

    printf("old %d\n", signal(SIGUSR1, nothing) == (void *)informed);
    shown(SIGUSR1, nothing);
    TRY(siginterrupt(SIGUSR1, 1));
    shown(SIGUSR1, nothing);
    printf("old %d\n", signal(SIGUSR1, SIG_IGN) == nothing);
    shown(SIGUSR1, SIG_IGN);
    printf("old %d\n", signal(SIGUSR1, SIG_DFL) == SIG_IGN);
    printf("old %d\n", sysv_signal(SIGUSR1, nothing) == SIG_DFL);
    shown(SIGUSR1, nothing);
    TRY(raise(SIGUSR1));
    shown(SIGUSR1, SIG_DFL);
    TRY((long)signal(SIGKILL, nothing));
    TRY(sigaction(0, NULL, &action));
    TRY(sigaction(65, NULL, &action));
    printf("hold %d\n", sigset(SIGUSR2, SIG_HOLD) == SIG_DFL);
    printf("held %d\n", sigset(SIGUSR2, nothing) == SIG_HOLD);
    TRY(sigignore(SIGUSR2));
    shown(SIGUSR2, SIG_IGN);

    /* The library's own interest in faults does not show. */
    shown(SIGSEGV, SIG_DFL);
    bad = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    action = (struct sigaction){.sa_sigaction = fault, .sa_flags = SA_SIGINFO | SA_NODEFER};
    TRY(sigaction(SIGSEGV, &action, NULL));
    TRY(writev(pair[0], bad, 3));
    if (!sigsetjmp(out, 1))
        *(volatile char *)bad = 1;
    shown(SIGSEGV, fault);
    signal(SIGSEGV, SIG_DFL);
    shown(SIGSEGV, SIG_DFL);
    TRY(writev(pair[0], bad, 3));
    int status;
    for (int way = 0; way < 3; way++) {
        if (fork() == 0) {
            if (way == 0)
                *(volatile char *)bad = 1;
            if (way == 2)
                signal(SIGSEGV, SIG_IGN);
            raise(SIGSEGV);
            _exit(3);
        }
        wait(&status);
        printf("died %d %d\n", WIFSIGNALED(status) ? WTERMSIG(status) : 0, WEXITSTATUS(status));
    }
    return 0;
}
