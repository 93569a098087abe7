/* Messages there and back, until PORT-FILE.joined is there, which says that both connections have joined: whoever connects begins, and says which is the last one. */
static void warm(int first, int second, const char *port, int begins)
{
	char name[4096], message[MESSAGE] = { 0 };
	snprintf(name, sizeof name, "%s.joined", port);
	for (long round = 1; !message[0]; round++) {
		if (begins && round % 50 == 0) {
			message[0] = !access(name, F_OK);
			usleep(1000);
		}
		int fd = round % 2 ? first : second;
		if (!move(fd, message, begins) || !move(fd, message, !begins))
			fail("warm");
	}
}
