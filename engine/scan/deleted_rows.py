"""Files whose rows are fewer than what is in them: which rows the log of another format takes out, and which files we
may read ourselves at all."""

from __future__ import annotations

import numpy as np

from ...arrays import from_numpy, to_numpy
from ...errors import InvalidArgumentError, NotATableError, NotReadableError, StorageError
from ..state.slices import any_of
from .request import DeletedRows
from .survivors import Units


class Deletes:
    """The rows that the log of another format takes out of files, read where a plan comes to read such a file.

    rows    path -> int64, ascending: the rows that are no more, by their position in the file
    """

    def __init__(self, read: DeletedRows | None):
        self.rows: dict[str, np.ndarray] = {}
        self._read = read
        self._why = ""

    def readable(self, units: Units, chosen: np.ndarray) -> np.ndarray:
        """bool [units]: of those chosen (bool [units]), the ones whose rows we may read ourselves: nothing lies over
        their files, or it only takes rows out, and the log says which."""
        pending = chosen & ~units.readable
        if self._read is None or not pending.any():
            return chosen & units.readable
        of_files = pending[units.unit_of] & to_numpy(units.files.column("deletes").is_valid())
        paths = units.files.filter(from_numpy(of_files)).column("path").to_pylist()
        try:
            self.rows.update(self._read([path for path in paths if path not in self.rows]))
        except (StorageError, NotATableError, InvalidArgumentError) as error:
            self._why = f" ({error})"
        is_listed = np.zeros(len(of_files), dtype=bool)
        is_listed[of_files] = [path in self.rows for path in paths]
        return chosen & ~any_of(units.unit_of, pending[units.unit_of] & ~is_listed, units.count)

    def check(self, units: Units, chosen: np.ndarray) -> None:
        """Raises NotReadableError, naming them, for files of the units chosen that we may not read ourselves."""
        self.refuse(units, chosen & ~self.readable(units, chosen))

    def refuse(self, units: Units, unreadable: np.ndarray) -> None:
        """Raises NotReadableError for the files of some units (bool [units]), if there are any."""
        if unreadable.any():
            paths = units.files.filter(from_numpy(unreadable[units.unit_of])).column("path").to_pylist()
            raise NotReadableError(
                f"{len(paths)} files belong to slices with logs or deletes that only their own format's reader can "
                f"apply, {paths[0]} among them; files() names all that are to be read{self._why}",
                paths=paths,
            )
