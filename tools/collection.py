# SPDX-License-Identifier: GPL-3.0-or-later
"""Builds the archive of the collection for a release, with a bill of materials (sbom.cdx.json) of the packages that the
roles install on hosts.

    python -m tools.collection dist
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from tools import layout, lock, sbom


def main() -> int:
    """Run the command line; write the archive to the given folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the archive is written")
    folder = parser.parse_args().folder.resolve()
    problems = lock.lock_problems()
    if problems:
        print("\n".join(["There is no release while the locks do not fit pyproject.toml:", *problems]), file=sys.stderr)
        return 1
    with layout.collection_copy() as copy:
        (copy / sbom.FILE).write_text(sbom.sbom_text(), encoding="utf-8")
        return subprocess.run([Path(sys.executable).with_name("ansible-galaxy"), "collection", "build",
                               "--output-path", folder, copy], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
