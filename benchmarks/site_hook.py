"""Adds to the site what is not in docs/: generated pages, pages from the top of the repository, and linked files.

mkdocs calls these functions (`hooks` in mkdocs.yml). The pages in docs/ are written so that their links work where
people read the repository. Here, links that lead out of docs/ get a place in the site. No tracked page links to a
generated one, because that link would be dead in the repository: the navigation lists the generated pages.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
# Files of the repository that are pages of the site.
PAGES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
# Folders of generated pages, and where each starts in the site.
GENERATED = {"build/pages": "", "build/reproduced": "rows/"}
# Titles of the folders of generated pages in the navigation.
TITLES = {"measurements": "Measurements", "rows": "The sources, row by row"}
LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)\s#]+)(#[^)\s]*)?(?=\))")


def generated(root: Path) -> dict[str, Path]:
    """Returns the generated files by their place in the site."""
    return {
        prefix + path.relative_to(root / folder).as_posix(): path
        for folder, prefix in GENERATED.items()
        for path in sorted((root / folder).rglob("*"))
        if path.is_file()
    }


def on_config(config: Any) -> Any:
    """Appends the generated pages to the navigation: single pages first, then a section for each folder."""
    sections: dict[str, list[str]] = {}
    for place in generated(ROOT):
        if place.endswith(".md"):
            sections.setdefault(posixpath.dirname(place), []).append(place)
    single = sections.pop("", [])
    config["nav"].append({"Generated": [*single, *({TITLES[name]: pages} for name, pages in sections.items())]})
    return config


def on_files(files: Any, config: Any) -> Any:
    """Adds generated files, pages of the top folder and, as plain files, whatever else a page links to."""
    from mkdocs.structure.files import File

    for place, path in generated(ROOT).items():
        files.append(File.generated(config, place, abs_src_path=str(path)))
    for source, target in PAGES.items():
        files.append(File.generated(config, target, content=moved((ROOT / source).read_text("utf-8"), source)))
    for file in list(files.documentation_pages()):
        for link, _ in LINK.findall(file.content_string):
            wanted = posixpath.normpath(posixpath.join("docs", posixpath.dirname(file.src_uri), link))
            path = ROOT / wanted
            inside = wanted.startswith(("docs/", "..")) or wanted in PAGES
            if not inside and path.is_file() and files.get_file_from_path(f"files/{wanted}") is None:
                files.append(File.generated(config, f"files/{wanted}", abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Links that lead out of docs/ lead to the same file in the site."""
    return LINK.sub(lambda match: placed(match[1], match[2] or "", page.file.src_uri), markdown)


def placed(link: str, anchor: str, page: str) -> str:
    """Returns the target of a page's link in the site."""
    wanted = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), link))
    if wanted.startswith(("docs/", "..")):
        return link + anchor
    target = PAGES.get(wanted, f"files/{wanted}")
    return posixpath.relpath(target, posixpath.dirname(page) or ".") + anchor


def moved(text: str, source: str) -> str:
    """A page from the top of the repository, its links as from docs/."""

    def link(match: re.Match[str]) -> str:
        name, anchor = match[1], match[2] or ""
        return (name.removeprefix("docs/") if name.startswith("docs/") else f"../{name}") + anchor

    return LINK.sub(link, text)
