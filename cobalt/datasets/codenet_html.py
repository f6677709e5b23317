"""Problem pages of Project CodeNet (HTML of AtCoder and AIZU) to statements as text, with their samples.

A page becomes blocks, and the blocks become markdown. Formulas keep their LaTeX: `<var>` becomes `$...$`, and sub- and
superscripts `_` and `^`. Of an English and a Japanese version of a page, the English one is kept. Tags that are
misspelt, nested wrongly or never closed lose no text, except within script, style and the Japanese version.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html.parser import HTMLParser
from itertools import count, groupby, repeat
from typing import Literal

from cobalt.episode import fence_around

Kind = Literal["heading", "paragraph", "item", "table", "preformatted"]

FIGURE = "[figure]"
"""Text that replaces a figure in a statement."""

# An end tag of a script may lack its bracket.
_SKIPPED = re.compile(r"<!--.*?-->|<(script|style)(?=[\s>/]).*?(?:</\1\s*>?|\Z)", re.IGNORECASE | re.DOTALL)
_JAPANESE = re.compile(r"<(\w+)\b[^<>]*\sclass=[\"']?[^<>\"']*\blang-ja\b.*?(?:</\1\s*>|\Z)", re.IGNORECASE | re.DOTALL)
_BLOCKS: dict[str, tuple[Kind, int]] = {f"h{level}": ("heading", level) for level in range(1, 7)}
_BLOCKS["pre"] = ("preformatted", 0)
_LISTS = frozenset({"ul", "ol", "dir"})
_TABLES = frozenset({"table", "tr", "td", "th"})
_INLINE = frozenset({"var", "sub", "sup", "code", "samp", "tt"})
_BREAKS = frozenset(
    {"p", "div", "section", "blockquote", "center", "hr", "dl", "dt", "dd", "details", "summary", "figure"}
    | {"figcaption", "address", "body", "html", "head", "caption", "legend"}
)
_SPACE = re.compile(r"[ \t\r\n\f\v\xa0]+")
_SCRIPT_AFTER = re.compile(r"\$([^$\n]+)\$((?:[_^](?:\w+|\{[^{}$\n]*\}))+)")  # of <var>h</var><sub>1</sub>
_ORDINAL = re.compile(r"\d(st|nd|rd|th)")


@dataclass(frozen=True, slots=True)
class Block:
    """A part of a page; `level` is 1 to 6 for a heading, and the depth of nesting from 0 for a list item."""

    kind: Kind
    text: str
    level: int = 0


@dataclass(frozen=True, slots=True)
class Statement:
    """A problem statement.

    Attributes:
        text: Markdown, samples included; "" for a page without text.
        samples: Pairs of an input and its output, each ending with a newline.
        has_constraints: Whether a section is headed as the constraints.
    """

    text: str
    samples: tuple[tuple[str, str], ...]
    has_constraints: bool


def read_statement(page: str) -> Statement:
    """The statement of a problem page."""
    page = _SKIPPED.sub("", page)
    if "lang-en" in page:
        page = _JAPANESE.sub("", page)
    blocks = _PageParser(page).blocks
    return Statement(
        text=_markdown(blocks),
        samples=_samples(blocks),
        has_constraints=any(_CONSTRAINTS.match(_title(block)) for block in blocks),
    )


class _PageParser(HTMLParser):
    """Collects blocks while tags go by. A block ends where the next begins, whether its tag is closed or not."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.blocks: list[Block] = []
        self._kind: Kind = "paragraph"  # of the block that is being read
        self._level = 0
        self._marker = ""
        self._parts: list[str] = []
        self._inline: list[tuple[str, int]] = []  # open inline tags, and where in the parts their content begins
        self._lists: list[Iterator[str]] = []  # for each open list the markers of its next items
        self._quote = False  # directly within <blockquote>, where the pages of AIZU set input formats line by line
        self._rows: list[list[str]] | None = None  # the cells of the open table
        # The parser raises at most of what begins with "<!["; browsers take it for a comment, as they take "<!x".
        self.feed(page.replace("<![", "<!x["))
        self.close()
        self._end_table()  # and what else is still open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._handle(tag, opens=True)

    def handle_endtag(self, tag: str) -> None:
        self._handle(tag, opens=False)

    def handle_data(self, data: str) -> None:
        self._parts.append(data if self._kind == "preformatted" or self._quote else _SPACE.sub(" ", data))

    def _handle(self, tag: str, *, opens: bool) -> None:
        if tag == "br" or (tag == "img" and opens):  # browsers take </br> as <br>
            self._parts.append("\n" if tag == "br" else f" {FIGURE} ")
        elif tag in _INLINE:
            if not opens:
                self._end_inline(tag)
            elif tag in ("sub", "sup") or self._kind != "preformatted":
                self._inline.append((tag, len(self._parts)))
        elif tag in _BLOCKS and opens:
            self._begin(*_BLOCKS[tag])
        elif tag in _BLOCKS:
            self._begin()
        elif self._kind == "preformatted":
            return
        elif tag in _BREAKS and self._kind == "item":  # its paragraphs are lines of it
            self._parts.append("\n")
        elif tag in _BREAKS:
            self._begin(quote=opens and tag == "blockquote")
        elif tag in _LISTS or tag == "li":
            self._handle_list(tag, opens)
        elif tag in _TABLES:
            self._handle_table(tag, opens)

    def _handle_list(self, tag: str, opens: bool) -> None:
        self._begin()
        if tag == "li" and opens:
            self._begin("item", max(0, len(self._lists) - 1), next(self._lists[-1]) if self._lists else "- ")
        elif opens:
            self._lists.append(map("{}. ".format, count(1)) if tag == "ol" else repeat("- "))
        elif tag != "li" and self._lists:
            self._lists.pop()

    def _handle_table(self, tag: str, opens: bool) -> None:
        self._begin()
        if tag == "table" and not opens:
            self._end_table()
        elif tag == "table":
            self._rows = self._rows or []
        elif opens and self._rows is not None:
            if tag == "tr" or not self._rows:
                self._rows.append([])
            if tag != "tr":
                self._rows[-1].append("")

    def _end_table(self) -> None:
        self._begin()
        lines = [f"| {' | '.join(row)} |" for row in self._rows or [] if any(row)]
        self._rows = None
        if lines:
            self.blocks.append(Block("table", "\n".join(lines)))

    def _begin(self, kind: Kind = "paragraph", level: int = 0, marker: str = "", *, quote: bool = False) -> None:
        """End the open block, which gets into the open cell if there is one, and begin another."""
        while self._inline:
            self._end_inline(self._inline[-1][0])
        text = "".join(self._parts)
        text = _preformatted(text) if self._kind == "preformatted" else _flowing(text)
        if text and self._rows is not None and self._kind in ("paragraph", "item"):
            row = self._rows[-1] if self._rows else []
            before = row.pop() if row else ""
            row.append(f"{before} {self._marker}{text}".strip().replace("\n", "<br>"))
            self._rows[-1:] = [row]
        elif text:
            self.blocks.append(Block(self._kind, self._marker + text, self._level))
        self._kind, self._level, self._marker, self._parts, self._quote = kind, level, marker, [], quote

    def _end_inline(self, tag: str) -> None:
        if tag not in (name for name, _ in self._inline):
            return
        name, begin = self._inline.pop()
        while name != tag:
            name, begin = self._inline.pop()
        content = "".join(self._parts[begin:])
        if tag in ("sub", "sup"):
            content = _script(tag, content, self._parts[begin - 1] if begin else "")
        elif self._kind != "preformatted":
            content = _marked("$" if tag == "var" else "`", content)
        self._parts[begin:] = [content]


