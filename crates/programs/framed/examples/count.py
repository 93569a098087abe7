#!/usr/bin/env python3
"""Counts packets by EtherType, and prints a line for each batch: python3 count.py SOCKET

Needs libwindlass.so.1 and nothing else. Frames are memoryviews over the ring's memory: none is copied.
"""
import collections
import ctypes
import os
import sys

BATCH = 32


class Buf(ctypes.Structure):
    _fields_ = [("buf", ctypes.c_void_p), ("len", ctypes.c_size_t)]


class Device:
    """An open device of windlassd."""

    _lib = ctypes.CDLL("libwindlass.so.1", use_errno=True)
    _lib.windlass_open_socket.restype = ctypes.c_void_p
    _lib.windlass_strerror.restype = ctypes.c_char_p
    for _name in ("windlass_close", "windlass_peek", "windlass_release"):
        getattr(_lib, _name).argtypes = {
            "windlass_close": [ctypes.c_void_p],
            "windlass_peek": [ctypes.c_void_p, ctypes.POINTER(Buf), ctypes.c_uint],
            "windlass_release": [ctypes.c_void_p, ctypes.c_uint],
        }[_name]

    def __init__(self, path):
        self._bufs = (Buf * BATCH)()
        self._handle = self._lib.windlass_open_socket(os.fsencode(path), 0)
        if not self._handle:
            why = self._lib.windlass_strerror(self._lib.windlass_errno())
            raise OSError(ctypes.get_errno(), f"{path}: {why.decode()}")

    def batch(self):
        """Waits for frames, and yields each as a memoryview that is valid until the next one of the batch."""
        count = self._lib.windlass_peek(self._handle, self._bufs, BATCH)
        if count < 0:
            errno = ctypes.get_errno()
            raise OSError(errno, os.strerror(errno))
        try:
            for frame in self._bufs[:count]:
                yield memoryview((ctypes.c_ubyte * frame.len).from_address(frame.buf))
        finally:
            self._lib.windlass_release(self._handle, count)

    def close(self):
        self._lib.windlass_close(self._handle)
        self._handle = None


def main():
    device = Device(sys.argv[1])
    counts = collections.Counter()
    print("counting", flush=True)
    while True:
        for frame in device.batch():
            counts[int.from_bytes(frame[12:14], "big")] += 1
        print(" ".join(f"{kind:04x}={n}" for kind, n in sorted(counts.items())), flush=True)


if __name__ == "__main__":
    main()
