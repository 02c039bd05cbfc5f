"""The rows of an INSERT on their way into the engine, which reads them as a file: a pipe that the front fills.

An end of file must not be taken for the end of the rows: a client that hangs up, a body that breaks off and a front that
fails all close the pipe too. So the rows travel as a gzip stream of stored, uncompressed blocks. Its trailer is written
only when the whole body has come, and the engine refuses a stream without it (354), or whose checksum is another. Of the
engine's other codecs, lz4 and zst take a stream that is cut for one that ends (tried on 26.9).

The pipe has no name in the file system, so Landlock needs no hole for it, and nothing is left behind after `kill -9`.
"""

import contextlib
import fcntl
import os
import zlib

# The kernel's default bound for unprivileged processes; at its own 64 KiB the two sides wait for each other too often.
_PIPE_BYTES = 1 << 20
# A gzip stream of stored blocks: no compression, with gzip's own header and trailer.
_LEVEL, _GZIP = 0, 31
# What `COMPRESSION` in an INSERT calls it.
CODEC = "gz"


class Feed:
    """A pipe from a request to the engine. `append` and `finish` wait while the engine is behind."""

    def __init__(self):
        self._read, self._write = os.pipe()
        with contextlib.suppress(OSError):  # over the user's bound of pipe memory: a small pipe is slower, not wrong
            fcntl.fcntl(self._write, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._gzip = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
        self.path = f"/proc/self/fd/{self._read}"

    def append(self, rows: bytes) -> None:
        """Hands over a piece; raises `BrokenPipeError` when the engine reads no more."""
        self._put(self._gzip.compress(rows))

    def finish(self) -> None:
        """Says that these were all the rows. Only now the engine can store the last of them."""
        self._put(self._gzip.flush())
        self.abandon()

    def abandon(self) -> None:
        """Closes the writing side; without `finish` before it, the engine's INSERT fails. Never beside an `append`."""
        if self._write >= 0:
            os.close(self._write)
            self._write = -1

    def engine_is_done(self) -> None:
        """Closes the reading side, so that nobody waits for a reader that is gone."""
        os.close(self._read)

    def _put(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._write, view) :]
