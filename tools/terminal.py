# SPDX-License-Identifier: GPL-3.0-or-later
"""Draws a recorded terminal session as SVG: `python -m tools.terminal docs/pictures/servers.txt`.

The text has the commands, each after `$ `, and their output. `python -m tests.support.modules.session` records it, and
a test compares both files.
"""

from __future__ import annotations

import argparse
import re
from html import escape
from pathlib import Path

#: Colours by the beginning of a line, as ansible-playbook has them; the first that fits counts.
COLOURS = tuple((re.compile(pattern), colour) for pattern, colour in (
    (r"\$ ", "#ffffff"),
    (r"PLAY|TASK", "#8be9fd"),
    (r"changed:|.*changed=[1-9]", "#f1c40f"),
    (r"ok:|.*changed=0", "#2ecc71"),
    (r"", "#d5dbe3"),
))
#: What readers hear who do not see the picture.
TITLE = "A terminal session"
#: Pixels of a character and a line, of the frame, and of the bar on top.
WIDTH, HEIGHT, FRAME, BAR = 8.4, 18, 16, 28
FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"


def session_svg(text: str, title: str) -> str:
    """Return the SVG of the session *text*. Each line has a fixed width, because the fonts of viewers differ."""
    lines = text.rstrip("\n").split("\n")
    width = round(max(map(len, lines)) * WIDTH + 2 * FRAME)
    height = len(lines) * HEIGHT + BAR + 2 * FRAME
    rows = "\n".join(line_svg(line, BAR + FRAME + (at + 0.75) * HEIGHT) for at, line in enumerate(lines) if line)
    lights = "".join(f'<circle cx="{FRAME + 4 + 18 * at}" cy="{BAR / 2:g}" r="5" fill="{colour}"/>'
                     for at, colour in enumerate(("#ff5f56", "#ffbd2e", "#27c93f")))
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">
<title>{escape(title)}</title>
<rect width="{width}" height="{height}" rx="8" fill="#1b2028"/>
{lights}
<g font-family="{FONT}" font-size="14" xml:space="preserve">
{rows}
</g>
</svg>
"""


def line_svg(line: str, bottom: float) -> str:
    """Return the SVG of one line. *bottom*: the vertical position of its baseline."""
    colour = next(colour for pattern, colour in COLOURS if pattern.match(line))
    weight = ' font-weight="bold"' if line.startswith("$ ") else ""
    return (f'<text x="{FRAME}" y="{bottom:g}" fill="{colour}"{weight} textLength="{len(line) * WIDTH:.1f}">'
            f"{escape(line, quote=False)}</text>")


def main() -> None:
    """Write the SVG of the session file on the command line next to that file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path, help="the recorded session; the SVG gets its name")
    parser.add_argument("--title", default=TITLE, help="for readers who do not see the picture")
    options = parser.parse_args()
    options.text.with_suffix(".svg").write_text(
        session_svg(options.text.read_text(encoding="utf-8"), options.title), encoding="utf-8")


if __name__ == "__main__":
    main()
