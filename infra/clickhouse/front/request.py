"""What a client asked for, whichever of ClickHouse's ways it used to say it: URL, headers, form, body."""

import asyncio
import re
from dataclasses import dataclass, field

from aiohttp import web

from . import errors
from .compression import Decompressor
from .errors import FrontError, too_large
from .options import INSERT_PIECE_BYTES, QUERY_BYTES_MAX, Options

# Parameters of the interface, and settings that concern only what the front does itself: never sent to the engine.
_INTERFACE = frozenset(
    """
    add_http_cors_header buffer_size cancel_http_readonly_queries_on_client_close client_protocol_version compress
    database decompress default_format enable_http_compression http_headers_progress_interval_ms
    http_make_head_request http_native_compression_disable_checksumming_on_decompress http_receive_timeout
    http_response_buffer_size http_send_timeout http_wait_end_of_query http_write_exception_in_output_format
    http_zlib_compression_level network_compression_method password query query_id quota_key
    send_progress_in_http_headers stacktrace user wait_end_of_query
    """.split()
)
_QUERY_ID = re.compile(r"[\x21-\x7e]{1,128}")
# From this revision of the native protocol on, blocks carry a byte per column that only a server can write.
_NATIVE_REVISION_MAX = 54453


@dataclass(slots=True)
class Asked:
    """The parameters of a request, sorted."""

    query: str
    database: str | None
    format: str | None
    query_id: str
    settings: dict[str, str] = field(default_factory=dict)
    params: dict[str, str] = field(default_factory=dict)
    compress: bool = False
    decompress: bool = False
    whole: bool = False
    encoding: str | None = None


def sort(parameters: dict[str, str], headers, new_id: str) -> Asked:
    """Returns what was asked; refuses what only a real server could do."""
    for name in ("session_id", "role"):
        if name in parameters:
            raise FrontError(errors.NOT_IMPLEMENTED, f"{name} is not spoken here: each request is on its own connection")
    revision = parameters.get("client_protocol_version", "0")
    if revision.isdigit() and int(revision) > _NATIVE_REVISION_MAX:
        raise FrontError(
            errors.NOT_IMPLEMENTED,
            f"client_protocol_version={revision} is not spoken here: Native is written as for revision 0; use a ClickHouse server",
        )
    query_id = parameters.get("query_id") or new_id
    if not _QUERY_ID.fullmatch(query_id):
        raise FrontError(errors.BAD_ARGUMENTS, "query_id takes 1 to 128 visible ASCII characters")
    asked = Asked(
        query=parameters.get("query", ""),
        database=headers.get("X-ClickHouse-Database") or parameters.get("database") or None,
        format=headers.get("X-ClickHouse-Format") or parameters.get("default_format") or None,
        query_id=query_id,
        compress=_flag(parameters, "compress"),
        decompress=_flag(parameters, "decompress"),
        whole=_flag(parameters, "wait_end_of_query") or _flag(parameters, "http_wait_end_of_query"),
        encoding=_encoding(parameters, headers),
    )
    for name, value in parameters.items():
        if name.startswith("param_"):
            asked.params[name.removeprefix("param_")] = value
        elif name not in _INTERFACE:
            asked.settings[name] = value
    return asked


def _flag(parameters: dict[str, str], name: str) -> bool:
    return parameters.get(name, "0").lower() in ("1", "true")


def _encoding(parameters: dict[str, str], headers) -> str | None:
    if parameters.get("enable_http_compression", "1").lower() in ("0", "false"):
        return None
    accepted = {part.partition(";")[0].strip().lower() for part in headers.get("Accept-Encoding", "").split(",")}
    return next((name for name in ("lz4", "gzip") if name in accepted), None)


async def form(request: web.BaseRequest) -> dict[str, str]:
    """Returns the fields of a multipart form, which is how the `clickhouse` crate sends `param_*`."""
    try:
        fields = await request.post()
    except web.HTTPRequestEntityTooLarge:
        raise too_large("the form", QUERY_BYTES_MAX) from None
    except ValueError as error:
        raise FrontError(errors.BAD_ARGUMENTS, f"the form cannot be read: {error}") from error
    for name, value in fields.items():
        if not isinstance(value, str):
            raise FrontError(errors.NOT_IMPLEMENTED, f"external data ({name[:64]}) is not spoken here")
    return dict(fields)


class Body:
    """A request's body in pieces; neither its next byte nor its end is waited for longer than the limits."""

    def __init__(self, request: web.BaseRequest, decompress: bool, options: Options):
        self._content = request.content
        self._byte_s, self._body_s = options.receive_timeout_s, options.body_timeout_s
        self._deadline = asyncio.get_running_loop().time() + options.body_timeout_s
        self.decompressor = Decompressor() if decompress else None
        self.bytes_read = 0

    async def piece(self) -> bytes:
        """Returns about 2 MiB as it came from the wire, less only at the end; empty after the end."""
        parts, size = [], 0
        while size < INSERT_PIECE_BYTES:
            try:
                async with asyncio.timeout_at(min(self._deadline, asyncio.get_running_loop().time() + self._byte_s)):
                    part = await self._content.readany()
            except TimeoutError:
                limits = f"{self._byte_s:g} s without a byte, or {self._body_s:g} s in all"
                raise FrontError(errors.SOCKET_TIMEOUT, f"Timeout exceeded while reading the body: {limits}") from None
            if not part:
                break
            parts.append(part)
            size += len(part)
        self.bytes_read += size
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def plain(self, piece: bytes) -> bytes:
        """Returns a piece as text of a query; small pieces only, since it is done on the spot."""
        return self.decompressor.feed(piece) if self.decompressor else piece

    async def rest(self, begun: bytes) -> bytes:
        """Returns the whole body as the text of a query, `begun` being what was read already."""
        text = bytearray(begun)
        while piece := await self.piece():
            text += self.plain(piece)
            if len(text) > QUERY_BYTES_MAX:
                break
        if len(text) > QUERY_BYTES_MAX:
            raise too_large("the query", QUERY_BYTES_MAX)
        if self.decompressor:
            self.decompressor.finish()
        return bytes(text)
