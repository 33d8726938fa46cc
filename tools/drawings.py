# SPDX-License-Identifier: GPL-3.0-or-later
"""Draw the pictures of the pages: `python -m tools.drawings` writes an SVG file beside each description
``docs/explanation/drawings/<name>.toml``. A test compares them.

A description has a ``title`` and a ``text`` for readers who do not see the picture, and one of two forms.

Boxes and arrows:
  [[box]]    id, text (the first line is bold), at = [column, row], size = [columns, rows] (default 1, 1),
             kind = "process" (default), "store", "outside" or "group" (a frame around other boxes)
  [[arrow]]  from, to, text, dashed, both (heads at both ends)

Messages between actors, from top to bottom:
  [[actor]]  id, text
  [[step]]   from, to, text, dashed: a message; on, text: a note at an actor (or at two, with to); band: a phase;
             cut, text: an actor dies

The SVG has the light colours as attributes, and the dark ones for readers whose system is dark. Its background is its
own, so it can be read on any page. A text that does not fit is refused with ``ValueError``.
"""

from __future__ import annotations

import itertools
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

FOLDER = Path(__file__).resolve().parents[1] / "docs/explanation/drawings"
Fields = Mapping[str, Any]
#: Pixels: size of a box, gaps between boxes, margin, and between a group's frame and its boxes.
BOX_WIDTH, BOX_HEIGHT, GAP_X, GAP_Y, MARGIN, FRAME, FRAME_TOP = 184, 58, 48, 56, 22, 12, 26
#: Pixels of messages: between two actors, the head of an actor, one line of text, and above a message.
ACTOR_GAP, ACTOR_HEIGHT, LINE, ABOVE = 196, 48, 16, 22
#: Sizes of a text, and the width of a letter as a share of them.
SIZE, SMALL, LETTER = 13, 12, 0.56
#: Light and dark colours by class: fill and stroke.
COLOURS = {
    "page": (("#ffffff", "none"), ("#15191f", "none")),
    "process": (("#eef4ff", "#3b6fd4"), ("#1c2b46", "#7fa8ff")),
    "store": (("#fff6e0", "#b7831a"), ("#3a2f16", "#e5b858")),
    "outside": (("#f4f4f5", "#71717a"), ("#26282d", "#a1a1aa")),
    "group": (("none", "#a1a1aa"), ("none", "#6b7280")),
    "bad": (("#ffeceb", "#c93a32"), ("#451e1c", "#ff8d85")),
    "line": (("none", "#52525b"), ("none", "#c4c4cc")),
    "head": (("#52525b", "none"), ("#c4c4cc", "none")),
    "text": (("#18181b", "none"), ("#f4f4f5", "none")),
    "label": (("#52525b", "none"), ("#c4c4cc", "none")),
}


class Place(NamedTuple):
    """A rectangle in pixels: left, top, right and bottom."""

    left: float
    top: float
    right: float
    bottom: float

    @property
    def x(self) -> float:
        """The horizontal middle."""
        return (self.left + self.right) / 2

    @property
    def y(self) -> float:
        """The vertical middle."""
        return (self.top + self.bottom) / 2


def text_width(text: str, size: float = SMALL) -> float:
    """Return the width in pixels of the longest line of a text."""
    return max(len(line) for line in text.splitlines()) * size * LETTER


def _colours(name: str) -> str:
    (fill, stroke), _dark = COLOURS[name]
    return f'class="{name}" fill="{fill}" stroke="{stroke}"'


def _rectangle(place: Place, kind: str, radius: int = 8) -> str:
    dashes = ' stroke-dasharray="5 4"' if kind == "group" else ""
    return (f'<rect x="{place.left:g}" y="{place.top:g}" width="{place.right - place.left:g}" '
            f'height="{place.bottom - place.top:g}" rx="{radius}" {_colours(kind)}{dashes}/>')


def _lines(text: str, x: float, y: float, *, kind: str = "text", size: int = SIZE, bold: bool = False,
           anchor: str = "middle") -> Iterator[str]:
    """Yield an SVG element for each line of *text*, centred vertically at *y*. *kind*: of the text, for its colours.
    *bold*: whether the first line is bold. *anchor*: SVG's ``text-anchor``, which says where *x* is on the line."""
    lines = text.splitlines()
    top = y - (len(lines) - 1) * LINE / 2 + size * 0.35
    for number, line in enumerate(lines):
        weight = ' font-weight="600"' if bold and number == 0 else ""
        pixels = size if number == 0 or not bold else SMALL
        yield (f'<text x="{x:g}" y="{top + number * LINE:g}" font-size="{pixels}" text-anchor="{anchor}"{weight} '
               f'{_colours(kind)}>{escape(line)}</text>')


