# SPDX-License-Identifier: GPL-3.0-or-later
"""The commands of docs/howto/try-a-thousand-hosts.md work, with twenty hosts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.modules.documents import fences

pytestmark = pytest.mark.slow


def test_the_commands_of_the_page(tmp_path: Path) -> None:
    command = tmp_path / "bin" / "magnetar"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -c "import sys; from magnetar_core.commands import main; '
                       'sys.exit(main())" "$@"\n')
    command.chmod(0o755)
    script = "\n".join(fences("docs/howto/try-a-thousand-hosts.md", "sh"))
    script = script.replace("--hosts 1000", "--hosts 20").replace("/tmp/simulation", str(tmp_path / "simulation"))
    end = "agent=$!; trap 'kill $agent; wait $agent || true' EXIT\n"
    script = script.replace("until [", end + "until [", 1)
    environment = {**os.environ, "PATH": f"{command.parent}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-ec", script], env=environment, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, check=False, timeout=300)
    assert done.returncode == 0, done.stdout
    assert '"hosts":20' in done.stdout and '"dead":2' in done.stdout and '"up":20' in done.stdout
