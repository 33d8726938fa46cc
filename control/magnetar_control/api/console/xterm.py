# SPDX-License-Identifier: GPL-3.0-or-later
"""xterm.js for browsers. npm's package has one script; Debian's has modules for Node.js, which this module joins."""

from __future__ import annotations

import json
import os.path
import re
from functools import lru_cache
from pathlib import Path

#: Paths that are served.
XTERM = ("/xterm.js", "/xterm.css")
_REQUIRED = re.compile(r"""\brequire\(["'](\.[^"']+)["']\)""")
#: Debian's style sheet, from another package.
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


def terminal_script(folder: Path) -> bytes | None:
    """Return the JavaScript of xterm.js, which defines ``window.Terminal``; ``None`` if *folder* does not contain
    xterm.js."""
    first, whole = folder / "lib/public/Terminal.js", folder / "lib/xterm.js"
    if first.is_file():  # Debian's; its xterm.js only requires this module
        return _joined(first, first.stat().st_mtime_ns)
    return whole.read_bytes() if whole.is_file() else None


def terminal_stylesheet(folder: Path) -> bytes | None:
    """Return the style sheet of xterm.js, from *folder* or from its usual place in the operating system; ``None`` if
    neither place has the style sheet."""
    for path in (folder / "css/xterm.css", folder / "xterm.css", STYLES):
        if path.is_file():
            return path.read_bytes()
    return None


@lru_cache(maxsize=1)
def _joined(first: Path, _changed: int) -> bytes:
    """Return one script that contains the CommonJS module *first* and all modules that it requires. *_changed*: the
    modification time of *first*. It is only a part of the cache key, so that this cached function loads a changed file
    again."""
    folder, modules = first.parents[1], {}
    waiting = [first]
    while waiting:
        path = waiting.pop()
        if path in modules or not path.is_relative_to(folder) or not path.is_file():
            continue
        text = path.read_text(encoding="utf-8")
        required = {name: _module(path, name) for name in _REQUIRED.findall(text)}
        waiting.extend(required.values())
        name = json.dumps(os.path.relpath(path, folder))
        required_names = json.dumps({module_name: os.path.relpath(at, folder) for module_name, at in required.items()})
        modules[path] = (f"modules[{name}] = function (module, exports, require) {{\n{text}\n}};\n"
                         f"modules[{name}].others = {required_names};\n")
    return (_HEAD + "".join(modules.values()) + _TAIL % json.dumps(os.path.relpath(first, folder))).encode()


def _module(path: Path, name: str) -> Path:
    """Return the path of the module that ``require(name)`` loads in the module *path*."""
    return Path(os.path.normpath(path.parent / f"{name.removesuffix('.js')}.js"))
