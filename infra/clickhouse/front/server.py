"""The HTTP side: connections and their bounds, one request from its headers to its line in the log."""

import asyncio
import logging
import uuid

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from . import errors, policy, request as asking
from .answer import Answer, Counts, headers
from .auth import Principal, credentials
from .engine import Engine, InsertStatement, Opening
from .errors import FrontError
from .insert import Rows, answer_insert
from .options import HEADER_BYTES_MAX, QUERY_BYTES_MAX, URI_BYTES_MAX, Options
from .query import Statement, answer_query
from .request import Asked, Body
from .sql import Insert, find_insert, has_second_statement, tokens

log = logging.getLogger("request")

# Who guesses passwords does so at five a second and connection.
_WRONG_PASSWORD_DELAY_S = 0.2
# Read ahead from a socket before it is told to stop sending: two pieces of an INSERT.
_READ_AHEAD_BYTES = 2 << 20


class Server(web.Server):
    """Hands each connection to a `Connection`, and counts them."""

    def __init__(self, options: Options, engine: Engine):
        super().__init__(
            self._answer,
            handler_cancellation=True,  # a client that hangs up cancels its request
            keepalive_timeout=options.keepalive_timeout_s,
            max_line_size=URI_BYTES_MAX,
            max_field_size=HEADER_BYTES_MAX,
            read_bufsize=_READ_AHEAD_BYTES // 2,  # aiohttp pauses at twice this
            access_log=None,
        )
        self.options, self._engine = options, engine
        self.open_connections = 0
        self.active: set[asyncio.Task] = set()

    def __call__(self) -> RequestHandler:
        return Connection(self, loop=asyncio.get_running_loop(), **self._kwargs)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        task = asyncio.current_task()
        request.protocol.got_headers()
        self.active.add(task)
        try:
            return await self._route(request)
        finally:
            self.active.discard(task)

    async def _route(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.method not in ("GET", "HEAD", "POST"):
            return web.Response(status=405, text=f"method {request.method} is not spoken here: use GET or POST\n")
        if request.path in ("/ping", "/replicas_status"):
            return web.Response(text="Ok.\n")
        if request.path != "/":
            return web.Response(status=404, text=f"there is no resource {request.path[:100]}: use / or /ping\n")
        return await Exchange(request, self.options, self._engine).run()


class Connection(RequestHandler):
    """One TCP connection: one of a bounded number, and closed when its first request does not come."""

    __slots__ = ("_counted", "_first_request")

    def connection_made(self, transport) -> None:
        """Takes the connection, or refuses it when too many are open."""
        server = self._manager
        super().connection_made(transport)
        server.open_connections += 1
        self._counted = True
        self._first_request = None
        if server.open_connections > server.options.connections_max:
            transport.write(b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 21\r\n\r\nToo many connections\n")
            transport.close()
            log.warning("refused a connection: %d are open", server.options.connections_max)
            return
        self._first_request = asyncio.get_running_loop().call_later(server.options.header_timeout_s, transport.abort)

    def got_headers(self) -> None:
        """Says that a request has come, so that from now on other limits watch."""
        if self._first_request is not None:
            self._first_request.cancel()
            self._first_request = None

    def connection_lost(self, error) -> None:
        """Forgets the connection."""
        self.got_headers()
        if getattr(self, "_counted", False):
            self._counted = False
            self._manager.open_connections -= 1
        super().connection_lost(error)


class Exchange:
    """One request and its answer."""

    def __init__(self, request: web.BaseRequest, options: Options, engine: Engine):
        self._request, self._options, self._engine = request, options, engine
        self._id = str(uuid.uuid4())
        self._query_id = self._id
        self._principal: Principal | None = None
        self._counts = Counts()
        self._answer: Answer | None = None
        self._body: Body | None = None
        self._kind = "-"

    async def run(self) -> web.StreamResponse:
        """Answers the request and writes its line in the log."""
        code, response = 0, None
        try:
            response = await self._handle()
        except FrontError as error:
            code = error.code
            if self._answer is not None and self._answer.begun:
                await self._answer.break_off(error, self._engine.version)
                response = self._answer._response
            else:
                response = self._refusal(error)
        except asyncio.CancelledError:
            code = errors.QUERY_WAS_CANCELLED
            raise
        except (ConnectionError, web.RequestPayloadError) as error:
            code = errors.QUERY_WAS_CANCELLED
            log.info("client is gone: %s", error)
            raise asyncio.CancelledError from None
        except Exception:
            code = 1001
            log.exception("request failed in the front")
            response = self._refusal(FrontError(1001, "the front failed; its log says how"))
        finally:
            self._log(code)
        return response

    def _refusal(self, error: FrontError) -> web.Response:
        found = headers(self._query_id)
        found["X-ClickHouse-Exception-Code"] = str(error.code)
        found["X-ClickHouse-Summary"] = self._counts.summary()
        if error.status == 401:
            found["WWW-Authenticate"] = 'Basic realm="ClickHouse server HTTP API"'
        response = web.Response(status=error.status, headers=found, text=error.text(self._engine.version))
        # What is left of the body is not read: the connection cannot be used again.
        if not self._request.content.is_eof():
            response.force_close()
        return response

    def _log(self, code: int) -> None:
        counts = self._counts
        log.info(
            "user=%s method=%s kind=%s code=%d ms=%.1f read_rows=%d result_rows=%d written_rows=%d bytes_in=%d bytes_out=%d query_id=%s",
            self._principal.value if self._principal else "-", self._request.method, self._kind, code, counts.elapsed_ms(),
            counts.read_rows, counts.result_rows, counts.written_rows,
            self._body.bytes_read if self._body else 0, self._answer.bytes_sent if self._answer else 0, self._query_id,
        )  # fmt: skip

    async def _handle(self) -> web.StreamResponse:
        request = self._request
        parameters = dict(request.query)
        if not parameters and request.method != "POST":
            return web.Response(text="Ok.\n")
        self._principal = await self._authenticate(parameters)
        if request.content_type == "multipart/form-data":
            parameters.update(await asking.form(request))
        asked = asking.sort(parameters, request.headers, self._id)
        self._query_id = asked.query_id
        self._body = Body(request, asked.decompress, self._options)
        self._answer = Answer(request, asked, self._options.send_timeout_s)

        text, at_hand = await self._text(asked)
        # ClickHouse's rule too: a GET never writes, so that a link cannot.
        readonly = 1 if self._principal is Principal.READER else 2 if request.method != "POST" else 0
        insert = find_insert(text)
        if insert is None:
            await self._query(asked, await self._complete(asked, text, at_hand), readonly)
        else:
            await self._insert(asked, insert, text, at_hand, readonly)
        return self._answer._response

    async def _authenticate(self, parameters: dict[str, str]) -> Principal:
        try:
            return self._options.passwords.principal_of(*credentials(self._request.headers, parameters))
        except FrontError as error:
            if error.code == errors.AUTHENTICATION_FAILED:
                await asyncio.sleep(_WRONG_PASSWORD_DELAY_S)
            raise

    async def _text(self, asked: Asked) -> tuple[str, bytes]:
        """Returns the statement as far as it is known, one character per byte, and the piece of the body it came from."""
        if asked.query:
            return asked.query.encode("utf-8", "surrogateescape").decode("latin-1"), b""
        piece = await self._body.piece()
        plain = self._body.plain(piece)
        # A compressed body may begin with blocks that are not complete yet.
        while not plain and (piece := await self._body.piece()):
            plain = self._body.plain(piece)
        return plain[:QUERY_BYTES_MAX].decode("latin-1"), plain

    async def _complete(self, asked: Asked, text: str, at_hand: bytes) -> str:
        """Returns the whole text of a statement that brings no rows: what the URL says, then what the body says."""
        if asked.query and self._request.content_type == "multipart/form-data":
            return _utf8(text.encode("latin-1"))
        rest = await self._body.rest(at_hand)
        if not asked.query:
            return _utf8(rest)
        return _utf8(text.encode("latin-1") + (b"\n" + rest if rest else b""))

    async def _query(self, asked: Asked, text: str, readonly: int) -> None:
        lexed = list(tokens(text))
        if not lexed:
            raise FrontError(errors.SYNTAX_ERROR, "Empty query")
        self._kind = lexed[0].text.lower()[:16]
        self._check(lexed)
        statement = Statement(
            text, lexed, self._opening(asked, readonly), self._principal is Principal.READER, self._options.answer_bytes_max
        )
        async with self._engine.session(self._principal, self._id) as session:
            await answer_query(session, asked, statement, self._answer, self._counts)

    async def _insert(self, asked: Asked, insert: Insert, text: str, at_hand: bytes, readonly: int) -> None:
        self._kind = "insert"
        self._check(list(tokens(_utf8(insert.head.encode("latin-1")))))
        target, settings = (_utf8(part.encode("latin-1")) for part in (insert.head[: insert.settings_at], insert.head[insert.settings_at :]))
        statement = InsertStatement(target, settings, insert.format or asked.format or "Values")
        if readonly:
            raise FrontError(errors.READONLY, "Cannot execute query in readonly mode" + ("" if readonly == 1 else ": a GET never writes, use POST"))
        inline = text.encode("latin-1")[insert.data_at :] if asked.query else at_hand[insert.data_at :]
        # Read before its turn: a client that sends nothing, or little and slowly, holds none.
        first = await self._body.piece()
        rows = Rows(statement, inline, first, self._body, self._opening(asked, readonly))
        async with self._engine.session(self._principal, self._id) as session:
            await answer_insert(session, rows, self._answer, self._counts)

    def _check(self, lexed) -> None:
        if has_second_statement(lexed):
            raise FrontError(errors.SYNTAX_ERROR, "Syntax error (Multi-statements are not allowed)")
        policy.check_text(lexed)

    def _opening(self, asked: Asked, readonly: int) -> Opening:
        if self._principal is Principal.READER:
            settings = policy.reader_settings(asked.settings, self._options.reader_limits)
        else:
            # Without the asynchronous queue a 200 means: stored, as blocks that the body alone decides on.
            settings = {
                "max_memory_usage": str(self._options.memory_bytes_max),
                "min_free_disk_bytes_to_perform_insert": str(self._options.disk_free_min),
                "async_insert": "0",
                **asked.settings,
            }
        settings.pop("readonly", None)  # ours comes last, and is never the weaker one
        return Opening(settings, asked.params, asked.database, readonly)


def _utf8(text: bytes) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise FrontError(errors.SYNTAX_ERROR, f"the query is not UTF-8: {error}") from None
