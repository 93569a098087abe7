/* Messages of 32 bytes over a stream. The includer has included what this needs, and meet.h. */

enum { MESSAGE = 32 };

/* Moves a message; 0 at the end of the stream. */
static int move(int fd, char *bytes, int is_send)
{
	for (int at = 0; at < MESSAGE;) {
		ssize_t n = is_send ? send(fd, bytes + at, MESSAGE - at, 0) : recv(fd, bytes + at, MESSAGE - at, 0);
		if (!n && !at)
			return 0;
		if (n <= 0)
			fail(is_send ? "send" : "recv");
		at += n;
	}
	return 1;
}
