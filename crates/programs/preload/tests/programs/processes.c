/* fork, vfork, posix_spawn, every exec, closefrom and close_range, ends of processes. */
#include "show.h"

static int pair[2];

static void waited(const char *what)
{
    int status;
    wait(&status);
    printf("%s: %s %d\n", what, WIFEXITED(status) ? "exit" : "signal",
           WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
    fflush(stdout);
}

static void say(const char *what, int fd)
{
    char text[64] = {0};
    long got = read(fd, text, sizeof text - 1);
    printf("%s: %ld %s\n", what, got, text);
    fflush(stdout);
}

static pid_t bare_fork(void)
{
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(57) : "rcx", "r11", "memory");
    return result;
}

static void forks(void)
{
    if (fork() == 0) {
        (void)!write(pair[0], "child", 5);
        close(pair[0]), close(pair[1]);
        exit(7);
    }
    waited("fork");
    say("from child", pair[1]);
    if (bare_fork() == 0) {
        (void)!write(pair[0], "bare", 4);
        close(pair[1]);
        int again = socket(AF_INET, SOCK_STREAM, 0);
        (void)!write(pair[0], again >= 0 ? "+" : "-", 1);
        _exit(8);
    }
    waited("bare fork");
    say("from child", pair[1]);
    pid_t pid = _Fork();
    if (pid == 0) {
        (void)!write(pair[0], "_Fork", 5);
        _Exit(9);
    }
    waited("_Fork");
    say("from child", pair[1]);
}

static void vforks(void)
{
    int old = dup(0);
    for (int way = 0; way < 2; way++) {
        pid_t pid = vfork();
        if (pid == 0) {
            dup2(pair[1], 0);
            dup2(pair[1], 1);
            close(pair[1]);
            close(pair[0]);
            if (way == 1)
                _exit(5);
            execl("/bin/sh", "sh", "-c", "echo vforked; exit 6", NULL);
            _exit(99);
        }
        waited("vfork");
        printf("pid %d\n", pid > 0);
        if (way == 0)
            say("from vfork", pair[0]);
    }
    (void)!write(pair[0], "still", 5);
    say("after vfork", pair[1]);
    close(old);
}

static void execs(void)
{
    char *arguments[] = {"sh", "-c", "echo $0 $# $X", "a0", "a1", NULL};
    char *environment[] = {"X=given", "PATH=/bin:/usr/bin", NULL};
    setenv("X", "own", 1);
    for (int way = 0; way < 9; way++) {
        fflush(stdout);
        if (fork() == 0) {
            switch (way) {
            case 0: execl("/bin/sh", "sh", "-c", "echo $0 $# $X", "l", "1", "2", "3", "4", "5", NULL); break;
            case 1: execlp("sh", "sh", "-c", "echo $0 $# $X", "lp", "1", NULL); break;
            case 2: execle("/bin/sh", "sh", "-c", "echo $0 $# $X", "le", NULL, environment); break;
            case 3: execv("/bin/sh", arguments); break;
            case 4: execvp("sh", arguments); break;
            case 5: execve("/bin/sh", arguments, environment); break;
            case 6: execvpe("sh", arguments, environment); break;
            case 7: fexecve(open("/bin/sh", O_RDONLY), arguments, environment); break;
            case 8: execveat(AT_FDCWD, "/bin/sh", arguments, environ, 0); break;
            }
            _exit(99);
        }
        waited("exec");
    }
    TRY(execl("/does/not/exist", "x", NULL));
    TRY(execlp("does-not-exist", "x", NULL));
    TRY(execve("/dev/null", arguments, environ));
    (void)!write(pair[0], "go on", 5);
    say("after failed exec", pair[1]);
    pid_t pid;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, pair[1], 1);
    printf("spawn %d\n", posix_spawn(&pid, "/bin/sh", &actions, NULL, arguments, environ));
    waited("spawn");
    say("from spawn", pair[0]);
    printf("spawnp %d\n", posix_spawnp(&pid, "sh", &actions, NULL, arguments, environment));
    waited("spawnp");
    say("from spawnp", pair[0]);
    printf("missing %d\n", posix_spawn(&pid, "/does/not/exist", NULL, NULL, arguments, environ));
    fflush(stdout);
    TRY(system("exit 4"));
    char line[32] = {0};
    FILE *p = popen("echo popen", "r");
    (void)!fgets(line, sizeof line, p);
    printf("%s%d\n", line, pclose(p));
}

static void closes(void)
{
    int more[2];
    char c;
    tcp_pair(more);
    int base = fcntl(more[0], F_DUPFD, 500);
    fcntl(more[1], F_DUPFD, 501);
    TRY(close_range(500, 501, CLOSE_RANGE_CLOEXEC));
    TRY(write(base, "r", 1));
    TRY(close_range(500, 600, 0));
    TRY(write(base, "r", 1));
    TRY(close_range(600, 500, 0));
    TRY(read(more[1], &c, 1));
    fflush(stdout);
    if (fork() == 0) {
        closefrom(3);
        tcp_pair(more);
        printf("fresh %d %d\n", more[0], more[1]);
        TRY(write(more[0], "c", 1));
        TRY(read(more[1], &c, 1));
        exit(0);
    }
    waited("closefrom");
    if (fork() == 0) {
        for (int fd = 3; fd < 1024; fd++)
            close(fd);
        tcp_pair(more);
        printf("fresh %d %d\n", more[0], more[1]);
        TRY(write(more[0], "c", 1));
        TRY(read(more[1], &c, 1));
        exit(0);
    }
    waited("close loop");
    TRY(write(more[0], "s", 1));
    TRY(read(more[1], &c, 1));
}

static void *other(void *unused)
{
    (void)unused;
    for (int i = 0; i < 300; i++) {
        int u[2];
        if (socketpair(AF_UNIX, SOCK_STREAM, 0, u) == 0)
            close(u[0]), close(u[1]);
    }
    return NULL;
}

/* Forks while other threads make and close sockets. */
static void threads(void)
{
    pthread_t thread[2];
    int bad = 0;
    for (int i = 0; i < 2; i++)
        pthread_create(thread + i, NULL, other, NULL);
    for (int i = 0; i < 40; i++) {
        int status;
        if (fork() == 0) {
            int u[2];
            _exit(socketpair(AF_UNIX, SOCK_STREAM, 0, u) || write(u[0], "x", 1) != 1);
        }
        wait(&status);
        bad += status != 0;
    }
    for (int i = 0; i < 2; i++)
        pthread_join(thread[i], NULL);
    printf("threads and forks: bad %d\n", bad);
}

int main(void)
{
    tcp_pair(pair);
    forks();
    vforks();
    execs();
    closes();
    threads();
    fflush(stdout);
    quick_exit(11);
}
