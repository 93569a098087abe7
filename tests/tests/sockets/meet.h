/* How two programs find each other over TCP on this host, and how they fail. The includer has included what these need. */

static void fail(const char *what)
{
	printf("FAIL %s: %s\n", what, strerror(errno));
	fflush(stdout);
	_exit(2);
}

/* The file at `path` has the port from now on. */
static void tell_port(const char *path, int port)
{
	char temporary[4096];
	snprintf(temporary, sizeof temporary, "%s.new", path);
	FILE *file = fopen(temporary, "w");
	fprintf(file, "%d", port);
	fclose(file);
	rename(temporary, path);
}

/* An address of this host that a variable names; else loopback. */
static struct sockaddr_in address(const char *variable)
{
	struct sockaddr_in name = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	if (getenv(variable))
		inet_pton(AF_INET, getenv(variable), &name.sin_addr);
	return name;
}

/* A socket that listens at a port that was free, which the file at `path` has from now on. */
static int listen_at(const char *path)
{
	struct sockaddr_in name = address("MEET_AT");
	socklen_t length = sizeof name;
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	if (bind(fd, (void *)&name, length) || listen(fd, 4) || getsockname(fd, (void *)&name, &length))
		fail("listen");
	tell_port(path, ntohs(name.sin_port));
	return fd;
}

/* The first connection to such a port; nothing listens there any more. */
static int accept_at(const char *path)
{
	int listener = listen_at(path), fd = accept(listener, 0, 0);
	if (fd < 0)
		fail("accept");
	close(listener);
	return fd;
}

/* A connection to the port that the file at `path` has, or will have within 40 s. */
static int dial(const char *path)
{
	struct sockaddr_in name = address("MEET_AT"), own = address("MEET_FROM");
	int port = 0, fd = socket(AF_INET, SOCK_STREAM, 0);
	FILE *file = 0;
	for (int i = 0; i < 8000 && !(file = fopen(path, "r")); i++)
		usleep(5000);
	if (!file || fscanf(file, "%d", &port) != 1)
		fail("port");
	fclose(file);
	name.sin_port = htons(port);
	if ((getenv("MEET_FROM") && bind(fd, (void *)&own, sizeof own)) || connect(fd, (void *)&name, sizeof name))
		fail("connect");
	return fd;
}
