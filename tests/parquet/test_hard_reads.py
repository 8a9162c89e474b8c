"""Both readers over files that change while they are read, over damaged files, and over more rows than memory has."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from example_counts import examples, only_in_test_all
from library_versions import needs
from loaded_modules import run_code
from skipstone.engine.scan import duckdb_reader
from test_file_identity import CHANGES

pytestmark = needs("duckdb", 2, what="DuckDB as the reader")
READERS = ("pyarrow", "duckdb")


def _run(program: str, *arguments: object, timeout_s: int = 600) -> str:
    """The output of a program in another process, which must succeed."""
    done = run_code(program, *arguments, timeout_s=timeout_s)
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
    return done.stdout


# -- files that change -------------------------------------------------------------------------------------------------


@pytest.mark.some_cases(11)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("when", ["before", "after"])
def test_rule_38_a_file_that_changes_around_a_query_gives_no_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str, when: str
) -> None:
    rows = pa.table({"k": range(40), "s": [f"s{i}" for i in range(40)], "n": range(40)})
    pq.write_table(rows, tmp_path / "f.parquet", row_group_size=8)
    table = ss.create(tmp_path)
    real, left = duckdb_reader.to_arrow, [CHANGES[change]]

    def run(*arguments: object) -> pa.Table:
        if when == "before" and left:
            left.pop()(tmp_path / "f.parquet")
        found = real(*arguments)
        if left:
            left.pop()(tmp_path / "f.parquet")
        return found

    monkeypatch.setattr(duckdb_reader, "to_arrow", run)
    for read in (
        lambda plan: plan.to_table(),
        lambda plan: list(plan.to_batches()),
        lambda plan: plan.count(by="s"),
        lambda plan: plan.max("n"),
    ):
        with pytest.raises(ss.NotReadableError, match=r"f\.parquet: .*sync\(\)"):
            read(table.scan("k >= 5", reader="duckdb"))
    with pytest.raises(ss.NotReadableError, match=r"f\.parquet: .*sync\(\)"):
        table.scan(order_by="n", limit=3, reader="duckdb").to_table()


CHANGING = """
import os, random, sys, threading, time
from pathlib import Path
import numpy as np
import skipstone as ss

