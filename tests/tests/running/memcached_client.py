"""Threads that store, read, count and delete in memcached, each over its own connection. Arguments: port, threads, turns."""
import socket
import sys
import threading

port, threads, turns = map(int, sys.argv[1:4])
failures = []


def talk(number):
    stream = socket.create_connection(("127.0.0.1", port))
    lines = stream.makefile("rb")

    def expect(request, *answers):
        stream.sendall(request)
        for answer in answers:
            got = lines.readline()
            if got != answer:
                raise ValueError(f"{request[:40]!r}: {got[:60]!r} and not {answer[:60]!r}")

    try:
        expect(b"set n%d 0 0 1\r\n0\r\n" % number, b"STORED\r\n")
        for turn in range(turns):
            key = b"k%d-%d" % (number, turn)
            value = (b"%d." % (turn * 7919 + number)) * (1 + turn % 200)
            size = len(value)
            expect(b"set %s 5 0 %d\r\n%s\r\n" % (key, size, value), b"STORED\r\n")
            expect(b"get %s\r\n" % key, b"VALUE %s 5 %d\r\n" % (key, size), value + b"\r\n", b"END\r\n")
            expect(b"incr n%d 2\r\n" % number, b"%d\r\n" % (turn * 2 + 2))
            if turn % 3 == 0:
                expect(b"delete %s\r\n" % key, b"DELETED\r\n")
                expect(b"get %s\r\n" % key, b"END\r\n")
    except (OSError, ValueError) as error:
        failures.append(str(error))
    stream.close()


running = [threading.Thread(target=talk, args=(number,)) for number in range(threads)]
for thread in running:
    thread.start()
for thread in running:
    thread.join()
if failures:
    sys.exit("\n".join(failures))
print("right", threads * turns)
