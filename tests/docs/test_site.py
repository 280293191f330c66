"""The documentation site: it builds strictly, needs no network, and its search finds answers.

`make docs` builds the same. A dead link, a dead anchor, a page outside the navigation and an
unknown name in the API reference fail the build.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.docs.site import make, make_ours
from tests.pages import ROOT

pytest.importorskip("mkdocs", reason="the group `docs` is not installed")
from mkdocs.exceptions import Abort

pytestmark = [
    pytest.mark.extended,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore"),
]

QUESTIONS = {
    "reset offsets": "answers.html",
    "dead letter": "concepts/retries.html",
    "exactly once postgres": "answers.html",
    "lag": "answers.html",
    "group stuck": "answers.html",
    "consume asyncio": "answers.html",
    "rebalance": "concepts/groups.html",
    "password": "security.html",
    "pytest": "testing.html",
    "prometheus": "metrics.html",
    "spark kafka options": "spark.html",
    "retry without blocking": "answers.html",
}


@pytest.fixture(scope="module", name="site")
def _site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    site = tmp_path_factory.mktemp("site")
    make_ours(site)
    return site


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    outside = re.compile(r"<(?:script|link|img)[^>]*(?:src|href)=\"?(https?:[^\"> ]+)")
    for page in site.rglob("*.html"):
        loaded = [
            match[1]
            for match in outside.finditer(page.read_text())
            if 'rel="canonical"' not in match[0] and "rel=canonical" not in match[0]
        ]
        assert loaded == [], page.name
        assert 'data-md-component="source"' not in page.read_text(), "its script asks GitHub"


def test_figures_follow_the_switch_of_the_page(site: Path) -> None:
    page = (site / "concepts" / "groups.html").read_text()
    assert page.count('class="figure"') == 2
    assert "prefers-color-scheme:dark){svg" not in page


def test_the_api_reference_shows_docstrings(site: Path) -> None:
    page = (site / "api" / "clients.html").read_text()
    for name in ("kohort.Consumer.poll", "kohort.Producer.send", "kohort.Admin.create_topics"):
        assert f'id="{name}"' in page, name


def search(site: Path) -> Any:
    """The index that the browser builds of the site's pages: words as they are, not their stems."""
    from lunr import get_default_builder, lunr
    from lunr.stemmer import stemmer

    entries = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    builder = get_default_builder()
    builder.pipeline.remove(stemmer)
    builder.search_pipeline.remove(stemmer)
    fields = [{"field_name": "title", "boost": 1000}, "text"]
    documents = [(entry, {"boost": entry.get("boost", 1)}) for entry in entries]
    return lunr(ref="location", fields=fields, documents=documents, builder=builder)


def test_the_search_answers_a_newcomers_questions(site: Path) -> None:
    """One of the first five results leads to the page that has the answer."""
    index = search(site)
    missed = {}
    for question, page in QUESTIONS.items():
        words = " ".join(f"+{word}*" for word in question.split())  # as the browser asks
        places = [result["ref"] for result in index.search(words)][:5]
        if page not in {place.split("#")[0] for place in places}:
            missed[question] = places
    assert missed == {}


@pytest.mark.parametrize(
    ("added", "complaint"),
    [
        ("[gone](gone.md)\n", "gone.md"),
        ("[gone](index.md#no-such-place)\n", "no-such-place"),
        ("::: kohort.NoSuchName\n", "NoSuchName"),
    ],
)
def test_what_leads_nowhere_fails_the_build(
    added: str, complaint: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A small checkout: the site's settings, three pages, the package."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "tools").mkdir()
    for name in ("mkdocs.yml", "pyproject.toml", "tools/docs_hooks.py"):
        shutil.copy(ROOT / name, tmp_path / name)
    settings = (tmp_path / "mkdocs.yml").read_text().split("\nnav:")[0]
    settings = settings.replace("paths: [src]", f"paths: [{ROOT / 'src'}]")
    (tmp_path / "mkdocs.yml").write_text(settings.replace("hooks:\n  - tools/docs_hooks.py\n", ""))
    page = tmp_path / "docs" / "index.md"
    page.write_text("# Home\n")
    make(tmp_path, tmp_path / "site")
    page.write_text(f"# Home\n\n{added}")
    with pytest.raises((Abort, SystemExit)):
        make(tmp_path, tmp_path / "site")
    assert complaint in caplog.text
