"""Merging the runs of a secondary index: those that commits leave, in geometric sizes; all of them, by `optimize`.

Shards whose keys and files nothing touches stay as they are, under the new run's segments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
import pyarrow as pa

from ...errors import CorruptionError, FormatVersionError
from ...hfile_like import SortedFileReader
from ..indexes.secondary import SecondaryForm, files_of, write_entries
from ..indexes.secondary_sort import larger, merged_entries, without_files
from ..manifest.runs import RunReaders
from ..storage import FileMissingError, Storage
from ..timeline import Run

RATIO = 4
COMMIT_BYTES = 4 << 20  # a commit rewrites at most so much of what was there, or as much as it adds
LEVELS_MAX = 12
