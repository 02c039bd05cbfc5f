"""What each principal may do.

Behind it stand two walls of other make: `readonly=1` in the engine (reader) and Landlock in the kernel (sandbox.py,
both). This one exists because `readonly=1` alone lets the scalar function `file()` read any file, `INTO OUTFILE`
write one, `DESCRIBE url()` reach out, and `KILL QUERY` end the writer's inserts (all four were tried on 26.9).
"""

import re

from . import errors
from .errors import FrontError
from .sql import Token

# Functions that leave the engine: files, network, other processes, SQL made from strings.
_REACHING = frozenset(
    """
    arrowflight arrowstream azureblobstorage azureblobstoragecluster bigquery cluster clusterallreplicas cosn deltalake
    deltalakeazure deltalakeazurecluster deltalakecluster deltalakelocal deltalakes3 deltalakes3cluster eval executable
    file filecluster filesystem gcs hdfs hdfscluster hudi hudicluster iceberg icebergazure icebergazurecluster
    icebergcluster iceberghdfs iceberghdfscluster iceberglocal iceberglocalcluster icebergs3 icebergs3cluster jdbc
    mongodb mysql odbc oss paimon paimonazure paimonazurecluster paimoncluster paimonhdfs paimonhdfscluster
    paimonlocal paimons3 paimons3cluster postgresql python redis remote remotesecure s3 s3cluster sqlite url urlcluster
    ytsaurus
    """.split()
)
# Engines that keep their data here. Everything else (File, URL, S3, Kafka, Executable, ...) reaches out.
_LOCAL_ENGINES = frozenset(
    "atomic buffer dictionary distributed generaterandom join log memory merge null replicated set stripelog tinylog".split()
)
# Of the functions named array… and map…, those that take values first, so that a column may be called `file` or `url`.
_NOT_HIGHER_ORDER = frozenset({"array", "map", "arrayconcat", "arrayelement", "arrayjoin", "arrayzip"})
_LOCAL_SOURCES = frozenset({"clickhouse", "null"})

# What a reader may set: how the answer looks, and limits downwards.
_READER_OUTPUT = re.compile(
    r"output_format_\w+|format_(csv|tsv|regexp|custom|template)_\w+|date_time_output_format|session_timezone|extremes"
    r"|max_block_size|join_use_nulls|allow_introspection_functions|cancel_http_readonly_queries_on_client_close"
    r"|result_overflow_mode|limit|offset|http_write_exception_in_output_format|bool_(true|false)_representation"
)
READER_LIMITS = ("max_execution_time", "max_result_rows", "max_result_bytes", "max_memory_usage", "max_rows_to_read", "max_threads")


def check_text(lexed: list[Token]) -> None:
    """Refuses what no principal may do: reach out of the engine, or send two statements in one request."""
    for at, token in enumerate(lexed):
        name = token.name
        following = lexed[at + 1] if at + 1 < len(lexed) else None
        if not name:
            continue
        if name in _REACHING and (_is_called(lexed, at) or _is_passed_as_function(lexed, at)):
            raise _denied(f"function {token.text} reaches out of the engine")
        if token.keyword("outfile", "infile") and at and lexed[at - 1].keyword("into", "from"):
            raise _denied(f"{token.text.upper()} reaches out of the engine")
        if token.keyword("engine") and following is not None:
            named = lexed[at + 2] if following.text == "=" and at + 2 < len(lexed) else following
            engine = named.name
            is_clause = following.text == "=" or _is_in_definition(lexed, at)
            if is_clause and engine and not engine.endswith("mergetree") and engine not in _LOCAL_ENGINES:
                raise _denied(f"engine {named.text} reaches out of the engine")
        if token.keyword("source") and following is not None and following.text == "(" and at + 2 < len(lexed):
            if lexed[at + 2].name not in _LOCAL_SOURCES:
                raise _denied(f"dictionary source {lexed[at + 2].text} reaches out of the engine")
        if token.keyword("backup", "restore") and at == 0:
            raise _denied(f"{token.text.upper()} reaches out of the engine")


def _is_in_definition(lexed: list[Token], at: int) -> bool:
    # `ENGINE Kafka(…)` needs no equals sign; a column may be called `engine`, in brackets or behind SELECT.
    if lexed[at].depth or not lexed[0].keyword("create", "attach", "replace"):
        return False
    return not any(token.keyword("select") and not token.depth for token in lexed[:at])


def _is_called(lexed: list[Token], at: int) -> bool:
    if at + 1 >= len(lexed) or lexed[at + 1].text != "(":
        return False
    # `INSERT INTO t (…)`, `CREATE TABLE url (…)`: a table's name before its columns is no call, `FUNCTION url(…)` is, and so
    # is what stands behind TABLE in a statement that makes none: `DESCRIBE TABLE url(…)`.
    if lexed[at].depth or not lexed[0].keyword("insert", "create", "attach"):
        return True
    back = at - 1
    while back >= 1 and lexed[back].text == "." and lexed[back - 1].name:
        back -= 2
    return back < 0 or not lexed[back].keyword("into", "table", "exists")


def _is_passed_as_function(lexed: list[Token], at: int) -> bool:
    # `* APPLY file`, `* APPLY(file)` and `arrayMap(file, …)` call without brackets behind the name.
    back = at - 1
    while back >= 0 and lexed[back].text == "(":
        back -= 1
    if back < 0:
        return False
    before = lexed[back]
    if before.keyword("apply"):
        return True
    takes_function = before.name.startswith(("array", "map")) and before.name not in _NOT_HIGHER_ORDER
    return takes_function and back < at - 1 and at + 1 < len(lexed) and lexed[at + 1].text in (",", ")")


def _denied(what: str) -> FrontError:
    return FrontError(errors.READONLY, f"Cannot execute query: {what}, which neither principal may do")


def reader_settings(asked: dict[str, str], limits: dict[str, int]) -> dict[str, str]:
    """Returns the settings of a reader's query: the limits, lowered where asked; refuses what would loosen anything."""
    settings = {name: str(value) for name, value in limits.items() if value}
    for name, value in asked.items():
        if name in READER_LIMITS:
            settings[name] = _lowered(name, value, limits.get(name, 0))
        elif _READER_OUTPUT.fullmatch(name):
            settings[name] = value
        elif name == "readonly" and value in ("1", "2"):
            continue  # less than nothing may be loosened: it stays 1
        else:
            raise FrontError(errors.READONLY, f"Cannot modify '{name}' setting in readonly mode")
    return settings


def _lowered(name: str, value: str, limit: int) -> str:
    try:
        number = float(value)
    except ValueError:
        raise FrontError(errors.BAD_ARGUMENTS, f"setting {name} is not a number: {value[:100]!r}") from None
    if limit and not 0 < number <= limit:  # 0 means "no limit", and NaN compares false
        raise FrontError(errors.READONLY, f"Cannot modify '{name}' setting in readonly mode: at most {limit}, not {value[:100]}")
    return value
