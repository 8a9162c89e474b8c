"""How a writer sizes blocks, how much memory writing and reading take, and what is left when a writer dies."""

from __future__ import annotations

import os
import signal

import pyarrow as pa
import pytest
from loaded_modules import run_code
from skipstone.hfile_like import SortedFileReader, SortedFileWriter
from sorted_file_builders import numbered, written


@pytest.mark.parametrize(("use", "block_bytes"), [("get", 16 << 10), ("both", 32 << 10), ("scan", 64 << 10)])
def test_auto_follows_the_use(use, block_bytes):
    data = numbered(20_000, use=use)
    assert data == numbered(20_000, block_size=block_bytes, compression="zstd")
    sizes = [block.plain_bytes for block in SortedFileReader(data).blocks()]
    assert min(sizes[:-1]) >= block_bytes > max(sizes) - 20


def test_a_large_file_is_written_in_little_memory(tmp_path):
    before = pa.total_allocated_bytes()
    most = 0
    with SortedFileWriter(tmp_path / "large.skb", schema=pa.schema([("v", pa.binary())]), use="scan") as writer:
        for start in range(0, 40_000, 1000):
            values = pa.array([b"%09d" % i * 100 for i in range(start, start + 1000)])
            writer.write([b"%09d" % i for i in range(start, start + 1000)], pa.record_batch({"v": values}))
            del values
            most = max(most, pa.total_allocated_bytes() - before)
    assert SortedFileReader(tmp_path / "large.skb").num_entries == 40_000
    assert most < 4 << 20, "a block, and a copy of it: of 36 MB"


def test_a_writer_that_is_killed_leaves_no_file_or_the_old_one(tmp_path):
    old = tmp_path / "old.skb"
    old.write_bytes(written(*([b"a", b"b", b"c"], pa.record_batch({"n": [1, 2, 3]}))))
    program = (
        "import os, signal, sys, pyarrow as pa\n"
        "from skipstone.hfile_like import SortedFileWriter\n"
        "for path in sys.argv[1:]:\n"
        "    writer = SortedFileWriter(path, schema=pa.schema([('v', pa.binary())]), block_size=4096)\n"
        "    writer.write([b'%05d' % i for i in range(2000)], pa.record_batch({'v': [os.urandom(700)] * 2000}))\n"
        "    writer.put_meta('m', os.urandom(100_000))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ended = run_code(program, old, tmp_path / "new.skb")
    assert ended.returncode == -signal.SIGKILL
    assert [name for name in os.listdir(tmp_path) if not name.startswith(".")] == ["old.skb"]
    assert SortedFileReader(old).num_entries == 3


def test_a_file_is_durable_before_its_name_and_the_name_before_it_is_told(tmp_path, monkeypatch):
    calls: list[str] = []
    for name in ("fsync", "replace"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *given, real=real, name=name: (calls.append(name), real(*given))[1])
    with SortedFileWriter(tmp_path / "run.skb", schema=pa.schema([("n", pa.int64())])) as writer:
        writer.write(*([b"a", b"b", b"c"], pa.record_batch({"n": [1, 2, 3]})))
        assert calls == []
    assert calls == ["fsync", "replace", "fsync"], "the bytes, the name, the folder"


_BOMBS = """
import io, resource
import pyarrow as pa
from skipstone.hfile_like import SortedFileReader, SortedFileWriter, merge_runs

target, value = io.BytesIO(), bytes(4 << 20)
schema = pa.schema([("v", pa.binary())])
with SortedFileWriter(target, schema=schema, block_size=8 << 20, compression="zstd") as writer:
    for i in range(64):
        writer.write([b"%02d" % i], pa.record_batch({"v": [value]}))
data = target.getvalue()
assert len(data) < 1 << 20, len(data)
del value
held = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (held + (230 << 20), resource.getrlimit(resource.RLIMIT_AS)[1]))
reader = SortedFileReader(data)
assert sum(len(batch) for batch in reader.scan()) == 64
assert reader.verify() == []
assert merge_runs([data, data], io.BytesIO()).num_entries == 64
assert all(reader.get(b"%02d" % i) for i in range(64))
assert reader.scan_table(columns=[]).num_rows == 64
"""


def test_many_blocks_that_grow_are_held_one_by_one() -> None:
    """256 MiB of zeros in a file of some hundred KiB: reading them takes what a few blocks take."""
    done = run_code(_BOMBS)
    assert done.returncode == 0, done.stderr[-2000:]
