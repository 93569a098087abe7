/* held talk PORT: sends and receives a byte ten times, over a connection to that port. Then it closes the connection as soon as it
 * has received one byte more, prints `closed`, and waits.
 *
 * held hold PID: follows a process up to the end of a pidfd_getfd(2) that gives it a copy, and leaves it there. Prints `ready`, then
 * `held`, and `gone` once the process has been killed. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static void must(int ok, const char *what)
{
	if (ok)
		return;
	printf("FAIL %s: %s\n", what, strerror(errno));
	exit(2);
}

static void say(const char *what)
{
	puts(what);
	fflush(stdout);
}

static void talk(int port)
{
	struct sockaddr_in name = { .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	char byte = 1;
	must(connect(fd, (void *)&name, sizeof name) == 0, "connect");
	for (int i = 0; i < 10; i++)
		must(send(fd, &byte, 1, 0) == 1 && recv(fd, &byte, 1, 0) == 1, "exchange");
	must(recv(fd, &byte, 1, 0) == 1 && close(fd) == 0, "close");
	say("closed");
	pause();
}

static void hold(pid_t process)
{
	struct __ptrace_syscall_info info;
	int status, is_copy = 0;
	must(ptrace(PTRACE_SEIZE, process, 0, PTRACE_O_TRACESYSGOOD) == 0, "attach");
	must(ptrace(PTRACE_INTERRUPT, process, 0, 0) == 0, "stop");
	while (waitpid(process, &status, 0) == process && WIFSTOPPED(status)) {
		must(ptrace(PTRACE_GET_SYSCALL_INFO, process, sizeof info, &info) > 0, "look");
		if (info.op == PTRACE_SYSCALL_INFO_NONE)
			say("ready");
		if (info.op == PTRACE_SYSCALL_INFO_ENTRY)
			is_copy = info.entry.nr == SYS_pidfd_getfd;
		if (info.op == PTRACE_SYSCALL_INFO_EXIT && is_copy && info.exit.rval >= 0)
			say("held");
		else
			must(ptrace(PTRACE_SYSCALL, process, 0, 0) == 0, "go on");
	}
	must(WIFSIGNALED(status), "killed");
	say("gone");
}

int main(int argc, char **argv)
{
	must(argc >= 3, "arguments");
	if (!strcmp(argv[1], "talk"))
		talk(atoi(argv[2]));
	else
		hold(atoi(argv[2]));
	return 0;
}
