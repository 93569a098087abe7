/* A lookup plugin of windlass: every address is behind the host that the command line names.
 * cc -o /usr/local/lib/one-host one-host.c
 *
 * A plugin with more to read than this takes a JSON library. This one relies on the daemon's own form: no space outside of
 * texts, and no quotation mark in the name of an overlay. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The text behind a key, up to a quotation mark, or the number. */
static const char *value(const char *line, const char *key, char *room, size_t size)
{
    const char *at = strstr(line, key);

    room[0] = 0;
    if (at) {
        at += strlen(key);
        size_t length = strcspn(at, "\",}");
        if (length < size) {
            memcpy(room, at, length);
            room[length] = 0;
        }
    }
    return room;
}

int main(int argc, char **argv)
{
    FILE *hears = fdopen(3, "r"), *says = fdopen(3, "w");
    char op[32], id[32], overlay[64], *line = NULL;
    size_t size = 0;

    if (argc != 2 || !hears || !says)
        return 1;
    setlinebuf(says);
    fputs("{\"op\":\"hello\",\"v\":1,\"kind\":\"dynamic\"}\n", says);
    while (getline(&line, &size, hears) > 0) {
        value(line, "\"op\":\"", op, sizeof op);
        value(line, "\"id\":", id, sizeof id);
        value(line, "\"overlay\":\"", overlay, sizeof overlay);
        if (!strcmp(op, "ping"))
            fprintf(says, "{\"op\":\"pong\",\"id\":%s}\n", id);
        else if (!strcmp(op, "start") || !strcmp(op, "set"))
            fprintf(says, "{\"op\":\"ok\",\"overlay\":\"%s\"}\n", overlay);
        else if (!strcmp(op, "lookup"))
            fprintf(says, "{\"op\":\"answer\",\"id\":%s,\"target\":{\"ip\":\"%s\",\"port\":4789},\"ttl\":60}\n", id, argv[1]);
        else if (!strcmp(op, "arp") || !strcmp(op, "ndp") || !strcmp(op, "dhcp"))
            fprintf(says, "{\"op\":\"answer\",\"id\":%s,\"drop\":true}\n", id);
        else if (!strstr("hello stop announce retire forget resync unsupported", op))
            fprintf(says, "{\"op\":\"unsupported\",\"what\":\"%s\"}\n", op);
    }
    return 0;
}
