"""A 200 to an INSERT means stored: whatever keeps rows from being stored is answered with the engine's code, and stores nothing."""

import contextlib
import os
import time
from pathlib import Path

import pytest

from conftest import WRITER, until
from test_engine import TABLE, begin, rows

# Each is a table, and how the engine refuses 1000 rows (a = 0 to 999) in it.
REFUSED = {
    "a violated CHECK constraint": ("a UInt64, CONSTRAINT small CHECK a < 990", "", 469, "`small`"),
    "more partitions than a block may have": ("a UInt64", "PARTITION BY a", 252, "Too many partitions"),
    "a default that throws": ("a UInt64, b UInt8 DEFAULT throwIf(a = 999)", "", 395, "throwIf"),
    "a materialized column that throws": ("a UInt64, b UInt8 MATERIALIZED throwIf(a = 500)", "", 395, "throwIf"),
}


def table(front, name: str, columns: str = "a UInt64", more: str = "", settings: str = "non_replicated_deduplication_window = 1000") -> None:
    front.done(f"DROP TABLE IF EXISTS {name}")
    front.done(f"CREATE TABLE {name} ({columns}) ENGINE = MergeTree {more} ORDER BY a SETTINGS {settings}")


def numbers(first: int, count: int) -> bytes:
    return b"".join(n.to_bytes(8, "little") for n in range(first, first + count))


def native(front, count: int, column: str = "a") -> bytes:
    return front.write(f"SELECT number AS {column} FROM numbers({count}) FORMAT Native SETTINGS max_block_size = 1048449").body


@pytest.mark.parametrize("why", REFUSED)
@pytest.mark.parametrize("format_name", ["RowBinary", "Native", "CSV"])
def test_rows_that_are_refused_behind_the_parser_are_no_200(front, why, format_name):
    columns, more, code, text = REFUSED[why]
    table(front, "refused", columns, more)
    body = {"RowBinary": numbers(0, 1000), "Native": native(front, 1000), "CSV": b"".join(b"%d\n" % n for n in range(1000))}[format_name]
    answer = front.write(f"INSERT INTO refused (a) FORMAT {format_name}", body, insert_deduplication_token="t")
    assert (answer.status, answer.code) == (500, code) and text in answer.text, answer.text
    assert f"Code: {code}. DB::Exception" in answer.text and "/proc/" not in answer.text
    assert front.done("SELECT count() FROM refused") == "0\n"
    # What failed has left no token behind that would drop the rows when they are sent again.
    few = {"RowBinary": numbers(0, 10), "Native": native(front, 10), "CSV": b"".join(b"%d\n" % n for n in range(10))}[format_name]
    front.done(f"INSERT INTO refused (a) FORMAT {format_name}", few, insert_deduplication_token="t")
    assert front.done("SELECT count() FROM refused") == "10\n"


@pytest.mark.parametrize("bad", [5, 1_500_000, 2_499_999], ids=["first", "middle", "last"])
def test_one_bad_block_of_several_is_no_200(front, bad):
    table(front, "several", f"a UInt64, CONSTRAINT c CHECK a != {bad}")
    body = front.write("SELECT number FROM numbers(2500000) FORMAT RowBinary").body
    answer = front.write("INSERT INTO several FORMAT RowBinary", body)
    assert (answer.status, answer.code) == (500, 469), answer.text


def test_a_view_that_throws_is_no_200(front):
    table(front, "viewed")
    front.done("DROP TABLE IF EXISTS throwing")
    front.done("CREATE MATERIALIZED VIEW throwing ENGINE = MergeTree ORDER BY a AS SELECT a, throwIf(a = 7) AS t FROM viewed")
    answer = front.write("INSERT INTO viewed FORMAT RowBinary", numbers(0, 100))
    assert (answer.status, answer.code) == (500, 395), answer.text
    assert front.done("SELECT count() FROM throwing") == "0\n"
    front.done("DROP TABLE throwing")


@pytest.mark.parametrize("format_name", ["RowBinary", "Native"])
def test_an_insert_over_its_memory_is_no_200(front, format_name):
    table(front, "hungry", "a UInt64, b String DEFAULT repeat(toString(a), 100)")
    body = numbers(0, 500_000) if format_name == "RowBinary" else native(front, 500_000)
    answer = front.write(f"INSERT INTO hungry (a) FORMAT {format_name}", body, max_memory_usage="30000000")
    assert (answer.status, answer.code) == (500, 241), answer.text
    assert front.done("SELECT count() FROM hungry") == "0\n"
    assert front.write(f"INSERT INTO hungry (a) FORMAT {format_name}", body).status == 200
    assert front.done("SELECT count() FROM hungry") == "500000\n"


