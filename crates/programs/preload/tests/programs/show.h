/* Prints what calls give, so that a run with the library can be compared with one without. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static void show(const char *what, long result)
{
    int error = errno;
    if (result < 0)
        printf("%s: %ld %s\n", what, result, strerrorname_np(error));
    else
        printf("%s: %ld\n", what, result);
    fflush(stdout);
    errno = 0;
}

/* Evaluates a call once and prints it with its result. */
#define TRY(call) (errno = 0, show(#call, (long)(call)))

/* A connected pair of TCP sockets over 127.0.0.1. */
static void tcp_pair(int pair[2])
{
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof name;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (struct sockaddr *)&name, length) || listen(listener, 8) ||
        getsockname(listener, (struct sockaddr *)&name, &length))
        abort();
    pair[0] = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(pair[0], (struct sockaddr *)&name, length))
        abort();
    pair[1] = accept(listener, NULL, NULL);
    close(listener);
}
