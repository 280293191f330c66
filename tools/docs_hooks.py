"""Hooks of MkDocs: what `mkdocs.yml` cannot say.

- A folder in the navigation (`adr/`) becomes its pages, by name.
- The repository's own pages (DESIGN.md, CHANGELOG.md, ...) are part of the site.
- A link to a file outside the site leads to the repository.
- Figures stand in the page itself, so that they follow its light and dark mode.
- A block's `console spark` (who runs it in tests) is `console` to a reader.
- The address of the repository and of the site is that of `pyproject.toml`.
- The link to the repository stays a link: the theme's script asks GitHub's API for stars.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath
from typing import Any, TypeAlias, Union, cast

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
Entry: TypeAlias = str | dict[str, Union[str, "list[Entry]"]]
"""Of the navigation: a page, or a name with its page or its entries."""
AT_THE_TOP = ("DESIGN.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
ALONE = ("index.md", "tutorial.md")
"""Tabs of one page: there is nothing to navigate."""
LINK = re.compile(r"(?<!!)\]\((?!https?://|mailto:|#)([^)\s#]+)(#[^)\s]*)?\)")
FOUND_LAST = ("adr/", "api/", "CHANGELOG.md", "invariants.md", "spec.md", "compat")
FIGURE = re.compile(r"^!\[[^\]]*\]\(([\w./-]+\.svg)\)$", re.MULTILINE)
STYLE = re.compile(r"<style>.*?</style>", re.DOTALL)


def urls() -> dict[str, str]:
    """The project's addresses, by name."""
    text = (ROOT / "pyproject.toml").read_text()
    return tomllib.loads(text)["project"]["urls"]


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Fill in the addresses, and the pages of each folder that the navigation names."""
    addresses = urls()
    config.repo_url = addresses["Source"]
    config.site_url = addresses["Documentation"]
    config.edit_uri = "edit/main/docs/"
    nav = cast("list[Entry]", config.nav or [])  # pyright: ignore[reportUnknownMemberType]
    config.nav = _with_folders(nav)
    return config


def _with_folders(nav: list[Entry]) -> list[Entry]:
    return [_filled(entry) for entry in nav]


def _filled(entry: Entry) -> Entry:
    if isinstance(entry, str):
        return entry
    (name, value), *_ = entry.items()
    if isinstance(value, list):
        return {name: _with_folders(value)}
    if value.endswith("/"):
        pages = sorted((ROOT / "docs" / value).glob("*.md"), key=lambda p: (p.stem != "index", p))
        return {name: [f"{value}{page.name}" for page in pages]}
    return entry


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the repository's own pages, and the scripts that `build_docs.py` fetched."""
    for name in AT_THE_TOP:
        files.append(File.generated(config, name, content=(ROOT / name).read_text()))
    for script in sorted((ROOT / ".venv" / "share" / "site").glob("*.js")):
        content = script.read_bytes()
        files.append(File.generated(config, f"assets/{script.name}", content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Put figures in, and turn links that leave the site."""
    source = PurePosixPath(page.file.src_uri)
    if page.file.src_uri.startswith(FOUND_LAST):
        page.meta["search"] = {"boost": 0.3}  # guides first
    if page.file.src_uri in ALONE:
        page.meta["hide"] = ["navigation"]
    top = page.file.src_uri in AT_THE_TOP
    in_repository = PurePosixPath("." if top else "docs") / source.parent

    def turned(match: re.Match[str]) -> str:
        target = normpath(str(in_repository / match[1]))
        place = match[2] or ""
        on_site = target.removeprefix("docs/") if target.startswith("docs/") else target
        if files.get_file_from_path(on_site) is not None:
            return f"]({relpath(on_site, str(source.parent) or '.')}{place})"
        if not (ROOT / target).exists():
            return match[0]  # a dead link: MkDocs says so
        kind = "tree" if (ROOT / target).is_dir() else "blob"
        return f"]({config.repo_url}/{kind}/main/{target}{place})"

    text = LINK.sub(turned, markdown).replace("```console spark\n", "```console\n")
    return FIGURE.sub(lambda found: _figure(source.parent, found[1]), text)


def on_post_page(output: str, **_: Any) -> str:
    """Turn off the script of the link to the repository: pages load nothing from elsewhere."""
    return output.replace(' data-md-component="source"', "")


def on_post_template(output_content: str, **_: Any) -> str:
    """The same for the page of what is not found."""
    return on_post_page(output_content)


def _figure(folder: PurePosixPath, name: str) -> str:
    text = (ROOT / "docs" / normpath(str(folder / name))).read_text()
    return STYLE.sub("", text).replace("\n", " ")
