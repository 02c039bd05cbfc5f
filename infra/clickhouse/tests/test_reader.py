"""What the reader is refused, and what nobody may do."""

import socket
import subprocess
import sys

import pytest

from conftest import HERE, until


@pytest.fixture(scope="module")
def table(front):
    front.done("CREATE OR REPLACE TABLE guarded (a UInt8, file String) ENGINE = MergeTree ORDER BY a")
    front.done("INSERT INTO guarded VALUES (1, 'main.cpp')")
    return front


@pytest.mark.parametrize(
    "query",
    [
        "INSERT INTO guarded VALUES (2, '')",
        "INSERT INTO guarded SELECT 2, ''",
        "INSERT INTO FUNCTION file('x') SELECT 1",
        "DROP TABLE guarded",
        "TRUNCATE TABLE guarded",
        "ALTER TABLE guarded DELETE WHERE 1",
        "OPTIMIZE TABLE guarded",
        "CREATE TABLE more (a UInt8) ENGINE = Memory",
        "CREATE TEMPORARY TABLE more (a UInt8)",
        "CREATE FUNCTION f AS x -> x",
        "KILL QUERY WHERE 1",
        "SYSTEM FLUSH LOGS",
        "SYSTEM STOP MERGES",
        "SET readonly = 0",
        "SET max_memory_usage = 0",
        "USE system",
        "SELECT 1 SETTINGS readonly = 0",
        "SELECT 1 SETTINGS max_execution_time = 0",
        "SELECT 1; DROP TABLE guarded",
        "(SELECT 1); SET readonly = 0",
    ],
)
def test_the_reader_changes_nothing(table, query):
    answer = table.read(query)
    assert answer.status != 200 and answer.code in (62, 164), answer.text
    assert table.done("SELECT count() FROM guarded") == "1\n"


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM file('/etc/passwd', 'LineAsString')",
        "SELECT file('/etc/passwd')",
        "SELECT `file`('/etc/passwd')",
        "SELECT \"file\" /* x */ ('/etc/passwd')",
        "SELECT arrayMap(file, ['/etc/passwd'])",
        "SELECT p APPLY file FROM (SELECT '/etc/passwd' AS p)",
        "SELECT * APPLY(file) FROM (SELECT '/etc/passwd' AS p)",
        "SELECT * FROM eval('SELECT 1')",
        "DESCRIBE file('/etc/passwd', 'LineAsString')",
        "DESCRIBE TABLE file('/etc/passwd', 'LineAsString')",
        "SELECT * FROM url('http://127.0.0.1:18199/', 'LineAsString')",
        "DESCRIBE url('http://127.0.0.1:18199/x.csv')",
        "DESCRIBE TABLE url('http://127.0.0.1:18199/x.csv')",
        "SELECT * FROM remote('127.0.0.1', 'system.one')",
        "SELECT * FROM executable('ls', 'TSV', 'a String')",
        "SELECT * FROM s3('http://127.0.0.1:18199/bucket/x')",
        "SELECT * FROM Python(os)",
        "SELECT * FROM '/etc/passwd'",
        "SELECT 1 INTO OUTFILE '/tmp/strobe-written-by-a-test'",
        "SELECT * FROM guarded INTO OUTFILE '/tmp/strobe-written-by-a-test' FORMAT CSV",
        "BACKUP TABLE guarded TO File('/tmp/strobe-written-by-a-test')",
    ],
)
def test_the_reader_reaches_neither_files_nor_network(table, query):
    answer = table.read(query)
    assert answer.status != 200 and answer.code in (1, 62, 164), answer.text
    assert "root:" not in answer.text


@pytest.mark.parametrize(
    "query",
    [
        "SELECT file('/etc/passwd')",
        "SELECT * FROM url('http://127.0.0.1:18199/', 'LineAsString')",
        "CREATE TABLE out1 (a String) ENGINE = File(CSV)",
        "CREATE TABLE out2 (a String) ENGINE URL('http://127.0.0.1:18199/', CSV)",
        "CREATE TABLE out3 (a String) ENGINE Kafka('127.0.0.1:18199', 't', 'g', 'CSV')",
        "CREATE TABLE out4 AS guarded ENGINE NATS SETTINGS nats_url = '127.0.0.1:18199'",
        "CREATE DATABASE out5 ENGINE PostgreSQL('127.0.0.1:18199', 'd', 'u', 'p')",
        "INSERT INTO FUNCTION file('x.csv') SELECT 1",
        "INSERT INTO FUNCTION url('http://127.0.0.1:18199/', 'CSV', 'a UInt8') FORMAT CSV 1",
        "INSERT INTO guarded FROM INFILE '/etc/passwd' FORMAT CSV",
        "CREATE DICTIONARY d (a UInt64) PRIMARY KEY a SOURCE(HTTP(url 'http://127.0.0.1:18199/' format 'CSV')) LAYOUT(FLAT()) LIFETIME(0)",
    ],
)
def test_the_writer_reaches_neither_files_nor_network(table, query):
    answer = table.write(query)
    assert answer.code == 164, answer.text


