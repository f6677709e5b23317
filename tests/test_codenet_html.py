"""Problem pages: no text is lost, formulas and samples stay what they are, whatever the mark-up."""

import re
import tarfile

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from support import ROOT

from cobalt.datasets.codenet_html import read_statement

PAGES = ROOT.parent / "shared" / "data" / "codenet_problem_descriptions.tar.gz"
CASES = yaml.safe_load((ROOT / "tests" / "data" / "pages.yaml").read_text("utf-8"))


@pytest.mark.parametrize("case", CASES["texts"], ids=lambda case: case["page"])
def test_mark_up_becomes_text(case):
    assert read_statement(case["page"]).text == case["text"]


WORDS = st.text("abcdefgh", min_size=1, max_size=4)
TAGS = st.sampled_from(
    ["p", "div", "h2", "ul", "li", "ol", "table", "tr", "td", "pre", "var", "sub", "code", "br", "sbu"]
)
PIECES = st.one_of(WORDS, TAGS.map("<{}>".format), TAGS.map("</{}>".format))


@given(st.lists(PIECES, max_size=30))
def test_no_text_is_lost_by_tags_that_are_nested_wrongly_or_never_closed(pieces):
    written = "".join(piece for piece in pieces if not piece.startswith("<"))
    letters = re.sub(r"<br>", "", read_statement("".join(pieces)).text)
    assert sorted(re.findall("[a-h]", letters)) == sorted(written)


MARKS = ("<", "</", "<!", "<![", "<!--", "-->", "<?", "]]>", "CDATA[", "&#", "&lt;")
BROKEN = [*MARKS, "'", '"', "=", " ", "\n", "$", "`"]


@given(st.lists(PIECES | st.sampled_from([*BROKEN, "<script>", "</script", "if !IE]>", "pre>", ">"]), max_size=15))
def test_no_page_is_too_broken_to_read(pieces):
    read_statement("".join(pieces))


@pytest.mark.parametrize("case", CASES["samples"], ids=lambda case: case["page"])
def test_samples_are_the_texts_under_headings_that_name_them(case):
    assert [list(sample) for sample in read_statement(case["page"]).samples] == case["samples"]


@pytest.mark.parametrize("heading", ["Constraints", "Constraint", "制約", "制限"])
def test_a_constraints_section_is_recognised(heading):
    assert read_statement(f"<h3>{heading}</h3><p>x</p>").has_constraints
    assert not read_statement(f"<h3>Input</h3><p>{heading} are many here</p>").has_constraints


@pytest.mark.skipif(not PAGES.exists(), reason="the real problem pages are not on this machine")
def test_every_real_page_gives_a_statement_and_nearly_every_one_samples():
    with tarfile.open(PAGES) as tar:
        pages = [
            tar.extractfile(member).read().decode("utf-8", "replace")
            for index, member in enumerate(member for member in tar if member.isreg())
            if index % 16 == 0
        ]
    statements = list(map(read_statement, pages))
    assert len(pages) == 250
    assert all(statement.text for statement in statements)
    assert sum(bool(statement.samples) for statement in statements) > 0.97 * len(pages)
    assert sum(statement.has_constraints for statement in statements) > 0.5 * len(pages)
