/* Two UDP sockets that are connected to each other: PORT-FILE with a role's number behind it has that one's port. The
 * variable PEER_NAMES: `4` or nothing: IPv4; `6`: IPv6; `both`: one end has an IPv6 socket with IPv4 addresses in IPv6's form. */
static socklen_t loopback(struct sockaddr_storage *name, int port)
{
	const char *names = getenv("PEER_NAMES");
	int is_v6 = names && *names == '6', is_mapped = names && *names == 'b' && !side;
	struct sockaddr_in *v4 = (void *)name;
	struct sockaddr_in6 *v6 = (void *)name;
	memset(name, 0, sizeof *name);
	if (is_v6 || is_mapped) {
		*v6 = (struct sockaddr_in6){ .sin6_family = AF_INET6, .sin6_port = htons(port) };
		inet_pton(AF_INET6, is_v6 ? "::1" : "::ffff:127.0.0.1", &v6->sin6_addr);
		return sizeof *v6;
	}
	*v4 = (struct sockaddr_in){ .sin_family = AF_INET, .sin_port = htons(port) };
	v4->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	return sizeof *v4;
}

static void open_connection(const char *role, const char *path)
{
	struct sockaddr_storage name;
	char own[4096], other[4096], temporary[4096];
	side = !strcmp(role, "connect");
	socklen_t length = loopback(&name, 0);
	fd = socket(name.ss_family, SOCK_DGRAM, 0);
	if (fd < 0 || bind(fd, (void *)&name, length) || getsockname(fd, (void *)&name, &length))
		fail("bind");
	snprintf(own, sizeof own, "%s.%d", path, side);
	snprintf(other, sizeof other, "%s.%d", path, !side);
	snprintf(temporary, sizeof temporary, "%s.%d.new", path, side);
	FILE *file = fopen(temporary, "w");
	/* The port stands at the same place in both. */
	fprintf(file, "%d", ntohs(((struct sockaddr_in *)&name)->sin_port));
	fclose(file);
	rename(temporary, own);
	int port = 0;
	file = 0;
	for (int i = 0; i < 2000 && !(file = fopen(other, "r")); i++)
		usleep(5000);
	if (!file || fscanf(file, "%d", &port) != 1)
		fail("port");
	fclose(file);
	length = loopback(&name, port);
	if (connect(fd, (void *)&name, length))
		fail("connect");
}