def _script(tag: str, content: str, before: str) -> str:
    r"""A sub- or superscript: `_i`, `^5`, `_{i+1}`; the letters of "1st" stay as they are."""
    core = content.strip().replace("$", "")
    if not core or (tag == "sup" and _ORDINAL.fullmatch(before[-1:] + core)):
        return core
    return ("_" if tag == "sub" else "^") + (core if len(core) == 1 or core.isdigit() else f"{{{core}}}")


def _marked(mark: str, content: str) -> str:
    """The content between marks; white space stays outside of them."""
    core = content.strip()
    return content.replace(core, f"{mark}{core}{mark}", 1) if core else content


def _flowing(text: str) -> str:
    """Text of a paragraph: white space is one blank, line breaks are those of `<br>`, and `$h$_1` is `$h_1$`."""
    lines = (_SPACE.sub(" ", line).strip() for line in text.split("\n"))
    return _SCRIPT_AFTER.sub(r"$\1\2$", "\n".join(line for line in lines if line))


def _preformatted(text: str) -> str:
    """Text of `<pre>`: without the line end after the tag, and without white space at its end."""
    first, *lines = text.replace("\xa0", " ").split("\n")
    return "\n".join(line.rstrip() for line in ([first, *lines] if first.strip() else lines)).rstrip()


