"""An object store that fails at any call (`faulty_object_store`): actions are retried or reported, and never wrong."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable

import pyarrow as pa
import pytest
import skipstone as ss
from example_counts import every

pytest.importorskip("obstore", reason="object stores need obstore: pip install 'skipstone[cloud]'")

from faulty_object_store import FAULTS, Stored, Twin, twin_stores
from remote_lake import ACTIONS, LATE, START, begin, numbers, put_parquet, write
from skipstone.engine.storage import FileMissingError, StorageOptions, UncertainPutError, open_storage
from skipstone.engine.storage.object_client import ATTEMPTS_MAX, refusal

ROOT = "s3://twin/lake"
STRIDE = every(47)  # calls; each fault at other ones
Objects = dict[str, Stored]


@pytest.fixture(scope="module")
def begun() -> Objects:
    twin = Twin()
    with twin_stores(twin=twin):
        begin(ROOT)
    return twin.objects


def calls_of(act: Callable[[ss.Table], None], begun: Objects) -> int:
    """How many calls an action makes without a fault."""
    twin = Twin(begun)
    with twin_stores(twin=twin):
        table = opened()
        twin.fault_at("busy", 10**9)
        act(table)
        return twin.calls


def opened() -> ss.Table:
    """As a process that has read nothing yet."""
    table = ss.open(ROOT)
    table.handle.forget()
    return ss.open(ROOT)


def check(twin: Twin, expected: list[set[int]], context: str) -> None:
    """Once the store works again, the lake is sound and contains one of the expected sets of numbers."""
    twin.settle()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        table = opened()
        found = numbers(table)
        assert found in expected, context
        assert table.verify(deep=True) == [], context
        write(table, (1000, 1001))
        assert numbers(table) == found | {1000, 1001}, context
    table.handle.forget()


MEETINGS = [*((kind, False) for kind in FAULTS), *((kind, True) for kind in ("busy", "lost", "late", "denied"))]


@pytest.mark.some_cases(32)
@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize(("kind", "is_lasting"), MEETINGS)
def test_one_fault_is_overcome_and_a_lasting_one_leaves_all_or_nothing(
    kind: str, is_lasting: bool, action: str, begun: Objects
) -> None:
    """At any call of any action. A put whose answer was lost may have been done; then the error states it."""
    act, after = ACTIONS[action]
    for at in range(1 + MEETINGS.index((kind, is_lasting)) % STRIDE, calls_of(act, begun) + 1, STRIDE):
        twin = Twin(begun)
        with twin_stores(twin=twin), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that an index cannot be read
            table = opened()
            twin.fault_at(kind, at, lasting=is_lasting)
            expected = [after]
            try:
                act(table)
            except (ss.StorageError, ss.CommitConflictError) as error:
                assert is_lasting, error
                assert "secret-in-the-debug-part" not in str(error) and "0123456789abcdef" not in str(error)
                expected = [START, after] if isinstance(error, UncertainPutError) else [START]
            if twin.faults:
                check(twin, expected, f"{kind} at call {at} of {action}: {twin.log[at - 1 : at]}")


def parquet_files() -> Objects:
    """Two Parquet files in folders, and no index."""
    twin = Twin()
    with twin_stores(twin=twin):
        for day in (0, 1):
            put_parquet(ROOT, f"day={day}/made.parquet", pa.table({"n": pa.array([day, day + 10], pa.int64())}))
    return twin.objects


@pytest.mark.parametrize("kind", FAULTS)
def test_create_over_faults(kind: str) -> None:
    """One fault is overcome. If the store fails for good, there is a table or none, and the next try creates one."""
    for lasting in (False, True):
        for at in range(1 + lasting, 16, every(7)):
            twin = Twin(parquet_files())
            with twin_stores(twin=twin):
                twin.fault_at(kind, at, lasting=lasting)
                try:
                    ss.create(ROOT)
                except ss.StorageError:
                    assert lasting
                twin.settle()
                try:
                    table = opened()
                except ss.NotATableError:
                    assert lasting
                    table = ss.create(ROOT)
                assert numbers(table) == {0, 1, 10, 11} and table.verify(deep=True) == []
                table.handle.forget()


def test_an_object_that_may_not_be_read_is_an_error_and_not_quarantined() -> None:
    twin = Twin(parquet_files())

    def is_denied(path: str, act: Callable[[], object]) -> None:
        twin.fault_from("denied", "get", path)
        with pytest.raises(ss.StorageError, match="access denied"):
            act()
        twin.heal()

    with twin_stores(twin=twin):
        is_denied("day=1/made.parquet", lambda: ss.create(ROOT))
        with pytest.raises(ss.NotATableError):
            ss.open(ROOT)
        table = ss.create(ROOT, files=["day=0/made.parquet"])
        is_denied("day=1/made.parquet", table.sync)
        for kind in ("bloom", "secondary"):
            is_denied("day=0/made.parquet", lambda kind=kind: table.create_index("n", kind=kind))
            table.handle.forget()
            assert numbers(ss.open(ROOT)) == {0, 10} and ss.open(ROOT).version == 1


def test_a_log_that_may_not_be_listed_is_an_error() -> None:
    """The folder may be a Delta table, whose removed files a plain listing would contain."""
    twin = Twin(parquet_files())
    with twin_stores(twin=twin):
        twin.fault_from("denied", "list", "lake/_delta_log")
        with pytest.raises(ss.StorageError, match="access denied"):
            ss.create(ROOT)
        twin.heal()
        assert ss.create(ROOT).scan().count() == 4


def test_a_conditional_put_is_never_applied_twice() -> None:
    for kind in FAULTS:
        for call in range(1, 4):
            twin = Twin()
            with twin_stores(twin=twin):
                store = open_storage(ROOT)
                twin.fault_at(kind, call)
                assert store.put_if_absent("v1", b"mine") is True, kind
                twin.settle()
                assert store.read("v1") == b"mine"
                twin.fault_at(kind, call)
                assert store.put_if_absent("v1", b"yours") is False, kind
                twin.settle()
                assert store.read("v1") == b"mine"


def test_what_another_writer_put_since_is_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table may be removed and created again while `clean` shrinks the versions that it has listed."""
    twin = Twin()
    with twin_stores(twin=twin):
        store = open_storage(ROOT)
        store.put("v1", b"one")
        read = store.stat("v1")
        store.put("v1", b"another")
        store.replace("v1", b"-", read)
        assert store.read("v1") == b"another"
        read, head = store.stat("v1"), twin.head

        def head_before_another_put(path: str) -> dict:
            found = head(path)
            monkeypatch.setattr(twin, "head", head)
            store.put("v1", b"a third")
            return found

        monkeypatch.setattr(twin, "head", head_before_another_put)
        store.replace("v1", b"-", read)
        assert store.read("v1") == b"a third"
        store.replace("v1", b"-", store.stat("v1"))
        assert store.read("v1") == b"-"


