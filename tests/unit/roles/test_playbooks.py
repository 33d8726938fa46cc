# SPDX-License-Identifier: GPL-3.0-or-later
"""What the shipped playbooks say."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from .test_agent import play

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(("state", "said"), [("absent", "web1: gone"), ("running", "web1: ACTIVE {}")])
def test_the_summary_of_servers(tmp_path, state, said):
    """A removed server is shown as it was, which is not what it is now."""
    (book,) = yaml.safe_load((ROOT / "playbooks/servers.yml").read_text())
    made = {"results": [{"item": "web1", "server": {"status": "ACTIVE", "addresses": {}}}]}
    summary = [task for task in book["tasks"] if task["name"] == "Summary"]
    good, told = play(tmp_path, summary, server_state=state, made=made)
    assert good and f'"msg": "{said}"' in told, told