def _markdown(blocks: Sequence[Block]) -> str:
    """The blocks as markdown, with an empty line between them, but none between the items of a list."""
    runs = groupby(blocks, lambda block: block.kind == "item")
    return "\n\n".join(("\n" if items else "\n\n").join(map(_block_text, run)) for items, run in runs)


def _block_text(block: Block) -> str:
    if block.kind == "heading":
        return f"{'#' * block.level} {block.text}"
    if block.kind == "item":
        indent = "  " * block.level
        return indent + block.text.replace("\n", f"\n{indent}  ")
    if block.kind == "preformatted":
        fence = fence_around(block.text)
        return f"{fence}\n{block.text}\n{fence}"
    return block.text


Role = Literal["input", "output", "both", "none"]

_CONSTRAINTS = re.compile(r"constra?i?nts?\b|limits?$|制約|制限|入力の制約")
_SAMPLE = re.compile(r"sample|example|例")
_INPUT = re.compile(r"input|入力")
_OUTPUT = re.compile(r"output|出力")
# A paragraph is a title only if it is nothing else, because "for example:" can be a paragraph, too.
_TITLE_PARAGRAPH = re.compile(
    r"(sample )?(input|output)( for sample input)? ?\d*|(入力|出力)例? ?\d*( ?に対する出力(の?例)?)?"
)
_INTERACTIVE = re.compile(r"interactive|flushed|インタラクティブ", re.IGNORECASE)


def _samples(blocks: Sequence[Block]) -> tuple[tuple[str, str], ...]:
    """The pairs of a sample input and its output: the first preformatted texts under headings that name them.

    Under one heading for both, inputs and outputs take turns. What interactive problems show is a conversation.
    """
    if any(_INTERACTIVE.search(block.text) for block in blocks):
        return ()
    samples = []
    waiting: str | None = None  # an input whose output has not come yet
    role: Role = "none"
    for block in blocks:
        if title := _title(block):
            role = _role(title)
        elif block.kind == "preformatted" and role != "none":
            if role == "input" or (role == "both" and waiting is None):
                waiting = block.text
            elif waiting is not None:
                samples.append((waiting + "\n", block.text + "\n"))
                waiting = None
            role = "both" if role == "both" else "none"
    return tuple(samples)


def _title(block: Block) -> str:
    """A heading, or a paragraph that can only be meant as one, in lower case and plain letters; "" for other blocks."""
    if block.kind not in ("heading", "paragraph"):
        return ""
    title = block.text.lower().strip(" .:")
    return title if block.kind == "heading" or _TITLE_PARAGRAPH.fullmatch(title) else ""


def _role(title: str) -> Role:
    """Role of the preformatted text under a title."""
    has_input, has_output = _INPUT.search(title), _OUTPUT.search(title)
    numbered = re.search(r"\d$", title) is not None
    if not _SAMPLE.search(title) and not (numbered and (has_input or has_output)):
        return "none"
    if has_input and has_output:
        return "output" if re.search(r"output for|対する出力", title) else "both"
    return "input" if has_input else "output" if has_output else "both"
