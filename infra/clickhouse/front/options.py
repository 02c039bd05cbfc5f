"""The command line, and with it every bound of the front."""

import argparse
import os
from dataclasses import dataclass
from pathlib import Path

from .auth import Passwords
from .policy import READER_LIMITS

# ClickHouse's `http_max_uri_size`: clients put whole queries in the URL.
URI_BYTES_MAX = 1 << 20
# Much over any header a client of ours sends; aiohttp holds one request's headers in memory.
HEADER_BYTES_MAX = 16 << 10
# The text of a query without an INSERT's rows: four times ClickHouse's `max_query_size`.
QUERY_BYTES_MAX = 1 << 20
# How much of an INSERT's body is handed to the engine at once: below 1 MiB the hand-over shows (100 against 200 MB/s),
# above 2 MiB nothing is won. This times the writer's queries is what bodies take in memory.
INSERT_PIECE_BYTES = 2 << 20


class ConfigError(Exception):
    """A flag or file that the front cannot start with; the text names it and the remedy."""


@dataclass(frozen=True, slots=True)
class Options:
    """Settings as proved."""

    data_dir: Path
    host: str
    port: int
    log_file: Path | None
    passwords: Passwords
    connections_max: int
    writer_queries_max: int
    reader_queries_max: int
    queue_timeout_s: float
    header_timeout_s: float
    receive_timeout_s: float
    body_timeout_s: float
    send_timeout_s: float
    keepalive_timeout_s: float
    stop_timeout_s: float
    answer_bytes_max: int
    memory_bytes_max: int
    disk_free_min: int
    reader_limits: dict[str, int]
    sandbox: str


def parse(arguments: list[str] | None = None) -> Options:
    """Returns the options, or raises `ConfigError`. Each flag also comes from STROBE_CLICKHOUSE_<FLAG>."""
    parser = argparse.ArgumentParser(prog="front", description="ClickHouse's HTTP interface in front of chDB")

    def flag(name: str, default, help_text: str, kind=None, **more):
        variable = "STROBE_CLICKHOUSE_" + name.upper().replace("-", "_")
        parser.add_argument(f"--{name}", type=kind or type(default), default=os.environ.get(variable, default), help=f"{help_text} ({variable}; default: {default})", **more)

    home = Path(os.environ.get("STROBE_HOME", ".strobe"))
    flag("data-dir", home / "data" / "clickhouse", "the engine's folder", Path)
    flag("host", "127.0.0.1", "address to listen on; the traffic is not encrypted, so keep it on loopback")
    flag("port", 8123, "port to listen on")
    flag("log-file", None, "log here instead of to standard error", Path)
    flag("writer-password-file", home / "data" / "clickhouse.writer.password", "password of strobe_writer", Path)
    flag("reader-password-file", home / "data" / "clickhouse.reader.password", "password of strobe_reader", Path)
    flag("connections-max", 256, "open connections; one more is answered 503")
    flag("writer-queries-max", 16, "queries of the writer in the engine at once; further ones wait")
    flag("reader-queries-max", 8, "queries of the reader in the engine at once; further ones wait")
    flag("queue-timeout", 30.0, "seconds a query waits for its turn, then 202 TOO_MANY_SIMULTANEOUS_QUERIES")
    flag("header-timeout", 10.0, "seconds until the first request's headers must be complete")
    flag("receive-timeout", 60.0, "seconds without a byte of the body, then 209 SOCKET_TIMEOUT")
    flag("body-timeout", 600.0, "seconds a whole body may take, then 209 SOCKET_TIMEOUT")
    flag("send-timeout", 60.0, "seconds without the client taking a byte of the answer, then it is cut")
    flag("keepalive-timeout", 75.0, "seconds an idle connection stays open")
    flag("stop-timeout", 30.0, "seconds running requests get to finish after SIGTERM")
    flag("answer-bytes-max", 256 << 20, "largest answer in a format that cannot be streamed (JSON, Arrow, Parquet, ...)")
    flag("memory-bytes-max", 4 << 30, "`max_memory_usage` of one query of the writer")
    # The engine does not notice a failed write(2): of a full disk it says "stored" (26.9; plain INSERT SELECT too). So it must
    # never get that far: 1 GiB is 16 bodies of 64 MiB at once, for other programs that fill the disk meanwhile.
    flag("disk-free-min", 1 << 30, "bytes that must be free on the disk before an INSERT, else 243 NOT_ENOUGH_SPACE")
    flag("reader-max-execution-time", 60, "seconds a query of the reader may take; 0: no limit")
    flag("reader-max-result-rows", 5_000_000, "rows in a reader's answer; 0: no limit")
    flag("reader-max-result-bytes", 512 << 20, "bytes in a reader's answer; 0: no limit")
    flag("reader-max-memory-usage", 2 << 30, "bytes a query of the reader may use; 0: no limit")
    flag("reader-max-rows-to-read", 0, "rows a query of the reader may read; 0: no limit")
    flag("reader-max-threads", 0, "threads of a query of the reader; 0: one per core")
    flag("sandbox", "auto", "Landlock: auto (where the kernel has it), on (or do not start), off", str, choices=("auto", "on", "off"))
    a = parser.parse_args(arguments)

    if not 0 < a.port < 65536:
        raise ConfigError(f"--port is {a.port}: name one between 1 and 65535")
    for name in ("connections_max", "writer_queries_max", "reader_queries_max", "answer_bytes_max", "memory_bytes_max", "disk_free_min"):
        if getattr(a, name) <= 0:
            raise ConfigError(f"--{name.replace('_', '-')} is {getattr(a, name)}: it must be more than 0")
    passwords = Passwords(_password(a.writer_password_file), _password(a.reader_password_file))
    if passwords.writer == passwords.reader:
        raise ConfigError("the writer and the reader have the same password: give each its own")
    return Options(
        data_dir=a.data_dir.absolute(),
        host=a.host,
        port=a.port,
        log_file=a.log_file,
        passwords=passwords,
        connections_max=a.connections_max,
        writer_queries_max=a.writer_queries_max,
        reader_queries_max=a.reader_queries_max,
        queue_timeout_s=a.queue_timeout,
        header_timeout_s=a.header_timeout,
        receive_timeout_s=a.receive_timeout,
        body_timeout_s=a.body_timeout,
        send_timeout_s=a.send_timeout,
        keepalive_timeout_s=a.keepalive_timeout,
        stop_timeout_s=a.stop_timeout,
        answer_bytes_max=a.answer_bytes_max,
        memory_bytes_max=a.memory_bytes_max,
        disk_free_min=a.disk_free_min,
        reader_limits={name: getattr(a, f"reader_{name}") for name in READER_LIMITS},
        sandbox=a.sandbox,
    )


def _password(path: Path) -> str:
    try:
        password = path.read_text().strip()
    except OSError as error:
        raise ConfigError(f"cannot read the password file {path}: {error.strerror}; `engine.sh start` writes one") from error
    if not password:
        raise ConfigError(f"the password file {path} is empty: write a password into it, or remove it and `engine.sh start` writes one")
    return password
