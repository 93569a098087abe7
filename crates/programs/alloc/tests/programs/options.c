// What options change: `options WHAT`. Exits with 1 after a sentence if something is wrong.
#define _GNU_SOURCE
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(what) do { if (!(what)) { printf("line %d: %s\n", __LINE__, #what); exit(1); } } while (0)
static void *volatile hidden;
static void *hide(void *p) { hidden = p; return hidden; }

static size_t resident(void) {
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file && fscanf(file, "%*d %ld", &pages) == 1);
    fclose(file);
    return (size_t)pages * sysconf(_SC_PAGESIZE);
}

#define PARTS 4096
// 256 MiB in 64 KiB each, of which `kept` stay.
static size_t after_frees(int kept) {
    static char *part[PARTS];
    for (int i = 0; i < PARTS; i++) { CHECK(part[i] = malloc(65536)); memset(part[i], 1, 65536); }
    for (int i = kept; i < PARTS; i++) free(part[i]);
    return resident() - (size_t)kept * 65536;
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    char stack[64];
    if (!strcmp(what, "keep")) {
        // The rest of the process is a few MiB.
        printf("%s\n", after_frees(PARTS / 2) >> 20 < 12 ? "little" : "much");
    } else if (!strcmp(what, "stranger")) {
        free(hide(stack + 16));
        free(hide(&argc));
        puts("ignored");
    } else if (!strcmp(what, "twice")) {
        // With others between, and far fewer than a batch.
        void *a = malloc(64), *b = malloc(64), *volatile kept = malloc(64);
        free(hide(a));
        free(hide(b));
        free(hide(a));
        puts("unnoticed");
    }
    return 0;
}
