"""A hook of MkDocs (mkdocs.yml): pages of the site that are files outside docs/, with links that hold in both places.

A link is written for a reader of the repository (`docs/judge.md` in README.md, `../verl/README.md` in docs/). On the
site README.md is the home page, and the other files of `PAGES` have the names given there.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "CITATION.cff": "CITATION.cff",
    "cobalt/method.py": "method.py",
    "verl/README.md": "verl.md",
    "benchmarks/README.md": "benchmarks.md",
}
SOURCES = {page: source for source, page in PAGES.items()}
LINK = re.compile(r"(\]\()([^)#\s:]+)(#[^)\s]*)?(\))")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Point each relative link at the page of the site that has the file."""
    source = SOURCES.get(page.file.src_uri, f"docs/{page.file.src_uri}")

    def on_site(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), match[2]))
        site_path = PAGES.get(target, target.removeprefix("docs/"))
        link = posixpath.relpath(site_path, posixpath.dirname(page.file.src_uri) or ".")
        return f"{match[1]}{link}{match[3] or ''}{match[4]}"

    return LINK.sub(on_site, markdown)
