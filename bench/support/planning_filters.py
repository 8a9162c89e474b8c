"""How many files of a table a needle that is nowhere would read, by the `fpp` of the filters."""

from __future__ import annotations

import tempfile
from functools import partial

import numpy as np
from skipstone.engine.advice.advise import suggested_fpp
from skipstone.engine.indexes.bloom.format import FilterRun, FilterRunWriter
from skipstone.engine.indexes.bloom.task_filters import FPP_DEFAULT, FileFilters, Spool
from skipstone.engine.state.runs import RunReaders
from skipstone.engine.storage import LocalStorage

FILES = (400, 100_000)
VALUES_A_FILE, NEEDLES = 300, 200


def wrong_units() -> list[str]:
    """A row per table size and `fpp`: the default, and the one that `advise` suggests for so many row groups."""
    lines = [
        f"## Files that a needle reads for nothing, of files of one row group of {VALUES_A_FILE} values",
        "",
        "| files | fpp | bits per value | files per needle | kB read per needle |",
        "| ---: | ---: | ---: | ---: | ---: |",
    ]
    for files in FILES:
        for fpp in dict.fromkeys((FPP_DEFAULT, suggested_fpp(files))):
            lines.append(_measured(files, fpp))
    return lines


def _hashes(hashes: np.ndarray, _: str) -> np.ndarray:
    return hashes


def _measured(files: int, fpp: float) -> str:
    random = np.random.default_rng([files, 3])
    with tempfile.TemporaryDirectory() as folder, Spool() as spool:
        storage = LocalStorage(folder)
        with FilterRunWriter(storage, "run.sbf") as writer:
            for number in range(files):
                filters = FileFilters(fpp, spool)
                filters.add(random.integers(0, 1 << 64, VALUES_A_FILE, dtype=np.uint64))
                filters.finish()
                writer.add_file(number, None, None, filters.members(), "int")
            run = writer.finish((1, 1))
        opened, ids = FilterRun(RunReaders(storage), run), np.arange(files, dtype=np.uint64)
        needles = random.integers(0, 1 << 64, NEEDLES, dtype=np.uint64)
        questions = [partial(_hashes, needle) for needle in np.split(needles, NEEDLES)]
        read = sum(int(opened.may_hold([question], ids)[0].sum()) for question in questions)
        row_bytes = sum(section.stride + 4 for section in opened.coarse.sections(opened.reader))
    bits = 8 * run.size_bytes / (files * VALUES_A_FILE)
    return f"| {files:,} | {fpp:g} | {bits:.1f} | {read / NEEDLES:.2f} | {row_bytes / 1e3:,.0f} |"
