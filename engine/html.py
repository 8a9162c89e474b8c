"""Small pages of HTML for notebooks: what `_repr_html_` gives. All text is escaped; colours follow the notebook's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_RANGES_MAX = 64
# JupyterLab and VS Code say whether they are dark by variables; elsewhere the browser does.
_STYLE = """<style>
.skipstone{--ink:var(--jp-content-font-color1,var(--vscode-editor-foreground,#1f2328));
--dim:var(--jp-content-font-color2,var(--vscode-descriptionForeground,#59636e));
--line:var(--jp-border-color2,var(--vscode-panel-border,#d1d9e0));--bar:#2f81f7;color:var(--ink);max-width:72em}
@media (prefers-color-scheme:dark){.skipstone{
--ink:var(--jp-content-font-color1,var(--vscode-editor-foreground,#e6edf3));
--dim:var(--jp-content-font-color2,var(--vscode-descriptionForeground,#9198a1));
--line:var(--jp-border-color2,var(--vscode-panel-border,#3d444d))}}
.skipstone table{border-collapse:collapse;margin:.4em 0}
.skipstone th,.skipstone td{text-align:left;padding:.15em .8em .15em 0;border-bottom:1px solid var(--line);
background:none;white-space:pre-wrap}
.skipstone .number{text-align:right}
.skipstone .dim{color:var(--dim)}
</style>"""


def page(*parts: str) -> str:
    """One result: pieces of HTML, below each other."""
    return f'<div class="skipstone">{_STYLE}{"".join(parts)}</div>'


def escape(text: str) -> str:
    """Text as HTML, in attributes, too."""
    for sign, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;"), ("'", "&#x27;")):
        text = text.replace(sign, entity)
    return text


def bar(name: str, done: int, total: int | None, rest: str) -> str:
    """How far some work has come."""
    share = f' value="{done}" max="{total}"' if total else ""
    return f'<div>{escape(name)} <progress{share}></progress> <span class="dim">{escape(rest)}</span></div>'


def heading(title: str, rest: str = "") -> str:
    """What it is, and in a fainter colour more about it."""
    return f'<div><b>{escape(title)}</b> <span class="dim">{escape(rest)}</span></div>'


def lines(texts: Iterable[str], *, dim: bool = False) -> str:
    """Texts below each other, their spaces kept; nothing for none."""
    text = "\n".join(texts)
    style = "white-space:pre-wrap;margin:.4em 0"
    return f'<div style="{style}"{" class=dim" if dim else ""}>{escape(text)}</div>' if text else ""


def grid(headings: Sequence[str], rows: Iterable[Sequence[str]], numbers: Iterable[str] = ()) -> str:
    """Texts under headings; the columns in `numbers` are aligned to the right."""
    aligned = set(numbers)
    classes = [' class="number"' if name in aligned else "" for name in headings]
    head = "".join(f"<th{kind}>{escape(name)}</th>" for kind, name in zip(classes, headings, strict=True))
    body = "".join(
        f"<tr>{''.join(f'<td{kind}>{escape(cell)}</td>' for kind, cell in zip(classes, row, strict=True))}</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def ranges(starts: Sequence[float], ends: Sequence[float]) -> str:
    """A line for each range within 0 to 1, below each other; neighbours share a line where there are many."""
    count = len(starts)
    lines_shown = min(count, _RANGES_MAX)
    drawn = []
    for line in range(lines_shown):
        first, stop = line * count // lines_shown, (line + 1) * count // lines_shown
        start, end = min(starts[first:stop]), max(ends[first:stop])
        width = max(100 * (end - start), 0.3)
        drawn.append(f'<rect x="{100 * start:.2f}" y="{line}" width="{width:.2f}" height=".8"/>')
    picture = f'<svg viewBox="0 0 100 {lines_shown}" preserveAspectRatio="none" width="100%" '
    picture += f'height="{6 * lines_shown}" style="fill:var(--bar)">{"".join(drawn)}</svg>'
    return picture if drawn else ""
