"""An INSERT that brings its rows: they go from the socket to the engine's parser in pieces of 2 MiB.

The engine cuts blocks by rows (`max_insert_block_size`, 1,048,449), not by when the pieces come: the same body makes the
same blocks, so a repeat with the same `insert_deduplication_token` drops exactly those blocks that are stored already.
"""

import re
from dataclasses import dataclass, replace

from . import errors
from .answer import Answer, Counts
from .engine import InsertStatement, Opening, Session
from .errors import FrontError
from .request import Body

# The engine's `max_insert_block_size`.
_BLOCK_ROWS = "1048449"
_FORMAT = re.compile(r"[A-Za-z]\w{0,63}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Rows:
    """An INSERT: its statement without the rows, those that came with the statement, the first piece of the others,
    and the rest."""

    statement: InsertStatement
    inline: bytes
    first: bytes
    body: Body
    opening: Opening


async def answer_insert(session: Session, rows: Rows, answer: Answer, counts: Counts) -> None:
    """Streams the rows into the engine, commits, and says so."""
    if not _FORMAT.fullmatch(rows.statement.format):  # it may come from a header, and becomes part of the statement
        raise FrontError(errors.UNKNOWN_FORMAT, f"Unknown format {rows.statement.format[:64]!r}")
    session.begin_insert(rows.statement, replace(rows.opening, settings=_with_blocks(rows.opening.settings)))
    if rows.inline:
        await session.append(rows.inline, None)
    piece = rows.first
    while piece:
        await session.append(piece, rows.body.decompressor)
        # aiohttp raises here when the client goes away before the end it announced, so half a body is never committed.
        piece = await rows.body.piece()
    if rows.body.decompressor:
        rows.body.decompressor.finish()
    counts.add(await session.commit())
    counts.result_rows = counts.written_rows
    counts.result_bytes = counts.written_bytes
    await answer.begin(rows.statement.format, counts)
    await answer.end()


def _with_blocks(settings: dict[str, str]) -> dict[str, str]:
    # From a file the engine would read blocks of `max_block_size` and, with several parsers side by side, blocks cut by
    # bytes. A server's INSERT and these two make blocks of the same rows, which is what repeats are recognized by.
    return {
        "input_format_parallel_parsing": "0",
        **settings,
        "max_block_size": settings.get("max_insert_block_size", _BLOCK_ROWS),
    }
