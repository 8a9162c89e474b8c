"""The block index: files of one entry per block answer as a dictionary does."""

import io

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from skipstone.hfile_like import SortedFileReader, SortedFileWriter, merge_runs

SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.string())])


def written(entries, **options) -> bytes:
    """A file of {key: (n, s) or None for a tombstone}."""
    target = io.BytesIO()
    held = sorted(entries.items())
    options = {"block_size": 1, "summaries": ["n", "s"], **options}
    with SortedFileWriter(target, schema=SCHEMA, **options) as w:
        values = [{"n": None, "s": None} if v is None else {"n": v[0], "s": v[1]} for _, v in held]
        w.write([k for k, _ in held], pa.RecordBatch.from_pylist(values, SCHEMA), [v is None for _, v in held])
        if held:
            w.end_group("all")
    return target.getvalue()


keys = st.binary(max_size=3)
cells = st.none() | st.tuples(st.none() | st.integers(-5, 5), st.none() | st.text(max_size=2))


@given(st.dictionaries(keys, cells, max_size=60), st.lists(keys))
def test_a_file_answers_like_a_dictionary(entries, asked):
    data = written(entries)
    reader = SortedFileReader(data)
    assert reader.num_blocks == len(entries) and reader.num_entries == len(entries)
    live = {k: v for k, v in entries.items() if v is not None}
    assert reader.num_deleted == len(entries) - len(live)
    for key in [*asked, *entries]:
        found = reader.get(key)
        assert (found and (found["n"], found["s"])) == live.get(key)
    assert reader.scan_table().column("key").to_pylist() == sorted(live)
    for start in asked:
        assert reader.scan_table(start=start).column("key").to_pylist() == [k for k in sorted(live) if k >= start]
        assert reader.scan_table(start).column("key").to_pylist() == [k for k in sorted(live) if k.startswith(start)]
    assert [b.first_key for b in reader.blocks()] == sorted(entries)
    if entries:
        assert reader.ends() == (min(entries), max(entries))
        assert reader.groups()["all"].entries == len(entries)
    ordered = [entries[k] for k in sorted(entries)]
    for start in range(0, len(ordered), 7):
        summary = reader.zone_maps(["n"], range(start, len(ordered)))["n"]
        nulls = [int(v is not None and v[0] is None) for v in ordered[start:]]
        assert summary.null_count.tolist() == nulls
    assert reader.verify() == []


@given(st.dictionaries(keys, cells, min_size=1, max_size=40), st.dictionaries(keys, cells, max_size=40))
def test_runs_of_many_blocks_merge(older, newer):
    target = io.BytesIO()
    merge_runs([written(older), written(newer)], target, block_size=1)
    reader = SortedFileReader(target.getvalue())
    expected = {**older, **newer}
    found = reader.scan_table(include_deleted=True).to_pylist()
    assert {row["key"]: None if row["deleted"] else (row["n"], row["s"]) for row in found} == expected
    assert reader.verify() == []
