#!/usr/bin/env python3
"""Counts packets by EtherType, and prints a line for each batch: python3 count.py SOCKET

Needs the wheel of `make wheel`. Frames are memoryviews over the ring's memory: none is copied.
"""
import collections
import sys

import windlass


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: python3 count.py SOCKET")
    counts = collections.Counter()
    with windlass.open_socket(sys.argv[1]) as device:
        print("counting", flush=True)
        while True:
            with device.read() as frames:
                for frame in frames:
                    counts[int.from_bytes(frame[12:14], "big")] += 1
            print(" ".join(f"{kind:04x}={n}" for kind, n in sorted(counts.items())), flush=True)


if __name__ == "__main__":
    main()
