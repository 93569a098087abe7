/* Run with a connected socket as descriptor 3: says what it reads there, and answers. */
#include <stdio.h>
#include <unistd.h>

int main(void)
{
    char text[64];
    long got = read(3, text, sizeof text);
    printf("heir read %ld %.*s\n", got, (int)(got < 0 ? 0 : got), text);
    return write(3, "answer", 6) == 6 ? 0 : 1;
}