def test_too_many_parts_are_no_200(front):
    table(front, "parts", settings="parts_to_throw_insert = 1, parts_to_delay_insert = 0, max_bytes_to_merge_at_max_space_in_pool = 1")
    front.done("INSERT INTO parts FORMAT RowBinary", numbers(0, 1))
    answer = front.write("INSERT INTO parts FORMAT RowBinary", numbers(1, 1))
    assert (answer.status, answer.code) == (500, 252) and "Too many parts" in answer.text, answer.text
    assert front.done("SELECT count() FROM parts") == "1\n"


@pytest.mark.parametrize("query", ["INSERT INTO room FORMAT RowBinary", "INSERT INTO room SELECT number FROM numbers(10)"])
def test_a_disk_without_the_room_that_is_asked_for_takes_no_insert(own_front, query):
    front = own_front("--disk-free-min", str(1 << 60))
    table(front, "room")
    answer = front.write(query, numbers(0, 10) if "FORMAT" in query else None)
    assert (answer.status, answer.code) == (500, 243), answer.text
    assert front.done("SELECT count() FROM room") == "0\n"


@pytest.mark.parametrize("size", [1, 4_000_000], ids=["small", "larger than the pipe"])
@pytest.mark.parametrize(
    ("head", "code"),
    [("INSERT INTO clear (nowhere)", 16), ("INSERT INTO nowhere", 60), ("INSERT INTO clear (a", 62), ("INSERT INTO clear SETTINGS no_such_setting = 1", 115)],
)
def test_a_statement_that_does_not_fit_the_table_is_refused_with_its_code(front, head, code, size):
    table(front, "clear")
    answer = front.write(f"{head} FORMAT RowBinary", bytes(8 * size))
    assert answer.code == code and answer.status in (400, 404), answer.text
    assert front.done("SELECT count() FROM clear") == "0\n"


@pytest.mark.parametrize("format_name", ["RowBinary", "Native", "CSV", "JSONEachRow"])
def test_a_body_that_is_malformed_at_its_end_stores_nothing(front, format_name):
    table(front, "cut")
    whole = native(front, 100_000)
    body, code = {
        "RowBinary": (numbers(0, 100_000) + b"123", 33),
        "Native": (whole[:-3], 33),
        "CSV": (b"".join(b"%d\n" % n for n in range(100_000)) + b"x\n", 117),
        "JSONEachRow": (b'{"a": 1}\n' * 100_000 + b'{"a": ', 32),
    }[format_name]
    answer = front.write(f"INSERT INTO cut FORMAT {format_name}", body)
    assert answer.status in (400, 500) and answer.code == code, answer.text
    assert front.done("SELECT count() FROM cut") == "0\n"


def test_a_column_in_the_body_that_the_table_lacks_is_refused_when_asked_so(front):
    table(front, "lacking")
    for format_name, body in (("Native", native(front, 10, "other")), ("JSONEachRow", b'{"a": 1, "other": 2}\n')):
        answer = front.write(f"INSERT INTO lacking FORMAT {format_name}", body, input_format_skip_unknown_fields="0")
        assert answer.status in (400, 404, 500) and answer.code in (16, 117), answer.text
    assert front.done("SELECT count() FROM lacking") == "0\n"


def test_an_unknown_format_is_refused_and_cannot_carry_sql(front):
    table(front, "formats")
    assert front.write("INSERT INTO formats FORMAT Nope", b"1\n").code == 73
    for name in ("CSV SETTINGS max_threads = 1", "CSV;", "", "CSV -- "):
        answer = front.write("INSERT INTO formats", b"1\n", default_format=name)
        assert answer.status != 200 and answer.code in (27, 62, 73), (name, answer.text)
    assert front.done("SELECT count() FROM formats") == "0\n"


def test_comments_settings_defaults_and_parameters_keep_their_meaning(front):
    table(front, "shapes", "a UInt64, b UInt64 DEFAULT a * 2, settings String DEFAULT 'none'")
    for query in (
        "INSERT INTO shapes (a) -- why not\nFORMAT CSV",
        "INSERT INTO shapes (a) SETTINGS max_threads = 1 -- one\nFORMAT CSV",
        "INSERT INTO shapes (a) /* FROM */ SETTINGS async_insert = 1, wait_for_async_insert = 0 FORMAT CSV",
        "INSERT INTO {name:Identifier} (a) FORMAT CSV",
    ):
        front.done(query, b"1\n", param_name="shapes", deduplicate_insert="disable")
    front.done("INSERT INTO shapes (settings, a) FORMAT JSONEachRow", b'{"a": 3}\n{"a": 4, "settings": "x"}\n')
    front.done("INSERT INTO shapes (a, settings) SETTINGS max_threads = 1 VALUES (5, 'y'), (3 + 3, 'z')")
    assert front.done("SELECT a, b, settings, count() FROM shapes GROUP BY ALL ORDER BY ALL") == (
        "1\t2\tnone\t4\n3\t6\tnone\t1\n4\t8\tx\t1\n5\t10\ty\t1\n6\t12\tz\t1\n"
    )


