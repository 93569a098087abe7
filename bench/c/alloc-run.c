// `alloc-run LIBRARY PROGRAM WORD...`: runs a program with a library preloaded (- for none), which this process does not load itself.
// The last line on standard error is the user time in seconds, of the program and what it waited for, and the peak of resident memory in KiB.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    pid_t child = fork();
    if (child == 0) {
        if (strcmp(argv[1], "-")) setenv("LD_PRELOAD", argv[1], 1);
        execvp(argv[2], argv + 2);
        _exit(127);
    }
    int status;
    struct rusage used;
    if (child < 0 || wait4(child, &status, 0, &used) < 0) return 2;
    fprintf(stderr, "%ld.%06ld %ld\n", (long)used.ru_utime.tv_sec, (long)used.ru_utime.tv_usec, used.ru_maxrss);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
