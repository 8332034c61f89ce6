"""What a figure is made of: one that is not compared may show other curves, and nothing else."""

import re
from collections.abc import Iterable
from html.parser import HTMLParser

LEADS_OUT = re.compile(r"url\(\s*['\"]?(?!['\"#\s])|\\|script:|@|expression", re.IGNORECASE)
"""Values of attributes that reach beyond the figure, or may be read otherwise than they look."""

SHAPES = (
    "circle", "clippath", "defs", "ellipse", "g", "line", "lineargradient", "path", "polygon",
    "polyline", "radialgradient", "rect", "stop", "text", "tspan", "use",
)  # fmt: skip
"""Elements that draw: any version of matplotlib may use any of them. `title` and `desc` are not
among them, since a browser reads their content as HTML.
"""

TEXTS = ("text", "tspan")
"""Those of them that hold text."""

PAINT = (
    "clip-path", "clip-rule", "dominant-baseline", "fill", "fill-opacity", "fill-rule", "font",
    "font-family", "font-size", "font-stretch", "font-style", "font-variant", "font-weight",
    "letter-spacing", "opacity", "paint-order", "shape-rendering", "stop-color", "stop-opacity",
    "stroke", "stroke-dasharray", "stroke-dashoffset", "stroke-linecap", "stroke-linejoin",
    "stroke-miterlimit", "stroke-opacity", "stroke-width", "text-anchor", "text-rendering",
    "vector-effect", "word-spacing",
)  # fmt: skip
"""Attributes and properties of styles that say how a shape is painted."""

PLACES = (
    "clippathunits", "cx", "cy", "d", "dx", "dy", "fx", "fy", "gradienttransform", "gradientunits",
    "height", "href", "id", "offset", "points", "r", "rx", "ry", "transform", "width", "x", "x1",
    "x2", "xlink:href", "y", "y1", "y2",
)  # fmt: skip
"""Attributes that say where a shape is."""

RULE_OF_SHAPES = re.compile(r"\s*\*\s*\{([^{}<>]*)\}\s*")
"""A style sheet of a single rule, which holds for everything."""


def ingredients(figures: Iterable[str]) -> set[str]:
    """Return the kinds of all that is in some SVGs, which a browser may show or run.

    These are elements with the element they lie in, attributes, properties of styles, declarations,
    where text stands, and the whole text of each style sheet: a rule of it holds for the whole
    page. Shapes, their places and their paint are not among them: another version of matplotlib
    may draw with others.
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


def _properties(style: str) -> set[str]:
    """Return the names of the properties in a style."""
    return {part.partition(":")[0].strip() for part in style.split(";")} - {""}


class _Ingredients(HTMLParser):
    """Collects the kinds of all that is in one SVG."""

    def __init__(self) -> None:
        super().__init__()
        self.found = set[str]()
        self.inside: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep an element, its attributes, and the properties of its style."""
        shape = tag in SHAPES and self._parent in {"svg", *SHAPES}
        if not shape:
            self.found.add(f"<{tag}> in <{self._parent}>")
        self.inside.append(tag)
        for name, value in attrs:
            if not (shape and name in {"style", *PAINT, *PLACES}):
                self.found.add(f"{name} of <{tag}>")
            said = value or ""
            if LEADS_OUT.search(said) or (name.endswith("href") and not said.startswith("#")):
                self.found.add(f"{name}={said}")
            if name == "style":
                plain = PAINT if shape else ()
                self.found |= {
                    f"style {one} of <{tag}>" for one in _properties(said).difference(plain)
                }

    def handle_endtag(self, tag: str) -> None:
        """Go out of an element; keep an end that ends nothing."""
        if self._parent == tag:
            self.inside.pop()
        else:
            self.found.add(f"</{tag}> in <{self._parent}>")

    def handle_data(self, data: str) -> None:
        """Keep where text stands, and what a style sheet says."""
        rule = RULE_OF_SHAPES.fullmatch(data) if self._parent == "style" else None
        if rule and not LEADS_OUT.search(data):
            self.found |= {f"style {one} of all" for one in _properties(rule[1]).difference(PAINT)}
        elif data.strip() and self._parent not in TEXTS:
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
