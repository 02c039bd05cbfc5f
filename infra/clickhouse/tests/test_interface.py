"""The interface as clients use it: where a query may stand, parameters, settings, errors, headers."""

import base64
import http.client
import json
import socket
import time
import urllib.parse

import pytest

from conftest import READER, WRITER


def test_ping_needs_no_password_and_everything_else_does(front):
    assert front.get("/ping").text == "Ok.\n" and front.get("/replicas_status").text == "Ok.\n"
    answer = front.get("/?query=SELECT+1")
    assert (answer.status, answer.code) == (401, 194) and answer.text.startswith("Code: 194. DB::Exception: ")


@pytest.mark.parametrize("user,password", [("strobe_writer", "of the reader"), ("strobe_reader", ""), ("default", ""), ("strobe_writer", "of the writer?")])
def test_a_wrong_password_is_refused(front, user, password):
    answer = front.send("POST", "/", b"SELECT 1", {"X-ClickHouse-User": user, "X-ClickHouse-Key": password})
    assert (answer.status, answer.code) == (403, 516) and "AUTHENTICATION_FAILED" in answer.text


def test_credentials_come_as_headers_as_basic_auth_or_in_the_url(front):
    basic = "Basic " + base64.b64encode(b"strobe_reader:of the reader").decode()
    assert front.get("/?query=SELECT+1", {"Authorization": basic}).text == "1\n"
    assert front.get("/?query=SELECT+1&user=strobe_reader&password=of+the+reader").text == "1\n"
    assert front.get("/?query=SELECT+1", READER).text == "1\n"


def test_the_query_stands_in_the_url_the_body_or_both(front):
    assert front.get("/?query=SELECT+1%2B1", READER).text == "2\n"
    assert front.read("SELECT 1 + 1").text == "2\n"
    assert front.write("SELECT 1 +", b"1 + 2").text == "4\n"
    assert front.read("SELECT 1;").text == "1\n"


def test_a_get_never_writes(front):
    front.done("CREATE OR REPLACE TABLE g (a UInt8) ENGINE = Memory")
    for query in ("INSERT INTO g VALUES (1)", "DROP TABLE g", "INSERT INTO g SELECT 1"):
        assert front.get("/?" + urllib.parse.urlencode({"query": query}), WRITER).code == 164
    assert front.get("/?query=SELECT+count()+FROM+g&max_threads=1", WRITER).text == "0\n"


def test_parameters_reach_the_query_as_values(front):
    assert front.read("SELECT {a:UInt64} + 1, {s:String}", param_a="41", param_s="it's; DROP \\n").text == "42\tit\\'s; DROP \\n\n"
    assert front.read("SELECT {l:Array(String)}", param_l="['x','y']").text == "['x','y']\n"
    assert front.read("SELECT count() FROM {t:Identifier}", param_t="numbers").code == 60
    assert front.read("SELECT {a:UInt8}").code == 456


def test_parameters_reach_an_insert_and_a_form(front):
    front.done("CREATE OR REPLACE TABLE p (a UInt8) ENGINE = Memory")
    front.done("INSERT INTO {t:Identifier} FORMAT CSV", b"7\n", param_t="p")
    form = b'--x\r\nContent-Disposition: form-data; name="query"\r\n\r\nSELECT a, {s:String} FROM p\r\n--x\r\nContent-Disposition: form-data; name="param_s"\r\n\r\nv\r\n--x--\r\n'
    answer = front.send("POST", "/", form, {**READER, "Content-Type": "multipart/form-data; boundary=x"})
    assert answer.text == "7\tv\n"


def test_database_and_settings_hold_for_one_request_only(front):
    front.done("CREATE DATABASE IF NOT EXISTS other")
    assert front.done("SELECT currentDatabase(), getSetting('max_threads')", database="other", max_threads=7) == "other\t7\n"
    assert front.send("POST", "/", b"SELECT currentDatabase()", {**READER, "X-ClickHouse-Database": "other"}).text == "other\n"
    assert front.done("SELECT currentDatabase(), getSetting('max_threads') = 7") == "default\t0\n"
    assert front.read("SELECT 1", database="nope`; DROP").code == 81


@pytest.mark.parametrize(
    "query,status,code,name",
    [
        ("SELECT FROM WHERE", 400, 62, "SYNTAX_ERROR"),
        ("SELECT * FROM nope", 404, 60, "UNKNOWN_TABLE"),
        ("SELECT nope()", 404, 46, "UNKNOWN_FUNCTION"),
        ("SELECT nope", 404, 47, "UNKNOWN_IDENTIFIER"),
        ("SELECT 1 FORMAT Nope", 404, 73, "UNKNOWN_FORMAT"),
        ("SELECT throwIf(1)", 500, 395, "FUNCTION_THROW_IF_VALUE_IS_NON_ZERO"),
        ("SELECT 1; SELECT 2", 400, 62, "SYNTAX_ERROR"),
        ("", 400, 62, "SYNTAX_ERROR"),
        ("-- nothing", 400, 62, "SYNTAX_ERROR"),
    ],
)
def test_errors_have_clickhouse_s_code_status_and_text(front, query, status, code, name):
    answer = front.read(query)
    assert (answer.status, answer.code) == (status, code), answer.text
    assert answer.text.startswith(f"Code: {code}. DB::Exception: ") and f"({name}) (version 26." in answer.text


def test_an_unknown_setting_is_named(front):
    answer = front.write("SELECT 1", nope_setting=1)
    assert answer.code == 115 and "nope_setting" in answer.text


