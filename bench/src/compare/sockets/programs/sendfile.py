# Sends a file again and again by sendfile: sendfile.py PORT FILE SECONDS
import os
import socket
import sys
import time

port, name, seconds = int(sys.argv[1]), sys.argv[2], float(sys.argv[3])
file = os.open(name, os.O_RDONLY)
size = os.fstat(file).st_size
with socket.create_connection(("127.0.0.1", port)) as to:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sent = 0
        while sent < size:
            sent += os.sendfile(to.fileno(), file, sent, size - sent)
