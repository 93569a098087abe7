/* Hands a connected socket to another program (its first argument), in several ways. */
#include "show.h"

int main(int argc, char **argv)
{
    char *empty[] = {NULL};
    for (int way = 0; way < 4; way++) {
        int pair[2], status;
        char text[32] = {0};
        tcp_pair(pair);
        for (int i = 0; i < 5; i++) {
            TRY(write(pair[0], "warm", 4));
            TRY(read(pair[1], text, 4));
            TRY(write(pair[1], "warm", 4));
            TRY(read(pair[0], text, 4));
        }
        TRY(write(pair[0], "before", 6));
        fflush(stdout);
        pid_t pid = way == 2 ? vfork() : fork();
        if (pid == 0) {
            close(pair[0]);
            dup2(pair[1], 3);
            if (way == 1)
                execve(argv[1], argv + 1, empty);
            else if (way == 3)
                execlp(argv[1], argv[1], NULL);
            else
                execv(argv[1], argv + 1);
            _exit(99);
        }
        close(pair[1]);
        wait(&status);
        TRY(read(pair[0], text, sizeof text));
        printf("%s %d\n", text, WEXITSTATUS(status));
        TRY(read(pair[0], text, sizeof text));
        close(pair[0]);
    }
    return argc != 2;
}
