"""Talks to an echo server over several connections, and checks every byte. Arguments: port, connections, messages."""
import random
import socket
import sys

port, connections, messages = map(int, sys.argv[1:4])
chance = random.Random(7)
streams = [socket.create_connection(("127.0.0.1", port)) for _ in range(connections)]
total = 0
for turn in range(messages):
    for stream in streams:
        message = chance.randbytes(chance.choice([1, 64, 1000, 4096, 40_000]))
        stream.sendall(message)
        got = b""
        while len(got) < len(message):
            part = stream.recv(65536)
            if not part:
                sys.exit(f"turn {turn}: closed after {len(got)} of {len(message)} bytes")
            got += part
        if got != message:
            sys.exit(f"turn {turn}: {len(message)} bytes came back changed")
        total += len(got)
for stream in streams:
    stream.shutdown(socket.SHUT_WR)
    if stream.recv(1):
        sys.exit("bytes after the end")
    stream.close()
print("echoed", total)
