"""An echo server of forked processes that accept from one socket; ends when its standard input does. Argument: port."""
import multiprocessing
import select
import socket
import sys


def work(listener, over):
    while not over.is_set():
        if not select.select([listener], [], [], 0.05)[0]:
            continue
        try:
            stream, _ = listener.accept()
        except BlockingIOError:
            continue
        stream.setblocking(True)
        while data := stream.recv(65536):
            stream.sendall(data)
        stream.close()


multiprocessing.set_start_method("fork")
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
listener.setblocking(False)
over = multiprocessing.Event()
workers = [multiprocessing.Process(target=work, args=(listener, over)) for _ in range(6)]
for worker in workers:
    worker.start()
sys.stdin.read()
over.set()
for worker in workers:
    worker.join()
