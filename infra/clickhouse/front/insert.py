"""An INSERT that brings its rows: they go from the socket to the engine's parser in pieces of 2 MiB.

The engine cuts blocks by rows (`max_insert_block_size`, 1,048,449), not by when the pieces come: the same body makes the
same blocks, so a repeat with the same `insert_deduplication_token` drops exactly those blocks that are stored already.
"""

from dataclasses import dataclass

from .answer import Answer, Counts
from .engine import Opening, Session
from .request import Body


@dataclass(frozen=True, slots=True)
class Rows:
    """An INSERT: its statement without the rows, their format, those that came with the statement, the first piece
    of the others, and the rest."""

    head: str
    format: str
    inline: bytes
    first: bytes
    body: Body
    opening: Opening


async def answer_insert(session: Session, rows: Rows, answer: Answer, counts: Counts) -> None:
    """Streams the rows into the engine, commits, and says so."""
    await session.call(_begin, session, rows)
    # aiohttp raises here when the client goes away before the end it announced, so half a body is never committed.
    while piece := await rows.body.piece():
        await session.call(session.append, piece, rows.body.decompressor)
    if rows.body.decompressor:
        rows.body.decompressor.finish()
    counts.add(await session.call(session.commit))
    counts.result_rows = counts.written_rows
    counts.result_bytes = counts.written_bytes
    await answer.begin(rows.format, counts)
    await answer.end()


def _begin(session: Session, rows: Rows) -> None:
    session.open(rows.opening)
    session.begin_insert(rows.head, rows.format)
    session.append(rows.inline, None)
    session.append(rows.first, rows.body.decompressor)
