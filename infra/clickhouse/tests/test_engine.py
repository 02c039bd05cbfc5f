"""Side by side, hung up, killed, stopped: what the engine keeps and what it lets go."""

import http.client
import os
import random
import socket
import subprocess
import sys
import threading
import time
import urllib.parse

import pytest

from conftest import HERE, READER, WRITER, until

SCAN = "SELECT sum(cityHash64(number, {marker})) FROM numbers(200000000000)"
TABLE = (
    "CREATE TABLE {0} (a UInt64, b UInt64, c UInt64, d UInt64) ENGINE = MergeTree ORDER BY a "
    "SETTINGS non_replicated_deduplication_window = 1000"
)


def begin(front, path: str, body: bytes, who=READER, announced: int | None = None) -> socket.socket:
    """Sends a request and leaves its answer unread."""
    connection = socket.create_connection(("127.0.0.1", front.port), timeout=30)
    lines = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {len(body) if announced is None else announced}"]
    lines += [f"{name}: {value}" for name, value in who.items()]
    connection.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
    return connection


@pytest.mark.parametrize("format_name", ["CSV", "JSON"])
def test_a_client_that_hangs_up_cancels_its_query(front, format_name):
    marker = random.randrange(10**9)
    connection = begin(front, "/", f"{SCAN.format(marker=marker)} FORMAT {format_name}".encode())
    assert until(lambda: front.running(str(marker)) == 1, 5)
    connection.close()
    assert until(lambda: front.running(str(marker)) == 0, 1.5)
    before = front.cpu_seconds()
    time.sleep(0.5)
    assert front.cpu_seconds() - before < 0.2


def test_a_client_that_stops_reading_is_cut_and_its_query_ended(own_front):
    front = own_front("--send-timeout", "1")
    connection = begin(front, "/", b"SELECT number, 'stalled' FROM numbers(100000000000)", WRITER)
    assert until(lambda: front.running("stalled") == 1, 5)
    assert until(lambda: front.running("stalled") == 0, 5)
    connection.close()


def test_a_client_that_hangs_up_in_the_middle_of_an_insert_stores_nothing(front):
    front.done("CREATE OR REPLACE TABLE half (a UInt64) ENGINE = MergeTree ORDER BY a")
    rows = b"".join(n.to_bytes(8, "little") for n in range(50000))
    path = "/?query=INSERT+INTO+half+FORMAT+RowBinary"
    begin(front, path, rows, WRITER, announced=2 * len(rows)).close()
    chunked = socket.create_connection(("127.0.0.1", front.port))
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n" + "".join(f"{n}: {v}\r\n" for n, v in WRITER.items()) + "\r\n"
    chunked.sendall(head.encode() + b"%x\r\n" % len(rows) + rows + b"\r\n")
    chunked.close()
    time.sleep(0.5)
    assert front.done("SELECT count() FROM half") == "0\n"
    assert until(lambda: front.running("half") == 0, 2)


def test_a_long_scan_does_not_hold_up_inserts(front):
    front.done("CREATE OR REPLACE TABLE beside (a UInt64) ENGINE = MergeTree ORDER BY a")
    marker = random.randrange(10**9)
    connection = begin(front, "/", SCAN.format(marker=marker).encode())
    assert until(lambda: front.running(str(marker)) == 1, 5)
    begun = time.monotonic()
    for n in range(10):
        front.done("INSERT INTO beside FORMAT CSV", b"%d\n" % n)
    taken = time.monotonic() - begun
    assert front.running(str(marker)) == 1, "the scan must still run"
    connection.close()
    assert taken < 5 and front.done("SELECT count() FROM beside") == "10\n"


def test_readers_that_fill_their_turns_leave_the_writer_his(own_front):
    front = own_front("--reader-queries-max", "1", "--queue-timeout", "0.5")
    connection = begin(front, "/", SCAN.format(marker=5).encode())
    assert until(lambda: front.running("200000000000") == 1, 5)
    answer = front.read("SELECT 1")
    assert (answer.status, answer.code) == (503, 202)
    assert front.done("SELECT 1") == "1\n"
    connection.close()
    assert until(lambda: front.read("SELECT 1").status == 200, 3)


