"""Framed I/O at devices of windlassd: whole frames, many a call, as memoryviews over the ring's memory.

    with windlass.open("p0") as device:             # or windlass.open_socket(path)
        with device.read() as frames:               # waits; up to 32
            for frame in frames:                    # a memoryview, valid until the block ends
                print(len(frame), bytes(frame[:14]).hex())
        device.write([frame, frame])                # all of up to 32 leave together, or none

A failed call raises OSError with its errno: BlockingIOError for a nonblocking device that is not ready, PermissionError and so on. Calls of a
closed device raise ValueError. One thread reads at a time, many may write. See windlass_open(3), windlass_frameio_read(3) and windlass_peek(3).
"""
import contextlib
import ctypes
import errno
import os
import select

__all__ = ["BATCH", "BUF_MAX", "Device", "open", "open_socket"]

BATCH = 32
"""Most frames of one call."""
BUF_MAX = 2048
"""Longest frame that lies in one buffer of a ring. Longer ones are copied."""
_FRAME_MAX = 65557
_NONBLOCK = 1


class _Buf(ctypes.Structure):
    _fields_ = [("buf", ctypes.c_void_p), ("len", ctypes.c_size_t)]


class _Lease(ctypes.Structure):
    _fields_ = [("words", ctypes.c_uint64 * 4)]


class _Vec(ctypes.Structure):
    _fields_ = [("buf", ctypes.c_void_p), ("buflen", ctypes.c_size_t), ("actlen", ctypes.c_size_t)]


class _FrameIo(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("nvpf", ctypes.c_uint32), ("nvecs", ctypes.c_uint32), ("vecs", _Vec * BATCH)]


def _load():
    """The library of the wheel, else the system's."""
    name = "libwindlass.so.1"
    own = os.path.join(os.path.dirname(os.path.abspath(__file__)), name)
    lib = ctypes.CDLL(own if os.path.exists(own) else name, use_errno=True)
    handle, bufs, lease, count = ctypes.c_void_p, ctypes.POINTER(_Buf), ctypes.POINTER(_Lease), ctypes.c_uint
    for call, result, arguments in (
        ("windlass_open", handle, [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int]),
        ("windlass_open_socket", handle, [ctypes.c_char_p, ctypes.c_int]),
        ("windlass_close", None, [handle]),
        ("windlass_set_nonblock", ctypes.c_int, [handle, ctypes.c_int]),
        ("windlass_drain", ctypes.c_int, [handle, ctypes.c_uint]),
        ("windlass_pollfd", ctypes.c_int, [handle, ctypes.c_int]),
        ("windlass_peek", ctypes.c_int, [handle, bufs, count]),
        ("windlass_release", ctypes.c_int, [handle, count]),
        ("windlass_reserve", ctypes.c_int, [handle, lease, bufs, count]),
        ("windlass_commit", ctypes.c_int, [handle, lease, bufs, count]),
        ("windlass_frameio_read", ctypes.c_int, [handle, ctypes.POINTER(_FrameIo)]),
        ("windlass_frameio_write", ctypes.c_int, [handle, ctypes.POINTER(_FrameIo)]),
        ("windlass_errno", ctypes.c_int, []),
        ("windlass_strerror", ctypes.c_char_p, [ctypes.c_int]),
    ):
        function = getattr(lib, call)
        function.restype, function.argtypes = result, arguments
    return lib


_lib = _load()


def _call(function, device, *arguments):
    """Calls; again after a signal, whose Python handler runs before. The device may be closed by that handler."""
    while True:
        result = function(device._open_handle(), *arguments)
        if result != -1:
            return result
        number = ctypes.get_errno()
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number))


def _opened(handle, name):
    if not handle:
        number = ctypes.get_errno()
        raise OSError(number, _lib.windlass_strerror(_lib.windlass_errno()).decode(), name)
    return Device(handle)


def open(name, zone="global", nonblocking=False):
    """Opens the vnd device of this name."""
    flags = _NONBLOCK if nonblocking else 0
    return _opened(_lib.windlass_open(zone.encode(), name.encode(), flags), name)


