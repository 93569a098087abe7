/* A stack whose functions keep no frame pointers; it says where its innermost function's caller goes on, and waits. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

volatile int rounds;

__attribute__((noinline)) static int innermost(int n) {
    volatile char room[200];
    room[n] = 1;
    puts("ready");
    fflush(stdout);
    while (!rounds) room[n]++;
    return room[n];
}

__attribute__((noinline)) static int middle(int n) {
    volatile long room[33];
    room[n] = n;
    return innermost(n + 1) + (int)room[n];
}

__attribute__((noinline)) static int outer(int n) { return middle(n + 1) * 3 + n; }

static void *other(void *none) {
    pause();
    return none;
}

int main(int argc, char **argv) {
    pthread_t thread;
    for (int at = 0; at < 3; at++) pthread_create(&thread, 0, other, 0);
    (void)argv;
    return outer(argc) + 1;
}
