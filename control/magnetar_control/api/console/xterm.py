# SPDX-License-Identifier: GPL-3.0-or-later
"""xterm.js for browsers. npm's package has one script; Debian's has modules for Node.js, of which one is made here."""

from __future__ import annotations

import json
import os.path
import re
from functools import lru_cache
from pathlib import Path

#: Paths of what is served.
XTERM = ("/xterm.js", "/xterm.css")
_REQUIRED = re.compile(r"""\brequire\(["'](\.[^"']+)["']\)""")
#: Debian's style sheet, which another package has.
STYLES = Path("/usr/share/javascript/xterm/xterm.css")
_HEAD = """(function () {
const modules = {}, made = {};
function load(name) {
  if (!(name in made)) {
    const module = made[name] = {exports: {}};
    modules[name]?.call(module.exports, module, module.exports, (other) => load(modules[name].others[other]));
  }
  return made[name].exports;
}
"""
_TAIL = "window.Terminal = load(%s).Terminal;\n}());\n"


def terminal(folder: Path) -> bytes | None:
    """The script, after which ``window.Terminal`` is there; ``None`` when it is not installed."""
    first, whole = folder / "lib/public/Terminal.js", folder / "lib/xterm.js"
    if first.is_file():  # Debian's; its xterm.js only requires that
        return _joined(first, first.stat().st_mtime_ns)
    return whole.read_bytes() if whole.is_file() else None


def stylesheet(folder: Path) -> bytes | None:
    """The style sheet; ``None`` when it is not installed."""
    for path in (folder / "css/xterm.css", folder / "xterm.css", STYLES):
        if path.is_file():
            return path.read_bytes()
    return None


@lru_cache(maxsize=1)
def _joined(first: Path, _changed: int) -> bytes:
    """The module *first* and all that it requires, as one script."""
    folder, found = first.parents[1], {}
    waiting = [first]
    while waiting:
        path = waiting.pop()
        if path in found or not path.is_relative_to(folder) or not path.is_file():
            continue
        text = path.read_text(encoding="utf-8")
        others = {name: _module(path, name) for name in _REQUIRED.findall(text)}
        waiting.extend(others.values())
        name = json.dumps(os.path.relpath(path, folder))
        known = json.dumps({one: os.path.relpath(at, folder) for one, at in others.items()})
        found[path] = (f"modules[{name}] = function (module, exports, require) {{\n{text}\n}};\n"
                       f"modules[{name}].others = {known};\n")
    return (_HEAD + "".join(found.values()) + _TAIL % json.dumps(os.path.relpath(first, folder))).encode()


def _module(path: Path, name: str) -> Path:
    """The module that *path* calls *name*."""
    return Path(os.path.normpath(path.parent / f"{name.removesuffix('.js')}.js"))