def _path(points: Sequence[tuple[float, float]], *, dashed: bool = False, both: bool = False) -> Iterator[str]:
    """Yield SVG elements for an arrow along *points*: its line, *dashed* or not, and its head; with *both* a head at
    each end."""
    line = " ".join(f"{'M' if number == 0 else 'L'}{x:g} {y:g}" for number, (x, y) in enumerate(points))
    dashes = ' stroke-dasharray="6 4"' if dashed else ""
    yield f'<path d="{line}" stroke-width="1.5" {_colours("line")}{dashes}/>'
    for end, before in [(points[-1], points[-2])] + ([(points[0], points[1])] if both else []):
        (x, y), across = end, abs(end[0] - before[0]) > abs(end[1] - before[1])
        back = -8 if (end[0] > before[0] if across else end[1] > before[1]) else 8
        corners = [(x + back, y - 4), (x + back, y + 4)] if across else [(x - 4, y + back), (x + 4, y + back)]
        yield f'<path d="M{x:g} {y:g} {" ".join(f"L{a:g} {b:g}" for a, b in corners)} Z" {_colours("head")}/>'


# Boxes and arrows -------------------------------------------------------------------------------------------------
def place_of_box(box: Fields) -> Place:
    """Return the rectangle of a *box*."""
    (column, row), (columns, rows) = box["at"], box.get("size", (1, 1))
    left, top = MARGIN + column * (BOX_WIDTH + GAP_X), MARGIN + row * (BOX_HEIGHT + GAP_Y)
    place = Place(left, top, left + columns * (BOX_WIDTH + GAP_X) - GAP_X, top + rows * (BOX_HEIGHT + GAP_Y) - GAP_Y)
    if box.get("kind") == "group":
        return Place(place.left - FRAME, place.top - FRAME_TOP, place.right + FRAME, place.bottom + FRAME)
    return place


def _box(box: Fields) -> Iterator[str]:
    place, kind = place_of_box(box), box.get("kind", "process")
    if text_width(box["text"]) > place.right - place.left - 8:
        raise ValueError(f"The text of the box {box['id']!r} is too wide: {box['text']!r}")
    yield _rectangle(place, kind)
    if kind == "group":
        yield from _lines(box["text"], place.left + 10, place.top + 12, kind="label", size=SMALL, anchor="start")
    else:
        yield from _lines(box["text"], place.x, place.y, bold=True)


def _way(start: Place, end: Place) -> list[tuple[float, float]]:
    """Return the points of an arrow from the box *start* to the box *end*: straight if their ranges of rows or columns
    overlap, otherwise with one corner."""
    left, right = max(start.left, end.left), min(start.right, end.right)
    top, bottom = max(start.top, end.top), min(start.bottom, end.bottom)
    if left < right:
        x = (left + right) / 2
        return [(x, start.bottom), (x, end.top)] if start.top < end.top else [(x, start.top), (x, end.bottom)]
    if top < bottom:
        y = (top + bottom) / 2
        return [(start.right, y), (end.left, y)] if start.left < end.left else [(start.left, y), (end.right, y)]
    side = start.right if start.left < end.left else start.left
    return [(side, start.y), (end.x, start.y), (end.x, end.top if start.top < end.top else end.bottom)]


def _arrow(arrow: Fields, places: Mapping[str, Place]) -> Iterator[str]:
    points = _way(places[arrow["from"]], places[arrow["to"]])
    yield from _path(points, dashed=arrow.get("dashed", False), both=arrow.get("both", False))
    if text := arrow.get("text"):
        (x1, y1), (x2, y2) = max(itertools.pairwise(points),
                                 key=lambda ends: abs(ends[0][0] - ends[1][0]) + abs(ends[0][1] - ends[1][1]))
        x, y, lines = (x1 + x2) / 2, (y1 + y2) / 2, len(text.splitlines())
        half = text_width(text) / 2 + 3
        yield _rectangle(Place(x - half, y - lines * LINE / 2, x + half, y + lines * LINE / 2), "page", 2)
        yield from _lines(text, x, y, kind="label", size=SMALL)


def _draw_boxes(drawing: Fields) -> tuple[Place, list[str]]:
    places = {box["id"]: place_of_box(box) for box in drawing["box"]}
    boxes = sorted(drawing["box"], key=lambda box: box.get("kind") != "group")
    shapes = [shape for box in boxes for shape in _box(box)]
    shapes += [shape for arrow in drawing.get("arrow", ()) for shape in _arrow(arrow, places)]
    left, top, right, bottom = zip(*places.values(), strict=True)
    return Place(min(left) - MARGIN, min(top) - MARGIN, max(right) + MARGIN, max(bottom) + MARGIN), shapes