def test_what_only_a_server_can_do_is_refused_with_the_reason(front):
    assert front.read("SELECT 1", session_id="x").code == 48
    assert front.read("SELECT 1", client_protocol_version=54492).code == 48


def test_the_headers_tell_query_id_format_and_counts(front):
    answer = front.read("SELECT * FROM numbers(10) FORMAT CSV", query_id="my-own-id")
    assert answer.headers["X-ClickHouse-Query-Id"] == "my-own-id"
    assert answer.headers["Content-Type"].startswith("text/csv")
    front.done("CREATE OR REPLACE TABLE h (a UInt64) ENGINE = MergeTree ORDER BY a")
    assert front.write("INSERT INTO h SELECT number FROM numbers(10)").summary["written_rows"] == "10"
    assert front.write("INSERT INTO h FORMAT CSV", b"1\n2\n").summary["written_rows"] == "2"
    assert front.write("SELECT sum(a) FROM h", wait_end_of_query=1).summary["read_rows"] == "12"


@pytest.mark.parametrize("packed", [0, 1])
def test_an_error_in_the_middle_of_an_answer_cannot_be_overlooked(front, packed):
    query = urllib.parse.urlencode({"query": "SELECT throwIf(number = 3000000) FROM numbers(10000000) SETTINGS max_block_size = 65536, max_threads = 1", "compress": packed})
    connection = http.client.HTTPConnection("127.0.0.1", front.port, timeout=30)
    connection.request("POST", f"/?{query}", b"", WRITER)
    response = connection.getresponse()
    assert response.status == 200
    with pytest.raises(http.client.IncompleteRead) as cut:
        response.read()
    body = cut.value.partial
    if packed:
        from front.compression import Decompressor

        body = Decompressor().feed(body)
    tag = response.headers["X-ClickHouse-Exception-Tag"]
    assert body.endswith(f" {tag}\r\n__exception__\r\n".encode()) and b"Code: 395. DB::Exception" in body[-1000:]


def test_with_wait_end_of_query_an_error_has_its_status(front):
    answer = front.write("SELECT throwIf(number = 3000000) FROM numbers(10000000) SETTINGS max_block_size = 65536", wait_end_of_query=1)
    assert (answer.status, answer.code) == (500, 395)


def test_one_connection_serves_many_requests_after_errors_too(front):
    connection = http.client.HTTPConnection("127.0.0.1", front.port, timeout=30)
    connection.connect()
    first = connection.sock.getsockname()
    for query, status in (("SELECT 1", 200), ("SELECT nope", 404), ("SELECT 1 FORMAT JSON", 200), ("SELECT 2", 200)):
        connection.request("POST", "/", query, READER)
        response = connection.getresponse()
        response.read()
        assert response.status == status and connection.sock.getsockname() == first


def test_a_failed_answer_leaves_nothing_in_the_next_one(front):
    for _ in range(20):
        try:
            assert front.read("SELECT throwIf(number = 90000) FROM numbers(100000)").code == 395
        except http.client.IncompleteRead:
            pass  # the first block was quicker than the error
        assert front.read("SELECT 1 AS a WHERE 0").body == b""


def test_metadata_queries_answer_in_any_format(front):
    for query in ("SHOW DATABASES", "DESCRIBE TABLE system.one", "EXPLAIN SELECT 1", "EXISTS TABLE system.one", "SHOW TABLES FROM system"):
        assert json.loads(front.read(query, default_format="JSON").body)["rows"] >= 1


def test_too_large_a_query_is_refused(front):
    assert front.write("SELECT '" + "x" * (2 << 20) + "'").status == 413


def test_an_answer_over_the_bound_is_refused_where_it_cannot_be_streamed(own_front):
    front = own_front("--answer-bytes-max", "1000000")
    assert front.write("SELECT number FROM numbers(1000000) FORMAT JSON").code == 396


def test_too_many_connections_are_answered_503_and_idle_ones_are_closed(own_front):
    front = own_front("--connections-max", "3", "--header-timeout", "1")
    idle = [socket.create_connection(("127.0.0.1", front.port)) for _ in range(3)]
    time.sleep(0.1)
    assert front.get("/ping").status == 503
    begun = time.monotonic()
    idle[0].settimeout(10)
    try:
        assert idle[0].recv(1) == b""
    except ConnectionResetError:
        pass
    assert time.monotonic() - begun < 3
    assert front.get("/ping").status == 200


def test_a_slow_body_is_given_up(own_front):
    front = own_front("--receive-timeout", "1")
    front.done("CREATE TABLE slow (a UInt8) ENGINE = MergeTree ORDER BY a")
    connection = http.client.HTTPConnection("127.0.0.1", front.port, timeout=30)
    connection.putrequest("POST", "/?query=INSERT+INTO+slow+FORMAT+CSV")
    for name, value in {**WRITER, "Content-Length": "100"}.items():
        connection.putheader(name, value)
    connection.endheaders(b"1\n")
    response = connection.getresponse()
    assert (response.status, response.headers["X-ClickHouse-Exception-Code"]) == (408, "209")
    assert front.done("SELECT count() FROM slow") == "0\n"


def test_no_secret_and_no_query_text_is_in_the_log(front):
    front.read("SELECT 'hidden-literal-in-query'")
    front.get("/?query=SELECT+1&user=strobe_reader&password=guessed-password")
    log = front.log.read_text()
    assert "user=strobe_reader" in log and "hidden-literal" not in log and "guessed-password" not in log and READER["X-ClickHouse-Key"] not in log
