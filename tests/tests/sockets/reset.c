/* A peer that is killed with unread bytes: the end of its connection, by each way of waiting.
 *
 * reset listen|connect PORT-FILE WAY BYTES CHUNK WINDOW
 *
 * The connecting end sends bytes that nobody reads, prints `sent FD`, waits for the file PORT-FILE.go, and waits for input by WAY: `poll`,
 * `level` or `edge` (epoll). It must hear of the end with an error, which the next receive tells, once. Prints `right`. The listening
 * end prints `has FD` and is killed.
 *
 * reset between SENDER SURVIVOR ITS-FD KILLED ITS-FD WAY
 *
 * Kills a process, whose socket stays open, and follows its peer to its next send on the connection; or follows a helper of the broker
 * there, and kills then. Just before the send the killed one's socket is closed: WAY `reset`, with a reset; `late`, with a FIN, and
 * something else of the survivor is answered by the reset. Prints `ready`, then `cut`: a helper has given its answer by then. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include "meet.h"
#include "message.h"

enum { WARM = 400, UNREAD = 100 };

static void must(int ok, const char *what)
{
	if (!ok)
		fail(what);
}

static void say(const char *what, int number)
{
	printf("%s %d\n", what, number);
	fflush(stdout);
}

static void warm(int fd, int begins)
{
	char message[MESSAGE] = { 0 };
	for (int i = 0; i < WARM; i++)
		must(move(fd, message, begins) && move(fd, message, !begins), "warm");
}

/* What is reported of a socket, without waiting if `instance` has it already. */
static int wait_for(int fd, int instance)
{
	struct pollfd one = { .fd = fd, .events = POLLIN };
	struct epoll_event event = { 0 };
	if (instance < 0)
		must(poll(&one, 1, 10000) == 1, "poll");
	else
		must(epoll_wait(instance, &event, 1, 10000) == 1, "epoll_wait");
	return instance < 0 ? one.revents : (int)event.events;
}

static void expect(const char *what, long got, long wanted)
{
	if (got == wanted)
		return;
	printf("WRONG %s: %lx, not %lx\n", what, got, wanted);
	fflush(stdout);
	_exit(1);
}

static void survives(const char *port, const char *way)
{
	char path[4096], message[MESSAGE] = { 0 };
	int fd = dial(port), instance = -1;
	warm(fd, 1);
	if (strcmp(way, "poll")) {
		struct epoll_event event = { .events = EPOLLIN | (strcmp(way, "edge") ? 0 : EPOLLET) };
		instance = epoll_create1(0);
		must(epoll_ctl(instance, EPOLL_CTL_ADD, fd, &event) == 0, "epoll_ctl");
	}
	snprintf(path, sizeof path, "%s.joined", port);
	while (access(path, F_OK))
		usleep(1000);
	for (int i = 0; i < UNREAD; i++)
		must(move(fd, message, 1), "send");
	say("sent", fd);
	snprintf(path, sizeof path, "%s.go", port);
	while (access(path, F_OK))
		usleep(1000);
	expect("events", wait_for(fd, instance), POLLIN | POLLERR | POLLHUP);
	expect("receive", recv(fd, message, MESSAGE, MSG_DONTWAIT), -1);
	expect("error", errno, ECONNRESET);
	if (strcmp(way, "edge"))
		expect("events behind it", wait_for(fd, instance), POLLIN | POLLHUP);
	expect("end", recv(fd, message, MESSAGE, MSG_DONTWAIT), 0);
	puts("right");
}

static void reset_now(int near, int far, int is_late)
{
	struct linger at_once = { .l_onoff = 1 };
	struct pollfd one = { .fd = near };
	char bytes[4096];
	if (is_late)
		while (recv(far, bytes, sizeof bytes, MSG_DONTWAIT) > 0)
			;
	else
		must(setsockopt(far, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once) == 0, "linger");
	close(far);
	if (is_late)
		must(send(near, bytes, 1, MSG_NOSIGNAL) == 1, "send");
	must(poll(&one, 1, -1) == 1, "poll");
}

static int copy(int pidfd, int fd)
{
	int copied = syscall(SYS_pidfd_getfd, pidfd, fd, 0);
	must(copied >= 0, "attach");
	return copied;
}

static void end(pid_t process, int pidfd)
{
	struct pollfd ended = { .fd = pidfd, .events = POLLIN };
	must(kill(process, SIGKILL) == 0 && poll(&ended, 1, -1) == 1, "kill");
}

static void between(pid_t sender, pid_t survivor, int its, pid_t killed, int other, int is_late)
{
	struct __ptrace_syscall_info info;
	int status, pidfd = syscall(SYS_pidfd_open, killed, 0);
	int near = copy(syscall(SYS_pidfd_open, survivor, 0), its), far = copy(pidfd, other);
	int is_helper = sender != survivor, is_cut = 0;
	if (!is_helper)
		end(killed, pidfd);
	must(ptrace(PTRACE_SEIZE, sender, 0, PTRACE_O_TRACESYSGOOD) == 0, "attach");
	must(ptrace(PTRACE_INTERRUPT, sender, 0, 0) == 0, "stop");
	while (waitpid(sender, &status, 0) == sender && WIFSTOPPED(status)) {
		must(ptrace(PTRACE_GET_SYSCALL_INFO, sender, sizeof info, &info) > 0, "look");
		if (info.op == PTRACE_SYSCALL_INFO_NONE)
			say("ready", 0);
		int sends = info.op == PTRACE_SYSCALL_INFO_ENTRY && (info.entry.nr == SYS_sendto || info.entry.nr == SYS_sendmsg);
		int to = sends ? (int)info.entry.args[0] : -1;
		/* A helper has the broker at 0, and its getter at 1. */
		if (!is_cut && (is_helper ? to > 1 : to == its)) {
			if (is_helper)
				end(killed, pidfd);
			reset_now(near, far, is_late);
			is_cut = 1;
		}
		if (is_cut && (!is_helper || to == 0))
			break;
		must(ptrace(PTRACE_SYSCALL, sender, 0, 0) == 0, "go on");
	}
	must(is_cut, "send");
	say("cut", 0);
}

int main(int argc, char **argv)
{
	must(argc >= 7, "arguments");
	if (!strcmp(argv[1], "between")) {
		must(argc >= 8, "arguments");
		between(atoi(argv[2]), atoi(argv[3]), atoi(argv[4]), atoi(argv[5]), atoi(argv[6]), !strcmp(argv[7], "late"));
	} else if (!strcmp(argv[1], "connect")) {
		survives(argv[2], argv[3]);
	} else {
		int fd = accept_at(argv[2]);
		warm(fd, 0);
		say("has", fd);
		for (;;)
			pause();
	}
	return 0;
}
