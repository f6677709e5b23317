"""Problem pages: no text is lost, formulas and samples stay what they are, whatever the mark-up."""

import re
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import ROOT

from cobalt.datasets.codenet_html import FIGURE, read_statement

PAGES = ROOT.parent / "shared" / "data" / "codenet_problem_descriptions.tar.gz"


def text(page):
    return read_statement(page).text


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        (r"<p>Let <var>1 \leq N \leq 10^5</var>.</p>", r"Let $1 \leq N \leq 10^5$."),
        ("<p><var> a<sub>i</sub> </var>(1 &le; i)</p>", "$a_i$ (1 ≤ i)"),
        ("<p><i>x<sub>i+1</sub></i>, 10<sup>18</sup>, 2<sup>n</sup></p>", "x_{i+1}, 10^18, 2^n"),
        ("<p><var>h</var><sub>1</sub> and <var>h</var><sub><var>m</var></sub></p>", "$h_1$ and $h_m$"),
        ("<p>the 1<sup>st</sup> of <code>a b</code></p>", "the 1st of `a b`"),
        (r"<p>\(x\) and $z$</p>", r"\(x\) and $z$"),
        ("<p>one<br>two</br>three</p>", "one\ntwo\nthree"),
        ("<pre>\n<var>N</var> <var>a<sub>1</sub></var>\n  x &lt; 3\n</pre>", "```\nN a_1\n  x < 3\n```"),
        ("<pre>a\n```\nb</pre>", "````\na\n```\nb\n````"),
        ("<h2>Input</h2><p>One\n  line.</p>", "## Input\n\nOne line."),
        ("<ul><li>a<ul><li>b</li></ul></li><li>c<p>d</p></ul>", "- a\n  - b\n- c\n  d"),
        ("<ol><li>a</li><li>b</li></ol>", "1. a\n2. b"),
        ("<table><tr><th>x<br>z<th>y<tr><td>1<td></table>", "| x<br>z | y |\n| 1 |  |"),
        ("<table><tr><td><pre>1\n2</pre></td></tr></table>after", "```\n1\n2\n```\n\nafter"),
        ("<blockquote><i>N</i>\nx y\n</blockquote><p>a\nb</p>", "N\nx y\n\na b"),
        ("a<script>b</script>c<style>d</style>e<!-- f -->", "ace"),
        ("<script src=x></script\n\n<!-- \n--><p>kept</p>", "kept"),
        ("<p>see <img src=x.png> here</p>", f"see {FIGURE} here"),
        ("<span class=lang-en><p>one</p></span><span class=lang-ja><p>ni</p></span>end", "one\n\nend"),
        ("<span class=lang-ja><p>kept</p></span>", "kept"),
        ("<p>a</div></span><p>b<h2>c<p>d", "a\n\nb\n\n## c\n\nd"),
        ("", ""),
    ],
)
def test_mark_up_becomes_text(page, expected):
    assert text(page) == expected


WORDS = st.text("abcdefgh", min_size=1, max_size=4)
TAGS = st.sampled_from(
    ["p", "div", "h2", "ul", "li", "ol", "table", "tr", "td", "pre", "var", "sub", "code", "br", "sbu"]
)
PIECES = st.one_of(WORDS, TAGS.map("<{}>".format), TAGS.map("</{}>".format))


@given(st.lists(PIECES, max_size=30))
def test_no_text_is_lost_by_tags_that_are_nested_wrongly_or_never_closed(pieces):
    written = "".join(piece for piece in pieces if not piece.startswith("<"))
    found = re.sub(r"<br>", "", text("".join(pieces)))
    assert sorted(re.findall("[a-h]", found)) == sorted(written)


MARKS = ("<", "</", "<!", "<![", "<!--", "-->", "<?", "]]>", "CDATA[", "&#", "&lt;")
BROKEN = [*MARKS, "'", '"', "=", " ", "\n", "$", "`"]


@given(st.lists(PIECES | st.sampled_from([*BROKEN, "<script>", "</script", "if !IE]>", "pre>", ">"]), max_size=15))
def test_no_page_is_too_broken_to_read(pieces):
    read_statement("".join(pieces))


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        ("<h3>Sample Input 1</h3><pre>1 2\n</pre><h3>Sample Output 1</h3><pre>3\n</pre>", [("1 2\n", "3\n")]),
        ("<h2>Sample Input</h2><pre>1</pre><h2>Output for the Sample Input</h2><pre>2</pre>", [("1\n", "2\n")]),
        ("<h2>入出力例</h2><h3>入力例 1</h3><pre>1</pre><h3>出力例 1</h3><pre>2</pre>", [("1\n", "2\n")]),
        ("<h2>入出力例</h2><p>入力例１:</p><pre>1</pre><p>入力例1に対する出力例:</p><pre>2</pre>", [("1\n", "2\n")]),
        ("<h3>Examples</h3><table><tr><td><pre>1</pre><td><pre>2</pre><tr><td><pre>3</pre><td><pre>4</pre></table>",
         [("1\n", "2\n"), ("3\n", "4\n")]),
        ("<h2>Input</h2><pre>N</pre><h2>Output</h2><pre>M</pre>", []),
        ("<h2>Sample Input</h2><pre>1</pre><h2>Sample Output</h2><pre>2</pre><p>So</p><pre>3</pre>", [("1\n", "2\n")]),
        ("<p>For example, if</p><pre>1</pre><p>then for example</p><pre>2</pre>", []),
        ("<h2>Sample Output</h2><pre>1</pre>", []),
        ("<p>An interactive one.</p><h2>Sample Input</h2><pre>1</pre><h2>Sample Output</h2><pre>2</pre>", []),
    ],
)  # fmt: skip
def test_samples_are_the_texts_under_headings_that_name_them(page, expected):
    assert list(read_statement(page).samples) == expected


@pytest.mark.parametrize("heading", ["Constraints", "Constraint", "制約", "制限"])
def test_a_constraints_section_is_recognised(heading):
    assert read_statement(f"<h3>{heading}</h3><p>x</p>").has_constraints
    assert not read_statement(f"<h3>Input</h3><p>{heading} are many here</p>").has_constraints


@pytest.mark.skipif(not PAGES.exists(), reason="the real problem pages are not on this machine")
def test_every_real_page_gives_a_statement_and_nearly_every_one_samples():
    with tarfile.open(PAGES) as tar:
        pages = [
            tar.extractfile(member).read().decode("utf-8", "replace")
            for place, member in enumerate(member for member in tar if member.isreg())
            if place % 16 == 0
        ]
    statements = list(map(read_statement, pages))
    assert len(pages) == 250
    assert all(statement.text for statement in statements)
    assert sum(bool(statement.samples) for statement in statements) > 0.97 * len(pages)
    assert sum(statement.has_constraints for statement in statements) > 0.5 * len(pages)