def test_a_column_may_be_called_engine(table):
    table.done("CREATE OR REPLACE TABLE motors (engine String) ENGINE MergeTree ORDER BY engine")
    table.done("CREATE OR REPLACE VIEW named AS SELECT engine FROM motors")
    assert table.done("SELECT count(engine) FROM named") == "0\n"


INSIDE = """
import socket, sys
from pathlib import Path
from front import sandbox
try:
    forbidden = sandbox.enter(Path(sys.argv[1]))
except sandbox.Unavailable as reason:
    sys.exit(f"unavailable: {reason}")
(Path(sys.argv[1]) / "own").write_text("own")
for what in (lambda: open("/etc/passwd"), lambda: open("/proc/self/environ"), lambda: open(sys.argv[2], "w")):
    try:
        what()
        sys.exit("a file was opened")
    except PermissionError:
        pass
if "TCP" in forbidden:
    try:
        socket.create_connection(("127.0.0.1", int(sys.argv[3])), timeout=5)
        sys.exit("a connection was opened")
    except PermissionError:
        pass
print("shut in")
"""


def test_the_kernel_s_wall_holds_without_the_front_s_words(tmp_path):
    """What a query could do that no word gives away: here Python does it, inside the same wall."""
    data = tmp_path / "data"
    data.mkdir()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        arguments = [str(data), str(tmp_path / "outside"), str(listener.getsockname()[1])]
        ran = subprocess.run([sys.executable, "-c", INSIDE, *arguments], capture_output=True, text=True, cwd=HERE, check=False)
    if ran.stderr.startswith("unavailable"):
        pytest.skip(ran.stderr)
    assert ran.stdout == "shut in\n", ran.stderr


def test_a_query_that_slips_past_the_words_meets_the_kernel(own_front):
    front = own_front("--sandbox", "on")
    # CREATE … AS hides the engine's name from the front: the clause has no equals sign.
    for query in ("SELECT (file)('/etc/passwd')", "CREATE VIEW v AS SELECT arraySort((x) -> 1, [1])", "SELECT * FROM `/etc/passwd`"):
        assert "root:" not in front.write(query).text
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.settimeout(0.3)
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        front.write(f"CREATE TABLE out (a String) ENGINE MySQL('{address}', 'd', 't', 'u', 'p')", connect_timeout_with_failover_ms=200)
        with pytest.raises(TimeoutError):
            listener.accept()


def test_a_column_may_be_called_file(table):
    query = "SELECT file, concat(file, ':1'), countIf(file = 'main.cpp'), arrayElement([file], 1) FROM guarded WHERE file LIKE 'm%' AND (file) != '' GROUP BY file ORDER BY file"
    assert table.read(query).text == "main.cpp\tmain.cpp:1\t1\tmain.cpp\n"


def test_the_reader_may_lower_limits_and_shape_the_answer(front):
    assert front.read("SELECT getSetting('max_execution_time')", max_execution_time=5).text == "5\n"
    assert front.read("SELECT getSetting('max_execution_time')").text == "60\n"
    assert front.read("SELECT 1 AS a FORMAT JSONEachRow", output_format_json_quote_64bit_integers=1, readonly=1).status == 200


@pytest.mark.parametrize(
    "setting,value",
    [("max_execution_time", "61"), ("max_execution_time", "0"), ("max_execution_time", "-1"), ("max_execution_time", "nan"), ("max_memory_usage", "0"),
     ("max_result_rows", "99999999"), ("readonly", "0"), ("log_comment", "x"), ("allow_ddl", "1"), ("max_insert_threads", "1")],
)  # fmt: skip
def test_the_reader_may_not_loosen_or_change_anything_else(front, setting, value):
    assert front.read("SELECT 1", **{setting: value}).code == 164


def test_a_reader_s_query_ends_at_its_time(front):
    answer = front.read("SELECT sum(cityHash64(number)) FROM numbers(100000000000)", max_execution_time=1)
    assert (answer.status, answer.code) == (408, 159), answer.text
    assert until(lambda: front.running("100000000000") == 0, 2)
