# SPDX-License-Identifier: GPL-3.0-or-later
"""The control plane on fake hosts against Nova's published samples: no area passes fewer than expected.yaml says.

``MAGNETAR_CONFORMANCE_ACCEPT=1`` takes the run's passes as the expected ones; ``MAGNETAR_CONFORMANCE_WORKLIST=FILE``
writes the differences by operation, the most frequent first.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from . import report
from .run import run
from .samples import FOLDER, Evidence
from .transport import Target

pytestmark = [
    pytest.mark.slow,  # it needs minutes
    pytest.mark.skipif(not FOLDER.is_dir(), reason=f"there is no folder {FOLDER.name} beside the checkout: "
                                                   "MAGNETAR_CONFORMANCE says where it is")]


def test_no_area_sinks(target: Target, tmp_path: Path) -> None:
    results = run(target, Evidence())
    report.write_lines(results, tmp_path / "cases.jsonl")
    print("\n".join([*report.summary(results), "", *report.worklist(results)]))
    if os.environ.get("MAGNETAR_CONFORMANCE_ACCEPT"):
        report.write_expected(results)
    if os.environ.get("MAGNETAR_CONFORMANCE_WORKLIST"):
        Path(os.environ["MAGNETAR_CONFORMANCE_WORKLIST"]).write_text("\n".join(report.worklist(results)) + "\n")
    assert results
    assert report.sunk(results, report.read_expected()) == []
