/* Results and errno of every kind of call, right and wrong. */
#include "show.h"

static void *nowhere;

static void data(int a, int b)
{
    char text[64] = {0};
    struct iovec two[2] = {{"ab", 2}, {"cd", 2}}, in[2] = {{text, 1}, {text + 8, 40}};
    struct sockaddr_in from;
    socklen_t length = sizeof from;

    TRY(write(a, "hello", 5));
    TRY(read(b, text, 2));
    TRY(recv(b, text, 10, MSG_PEEK));
    TRY(recv(b, text, 10, 0));
    puts(text);
    TRY(recv(b, text, 10, MSG_DONTWAIT));
    TRY(send(a, "", 0, 0));
    TRY(read(b, text, 0));
    TRY(writev(a, two, 2));
    TRY(readv(b, in, 2));
    printf("%.1s %.3s\n", text, text + 8);
    TRY(pwritev2(a, two, 2, -1, 0));
    TRY(preadv2(b, in, 2, -1, 0));
    TRY(pwritev2(a, two, 2, 0, 0));
    TRY(preadv(b, in, 2, 0));
    TRY(sendto(a, "xyz", 3, 0, NULL, 0));
    TRY(recvfrom(b, text, 3, 0, (struct sockaddr *)&from, &length));
    printf("name %d\n", (int)length);
    TRY(send(a, "oob", 3, MSG_OOB));
    TRY(recv(b, text, 10, MSG_OOB));
    TRY(recv(b, text, 10, 0));
    TRY(send(a, "12345678", 8, MSG_MORE));
    TRY(send(a, "9", 1, 0));
    TRY(recv(b, text, 9, MSG_WAITALL));
    TRY(send(a, "trunc", 5, 0));
    TRY(recv(b, NULL, 5, MSG_TRUNC));
    TRY(write(a, nowhere, 5));
    TRY(write(a, "x", 1));
    TRY(read(b, nowhere, 5));
    TRY(read(b, text, 5));
    TRY(readv(b, nowhere, 2));
    TRY(writev(a, nowhere, 2));
    TRY(writev(a, two, -1));
    TRY(writev(a, two, 1025));
    TRY(writev(a, two, 0));
    in[1].iov_len = (size_t)-1;
    TRY(readv(b, in, 2));
    TRY(recvfrom(b, text, 3, MSG_DONTWAIT, nowhere, nowhere));
    TRY(read(-1, text, 1));
    TRY(write(4000, text, 1));
    TRY(recv(0, text, 1, 0) == -1 && errno == ENOTSOCK);
}

static void messages(int a, int b)
{
    char text[64] = {0};
    struct iovec out = {"msg", 3}, in = {text, 60};
    struct msghdr m = {.msg_iov = &out, .msg_iovlen = 1}, r = {.msg_iov = &in, .msg_iovlen = 1};
    struct mmsghdr many[3] = {{.msg_hdr = m}, {.msg_hdr = m}, {.msg_hdr = m}};

    TRY(sendmsg(a, &m, 0));
    TRY(recvmsg(b, &r, 0));
    TRY(sendmsg(a, nowhere, 0));
    TRY(recvmsg(b, nowhere, MSG_DONTWAIT));
    m.msg_control = nowhere, m.msg_controllen = 32;
    TRY(sendmsg(a, &m, 0));
    TRY(sendmmsg(a, many, 3, 0));
    for (int i = 0; i < 3; i++)
        many[i].msg_hdr = r;
    in.iov_len = 9;
    TRY(recvmmsg(b, many, 3, MSG_DONTWAIT, NULL));
    TRY(recvmmsg(b, nowhere, 3, MSG_DONTWAIT, NULL));
}

