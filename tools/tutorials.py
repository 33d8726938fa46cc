# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs the commands of the tutorials as a reader does, each page in one shell: `./check tutorials`.

It changes the machine as `./quickstart` does, and `./quickstart --down --all` ends each page. Each command must
succeed, and the output of each block must contain what the page promises after it: its blocks of text, what it quotes,
and `changed=0`. After a failure the machine stays as it is, for inspection.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
#: The pages in the order in which readers follow them.
PAGES = ("one-host", "live-migration", "cloud-with-ovn")
_FENCE = re.compile(r"^```(sh|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PROMISE = re.compile(r'"([^"\n]+)"|`(changed=\d+)`')


class TutorialStep(NamedTuple):
    """A block of commands, and the texts that its output must contain."""

    commands: str
    promises: tuple[str, ...]


def read_steps(page: str) -> list[TutorialStep]:
    """Return the steps of a page in Markdown."""
    steps: list[TutorialStep] = []
    blocks = list(_FENCE.finditer(page))
    ends = [block.start() for block in blocks[1:]] + [len(page)]
    for block, end in zip(blocks, ends, strict=True):
        prose = page[block.end():end]
        promises = tuple(quoted or changed for quoted, changed in _PROMISE.findall(prose))
        if block[1] == "sh":
            steps.append(TutorialStep(block[2], promises))
        else:  # what the commands before it print
            steps[-1] = TutorialStep(steps[-1].commands, (*steps[-1].promises, block[2].strip(), *promises))
    return steps


def run_steps(steps: Sequence[TutorialStep], folder: Path) -> list[str]:
    """Run the steps in one shell, in *folder*, and print their output. Return the errors; the shell ends at the first
    command that fails.
    """
    with tempfile.TemporaryDirectory() as place:
        outputs = [Path(place) / f"{number}.txt" for number, _step in enumerate(steps, 1)]
        script = "set -eo pipefail\n" + "".join(
            f"{{ :\n{step.commands}}} >{output} 2>&1\n" for step, output in zip(steps, outputs, strict=True))
        status = subprocess.run(["bash", "-c", script], check=False, cwd=folder, stdin=subprocess.DEVNULL).returncode
        problems: list[str] = []
        for number, (step, output) in enumerate(zip(steps, outputs, strict=True), 1):
            if not output.exists():
                break
            text = output.read_text(encoding="utf-8", errors="replace")
            print(f"--- step {number}\n{step.commands}--- prints\n{text}", flush=True)
            problems += [f"step {number} does not print {promise!r}" for promise in step.promises
                         if promise not in text]
        if status:
            problems.append(f"step {sum(output.exists() for output in outputs)} ended with status {status}; "
                            "./quickstart --down --all removes what is there")
    return problems


def run_tutorials(pages: Sequence[str] = PAGES) -> bool:
    """Run the tutorials *pages*. Return whether each command succeeded with the promised output."""
    good = True
    for page in pages:
        began = time.monotonic()
        print(f"--- {page}", flush=True)
        problems = run_steps(read_steps((ROOT / f"docs/start/{page}.md").read_text(encoding="utf-8")), ROOT)
        for problem in problems:
            print(f"docs/start/{page}.md: {problem}")
        print(f"--- {page}: {'FAILED' if problems else 'as it says'} ({time.monotonic() - began:.0f} s)", flush=True)
        good = good and not problems
    return good


if __name__ == "__main__":
    sys.exit(not run_tutorials(sys.argv[1:] or PAGES))
