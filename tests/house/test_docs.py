"""The examples of the pages run as they stand, in the order in which they stand."""

import re
from pathlib import Path

import pytest
import skipstone

PAGES = Path(skipstone.__file__).resolve().parent / "docs"


@pytest.mark.parametrize("page", ["sorted-files.md"])
def test_the_examples_of_a_page_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", (PAGES / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) > 3
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, page, "exec"), names)