# Messages between actors ------------------------------------------------------------------------------------------
class _Messages:
    """A drawing of messages between actors, built step by step."""

    def __init__(self, drawing: Fields) -> None:
        self.drawing = drawing
        self.x = {actor["id"]: MARGIN + ACTOR_GAP * (number + 0.5) for number, actor in enumerate(drawing["actor"])}
        self.y: float = MARGIN + ACTOR_HEIGHT + 10
        self.width = 2 * MARGIN + ACTOR_GAP * len(self.x)

    def shapes(self) -> Iterator[str]:
        steps = [shape for step in self.drawing["step"] for shape in self._step(step)]
        self.y += 16
        for actor in self.drawing["actor"]:
            x, half = self.x[actor["id"]], ACTOR_GAP / 2 - 12
            if text_width(actor["text"]) > 2 * half - 8:
                raise ValueError(f"The text of the actor {actor['id']!r} is too wide.")
            yield f'<path d="M{x:g} {MARGIN + ACTOR_HEIGHT:g} L{x:g} {self.y:g}" stroke-width="1" {_colours("group")}/>'
            place = Place(x - half, MARGIN, x + half, MARGIN + ACTOR_HEIGHT)
            yield _rectangle(place, actor.get("kind", "process"))
            yield from _lines(actor["text"], x, place.y, bold=True)
        yield from steps

    def _step(self, step: Fields) -> Iterator[str]:
        if "band" in step:
            yield from self._band(step["band"])
        elif "from" in step:
            yield from self._message(step)
        else:
            yield from self._note(step)

    def _band(self, text: str) -> Iterator[str]:
        self.y += 30
        yield (f'<path d="M{MARGIN} {self.y:g} L{self.width - MARGIN:g} {self.y:g}" stroke-dasharray="2 4" '
               f'{_colours("group")}/>')
        half = text_width(text) / 2 + 6
        yield _rectangle(Place(self.width / 2 - half, self.y - 9, self.width / 2 + half, self.y + 9), "page", 2)
        yield from _lines(text, self.width / 2, self.y, kind="label", size=SMALL)
        self.y += 8

    def _message(self, step: Fields) -> Iterator[str]:
        start, end, lines = self.x[step["from"]], self.x[step["to"]], len(step["text"].splitlines())
        if text_width(step["text"]) > abs(start - end) - 4:
            raise ValueError(f"The text of the message is too wide: {step['text']!r}")
        self.y += ABOVE + LINE * lines
        x, y, half = (start + end) / 2, self.y - 6 - LINE * lines / 2, text_width(step["text"]) / 2
        yield _rectangle(Place(x - half, y - LINE * lines / 2, x + half, y + LINE * lines / 2), "page", 2)
        yield from _lines(step["text"], x, y, size=SMALL)
        yield from _path([(start, self.y), (end, self.y)], dashed=step.get("dashed", False))

    def _note(self, step: Fields) -> Iterator[str]:
        kind = "bad" if "cut" in step else step.get("kind", "store")
        ends = sorted(self.x[name] for name in (step.get("on") or step["cut"], step.get("to")) if name)
        half = ACTOR_GAP / 2 - 8
        place = Place(ends[0] - half, self.y + 14, ends[-1] + half,
                      self.y + 26 + LINE * len(step["text"].splitlines()))
        if text_width(step["text"]) > place.right - place.left - 6:
            raise ValueError(f"The text of the note is too wide: {step['text']!r}")
        yield _rectangle(place, kind, 4)
        yield from _lines(step["text"], place.x, place.y, size=SMALL)
        self.y = place.bottom


# Files ------------------------------------------------------------------------------------------------------------
def _style() -> str:
    dark = " ".join(f".{name} {{ fill: {fill}; stroke: {stroke}; }}"
                    for name, (_light, (fill, stroke)) in COLOURS.items())
    return f"<style>@media (prefers-color-scheme: dark) {{ {dark} }}</style>"


def draw(drawing: Fields) -> str:
    """Return the SVG of *drawing*, the content of a description file."""
    if "box" in drawing:
        page, shapes = _draw_boxes(drawing)
    else:
        messages = _Messages(drawing)
        shapes = [*messages.shapes()]
        page = Place(0, 0, messages.width, messages.y + MARGIN)
    width, height = page.right - page.left, page.bottom - page.top
    head = (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{page.left:g} {page.top:g} {width:g} {height:g}" '
            f'width="{width:g}" height="{height:g}" role="img" '
            'font-family="system-ui, -apple-system, Segoe UI, Roboto, sans-serif">')
    return "\n".join([head, f"<title>{escape(drawing['title'])}</title>", f"<desc>{escape(drawing['text'])}</desc>",
                      _style(), _rectangle(page, "page"), *shapes, "</svg>", ""])


def drawings() -> Iterator[tuple[Path, str]]:
    """Yield the file of each drawing, and the SVG that it must contain."""
    for path in sorted(FOLDER.glob("*.toml")):
        yield path.with_suffix(".svg"), draw(tomllib.loads(path.read_text(encoding="utf-8")))


def main() -> int:
    """Write all drawings."""
    for path, text in drawings():
        path.write_text(text, encoding="utf-8")
        print(path.relative_to(FOLDER.parents[2]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
