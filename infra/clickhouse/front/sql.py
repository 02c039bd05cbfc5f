"""Just enough of ClickHouse's lexer to know where a statement ends and its data begins.

The engine parses; this only finds the FORMAT clause, the start of an INSERT's data, a second statement, and names
that are called. It works on latin-1 text, so that an offset in it is an offset in the bytes.
"""

import re
from dataclasses import dataclass

_TOKEN = re.compile(
    r"""
      (?P<space>  \s+ | --[^\n]*(?:\n|$) | \#[ !][^\n]*(?:\n|$) | /\*.*?(?:\*/|$) )
    | (?P<string> '(?:[^'\\]|\\.|'')*(?:'|$) | \$(?P<tag>\w*)\$.*?(?:\$(?P=tag)\$|$) )
    | (?P<quoted> `(?:[^`\\]|\\.|``)*(?:`|$) | "(?:[^"\\]|\\.|"")*(?:"|$) )
    | (?P<word>   [A-Za-z_\x80-\xff][\w\x80-\xff]* )
    | (?P<number> \d[\w.]* )
    | (?P<symbol> . )
    """,
    re.VERBOSE | re.DOTALL | re.ASCII,
)


@dataclass(frozen=True, slots=True)
class Token:
    """A word, a quoted name, a literal or a symbol, with how many brackets are open before it."""

    kind: str
    text: str
    start: int
    end: int
    depth: int

    @property
    def name(self) -> str:
        """Returns the identifier in lower case, quotes taken off; empty when this is none."""
        if self.kind == "word":
            return self.text.lower()
        if self.kind == "quoted":
            return re.sub(r"\\(.)", r"\1", self.text[1:-1]).lower()
        return ""

    def keyword(self, *names: str) -> bool:
        """Says whether this is one of the keywords, which are never quoted."""
        return self.kind == "word" and self.text.lower() in names


def tokens(text: str, start: int = 0):
    """Yields the tokens of `text`, comments and spaces left out."""
    depth = 0
    for match in _TOKEN.finditer(text, start):
        kind = match.lastgroup
        if kind == "tag":
            kind = "string"
        if kind == "space":
            continue
        value = match.group()
        if value in ")]}" and kind == "symbol":
            depth = max(0, depth - 1)
        yield Token(kind, value, match.start(), match.end(), depth)
        if value in "([{" and kind == "symbol":
            depth += 1


@dataclass(frozen=True, slots=True)
class Insert:
    """An INSERT that brings its rows: the statement up to its format, where in it SETTINGS begin (its end if it has
    none), the format, where the rows start in the text."""

    head: str
    settings_at: int
    format: str | None
    data_at: int


def find_insert(text: str) -> Insert | None:
    """Returns the parts of an INSERT with data, None for every other statement (INSERT SELECT too)."""
    lexed = tokens(text)
    first = next(lexed, None)
    if first is None or not first.keyword("insert"):
        return None
    previous, settings_at = first, None

    def found(end: int, format_name: str | None, data_at: int) -> Insert:
        return Insert(text[:end], end if settings_at is None else settings_at, format_name, data_at)

    for token in lexed:
        # A name stands after these, whatever it looks like: a table may be called `format`.
        is_name = previous.text == "." or previous.keyword("into", "table", "function")
        if previous.text == "(" and token.depth == 1 and token.keyword("select", "with"):
            return None  # `INSERT INTO t (SELECT …)`: the brackets hold the query itself
        if token.depth == 0 and not is_name:
            if token.keyword("select", "with", "watch"):
                return None
            if token.keyword("settings") and settings_at is None:
                settings_at = token.start
            if token.keyword("values"):
                return found(token.start, "Values", token.end)
            if token.keyword("format"):
                name = next(lexed, None)
                if name is None or name.kind != "word":
                    return None
                return found(token.start, name.text, _skip_to_data(text, name.end))
            if token.text == ";":
                return found(token.start, None, token.end)
        previous = token
    return found(len(text), None, len(text))


def _skip_to_data(text: str, at: int) -> int:
    # ClickHouse's rule: spaces, then at most one line end, then the first byte of the rows.
    while at < len(text) and text[at] in " \t\f":
        at += 1
    if text.startswith("\r\n", at):
        return at + 2
    return at + 1 if text.startswith("\n", at) else at


def find_format(lexed: list[Token]) -> str | None:
    """Returns the format that the statement itself names at its end."""
    for at in range(len(lexed) - 2, -1, -1):
        token, name = lexed[at], lexed[at + 1]
        if token.depth == 0 and token.keyword("format") and name.kind == "word":
            after = lexed[at + 2] if at + 2 < len(lexed) else None
            if after is None or after.text == ";" or after.keyword("settings"):
                return name.text
    return None


def has_second_statement(lexed: list[Token]) -> bool:
    """Says whether something follows a semicolon."""
    return any(token.text == ";" and token.kind == "symbol" for token in lexed[:-1])
