"""chDB: one connection per request, each in its own thread, and a way to end it from outside.

Facts of chDB 26.9 that shape this file, all tried:
- Queries on one connection run one after the other; connections of one process run side by side. Opening one costs 0.2 ms.
- After a streamed query fails, the connection's next answer begins with what the failed one had half written.
  So a connection serves one request and is closed.
- Its streamed INSERT (`send_insert`, `insert_done`) hides what fails behind the parser: of a violated CHECK constraint, too
  many partitions or a view that throws it says "1000 rows written", and none is stored. So rows come from a file, which is a
  pipe (feed.py): `INSERT … FROM INFILE` raises every error, and keeps the table's defaults.
- `streaming_cancel_query` waits for the fetch that it should interrupt. `KILL QUERY` from another connection works within
  0.1 s. A query is found again by its `log_comment`, because chDB lets nobody choose the query id.
- Every call gives up Python's lock while the engine works.
"""

import asyncio
import contextlib
import logging
import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from . import errors
from .auth import Principal
from .errors import EngineError, FrontError
from .feed import CODEC, Feed
from .native import chdb
from .options import Options

log = logging.getLogger("engine")

_SETTING_NAME = re.compile(r"[A-Za-z_]\w{0,127}", re.ASCII)
# How often a query that was told to end is told again: one that had not begun yet does not hear the first call.
_KILL_AGAIN_S = 0.2
# Blocks go to the client together up to here, so that many small ones do not cost a change of thread each ...
_GATHER_BYTES = 256 << 10
# ... and no longer than this, so that the first rows of a slow query are not held back.
_GATHER_S = 0.05


def quote(value: str) -> str:
    """Returns a ClickHouse string literal."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _quote_name(name: str) -> str:
    return "`" + name.replace("\\", "\\\\").replace("`", "\\`") + "`"


class Engine:
    """The embedded engine, open for as long as the process lives."""

    def __init__(self, options: Options):
        self._path = str(options.data_dir)
        self._queue_timeout_s = options.queue_timeout_s
        self._turns = {
            Principal.WRITER: asyncio.Semaphore(options.writer_queries_max),
            Principal.READER: asyncio.Semaphore(options.reader_queries_max),
        }
        # One thread per query that may run and one more per INSERT to feed it, so that nobody waits for a thread while
        # holding a turn.
        self._threads = ThreadPoolExecutor(2 * options.writer_queries_max + options.reader_queries_max, "query")
        self._killer = ThreadPoolExecutor(1, "kill")
        self._endings: set[asyncio.Task] = set()
        # Python handles the signals; chDB's own handlers would end the process in the middle of a request.
        chdb.set_signal_handlers_enabled(0)
        # The first connection keeps the engine up; the last one to close shuts it down.
        self._keeper = chdb.connect(self._path)
        self.version = self._keeper.query("SELECT version()", "TSV").bytes().decode().strip()

    @contextlib.asynccontextmanager
    async def session(self, principal: Principal, query_id: str):
        """Opens a connection when it is this principal's turn; whatever happens, it is ended and closed."""
        turns = self._turns[principal]
        try:
            async with asyncio.timeout(self._queue_timeout_s):
                await turns.acquire()
        except TimeoutError:
            raise FrontError(
                errors.TOO_MANY_SIMULTANEOUS_QUERIES,
                f"Too many simultaneous queries of {principal.value}: waited {self._queue_timeout_s:g} s for a turn",
            ) from None
        session = Session(self, f"strobe-{query_id}")
        try:
            yield session
        finally:
            # A task of its own, not awaited: the client has its answer or is gone, and must not be able to cancel this.
            ending = asyncio.ensure_future(self._end(session, turns))
            self._endings.add(ending)
            ending.add_done_callback(self._endings.discard)

    async def _end(self, session: "Session", turns: asyncio.Semaphore) -> None:
        loop = asyncio.get_running_loop()
        try:
            while pending := session.pending():
                await loop.run_in_executor(self._killer, self._kill, session.tag)
                await asyncio.wait(pending, timeout=_KILL_AGAIN_S, return_when=asyncio.FIRST_COMPLETED)
            await loop.run_in_executor(self._threads, session.close)
        except Exception:
            log.exception("a connection did not close; it is left to the end of the process")
        finally:
            turns.release()

    def _kill(self, tag: str) -> None:
        connection = chdb.connect(self._path)
        try:
            connection.query(f"KILL QUERY WHERE Settings['log_comment'] = {quote(tag)} ASYNC", "Null")
        finally:
            connection.close()

    async def run(self, function, *arguments):
        """Runs a blocking call of the engine in its pool."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)

    def connect(self):
        """Returns a new connection of chDB."""
        return chdb.connect(self._path)

    async def close(self) -> None:
        """Waits for the last endings, then shuts the engine down."""
        if self._endings:
            await asyncio.wait(self._endings, timeout=10)
        self._threads.shutdown(wait=False)
        self._killer.shutdown(wait=True)
        self._keeper.close()


@dataclass(slots=True)
class Opening:
    """What is put in force on a connection before its one statement."""

    settings: dict[str, str]
    params: dict[str, str]
    database: str | None
    readonly: int


@dataclass(slots=True)
class InsertStatement:
    """An INSERT without its rows: what stands before and from its SETTINGS on, and the rows' format."""

    target: str
    settings: str
    format: str

    def reading(self, path: str) -> str:
        """Returns the statement that takes its rows from a file."""
        # Line ends, because each part may end in a comment.
        return f"{self.target}\nFROM INFILE {quote(path)} COMPRESSION '{CODEC}'\n{self.settings}\nFORMAT {self.format}"


