"""What a marker stands for where its transaction ends in no ordinary way: forked, dropped, or not to be read."""

from __future__ import annotations

import datetime as dt
import gc
import os
import threading
from pathlib import Path

import pyarrow as pa
import pytest
import skipstone as ss
from skipstone.engine.state import markers

SCHEMA = pa.schema([("a", pa.int64())])


@pytest.fixture
def table(tmp_path: Path) -> ss.Table:
    return ss.create(tmp_path, schema=SCHEMA)


def _pending(table: ss.Table) -> list[str]:
    return sorted(path.stem for path in Path(table.handle.index_storage.root, "pending").glob("*.json"))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("way", ["raises", "ends", "writes"])
def test_a_forked_process_neither_ends_a_transaction_nor_takes_away_what_it_wrote(table: ss.Table, way: str) -> None:
    process = os.getpid()
    try:
        with table.transaction() as tx:
            with ss.TaskWriter(tx.task_spec()) as task:
                task.write(pa.table({"a": [5]}))
            tx.add_task(task.result)
            child = os.fork()
            if child == 0:
                if way == "raises":
                    raise KeyError
                if way == "writes":
                    tx.write(pa.table({"a": [6]}))
            else:
                _, status = os.waitpid(child, 0)
                assert _pending(table) == [tx.id]
    except (KeyError, ss.InvalidArgumentError) as error:
        if os.getpid() != process:
            os._exit(3 if way == "raises" or "in the process that began it" in str(error) else 4)
        raise
    finally:
        if os.getpid() != process:
            os._exit(5)
    assert os.waitstatus_to_exitcode(status) == 3
    again = ss.open(table.location)
    assert (again.version, again.scan().to_table()["a"].to_pylist()) == (2, [5])
    assert again.verify(deep=True) == [] and _pending(table) == []


def test_a_transaction_that_nobody_ends_keeps_its_marker_so_that_a_clean_finds_what_it_wrote(table: ss.Table) -> None:
    tx = table.transaction()
    tx.__enter__()
    with ss.TaskWriter(tx.task_spec()) as task:
        task.write(pa.table({"a": [5]}))
    tx.add_task(task.result)
    named = tx.id
    del tx
    gc.collect()
    assert _pending(table) == [named]
    told = table.clean(min_age=dt.timedelta(0), delete_data=True)
    assert sorted(told["kind"].to_pylist()) == ["data", "marker", "task"] and _pending(table) == []
    assert list(Path(table.location).glob("*.parquet")) == []


def test_neither_a_collected_transaction_nor_an_odd_error_stops_the_markers_of_others(
    table: ss.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Garbage is collected wherever memory is asked for: within a beat, too."""
    monkeypatch.setattr(markers, "BEAT_S", 0.01)
    monkeypatch.setattr(markers, "_heart", markers._Heart())
    beats, has_beaten = [], threading.Event()

    def put(*_: object) -> None:
        gc.collect()
        beats.append(threading.current_thread().name)
        if len(beats) > 2:
            has_beaten.set()
        raise RuntimeError

    def write() -> None:
        with table.transaction() as tx:
            tx.write(pa.table({"a": [5]}))
            lost = table.transaction()
            lost.__enter__()
            lost.itself = lost  # type: ignore[attr-defined]
            del lost
            monkeypatch.setattr(markers.Markers, "_put", put)
            assert has_beaten.wait(30)

    writing = threading.Thread(target=write, daemon=True)
    writing.start()
    writing.join(60)
    assert not writing.is_alive() and set(beats) == {"skipstone-markers"}
    assert ss.open(table.location).scan().count() == 1


@pytest.mark.parametrize(
    "told",
    [
        b"",
        b"[]",
        b"\xff",
        b'{"transaction": "x", "base": 1, "time_us": 0, "action": "commit"}',
        b'{"transaction": "ID", "base": "1", "time_us": null, "action": "commit"}',
        b'{"transaction": "ID", "base": 1, "time_us": 0, "action": 5}',
    ],
)
def test_a_marker_that_cannot_be_read_stands_for_its_transaction(table: ss.Table, told: bytes) -> None:
    other = ss.open(table.location)
    with table.transaction() as tx:
        tx.write(pa.table({"a": [5]}))
        marker = Path(table.handle.index_storage.root, "pending", f"{tx.id}.json")
        marker.write_bytes(told.replace(b"ID", tx.id.encode()))
        assert other.history()["state"].to_pylist() == ["completed", "inflight"]
        assert other.clean().num_rows == 0
    assert (table.version, table.scan().count()) == (2, 1)
