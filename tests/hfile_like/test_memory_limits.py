"""What a sorted-block file may make a reader take: the limits of FORMAT.md, each checked before memory is taken."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
from collections.abc import Callable

import pyarrow as pa
import pytest
from skipstone.errors import CorruptionError
from skipstone.hfile_like import SortedFileReader, SortedFileWriter
from sorted_file_layout import (
    METAS,
    TRAILER_BYTES,
    Layout,
    repair_block,
    repair_trailer,
    strings,
)
from sorted_file_samples import make, noise

# Long enough that zstandard could reach every limit.
LONG = 80_000
Read = Callable[[SortedFileReader], object]


def long_file() -> bytes:
    """Every piece that may be compressed, each long and raw."""
    target = io.BytesIO()
    options = {"compression": "none", "block_size": 1}
    with SortedFileWriter(target, schema=pa.schema([]), **options) as writer:
        writer.write([b"%d" % i + bytes(LONG) for i in range(5)])
        writer.put_meta("m", noise(1, LONG))
    return target.getvalue()


def claims(data: bytes, kind: str, plain_bytes: int) -> bytes:
    """A piece of the footer's tables or the footer itself says that it is a frame of so many plain bytes."""
    layout, damaged = Layout(data), bytearray(data)
    if kind == "footer":
        at = len(data) - TRAILER_BYTES
        damaged[at + 16 : at + 24] = plain_bytes.to_bytes(8, "little")
        damaged[at + 28 : at + 32] = (1).to_bytes(4, "little")
    else:
        begins, table = layout.sections[METAS]
        names, at = strings(table)
        place, count = layout.footer_at + begins + at, len(names)
        struct.pack_into("<Q", damaged, place + 16 * count, plain_bytes)
        struct.pack_into("<I", damaged, place + 28 * count, 1)
    repair_trailer(damaged)
    return bytes(damaged)


PIECES: list[tuple[str, Callable[[Layout], int], Read]] = [
    ("footer", lambda layout: layout.footer_stored, lambda r: r.groups()),
    ("meta", lambda layout: layout.metas[0][2], lambda r: r.meta("m")),
]


@pytest.mark.parametrize(("kind", "stored", "read"), PIECES, ids=[kind for kind, *_ in PIECES])
def test_a_piece_that_claims_more_than_its_limit_is_refused(
    kind: str, stored: Callable[[Layout], int], read: Read
) -> None:
    data = long_file()
    cap = (16 << 20) + 2 * stored(Layout(data))
    assert read(SortedFileReader(data)) is not None
    with pytest.raises(CorruptionError, match=f"bytes claim to be {cap + 1}"):
        read(SortedFileReader(claims(data, kind, cap + 1)))
    # As much as it may be is told by the frame to be another size: there is none.
    with pytest.raises(CorruptionError) as caught:
        read(SortedFileReader(claims(data, kind, cap)))
    assert "claim to be" not in str(caught.value)


def test_sections_that_claim_too_much_together_are_refused() -> None:
    columns = {f"c{i}": pa.array([noise(i, LONG)], pa.binary()) for i in range(5)}
    data = make([b"k"], columns, compression="none")
    layout, damaged = Layout(data), bytearray(data)
    offset, length = layout.blocks[0]
    for total in (1 << 26, 14 << 20):
        for s in range(2, 7):
            entry = offset + 16 + 16 * s
            damaged[entry] = 1
            struct.pack_into("<I", damaged, entry + 8, total)
        repair_block(damaged, offset, length)
        # Five times 14 MiB are too many for one block.
        with pytest.raises(CorruptionError, match="together"):
            SortedFileReader(bytes(damaged)).get(b"k")


_BOMBS = """
import io, resource
import pyarrow as pa
from skipstone.hfile_like import SortedFileReader, SortedFileWriter, merge_runs

target, value = io.BytesIO(), bytes(4 << 20)
schema = pa.schema([("v", pa.binary())])
with SortedFileWriter(target, schema=schema, block_size=8 << 20, compression="zstd") as writer:
    for i in range(80):
        writer.write([b"%02d" % i], pa.record_batch({"v": [value]}))
data = target.getvalue()
assert len(data) < 1 << 20, len(data)
del value
held = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (held + (230 << 20), resource.getrlimit(resource.RLIMIT_AS)[1]))
reader = SortedFileReader(data)
assert sum(len(batch) for batch in reader.scan()) == 80
assert reader.verify() == []
assert merge_runs([data, data], io.BytesIO()).num_entries == 80
assert all(reader.get(b"%02d" % i) for i in range(80))
assert reader.scan_table(columns=[]).num_rows == 80
"""


def test_many_blocks_that_grow_are_held_one_by_one() -> None:
    """320 MiB of zeros in a file of some hundred KiB: reading them takes what a few blocks take."""
    done = subprocess.run([sys.executable, "-c", _BOMBS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
