# SPDX-License-Identifier: GPL-3.0-or-later
"""The type of JSON objects whose keys have no declared types."""

from __future__ import annotations

from typing import Any

Document = dict[str, Any]
Documents = list[Document]