folder, reader, change, rounds = Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
path = folder / "b.parquet"
good, other = path.read_bytes(), (folder.parent / "other").read_bytes()
outcomes = {"read": 0, "refused": 0}
for number in range(rounds):
    path.write_bytes(good)
    table = ss.create(folder, index_path=f"{sys.argv[5]}/{number}", partitioning=None)
    table.scan("k < 0", reader=reader).to_table()

    def disturb(wait_s=random.Random(number).random() * 0.05):
        time.sleep(wait_s)
        if change == "overwrite":
            with open(path, "r+b") as file:
                file.write(other)
        elif change == "truncate":
            os.truncate(path, len(good) // 3)
        else:
            path.unlink()

    thread = threading.Thread(target=disturb)
    thread.start()
    rows = 0
    try:
        for batch in table.scan(reader=reader).to_batches():
            keys, values = batch.column("k").to_numpy(), batch.column("v").to_numpy()
            wrong = np.flatnonzero(values != 3 * keys)
            assert not len(wrong), (number, rows, wrong[:3], keys[wrong[:3]], values[wrong[:3]])
            rows += len(keys)
        assert rows == 400_000, rows
        outcomes["read"] += 1
    except (ss.NotReadableError, ss.CorruptionError):
        outcomes["refused"] += 1
    thread.join()
    try:
        table.scan(reader=reader).to_table()
        raise AssertionError("a changed file was read")
    except (ss.NotReadableError, ss.CorruptionError):
        pass
print(outcomes["read"] + outcomes["refused"])
"""


@pytest.mark.some_cases(2)
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("change", ["overwrite", "truncate", "remove"])
def test_a_file_that_changes_while_another_thread_reads_it(tmp_path: Path, change: str, reader: str) -> None:
    """Overwritten in place by a file of the same size, cut, or removed: all rows of the planned file, or an error
    before the last batch. The process does not end."""
    keys = np.arange(200_000)
    lake = tmp_path / "lake"
    lake.mkdir()
    options = {"compression": "none", "use_dictionary": False, "row_group_size": 20_000}
    for name in ("a.parquet", "b.parquet"):
        pq.write_table(pa.table({"k": keys, "v": keys * 3, "w": keys % 7}), lake / name, **options)
    pq.write_table(pa.table({"k": keys, "v": keys * 5, "w": keys % 7}), tmp_path / "other", **options)
    rounds = examples(3)
    assert int(_run(CHANGING, lake, reader, change, rounds, tmp_path)) == rounds


# -- damage ------------------------------------------------------------------------------------------------------------

FLIPS = """
import os, random, sys
import pyarrow as pa, pyarrow.parquet as pq
import skipstone as ss

folder, count = sys.argv[1], int(sys.argv[2])
random = random.Random(7)
lakes = sorted(os.listdir(folder))
tables = {lake: ss.create(f"{folder}/{lake}", index_path=f"{sys.argv[3]}/{lake}") for lake in lakes}
refused = same = as_damaged = other = 0
for number in range(count):
    lake = lakes[number % len(lakes)]
    path = f"{folder}/{lake}/a.parquet"
    times, good = os.stat(path), open(path, "rb").read()
    original = pq.read_table(path).to_pylist()
    pages = len(good) - 8 - int.from_bytes(good[-8:-4], "little")
    data = bytearray(good)
    data[random.randrange(4, pages)] ^= 1 << random.randrange(8)
    with open(path, "wb") as file:
        file.write(data)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    try:
        damaged = pq.read_table(path).to_pylist()
    except (pa.ArrowException, OSError, UnicodeDecodeError):
        damaged = None
    for reader in ("pyarrow", "duckdb"):
        try:
            found = tables[lake].scan("n >= 0", reader=reader).to_table()
            found.validate(full=False)
            assert found.schema == tables[lake].schema and found.num_rows <= len(original)
            rows = sorted(found.to_pylist(), key=repr)
        except (ss.CorruptionError, UnicodeDecodeError):
            refused += 1
            continue
        if rows == sorted(original, key=repr):
            same += 1
        elif damaged is not None and rows == sorted((r for r in damaged if (r["n"] or 0) >= 0), key=repr):
            as_damaged += 1
        else:
            other += 1
    with open(path, "wb") as file:
        file.write(good)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
print(refused, same, as_damaged, other)
"""


def test_flipped_bits_end_no_process(tmp_path: Path) -> None:
    """Each is refused, or without effect, or a value that the file now has: pages have no checksums that are compared.
    What remains are values that the two decoders read otherwise."""
    rows = pa.table(
        {
            "n": range(300),
            "s": [None if i % 9 == 0 else f"key {i % 37}" for i in range(300)],
            "f": [i / 3 for i in range(300)],
            "l": [[i] * (i % 3) for i in range(300)],
            "b": [i % 3 == 0 for i in range(300)],
        }
    )
    kinds = {
        "dictionary": {},
        "plain": {"compression": "none", "use_dictionary": False},
        "second": {"data_page_version": "2.0", "compression": "zstd"},
    }
    for name, options in kinds.items():
        (tmp_path / "lakes" / name).mkdir(parents=True)
        pq.write_table(rows, tmp_path / "lakes" / name / "a.parquet", row_group_size=120, **options)
    count = examples(40)
    counts = _run(FLIPS, tmp_path / "lakes", count, tmp_path, timeout_s=3600)
    refused, same, as_damaged, other = map(int, counts.split())
    assert refused + same + as_damaged + other == 2 * count
    assert refused and same and other <= max(3, count // 50)


# -- memory ------------------------------------------------------------------------------------------------------------

MEMORY = """
import resource, sys
import skipstone as ss

def peak_mb():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) // 1024 for line in status if line.startswith("VmHWM"))

table = ss.open(sys.argv[1], index_path=sys.argv[2])
where = "lower(s) <> 'x'" if sys.argv[3] == "duckdb" else "k >= 0"
list(table.scan("k = 1", limit=1, reader=sys.argv[3]).to_batches())
rows, before = 0, peak_mb()
for batch in table.scan(where, reader=sys.argv[3]).to_batches():
    rows += batch.num_rows
print(rows, peak_mb() - before)
"""


@only_in_test_all  # by default so few rows that all of them would fit
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
@pytest.mark.parametrize("reader", READERS)
def test_many_wide_rows_stream_in_little_memory(tmp_path: Path, reader: str) -> None:
    """3 million rows of some 270 bytes in less than 300 MB above the start."""
    files, rows = 60, 50_000
    lake = tmp_path / "lake"
    lake.mkdir()
    random = np.random.default_rng(1)
    for number in range(files):
        keys = np.arange(number * rows, (number + 1) * rows)
        wide = {f"w{i}": random.integers(0, 1 << 60, rows) for i in range(20)}
        texts = {"s": [f"text {key:020}" for key in keys], "u": [f"https://shop.example/{key}/item" for key in keys]}
        pq.write_table(pa.table({"k": keys, **wide, **texts}), lake / f"{number}.parquet", use_dictionary=False)
    ss.create(lake, index_path=tmp_path / "index")
    read, above_mb = map(int, _run(MEMORY, lake, tmp_path / "index", reader, timeout_s=1200).split())
    assert read == files * rows
    assert above_mb < 300, f"{above_mb} MB"
