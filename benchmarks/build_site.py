"""The documentation as a site: generates pages into build/pages, then runs mkdocs in strict mode.

python benchmarks/build_site.py     # build/pages and build/site; exit code 1 if mkdocs prints a warning

`make docs` calls this program after `make reproduce`, whose pages it includes. Nothing here is tracked by git.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

import gallery
import reference
import tables
import validation_pages

ROOT = Path(__file__).parents[1]


def write_pages(folder: Path) -> None:
    """Writes all generated pages except the pages of `make reproduce`; the folder contains nothing else afterwards."""
    shutil.rmtree(folder, ignore_errors=True)
    figures = folder / "figures"
    figures.mkdir(parents=True)
    (folder / "commands.md").write_text(reference.text(), encoding="utf-8")
    gallery.write(folder)
    (folder / "measurements").mkdir()
    for path in sorted(tables.DATA.glob("*.yaml")):
        (folder / "measurements" / f"{path.stem}-rows.md").write_text(
            tables.render(tables.load(path)), encoding="utf-8"
        )
    judgements = validation_pages.load()
    validation_pages.draw_plots_of(judgements, figures)
    (folder / "validation-tables.md").write_text(validation_pages.page(judgements), encoding="utf-8")


def build(root: Path, site: Path) -> int:
    """Runs mkdocs on the checkout at `root`.

    mkdocs counts warnings in its log handler, so `--strict` has no effect together with `--quiet`.

    Returns:
        The exit code of mkdocs: 0 only if there was no warning.
    """
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site.resolve())]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=root, env=environment, check=False).returncode


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=ROOT, help="The checkout whose docs/ and build/ to use.")
    parser.add_argument("--site", type=Path, help="The folder for the site; default: build/site of the checkout.")
    parser.add_argument("--keep-pages", action="store_true", help="Use build/pages as an earlier run wrote it.")
    given = parser.parse_args()
    root: Path = given.root.absolute()
    if not given.keep_pages:
        write_pages(root / "build" / "pages")
    raise SystemExit(build(root, given.site or root / "build" / "site"))


if __name__ == "__main__":
    main()
