/* Stops a process at a chosen instruction: runs it up to the entry of a function, then so many instructions further,
 * and kills it there, or holds it for a while.
 *
 * cut PID HITS STEPS kill ADDRESS...
 * cut PID ROUNDS SEED hold ADDRESS...
 *
 * kill: at the HITS-th entry of one of the functions, STEPS instructions further, the process group is killed. hold:
 * ROUNDS times after a random number of entries, a random number of instructions further, the thread is held for 1 to
 * 300 ms. All threads that the process makes are followed; a process that it forks is let go as if there were no cutter. Prints `ready`, then `cut` or `gone`. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/time.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { FUNCTIONS_MAX = 8 };

static pid_t process;
static int memory, functions, is_set;
static uint64_t addresses[FUNCTIONS_MAX];
static unsigned char bytes[FUNCTIONS_MAX];
static uint64_t state;
static time_t deadline;

static void fail(const char *what)
{
	printf("FAIL %s: %s\n", what, strerror(errno));
	exit(2);
}

static uint64_t below(uint64_t limit)
{
	state ^= state >> 12, state ^= state << 25, state ^= state >> 27;
	return (state * 0x2545f4914f6cdd1dull >> 20) % limit;
}

static void set(int on)
{
	is_set = on;
	for (int i = 0; i < functions; i++)
		if (pwrite(memory, on ? "\xcc" : (char *)&bytes[i], 1, addresses[i]) != 1 && errno != EINTR && !kill(process, 0))
			fail("breakpoint");
}

static void woken(int signal)
{
	(void)signal;
}

static void gone(int status)
{
	printf("gone: status %x\n", status);
	exit(0);
}

/* Whether it is a thread of the process, and not of one that this one has forked. */
static int is_thread(pid_t who)
{
	char path[64];
	snprintf(path, sizeof path, "/proc/%d/task/%d", process, who);
	return !access(path, F_OK);
}

/* A forked process, before its first instruction, loses its copies of the breakpoints, and is not traced any more. */
static void let_go(pid_t child)
{
	char path[64];
	snprintf(path, sizeof path, "/proc/%d/mem", child);
	int its = open(path, O_RDWR | O_CLOEXEC);
	for (int i = 0; i < functions; i++)
		if (pwrite(its, &bytes[i], 1, addresses[i]) != 1)
			fail("child");
	close(its);
	ptrace(PTRACE_DETACH, child, 0, 0);
}

/* Waits for any thread. Breakpoints are set anew all the while: one that was lost would be waited for in vain. */
static pid_t next(int *status)
{
	for (;;) {
		pid_t who = waitpid(-1, status, __WALL);
		if (who < 0 && errno == EINTR && time(0) < deadline) {
			if (is_set)
				set(1);
			continue;
		}
		if (who > 0 && WIFSTOPPED(*status) && *status >> 16 == PTRACE_EVENT_STOP && !is_thread(who)) {
			let_go(who);
			continue;
		}
		if (who < 0 || ((WIFEXITED(*status) || WIFSIGNALED(*status)) && who == process))
			gone(*status);
		return who;
	}
}

/* Lets a thread go on, with the signal that it was stopped by. */
static void go_on(pid_t thread, int how, int status)
{
	int signal = WSTOPSIG(status);
	if (signal == SIGTRAP || status >> 16)
		signal = 0;
	ptrace(how, thread, 0, signal);
}

/* The function at whose breakpoint a thread has stopped, which is taken back to it; -1: none. */
static int function_at(pid_t thread, int status)
{
	struct user_regs_struct registers;
	if (status >> 16 || WSTOPSIG(status) != SIGTRAP || ptrace(PTRACE_GETREGS, thread, 0, &registers))
		return -1;
	for (int i = 0; i < functions; i++)
		if (registers.rip == addresses[i] + 1) {
			registers.rip--;
			ptrace(PTRACE_SETREGS, thread, 0, &registers);
			return i;
		}
	return -1;
}

/* Takes one instruction of a thread, whatever the others do meanwhile. 0: the thread has ended. */
static int step(pid_t thread, int *last)
{
	go_on(thread, PTRACE_SINGLESTEP, *last);
	for (;;) {
		int status;
		pid_t who = next(&status);
		if (!WIFSTOPPED(status)) {
			if (who == thread)
				return 0;
			continue;
		}
		if (who == thread) {
			*last = status;
			return 1;
		}
		function_at(who, status);
		go_on(who, PTRACE_CONT, status);
	}
}

static int steps(pid_t thread, uint64_t count, int *last)
{
	while (count--)
		if (!step(thread, last))
			return 0;
	return 1;
}

/* Waits until a thread comes to one of the functions for the `hits`-th time. */
static pid_t reach(uint64_t hits, int *last)
{
	for (;;) {
		int status;
		pid_t who = next(&status);
		if (!WIFSTOPPED(status))
			continue;
		int function = function_at(who, status);
		if (function < 0) {
			go_on(who, PTRACE_CONT, status);
			continue;
		}
		*last = SIGTRAP << 8;
		if (--hits == 0)
			return who;
		set(0);
		int alive = step(who, last);
		set(1);
		if (alive)
			go_on(who, PTRACE_CONT, *last);
	}
}

static void hold(long milliseconds)
{
	struct timespec rest = { milliseconds / 1000, milliseconds % 1000 * 1000000 };
	while (nanosleep(&rest, &rest) && errno == EINTR)
		;
}

int main(int argc, char **argv)
{
	if (argc < 6 || argc > 5 + FUNCTIONS_MAX)
		return 64;
	process = atoi(argv[1]);
	uint64_t first = strtoull(argv[2], 0, 10), second = strtoull(argv[3], 0, 10);
	int kills = !strcmp(argv[4], "kill"), last;
	functions = argc - 5;
	char path[64];
	snprintf(path, sizeof path, "/proc/%d/mem", process);
	memory = open(path, O_RDWR | O_CLOEXEC);
	if (memory < 0 || ptrace(PTRACE_SEIZE, process, 0, PTRACE_O_TRACECLONE | PTRACE_O_TRACEFORK))
		fail("attach");
	for (int i = 0; i < functions; i++) {
		addresses[i] = strtoull(argv[5 + i], 0, 16);
		if (pread(memory, &bytes[i], 1, addresses[i]) != 1)
			fail("function");
	}
	set(1);
	printf("ready\n");
	fflush(stdout);
	struct itimerval often = { { 0, 200000 }, { 0, 200000 } };
	struct sigaction nothing = { .sa_handler = woken };
	sigaction(SIGALRM, &nothing, 0);
	deadline = time(0) + 120;
	setitimer(ITIMER_REAL, &often, 0);
	if (kills) {
		pid_t thread = reach(first, &last);
		set(0);
		int alive = steps(thread, second, &last);
		struct user_regs_struct registers = { 0 };
		if (alive)
			ptrace(PTRACE_GETREGS, thread, 0, &registers);
		kill(-process, SIGKILL);
		printf("cut at %llx\n", (unsigned long long)registers.rip);
		return 0;
	}
	state = second;
	for (uint64_t round = 0; round < first; round++) {
		pid_t thread = reach(1 + below(40), &last);
		set(0);
		int alive = steps(thread, below(1 << (4 + below(7))), &last);
		hold(round % 4 ? 1 + below(20) : 300);
		if (round + 1 < first)
			set(1);
		if (alive)
			go_on(thread, PTRACE_CONT, last);
	}
	printf("cut\n");
	fflush(stdout);
	/* The process goes on as it was; it ends by itself. */
	reach(UINT64_MAX, &last);
	return 0;
}
