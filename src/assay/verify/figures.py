"""What a figure is made of: one that is not compared may show other curves, and nothing else."""

import re
from collections.abc import Iterable
from html.parser import HTMLParser

LEADS_OUT = re.compile(r"url\(\s*['\"]?(?!['\"#\s])|\\|script:|@|expression", re.IGNORECASE)
"""Values of attributes that reach beyond the figure, or may be read otherwise than they look."""


def ingredients(figures: Iterable[str]) -> set[str]:
    """Return the kinds of all that is in some SVGs, which a browser may show or run.

    These are elements with the element they lie in, attributes, properties of styles, declarations,
    where text stands, and the whole text of each style sheet: a rule of it holds for the whole
    page. Coordinates, colours and names are not among them.
    """
    found = set[str]()
    for figure in figures:
        parser = _Ingredients()
        parser.feed(figure)
        parser.close()
        found |= parser.found
        if parser.inside:
            found.add(f"{parser.inside[-1]} without its end")
    return found


class _Ingredients(HTMLParser):
    """Collects the kinds of all that is in one SVG."""

    def __init__(self) -> None:
        super().__init__()
        self.found = set[str]()
        self.inside: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep an element, its attributes, and the properties of its style."""
        self.found.add(f"<{tag}> in <{self._parent}>")
        self.inside.append(tag)
        for name, value in attrs:
            self.found.add(f"{name} of <{tag}>")
            said = value or ""
            if LEADS_OUT.search(said) or (name.endswith("href") and not said.startswith("#")):
                self.found.add(f"{name}={said}")
            if name == "style":
                properties = (part.partition(":")[0].strip() for part in said.split(";"))
                self.found |= {f"style {one} of <{tag}>" for one in properties if one}

    def handle_endtag(self, tag: str) -> None:
        """Go out of an element; keep an end that ends nothing."""
        if self._parent == tag:
            self.inside.pop()
        else:
            self.found.add(f"</{tag}> in <{self._parent}>")

    def handle_data(self, data: str) -> None:
        """Keep where text stands, and what a style sheet says."""
        if data.strip():
            said = data if self._parent == "style" else "text"
            self.found.add(f"{said} in <{self._parent}>")

    def handle_comment(self, data: str) -> None:
        """Keep a comment with brackets, which browsers may end earlier."""
        if {"<", ">"} & {*data}:
            self.found.add(f"<!--{data}")

    def handle_decl(self, decl: str) -> None:
        """Keep a declaration."""
        self.found.add(f"<!{decl}>")

    def unknown_decl(self, data: str) -> None:
        """Keep a declaration that HTML does not have."""
        self.found.add(f"<![{data}")

    def handle_pi(self, data: str) -> None:
        """Keep a processing instruction."""
        self.found.add(f"<?{data}>")

    @property
    def _parent(self) -> str:
        return self.inside[-1] if self.inside else ""
