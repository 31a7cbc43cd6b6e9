"""What the site has beside docs/: pages from the top of the repository, and the files that pages link to.

mkdocs calls these functions (`hooks` in mkdocs.yml). The pages in docs/ are written so that their links work where
people read the repository; here links that lead out of docs/ get a place in the site.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
# Files of the repository that are pages of the site.
PAGES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)\s#]+)(#[^)\s]*)?(?=\))")


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages, and as plain files whatever else of the repository a page links to."""
    from mkdocs.structure.files import File

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
    """Where a link of a page leads in the site."""
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
