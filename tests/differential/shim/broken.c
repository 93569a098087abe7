/* A library that is preloaded and wrong in one way, which $BROKEN names: the differential runner must find it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static int is(const char *fault) {
    const char *wanted = getenv("BROKEN");
    return wanted && strcmp(wanted, fault) == 0;
}

/* True once, the `nth` time. */
static int once(int nth) {
    static int calls;
    return __atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED) == nth;
}

static int is_socket(int fd) {
    int type;
    socklen_t length = sizeof type;
    return NEXT(getsockopt)(fd, SOL_SOCKET, SO_TYPE, &type, &length) == 0;
}

ssize_t send(int fd, const void *data, size_t length, int flags) {
    if (is("swap") && length >= 2 && length < 4096 && once(8)) {
        unsigned char copy[4096];
        memcpy(copy, data, length);
        unsigned char first = copy[0];
        copy[0] = copy[1];
        copy[1] = first;
        return NEXT(send)(fd, copy, length, flags);
    }
    if (is("double") && length >= 1 && once(9))
        NEXT(send)(fd, data, 1, flags);
    if (is("nosignal"))
        flags |= MSG_NOSIGNAL;
    if (is("oob"))
        flags &= ~MSG_OOB;
    ssize_t sent = NEXT(send)(fd, data, length, flags);
    if (is("epipe") && sent < 0 && errno == EPIPE)
        errno = ECONNRESET;
    return sent;
}

ssize_t write(int fd, const void *data, size_t length) {
    if (is("lost") && length == 1000 && is_socket(fd))
        return (ssize_t)length;
    return NEXT(write)(fd, data, length);
}

ssize_t recv(int fd, void *data, size_t length, int flags) {
    if (is("peek"))
        flags &= ~MSG_PEEK;
    if (is("waitall"))
        flags &= ~MSG_WAITALL;
    ssize_t came = NEXT(recv)(fd, data, length, flags);
    if (is("eof") && came == 0 && length > 0) {
        errno = EAGAIN;
        return -1;
    }
    if (is("asleep") && came > 0 && once(4))
        pause();
    if (is("eintr") && came < 0 && errno == EINTR)
        return NEXT(recv)(fd, data, length, flags);
    return came;
}

int poll(struct pollfd *members, nfds_t count, int timeout) {
    int ready = NEXT(poll)(members, count, timeout);
    for (nfds_t i = 0; is("hup") && i < count; i++)
        members[i].revents &= ~POLLHUP;
    for (nfds_t i = 0; is("out") && i < count; i++)
        members[i].revents |= members[i].events & POLLOUT;
    return ready;
}

int epoll_wait(int set, struct epoll_event *events, int room, int timeout) {
    int count = NEXT(epoll_wait)(set, events, room, timeout);
    if (is("edge") && count == 1 && events[0].events & EPOLLIN && once(1))
        return 0;
    return count;
}

int close(int fd) {
    if (is("dup") && is_socket(fd))
        shutdown(fd, SHUT_RDWR);
    if (is("linger") && is_socket(fd)) {
        struct linger none = {0, 0};
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof none);
    }
    return NEXT(close)(fd);
}

int fcntl(int fd, int command, ...) {
    va_list rest;
    va_start(rest, command);
    long argument = va_arg(rest, long);
    va_end(rest);
    if (is("setfl") && command == F_SETFL)
        return 0;
    return NEXT(fcntl)(fd, command, argument);
}

int ioctl(int fd, unsigned long request, ...) {
    va_list rest;
    va_start(rest, request);
    int *value = va_arg(rest, int *);
    va_end(rest);
    int done = NEXT(ioctl)(fd, request, value);
    if (is("fionread") && request == FIONREAD && done == 0 && *value > 0)
        *value -= 1;
    return done;
}

int socket(int domain, int type, int protocol) {
    int fd = NEXT(socket)(domain, type, protocol);
    if (is("number") && once(2))
        dup(fd);
    return fd;
}

int getsockopt(int fd, int level, int name, void *value, socklen_t *length) {
    int done = NEXT(getsockopt)(fd, level, name, value, length);
    if (is("sndbuf") && level == SOL_SOCKET && name == SO_SNDBUF && done == 0)
        *(int *)value = 212992;
    if (is("error") && level == SOL_SOCKET && name == SO_ERROR && done == 0)
        *(int *)value = 0;
    return done;
}
