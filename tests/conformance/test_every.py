# SPDX-License-Identifier: GPL-3.0-or-later
"""Every microversion of each sample's range, in parts: the nightly form of ``test_conformance``."""

from __future__ import annotations

import pytest

from .outcome import BLOCKED, FAIL
from .run import run
from .samples import FOLDER, Evidence
from .transport import Target

PARTS = 6
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not FOLDER.is_dir(), reason=f"there is no folder {FOLDER.name} beside the checkout: "
                                                   "MAGNETAR_CONFORMANCE says where it is")]


@pytest.mark.parametrize("number", [pytest.param(
    number, marks=pytest.mark.deep(shard=f"every microversion, {number + 1} of {PARTS}")) for number in range(PARTS)])
def test_nothing_fails_at_any_microversion(target: Target, number: int) -> None:
    results = run(target, Evidence(), every=True, share=(number, PARTS))
    wrong = [f"{one.case.id}: {one.reason} {one.differences}" for one in results if one.outcome in (FAIL, BLOCKED)]
    assert len(results) > 100
    assert not wrong, "\n".join(wrong[:20])