def open_socket(path, nonblocking=False):
    """Opens the device behind a memif socket."""
    flags = _NONBLOCK if nonblocking else 0
    return _opened(_lib.windlass_open_socket(os.fsencode(path), flags), path)


def _view(address, length):
    return memoryview((ctypes.c_ubyte * length).from_address(address)).cast("B")


class Device:
    """An open device: a context manager, whose end closes it. fileno() is for select and event loops."""

    def __init__(self, handle):
        self._handle = handle

    def _open_handle(self):
        if self._handle is None:
            raise ValueError("the device is closed")
        return self._handle

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Waits until the daemon has taken what was written, at most 1 s."""
        handle, self._handle = self._handle, None
        if handle is not None:
            _lib.windlass_close(handle)

    def set_nonblocking(self, nonblocking):
        """Whether calls raise BlockingIOError where they would wait."""
        _call(_lib.windlass_set_nonblock, self, nonblocking)

    def drain(self, seconds):
        """Waits until the daemon has taken every frame."""
        if seconds < 0:
            raise ValueError("the time is negative")
        _call(_lib.windlass_drain, self, int(seconds * 1000))

    def fileno(self):
        """Readable when a frame can be read."""
        return _call(_lib.windlass_pollfd, self, select.POLLIN)

    @contextlib.contextmanager
    def read(self, count=BATCH):
        """Waits for frames, and lends up to count of them. Nothing else can be read until the block ends, which takes them as read."""
        bufs = (_Buf * count)()
        try:
            lent = _call(_lib.windlass_peek, self, bufs, count)
        except OSError as error:
            if error.errno != errno.EOVERFLOW:
                raise
            yield [self._read_long()]
            return
        frames = [_view(buf.buf, buf.len).toreadonly() for buf in bufs[:lent]]
        try:
            yield frames
        finally:
            for frame in frames:
                frame.release()
            _call(_lib.windlass_release, self, lent)

    def _read_long(self):
        """A frame in several buffers, copied."""
        room = bytearray(_FRAME_MAX)
        address = ctypes.addressof((ctypes.c_ubyte * _FRAME_MAX).from_buffer(room))
        io = _FrameIo(1, 1, 1, ((address, _FRAME_MAX, 0),))
        _call(_lib.windlass_frameio_read, self, io)
        return memoryview(room)[: io.vecs[0].actlen].toreadonly()

    def write(self, frames):
        """Sends up to 32 frames, bytes-like: all, or none. Each is copied once, into the ring."""
        frames = [memoryview(frame).cast("B") for frame in frames]
        if all(len(frame) <= BUF_MAX for frame in frames):
            with self.reserve(len(frames)) as buffers:
                for buffer, frame in zip(buffers, frames):
                    buffer[: len(frame)] = frame
                buffers.commit([len(frame) for frame in frames])
            return
        kept = [(ctypes.c_ubyte * len(frame)).from_buffer_copy(frame) for frame in frames]
        io = _FrameIo(1, 1, len(kept), tuple((ctypes.addressof(copy), len(copy), 0) for copy in kept))
        _call(_lib.windlass_frameio_write, self, io)

    @contextlib.contextmanager
    def reserve(self, count):
        """Reserves count buffers of the ring, memoryviews of BUF_MAX bytes to write frames into: commit() sends them."""
        bufs, lease = (_Buf * count)(), _Lease()
        _call(_lib.windlass_reserve, self, lease, bufs, count)
        buffers, lens = Buffers(_view(buf.buf, buf.len) for buf in bufs), ()
        try:
            yield buffers
            lens = buffers.lens
        finally:
            for buffer in buffers:
                buffer.release()
            for buf, length in zip(bufs, lens):
                buf.len = length
            if self._handle is not None:
                done = _lib.windlass_commit(self._handle, lease, bufs, len(lens))
        if lens:
            self._open_handle()
            if done == -1:
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number))


class Buffers(list):
    """Reserved buffers. Without commit() they are given back."""

    lens = ()

    def commit(self, lens):
        """Sends the frames in the first buffers, of these lengths, when the block ends."""
        if len(lens) > len(self):
            raise ValueError(f"{len(lens)} frames in {len(self)} buffers")
        self.lens = tuple(lens)
