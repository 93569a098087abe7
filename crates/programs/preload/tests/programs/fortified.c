/* Compiled with -O2 -D_FORTIFY_SOURCE=2: the checked names, and stdio on sockets. */
#include "show.h"

static void print(int fd, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    TRY(vdprintf(fd, format, list));
    va_end(list);
}

int main(int argc, char **argv)
{
    int pair[2];
    char text[16];
    struct pollfd set[2];
    (void)argv;
    tcp_pair(pair);
    set[0] = (struct pollfd){pair[1], POLLIN, 0};
    TRY(write(pair[0], "abcdef", 6));
    TRY(poll(set, argc, 100));
    TRY(ppoll(set, argc, &(struct timespec){0, 1000}, NULL));
    TRY(read(pair[1], text, argc + 1));
    TRY(recv(pair[1], text, argc, 0));
    TRY(recvfrom(pair[1], text, argc + 5, 0, NULL, NULL));
    fd_set r;
    FD_ZERO(&r);
    FD_SET(pair[argc], &r);
    TRY(select(pair[1] + argc, &r, NULL, NULL, &(struct timeval){0, 1000}));
    TRY(dprintf(pair[0], "%d %s %.3f %.1f %d %d %d %d\n", argc, "words", 1.5, 2.25, 3, 4, 5, 6));
    print(pair[0], "%s %.2f\n", "list", 0.125);
    FILE *in = fdopen(dup(pair[1]), "r"), *out = fdopen(pair[1], "w");
    char line[100];
    printf("%s", fgets(line, sizeof line, in));
    printf("%s", fgets(line, sizeof line, in));
    TRY(fprintf(out, "%s", "stdio"));
    TRY(fflush(out));
    TRY(read(pair[0], text, 5));
    TRY(fclose(out));
    TRY(fclose(in));
    TRY(read(pair[0], text, 5));
    close(pair[0]);
    tcp_pair(pair);
    TRY(write(pair[0], text, 16));
    fflush(stdout);
    /* One byte too many: libc ends the program. */
    return read(pair[1], text, argc + sizeof text);
}
