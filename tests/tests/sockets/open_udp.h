/* peer.c over two UDP sockets that are connected to each other: PORT-FILE with a role's number behind it has that one's port. */
static void open_connection(const char *role, const char *path)
{
	struct sockaddr_in name = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t length = sizeof name;
	char own[4096], other[4096], temporary[4096];
	side = !strcmp(role, "connect");
	fd = socket(AF_INET, SOCK_DGRAM, 0);
	if (fd < 0 || bind(fd, (void *)&name, length) || getsockname(fd, (void *)&name, &length))
		fail("bind");
	snprintf(own, sizeof own, "%s.%d", path, side);
	snprintf(other, sizeof other, "%s.%d", path, !side);
	snprintf(temporary, sizeof temporary, "%s.%d.new", path, side);
	FILE *file = fopen(temporary, "w");
	fprintf(file, "%d", ntohs(name.sin_port));
	fclose(file);
	rename(temporary, own);
	int port = 0;
	file = 0;
	for (int i = 0; i < 2000 && !(file = fopen(other, "r")); i++)
		usleep(5000);
	if (!file || fscanf(file, "%d", &port) != 1)
		fail("port");
	fclose(file);
	name.sin_port = htons(port);
	if (connect(fd, (void *)&name, length))
		fail("connect");
}