static void waiting(int a, int b)
{
    struct pollfd set[3] = {{a, POLLIN | POLLOUT, 0}, {b, POLLIN, 0}, {-1, POLLIN, 0}};
    struct timespec soon = {0, 1000000};
    struct timeval tick = {0, 1000};
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 7}, got[4];
    fd_set r, w;

    TRY(poll(set, 3, 0));
    printf("%x %x %x\n", set[0].revents, set[1].revents, set[2].revents);
    TRY(write(a, "p", 1));
    TRY(poll(set, 3, -1));
    printf("%x %x %x\n", set[0].revents, set[1].revents, set[2].revents);
    TRY(ppoll(set + 1, 1, &soon, NULL));
    TRY(poll(nowhere, 2, 0));
    TRY(poll(set, 1u << 30, 0));
    TRY(poll(NULL, 0, 1));
    FD_ZERO(&r);
    FD_ZERO(&w);
    FD_SET(b, &r);
    FD_SET(a, &w);
    TRY(select((a > b ? a : b) + 1, &r, &w, NULL, &tick));
    printf("%d %d\n", FD_ISSET(b, &r), FD_ISSET(a, &w));
    TRY(select(b + 1, nowhere, NULL, NULL, &tick));
    TRY(select(-1, NULL, NULL, NULL, &tick));
    TRY(select(0, NULL, NULL, NULL, &tick));
    TRY(pselect(b + 1, &r, NULL, NULL, &soon, NULL));
    int e = epoll_create1(EPOLL_CLOEXEC);
    TRY(epoll_ctl(e, EPOLL_CTL_ADD, b, &event));
    TRY(epoll_ctl(e, EPOLL_CTL_ADD, b, &event));
    TRY(epoll_ctl(e, EPOLL_CTL_MOD, a, &event));
    TRY(epoll_ctl(e, EPOLL_CTL_ADD, b, nowhere));
    TRY(epoll_wait(e, got, 4, -1));
    printf("%x %d\n", got[0].events, (int)got[0].data.u64);
    TRY(epoll_wait(e, got, 0, 0));
    TRY(epoll_wait(e, nowhere, 4, 0));
    TRY(epoll_wait(a, got, 4, 0));
    TRY(epoll_pwait(e, got, 4, 0, NULL));
    TRY(epoll_pwait2(e, got, 4, &soon, NULL));
    TRY(epoll_ctl(e, EPOLL_CTL_DEL, b, NULL));
    TRY(epoll_wait(e, got, 4, 1));
    char c;
    TRY(read(b, &c, 1));
    close(e);
}

/* select() with a number beyond 1,024, in sets that the program made longer. */
static void high(int b)
{
    int far = fcntl(b, F_DUPFD, 1500);
    size_t bytes = 2048 / 8;
    fd_set *set = calloc(1, bytes);
    struct timeval tick = {0, 1000};
    printf("far %d\n", far);
    ((unsigned long *)set)[far / 64] |= 1ul << (far % 64);
    TRY(select(far + 1, set, NULL, NULL, &tick));
    printf("%d\n", (int)(((unsigned long *)set)[far / 64] >> (far % 64) & 1));
    close(far);
    TRY(read(far, &tick, 1));
}

static void options(int a, int b)
{
    int value = 0, on = 1;
    socklen_t length = sizeof value;
    TRY(setsockopt(a, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on));
    TRY(getsockopt(a, IPPROTO_TCP, TCP_NODELAY, &value, &length));
    printf("nodelay %d\n", value);
    TRY(setsockopt(a, SOL_SOCKET, SO_SNDBUF, nowhere, 4));
    TRY(getsockopt(a, SOL_SOCKET, SO_TYPE, nowhere, &length));
    TRY(getsockopt(a, 12345, 1, &value, &length));
    TRY(write(a, "four", 4));
    TRY(ioctl(b, FIONREAD, &value));
    printf("fionread %d\n", value);
    TRY(ioctl(b, FIONBIO, &on));
    TRY(fcntl(b, F_GETFL) & O_NONBLOCK ? 1 : 0);
    TRY(fcntl64(b, F_SETFL, 0));
    TRY(fcntl(b, 9999, 0));
    TRY(ioctl(b, 0x1234, 0));
    char text[8];
    TRY(read(b, text, 8));
}

static void files(int a, int b)
{
    char text[16] = {0};
    int p[2];
    int file = open("/proc/self/exe", O_RDONLY);
    off_t at = 0;
    loff_t none = 0;
    TRY(sendfile(a, file, &at, 4));
    TRY(read(b, text, 16));
    TRY(sendfile(a, file, nowhere, 4));
    TRY(pipe2(p, O_CLOEXEC));
    TRY(write(p[1], "pipe", 4));
    TRY(splice(p[0], NULL, a, NULL, 4, 0));
    TRY(splice(b, NULL, p[1], NULL, 4, 0));
    TRY(splice(b, &none, p[1], NULL, 4, 0));
    TRY(read(p[0], text, 16));
    puts(text);
    TRY(copy_file_range(a, NULL, b, NULL, 4, 0));
    TRY(lseek(a, 0, SEEK_SET));
    close(file), close(p[0]), close(p[1]);
}

