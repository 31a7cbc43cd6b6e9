"""The examples run: the script, the notebook with its stored outputs, and each Python block of docs/python.md.

A notebook is JSON, and these have cells of plain Python whose only output is what they print, so no kernel is needed to
run them. `python tests/api/test_api_examples.py` writes the outputs again.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
PAGE = ROOT / "docs" / "python.md"


def printed(source: str, names: dict[str, Any], where: str) -> str:
    """Returns what a piece of Python code prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(source, where, "exec"), names)
    return out.getvalue()


def executed(path: Path) -> list[tuple[str, str, str]]:
    """(cell, stored output, output now) of every code cell, run in order in one namespace."""
    names: dict[str, Any] = {"__name__": "__main__"}
    found = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            stored = "".join("".join(output["text"]) for output in cell["outputs"])
            where = f"{path.name}:{cell['id']}"
            found.append((where, stored, printed("".join(cell["source"]), names, where)))
    return found


def test_the_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["check_a_result.py", str(tmp_path)])
    path = ROOT / "examples" / "check_a_result.py"
    if not path.is_file():
        pytest.skip("the examples are not beside these tests")
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out.splitlines()[-1] == "every rank has the sum: True"
    assert [found.name for found in tmp_path.iterdir()] == ["libcollc-four.so"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cells = executed(path)
    assert len(cells) >= 4
    for where, stored, now in cells:
        assert now == stored, f"{where}: run `python tests/api/test_api_examples.py` and read the difference"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_is_one_that_jupyter_opens(path: Path) -> None:
    """Notebook format 4.5: each cell has an id, outputs are streams, and no time or path of a machine remains."""
    book = json.loads(path.read_text(encoding="utf-8"))
    assert (book["nbformat"], book["nbformat_minor"]) == (4, 5)
    ids = [cell["id"] for cell in book["cells"]]
    assert len(set(ids)) == len(ids)
    for cell in book["cells"]:
        assert re.fullmatch(r"[\w-]{1,64}", cell["id"])
        keys = {"cell_type", "id", "metadata", "source"}
        assert set(cell) == (keys | {"execution_count", "outputs"} if cell["cell_type"] == "code" else keys)
        for output in cell.get("outputs", []):
            assert (output["output_type"], output["name"]) == ("stream", "stdout")


def blocks() -> list[tuple[str, str]]:
    """(line, text) of the Python blocks of docs/python.md."""
    text = PAGE.read_text(encoding="utf-8") if PAGE.is_file() else ""
    return [
        (f"{PAGE.name}:{text[: match.start()].count(chr(10)) + 1}", match[1])
        for match in re.finditer(r"```python\n(.*?)```", text, re.DOTALL)
    ]


@pytest.mark.parametrize(
    ("where", "source"), blocks(), ids=lambda value: value if value.startswith("python.md") else ""
)
def test_a_block_of_the_page(where: str, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    out = printed(source, {}, where)
    # A comment after a print that ends in `...` is how its output begins.
    for shown in re.findall(r"print\(error\) +# (.*)\.\.\.\)", source):
        assert out.startswith(shown)


def test_the_page_has_blocks() -> None:
    assert len(blocks()) >= 5 or not PAGE.is_file()


def write_outputs() -> None:
    """Stores what the notebooks print."""
    for path in NOTEBOOKS:
        book = json.loads(path.read_text(encoding="utf-8"))
        outputs = iter(executed(path))
        for cell in book["cells"]:
            if cell["cell_type"] == "code":
                text = next(outputs)[2]
                stream = {"name": "stdout", "output_type": "stream", "text": text.splitlines(True)}
                cell["outputs"] = [stream] if text else []
        path.write_text(json.dumps(book, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write_outputs()
