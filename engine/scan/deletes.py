"""Rows that the log of another format takes out of files: asked for where a plan comes to read such a file."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...arrays import from_numpy, to_numpy
from ...errors import InvalidArgumentError, NotATableError, NotReadableError, StorageError
from ..state.slices import any_of
from .units import Units

# The rows (int64, ascending, by position) that a log takes out of files by path, of those of which it can tell.
DeletedRows = Callable[[list[str]], dict[str, np.ndarray]]


class Deletes:
    """What one plan knows of deleted rows.

    rows    path -> int64, ascending: the rows that are no more, by their position in the file
    """

    def __init__(self, ask: DeletedRows | None):
        self.rows: dict[str, np.ndarray] = {}
        self._ask = ask
        self._why = ""

    def readable(self, units: Units, asked: np.ndarray) -> np.ndarray:
        """bool [units]: of those asked for (bool [units]), the ones whose rows we may read ourselves: nothing lies over
        their files, or it only takes rows out, and the log tells which."""
        left = asked & ~units.readable
        if self._ask is None or not left.any():
            return asked & units.readable
        of_files = left[units.unit_of] & to_numpy(units.files.column("deletes").is_valid())
        paths = units.files.filter(from_numpy(of_files)).column("path").to_pylist()
        try:
            self.rows.update(self._ask([path for path in paths if path not in self.rows]))
        except (StorageError, NotATableError, InvalidArgumentError) as error:
            self._why = f" ({error})"
        told = np.zeros(len(of_files), dtype=bool)
        told[of_files] = [path in self.rows for path in paths]
        return asked & ~any_of(units.unit_of, left[units.unit_of] & ~told, units.count)

    def check(self, units: Units, asked: np.ndarray) -> None:
        """Raises NotReadableError, naming them, for files of units asked for that we may not read ourselves."""
        self.refuse(units, asked & ~self.readable(units, asked))

    def refuse(self, units: Units, bad: np.ndarray) -> None:
        """Raises NotReadableError for the files of some units (bool [units]), if there are any."""
        if bad.any():
            paths = units.files.filter(from_numpy(bad[units.unit_of])).column("path").to_pylist()
            raise NotReadableError(
                f"{len(paths)} files belong to slices with logs or deletes that only their own format's reader can "
                f"apply, {paths[0]} among them; files() names all that are to be read{self._why}",
                paths=paths,
            )