static void doubles(int a, int b)
{
    char text[16] = {0};
    int second = dup(b);
    TRY(dup2(b, b) == b);
    TRY(dup2(4000, b));
    TRY(dup3(b, b, 0));
    TRY(write(a, "d", 1));
    TRY(read(second, text, 4));
    TRY(dup2(second, 700));
    TRY(close(second));
    TRY(close(second));
    TRY(write(a, "e", 1));
    TRY(read(700, text, 4));
    int file = open("/dev/null", O_RDWR);
    TRY(dup2(file, 700));
    TRY(read(700, text, 4));
    TRY(write(700, text, 4));
    TRY(dup2(b, 700));
    TRY(write(700, "back", 4));
    TRY(read(a, text, 8));
    TRY(close(700));
    /* A close behind the library's back, and the number used again. */
    int third = dup(b);
    long gone;
    __asm__ volatile("syscall" : "=a"(gone) : "a"(3), "D"(third) : "rcx", "r11", "memory");
    int again = open("/dev/zero", O_RDONLY);
    printf("same %d\n", again == third);
    TRY(read(again, text, 4));
    close(again), close(file);
}

static void rights(int a)
{
    int u[2], pair[2];
    char text[8] = {0};
    struct iovec one = {"r", 1}, in = {text, 8};
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(2 * sizeof(int))];
    } control;
    struct msghdr m = {&(struct sockaddr *){0}, 0, &one, 1, control.room, sizeof control.room, 0};
    m.msg_name = NULL;
    tcp_pair(pair);
    TRY(socketpair(AF_UNIX, SOCK_STREAM, 0, u));
    memset(&control, 0, sizeof control);
    control.head.cmsg_len = CMSG_LEN(2 * sizeof(int));
    control.head.cmsg_level = SOL_SOCKET;
    control.head.cmsg_type = SCM_RIGHTS;
    memcpy(CMSG_DATA(&control.head), (int[]){pair[1], a}, 2 * sizeof(int));
    TRY(sendmsg(u[0], &m, 0));
    close(pair[1]);
    m.msg_iov = &in;
    memset(&control, 0, sizeof control);
    m.msg_controllen = sizeof control.room;
    TRY(recvmsg(u[1], &m, 0));
    int got[2];
    memcpy(got, CMSG_DATA(&control.head), sizeof got);
    TRY(write(pair[0], "via", 3));
    TRY(read(got[0], text, 8));
    puts(text);
    close(got[0]), close(got[1]), close(pair[0]), close(u[0]), close(u[1]);
}

static void by_number(void)
{
    int pair[2];
    char text[8] = {0};
    struct iovec in = {text, 8};
    tcp_pair(pair);
    TRY(syscall(SYS_write, pair[0], "num", 3));
    TRY(syscall(SYS_read, pair[1], text, 8));
    puts(text);
    TRY(syscall(SYS_sendto, pair[0], "to", 2, 0, NULL, 0));
    TRY(syscall(SYS_recvfrom, pair[1], text, 8, 0, NULL, NULL));
    TRY(syscall(SYS_writev, pair[0], &in, 1));
    TRY(syscall(SYS_readv, pair[1], &in, 1));
    TRY(write(pair[0], "f", 1));
    TRY(syscall(SYS_read, pair[1], nowhere, 8));
    TRY(read(pair[1], text, 8));
    int second = syscall(SYS_dup, pair[1]);
    TRY(syscall(SYS_close, pair[1]));
    TRY(write(pair[0], "2", 1));
    TRY(read(second, text, 8));
    TRY(syscall(SYS_close, second));
    TRY(syscall(SYS_close, pair[0]));
    TRY(syscall(9999));
    TRY(syscall(SYS_getpid) == getpid());
}

int main(void)
{
    int pair[2];
    char c;
    nowhere = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    signal(SIGPIPE, SIG_IGN);
    tcp_pair(pair);
    for (int turn = 0; turn < 3; turn++) {
        data(pair[0], pair[1]);
        fcntl(pair[1], F_SETFL, 0);
        messages(pair[0], pair[1]);
        waiting(pair[0], pair[1]);
        options(pair[0], pair[1]);
        files(pair[0], pair[1]);
        doubles(pair[0], pair[1]);
    }
    high(pair[1]);
    rights(pair[0]);
    by_number();
    TRY(shutdown(pair[0], SHUT_WR));
    TRY(read(pair[1], &c, 1));
    TRY(write(pair[0], "x", 1));
    TRY(shutdown(pair[0], 77));
    TRY(close(pair[1]));
    TRY(read(pair[0], &c, 1));
    TRY(close(pair[0]));
    TRY(close(pair[0]));
    TRY(socket(AF_INET, 99, 0));
    TRY(accept(-1, NULL, NULL));
    TRY(shutdown(pair[0], 0));
    TRY(listen(-1, 1));
    int lonely = socket(AF_INET, SOCK_STREAM, 0);
    TRY(read(lonely, &c, 1));
    TRY(write(lonely, &c, 1));
    TRY(accept(lonely, NULL, NULL));
    return 0;
}
