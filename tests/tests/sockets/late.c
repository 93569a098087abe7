/* What comes while a call asks the broker, before it can sleep: a signal, or another thread that opens a file.
 *
 * late serve PORT-FILE CALL: answers ROUNDS messages. Then a child, which uses the connection first and so has to ask a broker that it
 * has stopped, makes a call that has to wait, and gets a signal after SIGNAL_US: prints `EINTR`, or what became of it. CALL `number`:
 * it receives, and another thread opens a file meanwhile; prints `lowest` if that gets the lowest number that was free. CALL `heir`: the
 * other thread forks; prints `some` if its child has descriptors from HIGH on, and the same of the program that the child executes, or `none`.
 * late ask PORT-FILE: asks, and reads nothing more. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "meet.h"
#include "message.h"

enum { ROUNDS = 1000, SIGNAL_US = 8000, LATE_S = 3, HIGH = 48, FULL = 64 << 20 };

static int handled;
/* The parent waits there, too. */
static int set;

static void handle(int signal)
{
	handled++;
}

static pid_t broker(void)
{
	struct sockaddr_un name = { .sun_family = AF_UNIX };
	struct ucred who;
	socklen_t length = sizeof who;
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	snprintf(name.sun_path, sizeof name.sun_path, "%s", getenv("WINDLASS_SOCKETS"));
	if (connect(fd, (void *)&name, sizeof name) || getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &length))
		fail("broker");
	close(fd);
	return who.pid;
}

static long make(int fd, const char *call)
{
	static char bytes[FULL];
	struct iovec part = { bytes, sizeof bytes };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };
	struct pollfd entry = { .fd = fd, .events = POLLIN };
	struct mmsghdr list = { .msg_hdr = message };
	struct timeval hour = { 3600 };
	struct timespec time = { LATE_S };
	struct epoll_event event;
	fd_set one;
	FD_ZERO(&one);
	FD_SET(fd, &one);
	if (!strcmp(call, "recv"))
		return recv(fd, bytes, 8, 0);
	if (!strcmp(call, "empty"))
		return recv(fd, bytes, 0, 0);
	if (!strcmp(call, "read"))
		return read(fd, bytes, 8);
	if (!strcmp(call, "recvmsg"))
		return recvmsg(fd, &message, 0);
	if (!strcmp(call, "poll"))
		return poll(&entry, 1, -1);
	if (!strcmp(call, "ppoll"))
		return ppoll(&entry, 1, &time, 0);
	if (!strcmp(call, "select"))
		return select(fd + 1, &one, 0, 0, 0);
	if (!strcmp(call, "epoll"))
		return epoll_wait(set, &event, 1, -1);
	if (!strcmp(call, "recvmmsg"))
		return recvmmsg(fd, &list, 1, 0, 0);
	if (!strcmp(call, "limit") && !setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &hour, sizeof hour))
		return recv(fd, bytes, 8, 0);
	if (!strcmp(call, "urgent"))
		return recv(fd, bytes, 1, MSG_OOB);
	if (!strcmp(call, "nonblocking"))
		return recv(fd, bytes, 8, MSG_DONTWAIT);
	fail(call);
	return 0;
}

static pid_t host;
static int lowest;

static void show_high_numbers(void)
{
	int is_any = 0;
	for (int number = HIGH; number < 64; number++)
		is_any |= fcntl(number, F_GETFD) >= 0;
	puts(is_any ? "some" : "none");
}

static void *open_meanwhile(void *nothing)
{
	usleep(SIGNAL_US);
	int number = open("/dev/null", O_RDONLY);
	printf(number == lowest ? "lowest\n" : "%d, not %d\n", number, lowest);
	fflush(stdout);
	kill(host, SIGCONT);
	_exit(0);
}

static void *fork_meanwhile(void *nothing)
{
	usleep(SIGNAL_US);
	pid_t child = fork();
	if (!child) {
		show_high_numbers();
		/* An exec with the connection would ask the broker. */
		for (int number = 3; number < HIGH; number++)
			close(number);
		execl("/proc/self/exe", "late", "count", NULL);
		fail("exec");
	}
	waitpid(child, 0, 0);
	kill(host, SIGCONT);
	_exit(0);
}

static void meanwhile(int fd, void *(*what)(void *))
{
	pthread_t thread;
	host = broker();
	close(lowest = open("/dev/null", O_RDONLY));
	kill(host, SIGSTOP);
	pthread_create(&thread, 0, what, 0);
	make(fd, "recv");
	fail("recv");
}

static void act(int fd, const char *call)
{
	struct sigaction action = { .sa_handler = handle, .sa_flags = strcmp(call, "limit") ? 0 : SA_RESTART };
	struct itimerval time = { .it_value.tv_usec = SIGNAL_US };
	host = broker();
	sigaction(SIGALRM, &action, 0);
	kill(host, SIGSTOP);
	setitimer(ITIMER_REAL, &time, 0);
	long result = make(fd, call);
	int error = errno;
	kill(host, SIGCONT);
	while (!handled)
		usleep(1000);
	puts(result < 0 ? strerrorname_np(error) : "done");
	fflush(stdout);
}

static void serve(const char *path, const char *call)
{
	char message[MESSAGE];
	struct epoll_event event = { .events = EPOLLIN };
	int fd = accept_at(path);
	set = epoll_create1(0);
	if (!strcmp(call, "epoll") && epoll_ctl(set, EPOLL_CTL_ADD, fd, &event))
		fail("epoll_ctl");
	for (int i = 0; i < ROUNDS; i++)
		if (epoll_wait(set, &event, 1, 0) < 0 || !move(fd, message, 0) || !move(fd, message, 1))
			fail("message");
	pid_t child = fork();
	if (!child) {
		if (!strcmp(call, "number"))
			meanwhile(fd, open_meanwhile);
		if (!strcmp(call, "heir"))
			meanwhile(fd, fork_meanwhile);
		act(fd, call);
		_exit(0);
	}
	for (int i = 0; i < LATE_S * 1000 && !waitpid(child, 0, WNOHANG); i++)
		usleep(1000);
	kill(broker(), SIGCONT);
	kill(child, SIGKILL);
}

static void ask(const char *path)
{
	char message[MESSAGE] = "";
	int fd = dial(path);
	for (int i = 0; i < ROUNDS; i++)
		if (!move(fd, message, 1) || !move(fd, message, 0))
			fail("message");
	/* The other end ends. */
	poll(&(struct pollfd){ .fd = fd, .events = POLLIN }, 1, -1);
}

int main(int count, char **words)
{
	setvbuf(stdout, 0, _IOLBF, 0);
	if (count == 2)
		show_high_numbers();
	else if (count == 4)
		serve(words[2], words[3]);
	else
		ask(words[2]);
	return 0;
}
