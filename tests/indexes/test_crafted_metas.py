"""What a run's metas say is checked like everything else that another may have written."""

import io
import json

import numpy as np
import pyarrow as pa
import pytest
from skipstone.engine.indexes.bloom import coarse_groups as coarse
from skipstone.engine.state import run_format
from skipstone.errors import CorruptionError
from skipstone.hfile_like import SortedFileReader, SortedFileWriter

BODY = bytes(4 * 3 + 32)


def run_with(name: str, meta: bytes) -> SortedFileReader:
    target = io.BytesIO()
    with SortedFileWriter(target, schema=pa.schema([])) as writer:
        writer.put_meta(name, meta)
    return SortedFileReader(target.getvalue())


def head(**more: object) -> bytes:
    return json.dumps({"groups": [group()], "ranges": 2, "others": 0, **more}).encode()


def group(members: object = 3, **more: object) -> dict[str, object]:
    return {"hash": "int", "members": members, "fpp": 0.01, **more}


@pytest.mark.some_cases(11)
@pytest.mark.parametrize(
    "meta",
    [
        b"[" * 100_000 + b"]" * 100_000,
        b'{"groups":' + b"[" * 50_000,
        b'{"groups": [], "ranges": 0, "x": [' + b"[]," * 500_000 + b"[]]}",
        b"[1, 2]",
        head(groups=[group(2**70)]),
        head(groups=[group(-1), group(4)]),
        head(groups=[group(1e300)]),
        head(groups=[group(10**18)] * 10),
        head(groups=7),
        head(groups=[["int", 3]]),
        head(groups=[group(fpp=1.5)]),
        head(groups=[group(fpp=None)]),
        head(others=2**62),
        head(others=1),
        head(ranges=-1),
        head(ranges=2**62),
        head(ranges="many"),
        head(),  # sound, but there is no such group in the file
    ],
    ids=lambda meta: meta[:30].decode(),
)
def test_a_filter_runs_head_is_checked(meta: bytes) -> None:
    with pytest.raises(CorruptionError):
        coarse.CoarseGroups.of(run_with(coarse.META, meta + b"\n" + BODY))


@pytest.mark.parametrize("size", [0, 3, 5, 2**32 - 1])
def test_rule_31_a_member_of_no_size_that_repeats_to_its_groups_is_refused(size: int) -> None:
    target = io.BytesIO()
    meta = json.dumps({"groups": [group(1)], "ranges": 1, "others": 0}).encode() + b"\n"
    with SortedFileWriter(target, schema=pa.schema([])) as writer:
        writer.write_rows("coarse/0", np.zeros((4, 32), dtype=np.uint8), 32)
        writer.put_meta(coarse.META, meta + size.to_bytes(4, "little") + bytes(16))
    with pytest.raises(CorruptionError):
        coarse.CoarseGroups.of(SortedFileReader(target.getvalue()))


@pytest.mark.parametrize("size", [1, 8, 15, 17, 40])
def test_the_files_of_a_run_are_checked(size: int) -> None:
    with pytest.raises(CorruptionError):
        run_format.files_of(run_with(run_format.FILES_META, bytes(size)))
