"""Rows go in and come out unchanged, in every format used, plain and compressed."""

import gzip
import io
import json
from pathlib import Path

import lz4.frame
import pyarrow.ipc
import pytest

from conftest import READER, WRITER
from front.compression import Decompressor, compress

ROWS = "SELECT number AS a, concat('s', toString(number), '\\n\\t\"') AS s, [number, 1] AS l FROM numbers(150000)"
TABLE = "CREATE OR REPLACE TABLE {0} (a UInt64, s String, l Array(UInt64)) ENGINE = MergeTree ORDER BY a"
SUM = "SELECT count(), sum(cityHash64(a, s, l)) FROM {0}"
FORMATS = ["RowBinary", "RowBinaryWithNames", "RowBinaryWithNamesAndTypes", "Native", "JSONEachRow", "JSONCompact", "JSONCompactEachRow",
           "JSONCompactEachRowWithNamesAndTypes", "TabSeparated", "TabSeparatedWithNamesAndTypes", "CSV", "CSVWithNames", "Arrow",
           "ArrowStream", "Parquet", "Values"]  # fmt: skip


@pytest.mark.parametrize("name", FORMATS)
def test_rows_come_back_as_they_went_in(front, name):
    front.done(TABLE.format("trip"))
    answer = front.write(f"{ROWS} FORMAT {name}")
    assert answer.status == 200 and answer.headers["X-ClickHouse-Format"] == name
    stored = front.write(f"INSERT INTO trip FORMAT {name}", answer.body)
    assert stored.status == 200 and stored.summary["written_rows"] == "150000", stored.text
    assert front.done(SUM.format("trip")) == front.done(SUM.format(f"({ROWS})"))


@pytest.mark.parametrize("name", ["JSON", "JSONCompact", "XML", "Pretty", "Vertical", "Markdown"])
def test_an_answer_of_many_blocks_is_one_document(front, name):
    streamed = front.done(f"SELECT number FROM numbers(200000) SETTINGS max_block_size = 10000, output_format_pretty_max_rows = 300000 FORMAT {name}")
    one_block = front.done(f"SELECT number FROM numbers(200000) SETTINGS max_block_size = 1000000, output_format_pretty_max_rows = 300000 FORMAT {name}")
    if name.startswith("JSON"):
        assert json.loads(streamed)["data"] == json.loads(one_block)["data"] and json.loads(streamed)["rows"] == 200000
    elif name == "XML":
        assert streamed.count("<meta>") == 1 and streamed.count("<row>") == 200000
    else:
        assert streamed == one_block


@pytest.mark.parametrize("name,head", [("CSVWithNames", '"a\n""b"\n'), ("TabSeparatedWithNames", 'a\\n"b\n'), ("JSONCompactEachRowWithNames", '["a\\n\\"b"]\n')])
def test_a_head_is_sent_once_even_if_a_name_holds_a_line_end(front, name, head):
    text = front.done(f'SELECT number AS `a\n"b` FROM numbers(50000) SETTINGS max_block_size = 1000 FORMAT {name}')
    assert text.startswith(head) and text.count(head) == 1 and text.count("\n") == 50000 + head.count("\n")


def test_no_rows_still_bring_the_head(front):
    assert front.write("SELECT 1 AS a WHERE 0 FORMAT RowBinaryWithNamesAndTypes").body == b"\x01\x01a\x05UInt8"
    assert front.done("SELECT 1 AS a WHERE 0 FORMAT TabSeparatedWithNames") == "a\n"
    assert front.done("SELECT 1 AS a WHERE 0") == ""


def test_totals_come_after_the_rows(front):
    assert front.done("SELECT number % 2 AS a, count() FROM numbers(10) GROUP BY a WITH TOTALS ORDER BY a") == "0\t5\n1\t5\n\n0\t10\n"


def test_the_query_decides_on_the_format_then_the_header_then_the_url(front):
    assert front.done("SELECT 1 AS a FORMAT CSV", default_format="JSONEachRow") == "1\n"
    assert front.done("SELECT 'FORMAT CSV' AS format", default_format="JSONEachRow") == '{"format":"FORMAT CSV"}\n'
    assert front.done("SELECT 1 AS a") == "1\n"
    assert front.send("POST", "/?default_format=CSV", b"SELECT 'x' AS a", {**WRITER, "X-ClickHouse-Format": "JSONEachRow"}).text == '{"a":"x"}\n'


def test_arrow_is_one_stream_that_arrow_can_read(front):
    table = pyarrow.ipc.open_stream(front.write(f"{ROWS} FORMAT ArrowStream").body).read_all()
    assert table.num_rows == 150000


@pytest.mark.parametrize("name", ["Native", "JSONEachRow", "JSONCompact"])
def test_native_compression_works_both_ways(front, name):
    front.done(TABLE.format("packed"))
    plain, packed = front.write(f"{ROWS} FORMAT {name}").body, front.write(f"{ROWS} FORMAT {name}", compress=1).body
    unpacked = Decompressor().feed(packed)
    assert len(packed) < len(plain) // 2
    if name != "JSONCompact":  # which tells its own time
        assert unpacked == plain
    front.done(f"INSERT INTO packed FORMAT {name}", compress(plain), decompress=1)
    assert front.done(SUM.format("packed")) == front.done(SUM.format(f"({ROWS})"))


