"""An echo server on asyncio; ends when its standard input does. Argument: port."""
import asyncio
import sys
import threading


async def serve_one(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()


async def main():
    over = asyncio.Event()
    loop = asyncio.get_running_loop()

    def wait_for_end():
        sys.stdin.read()
        loop.call_soon_threadsafe(over.set)

    threading.Thread(target=wait_for_end, daemon=True).start()
    server = await asyncio.start_server(serve_one, "127.0.0.1", int(sys.argv[1]))
    await over.wait()
    server.close()


asyncio.run(main())
