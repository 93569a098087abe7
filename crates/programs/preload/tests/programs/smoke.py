"""What an ordinary Python program does with sockets, processes and signals."""
import array
import asyncio
import multiprocessing
import os
import select
import signal
import socket
import subprocess
import sys
import threading


def pair():
    listener = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(listener.getsockname())
    server, _ = listener.accept()
    listener.close()
    return client, server


def threads():
    client, server = pair()
    total = []

    def take():
        got = b""
        while data := server.recv(65536):
            got += data
        total.append(got)

    thread = threading.Thread(target=take)
    thread.start()
    sent = bytes(range(256)) * 4096
    client.sendall(sent)
    client.shutdown(socket.SHUT_WR)
    thread.join()
    print("threads", total[0] == sent)


async def echo(reader, writer):
    while data := await reader.read(1000):
        writer.write(data)
        await writer.drain()
    writer.close()


async def loop():
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    name = server.sockets[0].getsockname()

    async def one(number):
        reader, writer = await asyncio.open_connection(*name)
        for i in range(20):
            writer.write(b"%d-%d" % (number, i))
            await reader.readexactly(len(b"%d-%d" % (number, i)))
        writer.close()
        return number

    print("asyncio", await asyncio.gather(*map(one, range(10))))
    server.close()


def work(connection):
    connection.send(os.getpid() != os.getppid())
    connection.send(sum(connection.recv()))


def passing():
    left, right = socket.socketpair()
    client, server = pair()
    left.sendmsg([b"f"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [server.fileno()]))])
    _, control, _, _ = right.recvmsg(1, socket.CMSG_SPACE(4))
    fd = array.array("i", control[0][2])[0]
    server.close()
    client.sendall(b"passed")
    print("passing", os.read(fd, 10))
    os.close(fd)
    print("eof", client.recv(1))


def main():
    threads()
    asyncio.run(loop())
    for method in ("fork", "spawn"):
        context = multiprocessing.get_context(method)
        ours, theirs = context.Pipe()
        process = context.Process(target=work, args=(theirs,))
        process.start()
        ours.send([1, 2, 3])
        print(method, ours.recv(), ours.recv())
        process.join()
    print("subprocess", subprocess.run(["sh", "-c", "echo out; exit 3"], capture_output=True))
    passing()
    client, server = pair()
    print("select", [len(x) for x in select.select([client], [client], [], 0)])
    client.setblocking(False)
    try:
        client.recv(1)
    except BlockingIOError as error:
        print(error)
    signal.signal(signal.SIGALRM, lambda *_: client.send(b"a"))
    signal.setitimer(signal.ITIMER_REAL, 0.02)
    print("signal", server.recv(1), signal.getsignal(signal.SIGALRM) is not None)
    stream = server.makefile("rb")
    client.sendall(b"line\n")
    print(stream.readline())
    print("done")


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)
    main()
