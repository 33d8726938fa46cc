# SPDX-License-Identifier: GPL-3.0-or-later
"""Archives of rows that are removed from the databases: a file for each table, with one JSON object per line."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Select


def append_rows(connection: Connection, ids: Sequence[str], queries: Mapping[str, Select[Any]], folder: Path) -> None:
    """Append the results of *queries*, as one JSON object per line, to files in *folder*. *queries*: by name of the
    file without ``.jsonl``. *ids*: the value of the queries' parameter ``ids``. New files are readable only by their
    owner."""
    for name, query in queries.items():
        file = os.open(folder / f"{name}.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with os.fdopen(file, "w", encoding="utf-8") as lines:
            lines.writelines(json.dumps(dict(row), default=str) + "\n"
                             for row in connection.execute(query, {"ids": list(ids)}).mappings())
            lines.flush()
            os.fsync(lines.fileno())