def test_many_clients_at_once_get_each_their_own_answer(front):
    failures = []

    def client(number: int) -> None:
        for turn in range(15):
            answer = front.read(f"SELECT {number}, {turn}, sum(number) FROM numbers(100000)")
            if answer.text != f"{number}\t{turn}\t4999950000\n":
                failures.append(answer.text)

    threads = [threading.Thread(target=client, args=(n,)) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def rows(first: int, count: int) -> bytes:
    return b"".join(n.to_bytes(8, "little") * 4 for n in range(first, first + count))


def test_the_same_token_stores_once_and_another_token_again(front):
    front.done("DROP TABLE IF EXISTS once")
    front.done(TABLE.format("once"))
    body = rows(0, 1000)
    for token, expected in (("t1", 1000), ("t1", 1000), ("t2", 2000), ("t1", 2000)):
        front.done("INSERT INTO once FORMAT RowBinary", body, insert_deduplication_token=token)
        assert front.done("SELECT count() FROM once") == f"{expected}\n"


def test_a_body_of_several_blocks_makes_the_same_blocks_however_it_comes(front):
    front.done("DROP TABLE IF EXISTS blocks")
    front.done(TABLE.format("blocks"))
    body = front.write("SELECT number, number, number, number FROM numbers(2500000) FORMAT RowBinary").body
    for size in (len(body), 70001, 1 << 22):
        pieces = (body[at : at + size] for at in range(0, len(body), size))
        query = urllib.parse.urlencode({"query": "INSERT INTO blocks FORMAT RowBinary", "insert_deduplication_token": "same"})
        assert front.send("POST", f"/?{query}", pieces, WRITER).status == 200
        assert front.done("SELECT count() FROM blocks") == "2500000\n"


def test_a_huge_body_is_streamed_in_flat_memory(front):
    front.done("DROP TABLE IF EXISTS huge")
    front.done(TABLE.format("huge"))
    piece = rows(0, 32768)  # 1 MiB

    def send(pieces: int) -> int:
        peak, done = [front.resident_bytes()], threading.Event()

        def watch():
            while not done.wait(0.02):
                peak.append(front.resident_bytes())

        watcher = threading.Thread(target=watch)
        watcher.start()
        answer = front.send("POST", "/?query=INSERT+INTO+huge+FORMAT+RowBinary&deduplicate_insert=disable", (piece for _ in range(pieces)), WRITER)
        done.set()
        watcher.join()
        assert answer.status == 200
        return max(peak)

    small, large = send(192), send(448)
    # 256 MiB more go through; merges in the background come and go, and the allocator keeps some of theirs.
    assert large - small < 192 << 20, (small, large)
    assert front.done("SELECT count() FROM huge") == f"{640 * 32768}\n"
    front.done("TRUNCATE TABLE huge")


def test_a_huge_answer_is_streamed_in_flat_memory(front):
    before = front.resident_bytes()
    connection = begin(front, "/", b"SELECT number, number FROM numbers(40000000) FORMAT RowBinary", WRITER)
    size = peak = 0
    while data := connection.recv(1 << 20):
        size += len(data)
        peak = max(peak, front.resident_bytes())
        if data.endswith(b"0\r\n\r\n"):
            break
    connection.close()
    assert size > 640_000_000 and peak - before < 150 << 20, (size, before, peak)


def test_kill_9_loses_nothing_acknowledged_and_a_repeat_doubles_nothing(own_front):
    front = own_front()
    front.done(TABLE.format("kept"))
    sent, acknowledged, count = 0, 0, 500
    for _ in range(4):
        stop = threading.Timer(random.uniform(0.1, 0.6), front.kill)
        stop.start()
        while True:
            try:
                answer = front.write("INSERT INTO kept FORMAT RowBinary", rows(sent * count, count), insert_deduplication_token=f"batch-{sent}")
            except (OSError, http.client.HTTPException):
                break
            assert answer.status == 200, answer.text
            sent += 1
            acknowledged = sent
        stop.join()
        front.start()
        stored = front.done("SELECT count(), uniqExact(a) FROM kept").split()
        assert int(stored[0]) >= acknowledged * count and stored[0] == stored[1]
        # Nobody knows whether the last one was stored: it is sent again, and one before it for good measure.
        for batch in {max(0, sent - 1), sent}:
            front.done("INSERT INTO kept FORMAT RowBinary", rows(batch * count, count), insert_deduplication_token=f"batch-{batch}")
        sent += 1
    assert acknowledged > 5
    assert front.done("SELECT count(), uniqExact(a), max(a) FROM kept") == f"{sent * count}\t{sent * count}\t{sent * count - 1}\n"


def test_sigterm_lets_running_requests_finish_and_exits_0(own_front):
    front = own_front()
    answers = []
    client = threading.Thread(target=lambda: answers.append(front.write("SELECT sleepEachRow(0.2) FROM numbers(5) SETTINGS max_block_size = 1")))
    client.start()
    assert until(lambda: front.running("sleepEachRow") == 1, 5)
    assert front.stop() == 0
    client.join()
    assert answers[0].status == 200 and answers[0].text == "0\n" * 5


def test_sigterm_ends_what_takes_too_long(own_front):
    front = own_front("--stop-timeout", "0.5")
    connection = begin(front, "/", SCAN.format(marker=1).encode())
    assert until(lambda: front.running("200000000000") == 1, 5)
    begun = time.monotonic()
    assert front.stop() == 0 and time.monotonic() - begun < 5
    connection.close()


def run_front(*flags) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-m", "front", *map(str, flags)], cwd=HERE, env={**os.environ, "PYTHONPATH": str(HERE)}, capture_output=True, text=True, timeout=30)


def test_a_port_or_folder_in_use_is_named_with_the_remedy(front, tmp_path):
    passwords = ("--writer-password-file", front.folder / "writer", "--reader-password-file", front.folder / "reader")
    taken = run_front("--port", front.port, "--data-dir", tmp_path / "data", *passwords)
    assert taken.returncode == 2 and f"port {front.port} on 127.0.0.1 is in use" in taken.stderr and "--port" in taken.stderr
    same = run_front("--port", 18199, "--data-dir", front.folder / "data", *passwords)
    assert same.returncode == 2 and "is open in another engine" in same.stderr
    assert "Traceback" not in taken.stderr + same.stderr


def test_a_missing_or_shared_password_is_named(tmp_path):
    (tmp_path / "p").write_text("x")
    missing = run_front("--writer-password-file", tmp_path / "none", "--reader-password-file", tmp_path / "p")
    assert missing.returncode == 2 and "cannot read the password file" in missing.stderr
    shared = run_front("--writer-password-file", tmp_path / "p", "--reader-password-file", tmp_path / "p")
    assert shared.returncode == 2 and "same password" in shared.stderr


def test_the_script_starts_reports_and_stops(tmp_path):
    env = {**os.environ, "STROBE_HOME": str(tmp_path), "STROBE_CLICKHOUSE_VENV": sys.prefix}

    def script(*arguments):
        return subprocess.run([HERE / "engine.sh", *arguments, "--port", "18198"], env=env, capture_output=True, text=True, timeout=60)

    assert script("status").returncode == 3
    assert script("start").returncode == 0
    try:
        secret = tmp_path / "data" / "clickhouse-18198.writer.password"
        assert secret.stat().st_mode & 0o777 == 0o600 and len(secret.read_text()) == 48
        assert script("status").returncode == 0
        assert script("start").returncode == 0, "a second start changes nothing"
        other = script("start", "--name", "other")
        assert other.returncode == 1 and "18198: it is in use" in other.stderr and "remedy" in other.stderr
    finally:
        assert script("stop").returncode == 0
    assert script("status").returncode == 3
