"""Makes the golden files: a small sorted-block file for each encoding and each section, with its bytes told one by one
(FILE.hex.txt) and what it holds (FILE.json).

    python tests/hfile_like/golden/make.py        run by hand, and only where the format changes

`tests/hfile_like/test_golden_files.py` reads them byte for byte.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "support"))

from sorted_file_golden import FILES, annotated, contents, file_of, path_of, told  # noqa: E402


def main() -> None:
    """Makes all of them anew."""
    for old in [*HERE.glob("*.skb"), *HERE.glob("*.hex.txt"), *HERE.glob("*.json")]:
        old.unlink()
    for name in FILES:
        data, path = file_of(name), path_of(name)
        path.write_bytes(data)
        path.with_suffix(".hex.txt").write_text(annotated(data))
        path.with_suffix(".json").write_text(told(contents(data)))


if __name__ == "__main__":
    main()