def test_an_uncertain_put_is_reported() -> None:
    """If every answer is lost the put may be done; if the store is busy no writer can see that it is not."""
    for kind in ("lost", "late", "busy"):
        twin = Twin()
        with twin_stores(twin=twin):
            store = open_storage(ROOT)
            twin.fault_at(kind, 1, lasting=True)
            with pytest.raises(UncertainPutError, match="may have succeeded"):
                store.put_if_absent("v1", b"mine")
    for kind, error in (("denied", "access denied"), ("conflict", "neither this put nor another")):
        twin = Twin()
        with twin_stores(twin=twin):
            store = open_storage(ROOT)
            twin.fault_at(kind, 1, lasting=True)
            with pytest.raises(ss.StorageError, match=error) as raised:
                store.put_if_absent("v1", b"mine")
            assert not isinstance(raised.value, UncertainPutError) and twin.calls <= 2 * ATTEMPTS_MAX
            assert twin.objects == {}


@pytest.mark.parametrize("is_overtaken", [False, True])
def test_the_files_of_a_commit_whose_instant_is_late(begun: Objects, is_overtaken: bool) -> None:
    """The writer has given up when its instant arrives. The files are still there; if a sync took the version before,
    it did not add them."""
    twin = Twin(begun)
    with twin_stores(twin=twin):
        table = opened()
        twin.fault_from("late", "create", "timeline")
        with pytest.raises(UncertainPutError):
            write(table)
        if is_overtaken:
            twin.heal()
            assert opened().sync() == table.version + 1
        twin.settle()
        assert numbers(opened()) == START | (LATE if is_overtaken else set(range(40, 60)))
        assert opened().verify(deep=True) == []


def test_threads_that_race_over_a_store_with_conflicts() -> None:
    """AWS answers 409 to some of several concurrent puts: all try again, and one wins."""
    for call in range(1, 9):
        twin = Twin()
        with twin_stores(twin=twin):
            store = open_storage(ROOT)
            twin.fault_at("conflict", call)
            won: list[int] = []

            def put(me: int, store=store, won=won) -> None:
                if store.put_if_absent("v1", str(me).encode()):
                    won.append(me)

            threads = [threading.Thread(target=put, args=(me,)) for me in range(6)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert len(won) == 1 and store.read("v1") == str(won[0]).encode()


def test_short_reads_are_noticed() -> None:
    twin = Twin()
    with twin_stores(twin=twin):
        store = open_storage(ROOT)
        store.put("f", bytes(range(200)))
        for read in (lambda: store.read("f"), lambda: store.read_ranges("f", [(10, 100)])[0]):
            twin.fault_at("short", 1)
            assert len(read()) in (100, 200), "requested again until it is whole"
            twin.fault_at("short", 1, lasting=True)
            with pytest.raises(ss.StorageError, match="bytes arrived"):
                read()
            assert twin.calls == ATTEMPTS_MAX
            twin.settle()
        with pytest.raises(FileMissingError):
            store.read("g")


def test_errors_say_what_to_do_and_contain_no_secret() -> None:
    options = StorageOptions({"aws_secret_access_key": "hidden-secret", "sas_token": "se=2030&sig=hidden-too"})
    for error, part in [
        (FileNotFoundError("status code: 404 Not Found: <Code>NoSuchBucket</Code> hidden-secret"), "no such bucket"),
        (FileNotFoundError("status code: 404 Not Found: <Code>NoSuchKey</Code>"), "no such file"),
    ]:
        found = refusal(error, "s3://b/x", options)
        assert part in str(found) and "s3://b/x" in str(found) and "hidden" not in str(found)
        assert isinstance(found, FileMissingError) == ("NoSuchKey" in str(error))
    import obstore.exceptions as known

    for text, part in [
        ("http://169.254.169.254/latest/api/token - HTTP error: error sending request", "no credentials; give them"),
        ("status code: 503 Service Unavailable: <Code>SlowDown</Code>", "503: SlowDown"),
        ("status code: 400 Bad Request: <Code>ExpiredToken</Code>", "400: ExpiredToken"),
        ("GET https://b/x?sv=1&sig=hidden-signature hidden-secret - HTTP error", "check endpoint and network"),
        ("status code: 403 Forbidden: <Code>AccessDenied</Code>", "access denied"),
    ]:
        found = refusal(known.GenericError(f"Generic S3 error: {text}\n\nDebug: hidden"), "s3://b/x", options)
        assert part in str(found) and "hidden" not in str(found)
