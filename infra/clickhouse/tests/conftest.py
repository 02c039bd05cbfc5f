"""Real fronts on free ports, and a plain HTTP client."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.parse
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent.parent
PORTS = range(18100, 18200)
WRITER = {"X-ClickHouse-User": "strobe_writer", "X-ClickHouse-Key": "of the writer"}
READER = {"X-ClickHouse-User": "strobe_reader", "X-ClickHouse-Key": "of the reader"}


def free_port() -> int:
    """Returns a port that nobody listens on now."""
    for port in PORTS:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError(f"no free port in {PORTS}")


class Answer:
    """Status, headers and body of an answer."""

    def __init__(self, response, body: bytes):
        self.status, self.headers, self.body = response.status, response.headers, body

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def code(self) -> int:
        return int(self.headers.get("X-ClickHouse-Exception-Code", "0"))

    @property
    def summary(self) -> dict:
        return json.loads(self.headers["X-ClickHouse-Summary"])

    def json(self):
        return json.loads(self.body)


class Front:
    """A front with its own data folder; it can be killed and started again."""

    def __init__(self, folder: Path, *flags: str):
        self.folder, self.flags = folder, flags
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "writer").write_text(WRITER["X-ClickHouse-Key"])
        (folder / "reader").write_text(READER["X-ClickHouse-Key"])
        self.log = folder / "log"
        self.start()

    def start(self) -> None:
        self.port = free_port()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "front", "--data-dir", self.folder / "data", "--port", str(self.port),
             "--writer-password-file", self.folder / "writer", "--reader-password-file", self.folder / "reader", *self.flags],
            cwd=HERE, env={**os.environ, "PYTHONPATH": str(HERE)}, stderr=open(self.log, "ab"),
        )  # fmt: skip
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.log.read_text()[-2000:]
            try:
                if self.get("/ping").text == "Ok.\n":
                    return
            except OSError:
                time.sleep(0.02)
        raise AssertionError(f"no /ping within 30 s: {self.log.read_text()[-2000:]}")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(40)

    def get(self, path: str, headers=None) -> Answer:
        return self.send("GET", path, None, headers or {})

    def send(self, method: str, path: str, body, headers) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            return Answer(response, response.read())
        finally:
            connection.close()

    def write(self, query: str, body=None, **parameters) -> Answer:
        """Asks as the writer: the query in the URL when there is a body, else in the body."""
        return self._ask(WRITER, query, body, parameters)

    def read(self, query: str, **parameters) -> Answer:
        """Asks as the reader."""
        return self._ask(READER, query, None, parameters)

    def _ask(self, who, query, body, parameters) -> Answer:
        headers = dict(who)
        if body is None:
            body = query.encode()
        else:
            parameters = {"query": query, **parameters}
        return self.send("POST", "/?" + urllib.parse.urlencode(parameters), body, headers)

    def done(self, query: str, body=None, **parameters) -> str:
        """Asks as the writer and returns the text of a 200."""
        answer = self.write(query, body, **parameters)
        assert answer.status == 200, answer.text
        return answer.text

    def resident_bytes(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) << 10

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def running(self, marker: str) -> int:
        """Returns how many queries with this text the engine runs."""
        return int(self.done(f"SELECT count() FROM system.processes WHERE query LIKE '%{marker}%' AND query NOT LIKE '%system.processes%'"))


def until(condition, seconds: float) -> bool:
    """Says whether the condition comes true in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return False


@pytest.fixture(scope="session")
def front(tmp_path_factory):
    """One front for all tests that leave it as they found it."""
    started = Front(tmp_path_factory.mktemp("front"))
    yield started
    assert started.stop() == 0


@pytest.fixture
def own_front(tmp_path):
    """Returns a way to start fronts of a test's own."""
    fronts = []

    def start(*flags: str) -> Front:
        fronts.append(Front(tmp_path / str(len(fronts)), *flags))
        return fronts[-1]

    yield start
    for each in fronts:
        each.kill()
