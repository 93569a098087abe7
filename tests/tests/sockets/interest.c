/* One thread that changes what it waits for, and whoever else could see it: the same lines with and without the library.
 *
 *   interest serve PORT          does what it is told on connections that it accepts; says its port (0: any that is free)
 *   interest act PORT SEED LAST  random calls on an epoll instance with level-triggered members; LAST says how it ends
 *   interest look FD             what an inherited instance reports
 *
 * Each line is a call and its result. Readiness is printed at quiet points only. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ENDS = 4, PIPE = 100, STEPS = 60, WARM = 60 };

static void check(int ok, const char *what) {
    if (!ok) {
        perror(what);
        exit(1);
    }
}

/* Orders to the server: what, which connection, how much. */
struct order {
    int what, end, bytes;
};

static void whole(int fd, void *at, size_t bytes) {
    for (size_t done = 0; done < bytes;) {
        ssize_t got = recv(fd, (char *)at + done, bytes - done, 0);
        check(got > 0, "recv");
        done += got;
    }
}

static void serve(int port) {
    int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1, end[ENDS + 1];
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    check(bind(listener, (void *)&name, sizeof name) == 0 && listen(listener, 8) == 0, "listen");
    socklen_t bytes_of_name = sizeof name;
    check(getsockname(listener, (void *)&name, &bytes_of_name) == 0, "name");
    printf("ready %d\n", ntohs(name.sin_port));
    fflush(stdout);
    for (int at = 0; at <= ENDS; at++) {
        end[at] = accept(listener, NULL, NULL);
        check(end[at] >= 0, "accept");
        setsockopt(end[at], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    }
    static char bytes[1 << 16];
    struct order order;
    for (;;) {
        if (recv(end[ENDS], &order, sizeof order, MSG_WAITALL) != sizeof order)
            exit(0);
        int fd = end[order.end];
        struct linger now = {1, 0};
        switch (order.what) {
        case 'w':
            for (int round = 0; round < order.bytes; round++) {
                whole(fd, bytes, 10);
                check(send(fd, bytes, 10, 0) == 10, "send");
            }
            break;
        case 's':
            send(fd, bytes, order.bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
            break;
        case 'd':
            for (struct pollfd one = {fd, POLLIN, 0}; poll(&one, 1, 10) == 1 && recv(fd, bytes, sizeof bytes, MSG_DONTWAIT) > 0;)
                ;
            setsockopt(fd, IPPROTO_TCP, TCP_QUICKACK, &one, sizeof one);
            break;
        case 'r':
            setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
            /* fall through */
        case 'c':
            close(fd);
            break;
        }
        check(send(end[ENDS], "k", 1, 0) == 1, "answer");
    }
}

static int set, end[ENDS], orders, tube[2];
static unsigned long long state;

static unsigned below(unsigned limit) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (state * 0x2545f4914f6cdd1dULL >> 33) % limit;
}

static void tell(int what, int which, int bytes) {
    struct order order = {what, which, bytes};
    char done;
    check(send(orders, &order, sizeof order, 0) == sizeof order, "order");
    whole(orders, &done, 1);
}

/* Has the server read all of a connection, and waits until that is acknowledged: only then there is as much room as there will be. */
static void drain(int at) {
    int left = 1;
    tell('d', at, 0);
    for (int look = 0; look < 100 && ioctl(end[at], SIOCOUTQ, &left) == 0 && left > 0; look++)
        usleep(1000);
}

static int by_data(const void *a, const void *b) {
    const struct epoll_event *left = a, *right = b;
    return (left->data.u64 > right->data.u64) - (left->data.u64 < right->data.u64);
}

static void print(const char *what, struct epoll_event *events, int count) {
    if (count > 0)
        qsort(events, count, sizeof *events, by_data);
    printf("%s %d", what, count);
    for (int at = 0; at < count; at++)
        printf(" %llu:%x", (unsigned long long)events[at].data.u64, events[at].events);
    puts("");
    fflush(stdout);
}

/* What a set reports once all is quiet. A wait that reports something may leave out something else, to be reported by one of the
 * next ones. */
static void observe(const char *what, int from) {
    struct epoll_event all[16], events[16];
    int count = 0;
    usleep(1500);
    for (int look = 0; look < 6; look++) {
        int found = epoll_wait(from, events, 16, 0);
        for (int at = 0; at < found; at++) {
            int same = 0;
            while (same < count && all[same].data.u64 != events[at].data.u64)
                same++;
            if (same == count)
                all[count++] = (struct epoll_event){0, events[at].data};
            all[same].events |= events[at].events;
        }
        usleep(50);
    }
    print(what, all, count);
}

static int control(int operation, int fd, unsigned mask, unsigned long long data) {
    struct epoll_event event = {mask, {.u64 = data}};
    int result = epoll_ctl(set, operation, fd, &event);
    return result ? errno : 0;
}

/* As a client that asks for room, writes, asks for the answer and reads it. */
static void toggle(int at, int rounds) {
    char bytes[10] = {0};
    struct epoll_event event;
    for (int round = 0; round < rounds; round++) {
        check(control(EPOLL_CTL_ADD, end[at], EPOLLOUT, at) == 0, "add");
        check(epoll_wait(set, &event, 1, -1) == 1 && event.events & EPOLLOUT, "writable");
        check(send(end[at], bytes, 10, 0) == 10, "send");
        check(control(EPOLL_CTL_DEL, end[at], 0, 0) == 0, "del");
        check(control(EPOLL_CTL_ADD, end[at], EPOLLIN, at) == 0, "add");
        check(epoll_wait(set, &event, 1, -1) == 1 && event.events & EPOLLIN, "readable");
        whole(end[at], bytes, 10);
        check(control(EPOLL_CTL_MOD, end[at], EPOLLIN, at) == 0, "mod");
        check(control(EPOLL_CTL_DEL, end[at], 0, 0) == 0, "del");
    }
}

static const unsigned MASKS[] = {EPOLLIN, EPOLLOUT, EPOLLIN | EPOLLOUT, 0, EPOLLIN | EPOLLRDHUP, EPOLLRDHUP, EPOLLIN | EPOLLPRI,
                                 EPOLLOUT | EPOLLRDHUP};

static unsigned a_mask(void) {
    unsigned mask = MASKS[below(8)];
    switch (below(25)) {
    case 0:
        return mask | EPOLLET;
    case 1:
        return mask | EPOLLONESHOT;
    }
    return mask;
}

static void change(int at) {
    static const int operations[] = {EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLL_CTL_DEL, 9};
    int operation = operations[below(40) ? below(3) : 3];
    unsigned mask = a_mask();
    /* An edge that was reported or not is no quiet matter. */
    mask &= ~(unsigned)EPOLLET | (below(2) ? EPOLLET : 0);
    unsigned long long data = below(30) ? at : at + 50;
    printf("ctl %d %d %x %d\n", operation, at, mask, control(operation, end[at], mask, data));
}

static void step(void) {
    static char bytes[1 << 16];
    struct epoll_event events[16];
    int at = below(ENDS), value = 1 << (12 + below(6));
    ssize_t got;
    switch (below(24)) {
    case 0:
    case 1:
        tell('s', at, 1 + below(5000));
        break;
    case 2:
    case 3:
        got = recv(end[at], bytes, sizeof bytes, MSG_DONTWAIT);
        printf("recv %d %s\n", at, got > 0 ? "some" : got == 0 ? "end" : strerrorname_np(errno));
        break;
    case 4:
    case 5:
        send(end[at], bytes, 1 + below(3000), MSG_DONTWAIT | MSG_NOSIGNAL);
        drain(at);
        break;
    case 6:
        /* How much is full, and when what was acknowledged makes room, is up to time. */
        while (send(end[at], bytes, sizeof bytes, MSG_DONTWAIT | MSG_NOSIGNAL) > 0)
            ;
        printf("fill %d %s\n", at, strerrorname_np(errno));
        epoll_wait(set, events, 16, 0);
        drain(at);
        break;
    case 7:
        setsockopt(end[at], SOL_SOCKET, SO_SNDBUF, &value, sizeof value);
        break;
    case 8:
        printf("pipe %d\n", below(2) ? (int)write(tube[1], bytes, 1) : (int)read(tube[0], bytes, 1) > 0);
        break;
    case 9:
        printf("ctl pipe %d\n", control(below(2) ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, tube[0], EPOLLIN, PIPE));
        break;
    case 10:
        if (below(6) == 0) {
            tell(below(2) ? 'c' : 'r', at, 0);
            usleep(3000);
        }
        break;
    case 11:
        if (below(6) == 0)
            printf("close %d %d\n", at, close(end[at]));
        break;
    case 12:
        if (below(6) == 0) {
            int other = dup(end[at]);
            printf("dup %d %d\n", other >= 0, close(end[at]));
            observe("left", set);
            if (other >= 0 && dup2(other, end[at]) >= 0)
                close(other);
        }
        break;
    case 13:
    case 14:
        observe("wait", set);
        break;
    default:
        change(at);
    }
}

static void *waits(void *unused) {
    observe("thread", set);
    return unused;
}

static void handler(int number) {
    (void)number;
    observe("handler", set);
    printf("handler ctl %d\n", control(EPOLL_CTL_MOD, end[0], EPOLLOUT, 0));
}

static void children(int port) {
    int go[2], back[2];
    char byte = 0;
    check(pipe(go) == 0 && pipe(back) == 0, "pipe");
    pid_t child = fork();
    if (child == 0) {
        for (int look = 0; look < 2; look++) {
            observe("child", set);
            check(write(back[1], &byte, 1) == 1 && read(go[0], &byte, 1) == 1, "turn");
        }
        printf("child ctl %d\n", control(EPOLL_CTL_MOD, end[1], EPOLLIN | EPOLLOUT, 1));
        fflush(stdout);
        _exit(0);
    }
    for (int look = 0; look < 2; look++) {
        check(read(back[0], &byte, 1) == 1, "turn");
        for (int at = 0; at < ENDS; at++)
            printf("parent ctl %d\n", control(EPOLL_CTL_MOD, end[at], MASKS[below(3)], at));
        fflush(stdout);
        check(write(go[1], &byte, 1) == 1, "turn");
    }
    waitpid(child, NULL, 0);
    (void)port;
}

static void last(const char *what, int port) {
    pthread_t thread;
    struct pollfd one = {set, POLLIN, 0};
    struct epoll_event event = {EPOLLIN, {.u64 = 7}};
    if (!strcmp(what, "fork") || !strcmp(what, "poll") || !strcmp(what, "exec")) {
        /* Who looks round the library finds bytes that lie in a ring only later. */
        usleep(700000);
        for (int more = 0; more < 4; more++)
            change(below(ENDS));
    }
    if (!strcmp(what, "fork")) {
        children(port);
    } else if (!strcmp(what, "thread")) {
        pthread_create(&thread, NULL, waits, NULL);
        pthread_join(thread, NULL);
    } else if (!strcmp(what, "poll")) {
        int other = dup(set);
        observe("dup", other);
        usleep(1000);
        printf("poll %d", poll(&one, 1, 0));
        printf(" %x\n", one.revents);
        close(set);
        set = other;
    } else if (!strcmp(what, "nest")) {
        int outer = epoll_create1(0);
        epoll_ctl(outer, EPOLL_CTL_ADD, set, &event);
        observe("outer", outer);
        change(below(ENDS));
        observe("outer", outer);
    } else if (!strcmp(what, "exec")) {
        char number[12];
        snprintf(number, sizeof number, "%d", set);
        fflush(stdout);
        execl("/proc/self/exe", "interest", "look", number, NULL);
    } else if (!strcmp(what, "signal")) {
        struct sigaction action = {.sa_handler = handler};
        sigfillset(&action.sa_mask);
        sigaction(SIGUSR1, &action, NULL);
        change(below(ENDS));
        raise(SIGUSR1);
    } else if (!strcmp(what, "vfork")) {
        pid_t child = vfork();
        if (child == 0)
            _exit(0);
        waitpid(child, NULL, 0);
    }
    for (int more = 0; more < 10; more++)
        change(below(ENDS));
    observe("last", set);
}

static void act(int port, unsigned long long seed, const char *ends) {
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int one = 1;
    state = seed * 0x9e3779b97f4a7c15ULL | 1;
    signal(SIGPIPE, SIG_IGN);
    set = epoll_create1(0);
    check(set >= 0 && pipe2(tube, O_NONBLOCK) == 0, "make");
    for (int at = 0; at <= ENDS; at++) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        check(connect(fd, (void *)&name, sizeof name) == 0, "connect");
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        *(at < ENDS ? &end[at] : &orders) = fd;
    }
    for (int at = 0; at < ENDS; at++) {
        struct order order = {'w', at, WARM};
        char done;
        check(send(orders, &order, sizeof order, 0) == sizeof order, "order");
        toggle(at, WARM);
        whole(orders, &done, 1);
    }
    for (int at = 0; at < STEPS; at++)
        step();
    last(ends, port);
}

int main(int count, char **arguments) {
    setvbuf(stdout, NULL, _IOFBF, 1 << 16);
    if (count == 3 && !strcmp(arguments[1], "serve"))
        serve(atoi(arguments[2]));
    else if (count == 3 && !strcmp(arguments[1], "look"))
        observe("look", atoi(arguments[2]));
    else if (count == 5 && !strcmp(arguments[1], "act"))
        act(atoi(arguments[2]), strtoull(arguments[3], NULL, 10), arguments[4]);
    else
        return 2;
    return 0;
}
