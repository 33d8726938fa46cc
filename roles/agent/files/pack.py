# SPDX-License-Identifier: GPL-3.0-or-later
"""Pack the agent's sources of the collection into an archive: the same archive for the same sources, byte for byte.

Run on the controller; prints ``{"archive": path, "digest": sha256 of the sources}``. Standard library only.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("agent", "control", "plugins/module_utils/core")
FILES = ("pyproject.toml", "COPYING", "requirements/agent.txt", "requirements/control.txt")


def sources(root: Path = ROOT) -> list[Path]:
    """Return the paths of all files that the wheel is built from, and of the lock files of its dependencies."""
    found = [path for folder in PACKAGES for path in (root / folder).rglob("*")
             if path.is_file() and path.suffix != ".pyc"]
    return sorted([*found, *(root / name for name in FILES)])


def digest(root: Path = ROOT) -> str:
    """Return the SHA-256 of names and contents of all sources."""
    total = hashlib.sha256()
    for path in sources(root):
        total.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return total.hexdigest()


def pack(target: Path, root: Path = ROOT) -> None:
    """Write the archive *target*, from which pip installs; it is replaced in one step."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for path in sources(root):
            entry = tarfile.TarInfo(f"magnetar/{path.relative_to(root).as_posix()}")
            content = path.read_bytes()
            entry.size, entry.mode = len(content), 0o644
            archive.addfile(entry, io.BytesIO(content))
    target.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=target.parent)
    with os.fdopen(descriptor, "wb") as file:
        file.write(gzip.compress(packed.getvalue(), mtime=0))
    Path(name).replace(target)


def main() -> int:
    """Write the archive into the user's cache unless it is there already; print its path and the digest."""
    found = digest()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    if not os.access(next(path for path in (cache, *cache.parents) if path.exists()), os.W_OK):
        cache = Path(tempfile.mkdtemp())
    archive = cache / "magnetar" / f"magnetar-{found[:16]}.tar.gz"
    if not archive.exists():
        pack(archive)
    print(json.dumps({"archive": str(archive), "digest": found}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