class Session:
    """One request's connection. What is `async` is for the request; all else runs in a thread of the engine."""

    def __init__(self, engine: Engine, tag: str):
        self._engine = engine
        self.tag = tag
        self._running: asyncio.Future | None = None
        self._inserting: asyncio.Future | None = None
        self._feed: Feed | None = None
        self._connection = None
        self._stream = None

    async def call(self, work, *arguments):
        """Runs `work` in a thread; one call at a time, and as few as possible: each costs 0.1 to 0.5 ms."""
        self._running = asyncio.ensure_future(self._engine.run(_translated, work, *arguments))
        # Shielded: the thread cannot be interrupted; `Engine._end` ends what it does.
        return await asyncio.shield(self._running)

    def pending(self) -> list[asyncio.Future]:
        """Returns what still runs for a request that is over, and lets an INSERT wait for rows no longer."""
        calling = self._running is not None and not self._running.done()
        if self._feed is not None and not calling:
            self._feed.abandon()
        return [each for each in (self._running, self._inserting) if each is not None and not each.done()]

    def begin_insert(self, statement: InsertStatement, opening: Opening) -> None:
        """Starts an INSERT that takes its rows by `append`."""
        feed = self._feed = Feed()
        self._inserting = asyncio.ensure_future(self._engine.run(_translated, self._insert, statement, opening, feed))
        # Who hangs up does not fetch the error that it causes.
        self._inserting.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def append(self, piece: bytes, decompressor) -> None:
        """Hands over one piece of an INSERT's body; waits while the engine is behind, raises what made it stop."""
        try:
            await self.call(_append, self._feed, piece, decompressor)
        except BrokenPipeError:
            await self._stopped_early()

    async def commit(self):
        """Says that the body is complete, and returns the INSERT's counts once it is stored."""
        try:
            await self.call(self._feed.finish)
        except BrokenPipeError:
            await self._stopped_early()
        return await asyncio.shield(self._inserting)

    async def _stopped_early(self) -> None:
        await asyncio.shield(self._inserting)
        raise FrontError(errors.CANNOT_READ_ALL_DATA, "the engine ended the INSERT before the end of its rows")

    def _insert(self, statement: InsertStatement, opening: Opening, feed: Feed):
        try:
            self.open(opening)
            return self._connection.query(statement.reading(feed.path), "Null")
        except RuntimeError as error:
            raise RuntimeError(str(error).replace(feed.path, "the body")) from None
        finally:
            feed.engine_is_done()

    def open(self, opening: Opening) -> None:
        """Connects and puts the request's settings in force, `readonly` last, since nothing can be set after it."""
        self._connection = self._engine.connect()
        run = self._connection.query
        if opening.database:
            run(f"USE {_quote_name(opening.database)}", "Null")
        changes = []
        for name, value in opening.settings.items():
            if not _SETTING_NAME.fullmatch(name):
                raise FrontError(errors.BAD_ARGUMENTS, f"{name[:64]!r} is not the name of a setting")
            changes.append(f"{name} = {quote(value)}")
        for name, value in opening.params.items():
            if not _SETTING_NAME.fullmatch(name):
                raise FrontError(errors.BAD_ARGUMENTS, f"{name[:64]!r} is not the name of a parameter")
            changes.append(f"param_{name} = {quote(value)}")
        changes.append(f"log_comment = {quote(self.tag)}")
        if opening.readonly:
            changes.append(f"readonly = {opening.readonly}")
        run("SET " + ", ".join(changes), "Null")

    def check_read_only(self, sql: str) -> None:
        """Refuses what the engine's parser does not find to leave no trace."""
        found = self._connection.classify_query(sql)["query_class"]
        if found == chdb.query_class.UNKNOWN:
            self._connection.query(f"EXPLAIN AST {sql}", "Null")  # runs nothing, and says what is wrong
        if found != chdb.query_class.READ_ONLY:
            raise FrontError(errors.READONLY, "Cannot execute query in readonly mode")

    def query(self, sql: str, format_name: str):
        """Runs a statement to its end and returns the whole answer."""
        return self._connection.query(sql, format_name)

    def start_stream(self, sql: str, format_name: str) -> bool:
        """Starts a SELECT whose blocks come by `blocks`; says no when the engine can answer it only whole."""
        try:
            self._stream = self._connection.send_query(sql, format_name)
        except RuntimeError as error:
            # EXPLAIN in brackets and the like: the engine knows better than we do what is a plain SELECT.
            if "Streaming query is not supported" in str(error):
                return False
            raise
        return True

    def blocks(self) -> tuple[list, bool]:
        """Returns the next blocks, each formatted as a document of its own, and whether they are the last."""
        found, size, deadline = [], 0, time.monotonic() + _GATHER_S
        while size < _GATHER_BYTES and time.monotonic() < deadline:
            block = self._connection.streaming_fetch_result(self._stream)
            if block is None:
                return found, True
            found.append(block)
            size += block.size()
            if block.rows_read() == 0:
                return found, True
        return found, False

    def close(self) -> None:
        """Closes the connection, if it was opened."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _append(feed: Feed, piece: bytes, decompressor) -> None:
    plain = decompressor.feed(piece) if decompressor else piece
    if plain:
        feed.append(plain)


def _translated(function, *arguments):
    try:
        return function(*arguments)
    except RuntimeError as error:
        raise EngineError(str(error)) from None
