/*
 * Pings without the kernel's network: finds a host by ARP (RFC 826), sends it echo requests (RFC 792), one a second, and answers ARP.
 *
 *     cc -o ping ping.c -lwindlass
 *     ./ping SOCKET OWN-MAC OWN-ADDRESS ADDRESS [COUNT]
 *
 * OWN-MAC is the VNIC's.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <windlass.h>

enum { ETH = 14, ARP = 28, IP = 20, ICMP = 64, FRAME_MAX = 2048 };

static windlass_t *device;
static uint8_t own_mac[6], peer_mac[6], own[4], peer[4], frame[FRAME_MAX];

static double
now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return ((double)time.tv_sec + (double)time.tv_nsec / 1e9);
}

/* Sends a frame of type 0x0800 and so much. */
static void
put(uint8_t *bytes, size_t len, const uint8_t *to, uint8_t type)
{
	WINDLASS_FRAMEIO(1) one = { { 1, 1, 1 }, { { bytes, len, 0 } } };

	memcpy(bytes, to, 6);
	memcpy(bytes + 6, own_mac, 6);
	bytes[12] = 8;
	bytes[13] = type;
	if (windlass_frameio_write(device, &one.io) != 0 && errno != EAGAIN)
		perror("write");
}

static void
arp(const uint8_t *to, uint8_t operation, const uint8_t *target)
{
	uint8_t out[ETH + ARP] = { [ETH + 1] = 1, [ETH + 2] = 8, [ETH + 4] = 6, [ETH + 5] = 4, [ETH + 7] = operation };

	memcpy(out + ETH + 8, own_mac, 6);
	memcpy(out + ETH + 14, own, 4);
	memcpy(out + ETH + 18, to, 6);
	memcpy(out + ETH + 24, target, 4);
	put(out, sizeof (out), to, 6);
}

static void
checksum(uint8_t *at, const uint8_t *bytes, size_t len)
{
	uint32_t sum = 0;
	for (size_t i = 0; i < len; i += 2)
		sum += (uint32_t)(bytes[i] << 8 | bytes[i + 1]);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = ~(sum + (sum >> 16));
	at[0] = (uint8_t)(sum >> 8);
	at[1] = (uint8_t)sum;
}

static void
echo(uint8_t number)
{
	uint8_t out[ETH + IP + ICMP] = { [ETH] = 0x45, [ETH + 3] = IP + ICMP, [ETH + 8] = 64, [ETH + 9] = 1, [ETH + IP] = 8 };
	uint8_t *ip = out + ETH, *icmp = ip + IP;

	memcpy(ip + 12, own, 4);
	memcpy(ip + 16, peer, 4);
	checksum(ip + 10, ip, IP);
	icmp[7] = number;
	checksum(icmp + 2, icmp, ICMP);
	put(out, sizeof (out), peer_mac, 0);
}

/* Takes a frame. Returns whether it has the peer's link-layer address, for number 0, or is the answer of this number. */
static int
take(size_t len, uint8_t number)
{
	const uint8_t *at = frame + ETH;
	if (frame[12] != 8 || len < ETH + ARP)
		return (0);
	if (frame[13] == 0)
		return (number != 0 && at[9] == 1 && memcmp(at + 12, peer, 4) == 0 && at[IP] == 0 && at[IP + 7] == number);
	if (frame[13] == 6 && at[7] == 1 && memcmp(at + 24, own, 4) == 0)
		arp(at + 8, 2, at + 14);
	if (frame[13] != 6 || memcmp(at + 14, peer, 4) != 0)
		return (0);
	memcpy(peer_mac, at + 8, 6);
	return (number == 0);
}

/* Whether the answer comes within a second. */
static int
wait_for(uint8_t number)
{
	double end = now() + 1;
	struct pollfd fd = { windlass_pollfd(device, POLLIN), POLLIN, 0 };
	for (double left; (left = end - now()) > 0; ) {
		WINDLASS_FRAMEIO(1) one = { { 1, 1, 1 }, { { frame, FRAME_MAX, 0 } } };
		if (windlass_frameio_read(device, &one.io) == 0) {
			if (take(one.vecs[0].actlen, number))
				return (1);
		} else if (errno != EAGAIN || poll(&fd, 1, (int)(left * 1e3) + 1) < 0) {
			return (0);
		}
	}
	return (0);
}

int
main(int argc, char **argv)
{
	uint8_t *m = own_mac, all[6] = { 255, 255, 255, 255, 255, 255 };
	int count = argc == 6 ? atoi(argv[5]) : 4, got = 0;

	if (argc < 5 || argc > 6 || inet_pton(AF_INET, argv[3], own) != 1 || inet_pton(AF_INET, argv[4], peer) != 1 || count > 255 ||
	    sscanf(argv[2], "%hhx:%hhx:%hhx:%hhx:%hhx:%hhx", m, m + 1, m + 2, m + 3, m + 4, m + 5) != 6) {
		fprintf(stderr, "usage: ping SOCKET OWN-MAC OWN-ADDRESS ADDRESS [COUNT]\n");
		return (2);
	}
	if ((device = windlass_open_socket(argv[1], WINDLASS_NONBLOCK)) == NULL) {
		fprintf(stderr, "ping: %s: %s\n", argv[1], windlass_strerror(windlass_errno()));
		return (1);
	}
	for (int i = 0, known = 0; !known && i < 5; i++) {
		arp(all, 1, peer);
		known = wait_for(0);
	}
	for (int i = 1; i <= count; i++) {
		double sent = now();
		echo((uint8_t)i);
		if (wait_for((uint8_t)i) && ++got)
			printf("%s: seq %d, %.3f ms\n", argv[4], i, (now() - sent) * 1e3);
		if (i < count)
			sleep(1);
	}
	printf("%d sent, %d received\n", count, got);
	windlass_close(device);
	return (got == 0);
}
