/* peer.c over an AF_UNIX stream: PORT-FILE is the socket's name. */
#include <sys/un.h>

enum { TYPE = SOCK_STREAM };

/* Role pair: both ends, of a socketpair, in two processes. */
static void open_pair(void)
{
	int both[2];
	if (socketpair(AF_UNIX, TYPE, 0, both))
		fail("socketpair");
	other_end = fork();
	side = !other_end;
	if (side)
		taken = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	fd = both[side];
	close(both[!side]);
}

static void open_connection(const char *role, const char *path)
{
	struct sockaddr_un name = { .sun_family = AF_UNIX };
	if (!strcmp(role, "pair")) {
		open_pair();
		return;
	}
	strncpy(name.sun_path, path, sizeof name.sun_path - 1);
	fd = socket(AF_UNIX, TYPE, 0);
	if (!strcmp(role, "listen")) {
		int listener = fd;
		char temporary[4096];
		snprintf(temporary, sizeof temporary, "%s.n", path);
		strncpy(name.sun_path, temporary, sizeof name.sun_path - 1);
		if (bind(fd, (void *)&name, sizeof name) || listen(fd, 1))
			fail("listen");
		rename(temporary, path);
		fd = accept(listener, 0, 0);
		close(listener);
	} else {
		side = 1;
		int connected = -1;
		for (int i = 0; i < 2000 && connected; i++)
			if ((connected = connect(fd, (void *)&name, sizeof name)))
				usleep(5000);
		if (connected)
			fail("connect");
	}
	if (fd < 0)
		fail("connection");
}

/* Every seventh message carries a descriptor, of a file that says where in the stream the message begins. */
enum { EACH = 7 };

static int marker(uint64_t place)
{
	int file = memfd_create("marker", 0);
	if (file < 0 || write(file, &place, sizeof place) != sizeof place)
		fail("marker");
	return file;
}

static ssize_t send_right(const unsigned char *bytes, size_t n, int file)
{
	struct iovec piece = { (void *)bytes, n };
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(sizeof(int))];
	} control = { .head = { CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS } };
	struct msghdr message = { .msg_iov = &piece, .msg_iovlen = 1 };
	if (file >= 0) {
		memcpy(CMSG_DATA(&control.head), &file, sizeof file);
		message.msg_control = &control;
		message.msg_controllen = sizeof control;
	}
	return sendmsg(fd, &message, MSG_NOSIGNAL);
}

static void *write_rights(void *state)
{
	static unsigned char bytes[CHUNK_MAX];
	for (int i = 0; sent < limit; i++) {
		while (!may_send() && !over)
			usleep(20);
		size_t n = random_size(state), done = 0;
		if (sent + n > limit)
			n = limit - sent;
		for (size_t j = 0; j < n; j++)
			bytes[j] = at(side, sent + j);
		int file = i % EACH ? -1 : marker(sent);
		while (done < n) {
			ssize_t r = send_right(bytes + done, n - done, done ? -1 : file);
			if (r < 0)
				fail("sendmsg");
			done += r;
		}
		if (file >= 0)
			close(file);
		sent += n;
	}
	shutdown(fd, SHUT_WR);
	return 0;
}

/* A descriptor comes in the call that gives the first byte of its message. */
static void read_rights(uint64_t *state)
{
	static unsigned char bytes[CHUNK_MAX];
	unsigned long long files = 0;
	for (;;) {
		struct iovec piece = { bytes, random_size(state) };
		union {
			struct cmsghdr head;
			char room[CMSG_SPACE(4 * sizeof(int))];
		} control;
		struct msghdr message = { .msg_iov = &piece, .msg_iovlen = 1, .msg_control = &control,
			.msg_controllen = sizeof control };
		ssize_t n = recvmsg(fd, &message, 0);
		if (n <= 0) {
			ending = n == 0 ? "eof" : strerror(errno);
			break;
		}
		for (struct cmsghdr *one = CMSG_FIRSTHDR(&message); one; one = CMSG_NXTHDR(&message, one)) {
			int file;
			uint64_t place;
			memcpy(&file, CMSG_DATA(one), sizeof file);
			if (one->cmsg_len != CMSG_LEN(sizeof file) || pread(file, &place, sizeof place, 0) != sizeof place)
				fail("descriptor");
			if (place < got || place >= got + n) {
				printf("WRONG descriptor of %llu in %llu + %zd\n", (unsigned long long)place,
				       (unsigned long long)got, n);
				exit(1);
			}
			close(file);
			files++;
		}
		if (message.msg_flags & MSG_CTRUNC)
			fail("truncated control data");
		check(bytes, n);
	}
	over = 1;
	printf("descriptors %llu\n", files);
}
