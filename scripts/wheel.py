"""Build the source archive and from it the wheel, into dist/, and try the wheel in a new environment of each given
interpreter (by default this one). There the Python blocks of the quickstart and of README also run, with only the
extras that these pages name.

    .venv/bin/python scripts/wheel.py [python3.12 ...]
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
DIST = REPOSITORY / "dist"
NOT_INSTALLED = ("tests", "bench", "docs", "scripts", "examples", "site")
SMOKE = """
import pathlib, pyarrow as pa, pyarrow.parquet as pq, skipstone as ss
lake = pathlib.Path("lake")
lake.mkdir()
for n in range(4):
    pq.write_table(pa.table({"k": range(n * 100, n * 100 + 100)}), lake / f"{n}.parquet")
table = ss.create(lake)
table.create_index("k", kind="bloom")
plan = ss.open(lake).scan("k = 250")
assert plan.files().num_rows == 1 and plan.to_table().num_rows == 1, plan.explain()
assert table.verify(deep=True) == []
assert ".venv" not in ss.__file__ and "site-packages" in ss.__file__, ss.__file__
print(ss.__version__)
"""

EXTRAS = "polars"
PAGES = """
import os, re, sys, tempfile
from pathlib import Path
def blocks(page):
    return re.findall(r"^```python\\n(.*?)^```", Path(page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
quickstart, readme = sys.argv[1:]
for page, run in ((quickstart, blocks(quickstart)), (readme, [blocks(quickstart)[0], *blocks(readme)])):
    os.chdir(tempfile.mkdtemp(dir="."))
    names = {}
    for block in run:
        if "spark" not in block:
            exec(compile(block, page, "exec"), names)
"""


def _build() -> Path:
    shutil.rmtree(DIST, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "build", "--outdir", str(DIST), str(REPOSITORY)], check=True)
    (wheel,), (archive,) = DIST.glob("*.whl"), DIST.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as held, tarfile.open(archive) as source:
        strays = [name for name in held.namelist() if Path(name).parts[1] in NOT_INSTALLED]
        modules = {name for name in held.namelist() if name.endswith(".py")}
        named = {Path(*Path(name).parts[1:]).as_posix() for name in source.getnames()}
    if strays or "skipstone/engine/table.py" not in modules:
        sys.exit(f"{wheel.name} contains files that it should not, or lacks modules: {strays[:5]}")
    if not {"pyproject.toml", "README.md", "LICENSE", "engine/table.py"} <= named:
        sys.exit(f"{archive.name} lacks what a build needs")
    return wheel


def _try(wheel: Path, python: str) -> None:
    with tempfile.TemporaryDirectory(prefix="wheel-") as folder:
        environment = Path(folder) / "environment"
        subprocess.run([python, "-m", "venv", str(environment)], check=True)
        scripts = environment / "bin"
        install: list[str | Path] = [
            scripts / "python",
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            wheel,
        ]
        subprocess.run(install, check=True)
        outputs = [
            _output([scripts / "python", "-I", "-c", SMOKE], folder),
            _output([scripts / "skipstone", "--version"], folder),
            _output([scripts / "skipstone", "scan", "lake", "--where", "k = 250", "--count"], folder),
            _output([scripts / "python", "-V"], folder),
        ]
        subprocess.run([*install[:-1], f"{wheel}[{EXTRAS}]"], check=True)
        pages = [REPOSITORY / "docs/quickstart.md", REPOSITORY / "README.md"]
        _output([scripts / "python", "-I", "-c", PAGES, *pages], folder)
    version = wheel.name.split("-")[1]
    if outputs[:3] != [version, f"skipstone {version}", "1"]:
        sys.exit(f"{python}: the wheel does not do what it should: {outputs}")
    print(f"{wheel.name}: installed and tried by {outputs[3]}")


def _output(command: list[str | Path], folder: str) -> str:
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    made = _build()
    for interpreter in sys.argv[1:] or [sys.executable]:
        _try(made, interpreter)
