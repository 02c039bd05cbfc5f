"""ClickHouse's compressed blocks: checksum, method, sizes, data.

A block is CityHash128 (ClickHouse's v1.0.2) over all that follows, then method (1 byte), compressed size with these 9
bytes (u32), size once decompressed (u32), both little endian, then the data.
"""

import struct

import lz4.block
from clickhouse_cityhash.cityhash import CityHash128

from . import errors
from .errors import FrontError

# What ClickHouse itself accepts is 1 GiB; a client of ours sends 1 MiB or less.
BLOCK_BYTES_MAX = 64 << 20
# ClickHouse's own size of a block to compress.
_BLOCK_BYTES = 1 << 20

_LZ4, _ZSTD, _NONE = 0x82, 0x90, 0x02
_CHECKSUM_BYTES, _HEADER = 16, struct.Struct("<BII")
_PREFIX_BYTES = _CHECKSUM_BYTES + _HEADER.size


def compress(data) -> bytes:
    """Returns `data` as LZ4 blocks."""
    view, blocks = memoryview(data), []
    for at in range(0, len(view), _BLOCK_BYTES):
        piece = view[at : at + _BLOCK_BYTES]
        packed = lz4.block.compress(piece, store_size=False)
        body = _HEADER.pack(_LZ4, len(packed) + _HEADER.size, len(piece)) + packed
        blocks += (_checksum(body), body)
    return b"".join(blocks)


class Decompressor:
    """Takes blocks in pieces of any size."""

    def __init__(self):
        self._pending = bytearray()

    def feed(self, data: bytes) -> bytes:
        """Returns what is complete by now."""
        pending, ready = self._pending, []
        pending += data
        at = 0
        with memoryview(pending) as view:
            while len(view) - at >= _PREFIX_BYTES:
                method, packed_bytes, plain_bytes = _HEADER.unpack_from(view, at + _CHECKSUM_BYTES)
                if packed_bytes < _HEADER.size or max(packed_bytes, plain_bytes) > BLOCK_BYTES_MAX:
                    raise FrontError(
                        errors.CANNOT_DECOMPRESS,
                        f"a compressed block says {packed_bytes} bytes for {plain_bytes}, at most {BLOCK_BYTES_MAX} are taken",
                    )
                end = at + _CHECKSUM_BYTES + packed_bytes
                if end > len(view):
                    break
                body = bytes(view[at + _CHECKSUM_BYTES : end])
                if _checksum(body) != view[at : at + _CHECKSUM_BYTES]:
                    raise FrontError(errors.CHECKSUM_DOESNT_MATCH, "Checksum doesn't match: corrupted data")
                ready.append(_unpack(method, body[_HEADER.size :], plain_bytes))
                at = end
        del pending[:at]
        return ready[0] if len(ready) == 1 else b"".join(ready)

    def finish(self) -> None:
        """Refuses a body that ends inside a block."""
        if self._pending:
            raise FrontError(errors.CANNOT_READ_ALL_DATA, f"the body ends inside a compressed block, {len(self._pending)} bytes are left over")


def _checksum(body) -> bytes:
    # The library's number has ClickHouse's first half on top.
    number = CityHash128(bytes(body))
    return struct.pack("<QQ", number >> 64, number & 0xFFFF_FFFF_FFFF_FFFF)


def _unpack(method: int, packed: bytes, plain_bytes: int) -> bytes:
    try:
        if method == _LZ4:
            return lz4.block.decompress(packed, uncompressed_size=plain_bytes)
        if method == _ZSTD:
            import pyarrow  # comes with chDB; imported late, because few clients send zstd

            return pyarrow.Codec("zstd").decompress(packed, plain_bytes, asbytes=True)
        if method == _NONE and len(packed) == plain_bytes:
            return packed
    except Exception as error:
        raise FrontError(errors.CANNOT_DECOMPRESS, f"a compressed block cannot be read: {error}") from error
    raise FrontError(errors.CANNOT_DECOMPRESS, f"compression method 0x{method:02x} is not known")
