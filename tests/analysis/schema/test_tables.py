"""The schemas have the designed columns, in Arrow and in the documentation."""

import builtins
import re
from collections.abc import Callable

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polymux.analysis.schema import tables
from polymux.analysis.schema.tables import TABLES, ColumnType, TableSchema
from polymux.core.errors import MissingExtra

# "_S" stands for two adjacent columns, one per side.
DESIGNED = {
    "captures": "file format status packets tcp_packets other_packets fragments bytes error "
    "error_offset sensor",
    "sessions": "session_id capture protocol version dialect evidence vantage dialer acceptor "
    "started_at ended_at frames streams bytes_S payload_bytes_S missing_bytes_S "
    "undecoded_bytes_S overhead_bytes_S violations ending note rtt_us tls server_name alpn "
    "tls_records tls_unopened tls_handshake_us sensor connection_id",
    "streams": "session_id stream opener stream_id incarnation name name_bytes opened_at "
    "accepted_at closed_at ending reset_by error bytes_S units_S frames_S ended_S "
    "credit_granted_S peak_in_flight_bytes_S blocked_us_S first_at_S last_at_S window_bytes_S "
    "window_limit_bps_S throughput_bps_S stalled_us_S hol_blocked_us_S",
    "frames": "session_id sender frame_index time byte_offset size kind stream amount "
    "payload_bytes verdict",
    "violations": "session_id sender frame_index byte_offset time stream rule origin severity "
    "certainty detail",
    "stalls": "session_id stream sender started_at duration_us cause blocking_stream detail",
    "requests": "session_id opener requests answered latency_p50_us latency_p90_us latency_p99_us "
    "latency_max_us",
    "timeline": "session_id stream sender bucket frames bytes blocked_us",
    "content": "session_id stream sender frame_index time data",
}


def designed_columns(name: str) -> tuple[str, ...]:
    columns: list[str] = []
    for word in DESIGNED[name].split():
        if word.endswith("_S"):
            columns += [word[:-1] + "dialer", word[:-1] + "acceptor"]
        else:
            columns.append(word)
    return tuple(columns)


def test_the_tables_are_the_designed_ones_in_their_order() -> None:
    assert tuple(TABLES) == tuple(DESIGNED)


@pytest.mark.parametrize("name", DESIGNED)
def test_columns_are_the_designed_ones_in_their_order(name: str) -> None:
    assert TABLES[name].column_names() == designed_columns(name)


@pytest.mark.parametrize("name", DESIGNED)
def test_arrow_schema_has_the_same_names_and_nullability(name: str) -> None:
    schema = tables.arrow_schema(name)
    assert tuple(schema.names) == TABLES[name].column_names()
    for column in TABLES[name].columns:
        assert schema.field(column.name).nullable == column.nullable


@pytest.mark.parametrize("table", TABLES.values(), ids=lambda table: table.name)
def test_every_type_follows_from_the_name_of_the_column(table: TableSchema) -> None:
    schema = table.to_arrow()
    for field in schema:
        if field.name == "time" or field.name.endswith("_at") or field.name[:-7].endswith("_at"):
            assert field.type == pa.timestamp("us", tz="UTC"), field.name
        elif field.name.endswith("_us") or "_us_" in field.name:
            assert field.type == pa.int64(), field.name
    assert all(table.column(name).nullable is False for name in table.key if name != "stream")


def test_big_numbers_binary_and_lists_have_their_exact_types() -> None:
    streams = tables.arrow_schema("streams")
    for name in ("stream_id", "credit_granted_dialer", "credit_granted_acceptor"):
        assert streams.field(name).type == pa.decimal128(20, 0)
    assert streams.field("name_bytes").type == pa.binary()
    assert tables.arrow_schema("content").field("data").type == pa.binary()
    assert tables.arrow_schema("sessions").field("capture").type == pa.list_(pa.string())
    for name in ("first_at_dialer", "last_at_acceptor"):
        assert streams.field(name).type == pa.timestamp("us", tz="UTC")


def test_columns_with_a_closed_set_of_words_list_them() -> None:
    assert TABLES["stalls"].column("cause").allowed_values[-1] == "sender-idle"
    assert TABLES["frames"].column("verdict").allowed_values == ("clean", "crossed", "violation")
    assert TABLES["streams"].column("ending").allowed_values[0] == "clean"
    assert TABLES["streams"].column("ended_acceptor").allowed_values == ("ended", "aborted")
    assert TABLES["frames"].column("kind").allowed_values == ()
    for table in TABLES.values():
        for column in table.columns:
            assert not column.allowed_values or column.type is ColumnType.TEXT


def test_meanings_are_whole_sentences_and_name_the_side_they_are_about() -> None:
    for table in TABLES.values():
        for column in table.columns:
            assert re.match(r"^[A-Z`].*\.$", column.description), (table.name, column.name)
            assert "{" not in column.description
            assert "|" not in column.description
            for side in tables.SIDES:
                if column.name.endswith("_" + side):
                    assert side in column.description, column.name


def test_an_unknown_table_or_column_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        tables.arrow_schema("packets")
    with pytest.raises(KeyError):
        TABLES["frames"].column("bytes")


def test_the_reference_has_one_line_for_every_column() -> None:
    text = tables.column_reference()
    assert re.findall(r"^## `(\w+)`$", text, re.M) == list(TABLES)
    found = re.findall(r"^\| `(\w+)` \| ([\w(),]+(?: of text)?) \| (yes|no) \| .+ \|$", text, re.M)
    wanted = [
        (column.name, column.type.value, "yes" if column.nullable else "no")
        for table in TABLES.values()
        for column in table.columns
    ]
    assert found == wanted
    assert "One of `clean`, `crossed`, `violation`." in text


def test_without_pyarrow_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real: Callable[..., object] = builtins.__import__

    def refuse(name: str, *rest: object) -> object:
        if name.split(".")[0] == "pyarrow":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(MissingExtra, match=r"polymux\[captures\]"):
        tables.arrow_schema("frames")


@given(st.integers(min_value=0, max_value=10**14), st.data())
def test_every_instant_of_a_session_has_one_of_500_buckets(
    lasted: int, data: st.DataObject
) -> None:
    width = tables.bucket_width_us(lasted)
    since = data.draw(st.integers(min_value=0, max_value=lasted))
    bucket = tables.bucket_of(since, width)
    assert width >= 1000
    assert 0 <= bucket < tables.TIMELINE_BUCKETS
    assert bucket * width <= since
    assert since < (bucket + 1) * width or (
        since == lasted and bucket == tables.TIMELINE_BUCKETS - 1
    )


def test_a_short_session_has_buckets_of_a_millisecond() -> None:
    assert tables.bucket_width_us(0) == 1000
    assert tables.bucket_width_us(500_000) == 1000
    assert tables.bucket_width_us(500_001) == 1001
