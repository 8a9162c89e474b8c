"""Failures halfway, and blocks of names of changing forms."""

import io
import os
import random
import uuid
from collections.abc import Callable

import pyarrow as pa
import pytest
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels_in_use import kernels
from skipstone.errors import InvalidArgumentError, SkipstoneError
from skipstone.hfile_like import SortedFileReader, SortedFileWriter, merge_runs
from sorted_file_builders import written

NO_COLUMNS = pa.schema([])


class Fails:
    """A file of which one write fails."""

    def __init__(self, at: int):
        self._left, self.data = at, b""

    def write(self, data: memoryview) -> None:
        self._left -= 1
        if self._left == 0:
            raise MemoryError
        self.data += data


@pytest.mark.parametrize("block_size", [1, 50, "auto"])
def test_a_call_that_failed_halfway_is_the_end_of_a_file(block_size):
    """A caller that catches the failure and continues must not get a file that lacks entries."""
    for at in range(2, 12):
        target = Fails(at)
        writer = SortedFileWriter(target, schema=NO_COLUMNS, block_size=block_size, compression="none")
        failed = False
        for low in range(0, 40, 10):
            try:
                writer.write([b"%03d" % i for i in range(low, low + 10)])
                writer.end_group(str(low))
            except MemoryError:
                failed = True
            except InvalidArgumentError:
                assert failed
        if failed:
            with pytest.raises(InvalidArgumentError, match="aborted"):
                writer.close()
            with pytest.raises(SkipstoneError):
                SortedFileReader(target.data)


def test_blocks_that_are_decoded_for_another_compression_are_decoded_some_at_a_time():
    texts = [b"%07d" % i + b"a" * 1993 for i in range(40_000)]
    keys = [b"k%011d" % (i * i) for i in range(40_000)]
    run = written(keys, pa.record_batch({"s": pa.array(texts, pa.binary())}), block_size=1 << 20, compression="zstd")
    assert len(run) < 1 << 20, "one window of a merge"
    del texts, keys
    before, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    pa.set_memory_pool(pool)
    try:
        with open(os.devnull, "wb") as target:
            found = merge_runs([run], target, compression="none", block_size=1 << 20)
    finally:
        pa.set_memory_pool(before)
    assert found.num_entries == 40_000 and found.size_bytes > 40_000_000
    assert pool.max_memory() < 30_000_000


def number_of(digits: int, from_zero: bool) -> Callable[[random.Random, int], str]:
    least = 0 if from_zero else 10 ** (digits - 1)
    return lambda chooser, _: str(chooser.randrange(least, 10**digits)).zfill(0 if from_zero else digits)


FIELDS: list[Callable[[random.Random, int], str]] = [
    *(number_of(digits, from_zero) for digits in (1, 2, 17, 18, 19, 20) for from_zero in (False, True)),
    *(lambda chooser, i, at=at: str(at + i) for at in (0, 95, 990, 10**18 - 9, 2**64 - 9)),
    *(lambda chooser, i, at=at: f"{at + i:05d}" for at in (0, 99_990)),
    *(lambda chooser, _, size=size: chooser.randbytes(size).hex() for size in (1, 4, 7, 16)),
    *(lambda chooser, i, v=v: str(uuid.UUID(int=chooser.getrandbits(128), version=v)) for v in (1, 4)),
    lambda chooser, _: chooser.randbytes(5).hex().upper(),
    lambda chooser, _: chooser.choice(["7", "1000000", "1000000000003"]),
    lambda chooser, _: chooser.choice(["é", "٣", "²", "-1", "0x", "\0"]),
    lambda chooser, _: "z" * chooser.randrange(4),
]
SLIPS: list[Callable[[str], str]] = [
    lambda name: "",
    lambda name: name[:-1],
    lambda name: name + "0",
    lambda name: "0" + name,
    str.upper,
    lambda name: name.replace("1", "g", 1),
    lambda name: name.replace("1", "٣", 1),
    lambda name: name.replace("2", "²", 1),
    lambda name: name.replace("9", "99999999999999999999", 1),
]
FORM = st.tuples(
    st.lists(st.integers(0, len(FIELDS) - 1), min_size=1, max_size=5), st.sampled_from(["-", "_", "/", ""])
)


def names(forms: list, lengths: list[int], slips: list[tuple[int, int]], seed: int) -> list[str]:
    """Runs of names, each run of one form; forms return, and a few names almost fit."""
    chooser = random.Random(seed)
    found = []
    for run, length in enumerate(lengths):
        fields, between = forms[run % len(forms)]
        found += [between.join(FIELDS[k](chooser, i) for k in fields) for i in range(length)]
    for at, slip in slips:
        found[at % len(found)] = SLIPS[slip](found[at % len(found)])
    return found


@settings(max_examples=examples(15))
@given(
    forms=st.lists(FORM, min_size=1, max_size=3),
    lengths=st.lists(st.sampled_from([1, 17, 40, 150]), min_size=1, max_size=6),
    slips=st.lists(st.tuples(st.integers(0, 1000), st.integers(0, len(SLIPS) - 1)), max_size=3),
    nulls=st.sampled_from([0.0, 0.0, 0.02, 0.9]),
    block_size=st.sampled_from([300, 1500, 6000]),
    compression=st.sampled_from(["none", "zstd"]),
    pieces=st.sampled_from([7, 1000]),
    seed=st.integers(0, 2**32),
    compiled=st.tuples(st.booleans(), st.booleans()),
)
def test_blocks_of_names_whose_forms_return_or_almost_fit(
    forms, lengths, slips, nulls, block_size, compression, pieces, seed, compiled
):
    """Encoders remember the form of earlier blocks, which must be no more than a guess."""
    chooser = random.Random(seed)
    keys = sorted({b"%d/" % (i // 60) + name.encode() for i, name in enumerate(names(forms, lengths, slips, seed))})
    texts: list[str | None] = [*names(forms[::-1], lengths, slips, seed + 1)][: len(keys)]
    texts = [None if chooser.random() < nulls else text for text in texts]
    column, target = pa.array(texts, pa.string()), io.BytesIO()
    schema = pa.schema([("s", pa.string())])
    options = {"block_size": block_size, "compression": compression}
    with kernels(are_used=compiled[0]), SortedFileWriter(target, schema=schema, **options) as writer:
        for low in range(0, len(keys), pieces):
            part = column[low : low + pieces]
            writer.write(keys[low : low + pieces], pa.record_batch([part], schema=schema))
    with kernels(are_used=compiled[1]):
        reader = SortedFileReader(target.getvalue())
        table = reader.scan_table()
        assert (table["key"].to_pylist(), table["s"].to_pylist()) == (keys, texts)
        asked = [chooser.randrange(len(keys)) for _ in range(30)]
        assert reader.get_many([keys[i] for i in asked])["s"].to_pylist() == [texts[i] for i in asked]
        low, high = sorted(asked[:2])
        assert reader.scan_table(start=keys[low], stop=keys[high])["s"].to_pylist() == texts[low:high]
        assert [reader.get(keys[i]) for i in asked[:5]] == [{"s": texts[i]} for i in asked[:5]]
        others = [keys[i] + b"0" for i in asked] + [keys[i][:-1] for i in asked]
        assert reader.get_many(others)["found"].to_pylist() == [other in set(keys) for other in others]
