"""An answer: ClickHouse's headers, its compressions, and an error that cannot be overlooked once the body has begun."""

import asyncio
import json
import secrets
import time
import zlib

import lz4.frame
from aiohttp import web

from .compression import compress
from .errors import FrontError
from .request import Asked

_CONTENT_TYPES = {
    "json": "application/json; charset=UTF-8",
    "jsoncompact": "application/json; charset=UTF-8",
    "jsonstrings": "application/json; charset=UTF-8",
    "jsoneachrow": "application/x-ndjson; charset=UTF-8",
    "csv": "text/csv; charset=UTF-8; header=absent",
    "csvwithnames": "text/csv; charset=UTF-8; header=present",
    "tabseparated": "text/tab-separated-values; charset=UTF-8",
    "tabseparatedwithnames": "text/tab-separated-values; charset=UTF-8",
    "tabseparatedwithnamesandtypes": "text/tab-separated-values; charset=UTF-8",
    "xml": "application/xml; charset=UTF-8",
    "rowbinary": "application/octet-stream",
    "rowbinarywithnames": "application/octet-stream",
    "rowbinarywithnamesandtypes": "application/octet-stream",
    "native": "application/octet-stream",
    "arrow": "application/octet-stream",
    "arrowstream": "application/octet-stream",
    "parquet": "application/octet-stream",
}


class Counts:
    """What the summary and the log say of a request."""

    def __init__(self):
        self._begun = time.monotonic_ns()
        self.read_rows = self.read_bytes = self.written_rows = self.written_bytes = 0
        self.result_rows = self.result_bytes = 0

    def add(self, result) -> None:
        """Adds what the engine reports; its counts of what was read are running totals."""
        self.read_rows = max(self.read_rows, result.storage_rows_read())
        self.read_bytes = max(self.read_bytes, result.storage_bytes_read())
        self.written_rows += result.rows_written()
        self.written_bytes += result.bytes_written()
        self.result_rows += result.rows_read()
        self.result_bytes += result.size()

    def elapsed_ms(self) -> float:
        """Returns the time since the request came."""
        return (time.monotonic_ns() - self._begun) / 1e6

    def summary(self) -> str:
        """Returns the value of X-ClickHouse-Summary: numbers are strings there."""
        numbers = {
            "read_rows": self.read_rows,
            "read_bytes": self.read_bytes,
            "written_rows": self.written_rows,
            "written_bytes": self.written_bytes,
            "total_rows_to_read": self.read_rows,
            "result_rows": self.result_rows,
            "result_bytes": self.result_bytes,
            "elapsed_ns": time.monotonic_ns() - self._begun,
        }
        return json.dumps({name: str(value) for name, value in numbers.items()}, separators=(",", ":"))


def headers(query_id: str, format_name: str | None = None) -> dict[str, str]:
    """Returns the headers that every answer to a query bears."""
    found = {"X-ClickHouse-Query-Id": query_id, "X-ClickHouse-Server-Display-Name": "strobe"}
    if format_name:
        found["X-ClickHouse-Format"] = format_name
        found["Content-Type"] = _CONTENT_TYPES.get(format_name.lower(), "text/plain; charset=UTF-8")
    return found


class Answer:
    """The body of an answer, sent in blocks of rows."""

    def __init__(self, request: web.BaseRequest, asked: Asked, send_timeout_s: float):
        self._request, self._asked, self._send_timeout_s = request, asked, send_timeout_s
        self._response: web.StreamResponse | None = None
        self._encoder = None
        # A client tells our exception from rows by this tag (ClickHouse 25.11 and later).
        self._tag = secrets.token_hex(8)
        self.bytes_sent = 0

    @property
    def begun(self) -> bool:
        """Says whether the status has been sent."""
        return self._response is not None

    async def begin(self, format_name: str | None, counts: Counts) -> None:
        """Sends status 200 and the headers."""
        response = web.StreamResponse(headers=headers(self._asked.query_id, format_name))
        response.headers["X-ClickHouse-Summary"] = counts.summary()
        response.headers["X-ClickHouse-Exception-Tag"] = self._tag
        if self._asked.encoding and not self._asked.compress:
            response.headers["Content-Encoding"] = self._asked.encoding
            self._encoder = _Lz4Frame() if self._asked.encoding == "lz4" else _Gzip()
        response.enable_chunked_encoding()
        await response.prepare(self._request)
        self._response = response

    async def send(self, data) -> None:
        """Sends a block; waits until the client takes it, and no longer than the limit."""
        if not len(data):
            return
        if self._asked.compress:
            data = compress(data)
        elif self._encoder:
            data = self._encoder.block(data)
        self.bytes_sent += len(data)
        try:
            async with asyncio.timeout(self._send_timeout_s):
                await self._response.write(data)
        except TimeoutError:
            self._request.transport.abort()
            raise ConnectionResetError(f"the client took nothing for {self._send_timeout_s:g} s") from None

    async def end(self) -> None:
        """Completes the body."""
        if self._encoder:
            last = self._encoder.end()
            self.bytes_sent += len(last)
            await self._response.write(last)
        await self._response.write_eof()

    async def break_off(self, error: FrontError, version: str) -> None:
        """Ends a body that has begun with the error as ClickHouse writes it, and without the last chunk."""
        message = error.text(version)
        tagged = f"\r\n__exception__\r\n{self._tag}\r\n{message}{len(message.encode())} {self._tag}\r\n__exception__\r\n"
        try:
            await self.send(tagged.encode())
        finally:
            # No terminating chunk: a client that reads neither tag nor text still sees that the body is cut.
            if self._request.transport is not None:
                self._request.transport.close()


class _Lz4Frame:
    def __init__(self):
        self._compressor = lz4.frame.LZ4FrameCompressor(auto_flush=True)
        self._start = self._compressor.begin()

    def block(self, data) -> bytes:
        start, self._start = self._start, b""
        return start + self._compressor.compress(data)

    def end(self) -> bytes:
        start, self._start = self._start, b""
        return start + self._compressor.flush()


class _Gzip:
    def __init__(self):
        # Level 3 is ClickHouse's `http_zlib_compression_level`; 31 asks for gzip's own header.
        self._compressor = zlib.compressobj(3, wbits=31)

    def block(self, data) -> bytes:
        return self._compressor.compress(data) + self._compressor.flush(zlib.Z_SYNC_FLUSH)

    def end(self) -> bytes:
        return self._compressor.flush()