@pytest.mark.parametrize("codec", ["LZ4", "ZSTD(1)", "NONE"])
def test_blocks_that_the_engine_wrote_to_disk_are_read_with_their_checksums(front, codec):
    front.done("DROP TABLE IF EXISTS on_disk SYNC")
    front.done(f"CREATE TABLE on_disk (a UInt64 CODEC({codec})) ENGINE = MergeTree ORDER BY tuple() SETTINGS min_bytes_for_wide_part = 0, ratio_of_defaults_for_sparse_serialization = 1")
    front.done("INSERT INTO on_disk SELECT number % 1000 FROM numbers(100000)")
    part = Path(front.done("SELECT path FROM system.parts WHERE table = 'on_disk' AND active").strip())
    decompressor = Decompressor()
    plain = decompressor.feed((part / "a.bin").read_bytes())
    decompressor.finish()
    assert plain == b"".join((n % 1000).to_bytes(8, "little") for n in range(100000))


def test_a_query_may_be_compressed_with_its_rows(front):
    front.done("CREATE OR REPLACE TABLE q (a UInt8) ENGINE = Memory")
    answer = front.send("POST", "/?decompress=1", compress(b"INSERT INTO q FORMAT CSV\n1\n") + compress(b"2\n"), WRITER)
    assert answer.status == 200 and front.done("SELECT sum(a) FROM q") == "3\n"
    assert front.send("POST", "/?decompress=1", compress(b"SELECT sum(a) FROM q"), WRITER).text == "3\n"


def test_a_corrupted_block_is_refused_and_nothing_is_stored(front):
    front.done("CREATE OR REPLACE TABLE bad (a UInt8) ENGINE = MergeTree ORDER BY a")
    block = bytearray(compress(b"1\n" * 100))
    block[-1] ^= 1
    assert front.write("INSERT INTO bad FORMAT CSV", bytes(block), decompress=1).code == 40
    assert front.write("INSERT INTO bad FORMAT CSV", compress(b"1\n" * 100)[:-1], decompress=1).code == 33
    liar = bytearray(compress(b"1\n"))
    liar[17:21] = (1 << 31).to_bytes(4, "little")
    assert front.write("INSERT INTO bad FORMAT CSV", bytes(liar), decompress=1).code == 271
    assert front.done("SELECT count() FROM bad") == "0\n"


@pytest.mark.parametrize("encoding,unpack", [("gzip", gzip.decompress), ("lz4", lz4.frame.decompress)])
def test_http_compression_is_given_where_it_is_accepted(front, encoding, unpack):
    plain = front.done(ROWS)
    answer = front.send("POST", "/", ROWS.encode(), {**READER, "Accept-Encoding": f"br, {encoding}"})
    assert answer.headers["Content-Encoding"] == encoding and unpack(answer.body).decode() == plain
    empty = front.send("POST", "/", b"SELECT 1 WHERE 0", {**READER, "Accept-Encoding": encoding})
    assert unpack(empty.body) == b""


def test_a_gzipped_body_is_taken(front):
    front.done("CREATE OR REPLACE TABLE gz (a UInt32) ENGINE = Memory")
    body = gzip.compress(b"".join(b"%d\n" % n for n in range(100000)))
    assert front.send("POST", "/?query=INSERT+INTO+gz+FORMAT+CSV", body, {**WRITER, "Content-Encoding": "gzip"}).status == 200
    assert front.done("SELECT count(), sum(a) FROM gz") == "100000\t4999950000\n"


def test_a_chunked_body_is_taken_in_any_pieces(front):
    front.done("CREATE OR REPLACE TABLE ch (a UInt64) ENGINE = MergeTree ORDER BY a")
    data = b"".join(n.to_bytes(8, "little") for n in range(30000))
    pieces = (data[at : at + 777] for at in range(0, len(data), 777))
    assert front.send("POST", "/?query=INSERT+INTO+ch+FORMAT+RowBinary", pieces, WRITER).status == 200
    assert front.done("SELECT count(), sum(a) FROM ch") == "30000\t449985000\n"


def test_a_file_like_body_with_the_query_in_front_is_split_where_the_rows_begin(front):
    front.done("CREATE OR REPLACE TABLE sp (a UInt64, b String) ENGINE = Memory")
    body = io.BytesIO(b"INSERT INTO sp (a, b) -- FORMAT CSV\n SETTINGS max_insert_threads = 1 FORMAT TabSeparated\r\n1\tx;y\n2\tFORMAT\n")
    assert front.send("POST", "/", body, WRITER).status == 200
    assert front.done("INSERT INTO sp VALUES (3, upper('z')), (4, 'it''s; SELECT')") == ""
    assert front.done("INSERT INTO sp SELECT 5, 'sel'") == ""
    assert front.done("SELECT * FROM sp ORDER BY a") == "1\tx;y\n2\tFORMAT\n3\tZ\n4\tit\\'s; SELECT\n5\tsel\n"
