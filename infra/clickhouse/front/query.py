"""A statement without rows of its own: SELECT streamed block by block where its format allows, all else at once."""

from dataclasses import dataclass

from . import errors
from .answer import Answer, Counts
from .engine import Opening, Session
from .errors import FrontError
from .request import Asked
from .sql import Token, find_format

DEFAULT_FORMAT = "TabSeparated"

# chDB formats each block as a document of its own. These formats can simply be put one after the other ...
_PLAIN = frozenset(
    """
    csv jsoncompacteachrow jsoncompactstringseachrow jsoneachrow jsonlines jsonstringseachrow lineasstring native ndjson
    rawblob rowbinary tabseparated tabseparatedraw tskv tsv tsvraw raw
    """.split()
)
# ... these after their head of so many lines is taken off every block but the first ...
_HEAD_LINES = {
    f"{base}{names}": lines
    for base in ("csv", "jsoncompacteachrow", "jsoncompactstringseachrow", "tabseparated", "tabseparatedraw", "tsv", "tsvraw", "raw")
    for names, lines in (("withnames", 1), ("withnamesandtypes", 2))
}
# ... and these after so many rows of strings. What is in none of them (JSON, Arrow, Parquet, Pretty) is answered whole.
_HEAD_STRINGS = {"rowbinarywithnames": 1, "rowbinarywithnamesandtypes": 2}

# A setting that puts brackets and commas around JSONEachRow.
_ARRAY_OF_ROWS = "output_format_json_array_of_rows"


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement without rows of its own, and the bounds of its answer."""

    text: str
    lexed: list[Token]
    opening: Opening
    read_only: bool
    answer_bytes_max: int


async def answer_query(session: Session, asked: Asked, statement: Statement, answer: Answer, counts: Counts) -> None:
    """Runs the statement and sends what it returns."""
    format_name = find_format(statement.lexed) or asked.format or DEFAULT_FORMAT
    stream = _can_stream(asked, statement, format_name.lower())
    found, last = await session.call(_start, session, statement, format_name, stream)
    head: bytes | None = None
    while True:
        for block in found:
            counts.add(block)
        if not answer.begun:
            # By now the engine has run as far as the first rows: an error before them had a status of its own.
            await answer.begin(format_name, counts)
        for block in found:
            data = block.bytes()
            if head is None:
                head = _head(data, format_name.lower()) if stream else b""
            elif head and data.startswith(head):
                data = memoryview(data)[len(head) :]
            await answer.send(data)
        if last:
            return await answer.end()
        found, last = await session.call(session.blocks)


def _start(session: Session, statement: Statement, format_name: str, stream: bool) -> tuple[list, bool]:
    """Opens the connection and runs the statement up to its first blocks; in a thread of the engine."""
    limit = str(statement.answer_bytes_max)
    if not stream:
        statement.opening.settings.setdefault("max_result_bytes", limit)
    session.open(statement.opening)
    if statement.read_only:
        session.check_read_only(statement.text)
    if stream and session.start_stream(statement.text, format_name):
        return session.blocks()
    result = session.query(statement.text, format_name)
    if result.size() > statement.answer_bytes_max:
        raise FrontError(
            errors.TOO_MANY_ROWS_OR_BYTES,
            f"Limit for result exceeded: {result.size()} bytes in a format that cannot be streamed, at most {limit} are sent",
        )
    return [result], True


def _can_stream(asked: Asked, statement: Statement, format_name: str) -> bool:
    if asked.whole or _ARRAY_OF_ROWS in asked.settings or _ARRAY_OF_ROWS in statement.text:
        return False
    first = next((token for token in statement.lexed if token.text != "("), None)
    if first is None or not first.keyword("select", "with"):
        return False
    return format_name in _PLAIN or format_name in _HEAD_LINES or format_name in _HEAD_STRINGS


def _head(data: bytes, format_name: str) -> bytes:
    if lines := _HEAD_LINES.get(format_name):
        return data[: _lines_end(data, lines, quoted=format_name.startswith("csv"))]
    if rows := _HEAD_STRINGS.get(format_name):
        return data[: _strings_end(data, rows)]
    return b""


def _lines_end(data: bytes, lines: int, quoted: bool) -> int:
    at, begun = 0, 0
    while lines:
        at = data.find(b"\n", at)
        if at < 0:
            return len(data)
        at += 1
        # In CSV a line end inside quotes belongs to a name; doubled quotes keep the count even.
        if not quoted or data.count(b'"', begun, at) % 2 == 0:
            lines -= 1
            begun = at
    return at


def _strings_end(data: bytes, rows: int) -> int:
    columns, at = _varint(data, 0)
    for _ in range(columns * rows):
        size, at = _varint(data, at)
        at += size
    return at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    return value, at