@pytest.mark.parametrize("format_name", ["RowBinary", "Native", "CSV"])
def test_a_body_of_one_block_is_one_part_stored_once(front, format_name):
    table(front, "one", settings="non_replicated_deduplication_window = 1000, max_bytes_to_merge_at_max_space_in_pool = 1")
    # Native in many small blocks, as other clients send it: they are put together again.
    body = front.write(f"SELECT number FROM numbers(1048449) FORMAT {format_name}", max_block_size="10000").body
    if format_name == "Native":
        body = front.write("SELECT number AS a FROM numbers(1048449) FORMAT Native", max_block_size="10000").body
    for _ in range(2):
        answer = front.write(f"INSERT INTO one FORMAT {format_name}", body, insert_deduplication_token="t", max_insert_block_size="1048449")
        assert answer.status == 200 and answer.summary["written_rows"] == "1048449"
        assert front.done("SELECT count(), groupArray(rows) FROM system.parts WHERE table = 'one' AND database = currentDatabase() AND active") == "1\t[1048449]\n"


def test_csv_blocks_do_not_depend_on_bytes(front):
    table(front, "cuts")
    body = front.write("SELECT number FROM numbers(2500000) FORMAT CSV").body
    for size in (len(body), 70001):
        pieces = (body[at : at + size] for at in range(0, len(body), size))
        assert front.send("POST", "/?query=INSERT+INTO+cuts+FORMAT+CSV&insert_deduplication_token=same", pieces, WRITER).status == 200
        assert front.done("SELECT count() FROM cuts") == "2500000\n"


@pytest.mark.parametrize("sent", [100_000, 500_000])
def test_a_client_that_hangs_up_after_pieces_were_handed_over_stores_nothing(front, sent):
    table(front, "hung")
    connection = begin(front, "/?query=INSERT+INTO+hung+FORMAT+RowBinary", numbers(0, sent), WRITER, announced=8 * sent + 8)
    assert until(lambda: front.running("INTO hung") == 1, 5) or sent < 262_144
    connection.close()
    assert until(lambda: front.running("INTO hung") == 0, 2)
    time.sleep(0.3)
    assert front.done("SELECT count() FROM hung") == "0\n"


def test_failed_and_abandoned_inserts_leave_no_descriptor_open(front):
    table(front, "leak", "a UInt64, CONSTRAINT c CHECK a < 10")

    def descriptors() -> list[str]:
        links = []
        for fd in Path(f"/proc/{front.process.pid}/fd").iterdir():
            # One that is closed while the folder is read is none that was left open.
            with contextlib.suppress(FileNotFoundError):
                links.append(os.readlink(fd))
        return [link for link in links if "pipe" in link]

    before = len(descriptors())
    for turn in range(20):
        assert front.write("INSERT INTO leak FORMAT RowBinary", numbers(0, 400_000 if turn % 2 else 20)).code == 469
        assert front.write("INSERT INTO nowhere FORMAT RowBinary", numbers(0, 400_000 if turn % 2 else 20)).code == 60
        begin(front, "/?query=INSERT+INTO+leak+FORMAT+RowBinary", numbers(0, 300_000), WRITER, announced=9_000_000).close()
        front.done("INSERT INTO leak FORMAT RowBinary", numbers(turn % 10, 1))
    assert until(lambda: len(descriptors()) <= before, 5), descriptors()


def test_every_turn_of_the_writer_can_be_an_insert(own_front):
    front = own_front("--writer-queries-max", "2", "--queue-timeout", "30")
    front.done(TABLE.format("turns"))
    slow = [begin(front, "/?query=INSERT+INTO+turns+FORMAT+RowBinary", rows(n * 100_000, 100_000), WRITER, announced=32 * 100_000 + 32) for n in range(2)]
    time.sleep(0.5)
    for n, connection in enumerate(slow):
        connection.sendall(rows(10**9 + n, 1))
    for connection in slow:
        assert connection.recv(100).startswith(b"HTTP/1.1 200")
        connection.close()
    assert front.done("SELECT count() FROM turns") == "200002\n"
