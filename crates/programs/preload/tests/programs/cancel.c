/* A thread cancelled while it waits in each of the calls ends there, and its clean-up runs. */
#include "show.h"

static int pair[2], listener, set, one[2];
static volatile int cleaned;

static void cleans(void *unused) { (void)unused; cleaned++; }

static void *waits(void *which)
{
    char c;
    struct iovec in = {&c, 1};
    struct msghdr m = {.msg_iov = &in, .msg_iovlen = 1};
    struct pollfd p = {pair[1], POLLIN, 0};
    struct epoll_event event;
    fd_set r;
    FD_ZERO(&r);
    FD_SET(pair[1], &r);
    pthread_cleanup_push(cleans, NULL);
    switch ((long)which) {
    case 0: (void)!recv(pair[1], &c, 1, 0); break;
    case 1: (void)!read(pair[1], &c, 1); break;
    case 2: accept(listener, NULL, NULL); break;
    case 3: poll(&p, 1, -1); break;
    case 4: select(pair[1] + 1, &r, NULL, NULL, NULL); break;
    case 5: epoll_wait(set, &event, 1, -1); break;
    case 6: (void)!recvmsg(pair[1], &m, 0); break;
    case 7: (void)!readv(pair[1], &in, 1); break;
    case 8: (void)!recvfrom(pair[1], &c, 1, 0, NULL, NULL); break;
    case 9: ppoll(&p, 1, NULL, NULL); break;
    case 10: for (;;) (void)!send(pair[0], waits, 1000, 0); break;
    case 11: for (;;) (void)!write(one[1], waits, 1000); break;
    case 12: pselect(pair[1] + 1, &r, NULL, NULL, NULL, NULL); break;
    }
    pthread_cleanup_pop(0);
    return NULL;
}

int main(void)
{
    tcp_pair(pair);
    tcp_pair(one);
    listener = socket(AF_INET, SOCK_STREAM, 0);
    listen(listener, 1);
    set = epoll_create1(0);
    epoll_ctl(set, EPOLL_CTL_ADD, pair[1], &(struct epoll_event){.events = EPOLLIN});
    for (long which = 0; which < 13; which++) {
        pthread_t thread;
        void *result;
        if (which == 10)
            fcntl(pair[1], F_SETFL, 0);
        cleaned = 0;
        pthread_create(&thread, NULL, waits, (void *)which);
        usleep(30000);
        pthread_cancel(thread);
        pthread_join(thread, &result);
        printf("%ld cancelled %d cleaned %d\n", which, result == PTHREAD_CANCELED, cleaned);
        if (which == 10)
            break;
    }
    return 0;
}
