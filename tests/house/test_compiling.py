"""Where compiled kernels are kept; a missing or damaged place changes no answer.

Two processes in each place: the first compiles, the second loads.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numba
import pytest
from example_counts import is_thorough, only_in_test_all
from spark_cluster import package_archive

pytestmark = pytest.mark.skipif(numba.config.DISABLE_JIT, reason="kernels are kept where they are compiled")

NO_HOME = "/dev/null"  # no user, root included, can create a folder in it
INSERT = """
import sys
{before}
import numpy as np
from skipstone.bloom import kernels, numpy_filter
{after}
hashes = np.arange(1, 4, dtype=np.uint64) << np.uint64(40)
hashes.flags.writeable = False
words, expected = np.zeros(32, np.uint32), np.zeros((4, 8), np.uint32)
kernels.insert(words, hashes)
numpy_filter.insert(expected, hashes)
assert expected.any() and (words == expected.ravel()).all()
stats = kernels.insert.stats
print(sum(stats.cache_hits.values()), sum(stats.cache_misses.values()), stats.cache_path)
"""


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return package_archive(tmp_path_factory.mktemp("shipped") / "skipstone.zip")


@pytest.fixture
def installed(archive: Path, tmp_path: Path) -> Path:
    """A folder with the package for a user who may not write there: __pycache__ is a file."""
    with zipfile.ZipFile(archive) as packed:
        packed.extractall(tmp_path / "installed")
    (tmp_path / "installed/skipstone/bloom/__pycache__").touch()
    return tmp_path / "installed"


def _insert(package: Path, temporary: Path, before: str = "", after: str = "", **more: str) -> tuple[int, int, str]:
    """Insert into a filter in a process: how many kernels it loaded, how many it compiled, and where they are kept."""
    temporary.mkdir(exist_ok=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("NUMBA_", "PYTHON"))}
    environment |= {"HOME": NO_HOME, "XDG_CACHE_HOME": NO_HOME, "TMPDIR": str(temporary), "PYTHONPATH": str(package)}
    command = [sys.executable, "-B", "-c", INSERT.format(before=before, after=after)]
    done = subprocess.run(
        command, env=environment | more, cwd=temporary, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stderr
    hits, misses, path = done.stdout.split(maxsplit=2)
    return int(hits), int(misses), path.strip()


@pytest.fixture(scope="module")
def kept(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder for temporary files of a process without a home that compiled there."""
    folder = tmp_path_factory.mktemp("kept") / "temporary"
    hits, misses, path = _insert(archive, folder)
    assert (hits, misses) == (0, 1)
    assert path.startswith(str(folder / "skipstone-kernels-"))
    return folder


@only_in_test_all
def test_an_archive_without_a_home(archive: Path, kept: Path, tmp_path: Path) -> None:
    """The next application unpacks the archive elsewhere, and finds what the first compiled."""
    assert _insert(Path(shutil.copy(archive, tmp_path / "again.zip")), kept)[:2] == (1, 0)


@only_in_test_all
@pytest.mark.parametrize("home", ["home", None])
def test_a_read_only_installation(installed: Path, tmp_path: Path, home: str | None) -> None:
    variables = {"XDG_CACHE_HOME": str(tmp_path / home)} if home else {}
    hits, misses, path = _insert(installed, tmp_path / "temporary", **variables)
    assert (hits, misses) == (0, 1) and path.startswith(str(tmp_path / (home or "temporary")))
    assert _insert(installed, tmp_path / "temporary", **variables) == (1, 0, path)
    assert not (installed / "skipstone/bloom/__pycache__").is_dir()


def test_an_edit_of_the_helpers_that_kernels_share_compiles_them_again(installed: Path, kept: Path) -> None:
    assert _insert(installed, kept)[:2] == (1, 0)
    with (installed / "skipstone/base/compiling.py").open("a") as file:
        file.write("# edited\n")
    assert _insert(installed, kept)[:2] == (0, 1)


@only_in_test_all
def test_the_place_that_a_user_names(archive: Path, tmp_path: Path) -> None:
    _, _, path = _insert(archive, tmp_path / "temporary", NUMBA_CACHE_DIR=str(tmp_path / "named"))
    assert path.startswith(str(tmp_path / "named"))


@only_in_test_all
def test_no_place_at_all(installed: Path, tmp_path: Path) -> None:
    nowhere = f"import tempfile; tempfile.tempdir = {NO_HOME!r}"
    assert _insert(installed, tmp_path / "temporary", before=nowhere) == (0, 1, "None")


def test_a_folder_that_others_may_write_to_is_not_trusted(archive: Path, tmp_path: Path) -> None:
    folder = tmp_path / "temporary" / f"skipstone-kernels-{os.geteuid()}"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    assert _insert(archive, tmp_path / "temporary") == (0, 1, "None")
    if not is_thorough():
        return
    folder.rmdir()
    (tmp_path / "elsewhere").mkdir(0o700)
    folder.symlink_to(tmp_path / "elsewhere")
    assert _insert(archive, tmp_path / "temporary") == (0, 1, "None")


@only_in_test_all
def test_a_truncated_kernel_is_compiled_again(archive: Path, kept: Path, tmp_path: Path) -> None:
    """As after a loss of power. The next process repairs it."""
    shutil.copytree(kept, tmp_path / "temporary")
    for suffix in ("nbc", "nbi"):
        for file in (tmp_path / "temporary").rglob(f"*.{suffix}"):
            file.write_bytes(file.read_bytes()[: 100 if suffix == "nbi" else 0])
        assert _insert(archive, tmp_path / "temporary")[:2] == (0, 1), suffix
        assert _insert(archive, tmp_path / "temporary")[:2] == (1, 0), suffix


@only_in_test_all
def test_a_place_that_is_removed_while_a_process_runs(archive: Path, tmp_path: Path) -> None:
    lost = "import os, shutil; p = kernels.insert._cache.cache_path; shutil.rmtree(p); open(p, 'w').close()"
    hits, misses, path = _insert(archive, tmp_path / "temporary", after=lost)
    assert (hits, misses) == (0, 1)
    assert Path(path).is_file()
