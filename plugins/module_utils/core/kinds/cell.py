# SPDX-License-Identifier: GPL-3.0-or-later
"""cell: a part of a cloud with a database and conductors of its own."""

from __future__ import annotations

from ..fields import FIXED, READ, Field, Kind
from ..values import Boolean, Integer, Text


class Cell(Kind):
    """A cell of a cloud, as in Nova: a group of hosts with its own database. The API database lists all cells."""

    noun, plural = "cell", "cells"
    sample_changes = {"disabled": (False, True)}

    id = Field(Text(1, 64), "The uuid.", on=READ, sample="8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d")
    name = Field(Text(1, 255, r"[A-Za-z0-9][A-Za-z0-9_.\-]*", "may have letters, digits, and . - _ only"),
                 "The name.", on=FIXED, required=True, sample="cell2")
    database_url = Field(Text(1, 4096, r"(sqlite:///|postgresql\+psycopg://).+", "must begin with sqlite:/// or "
                              "postgresql+psycopg://"),
                         "SQLAlchemy URL of its database, as the API reaches it; its tables are made. Never reported.",
                         on="create update", required=True, secret=True)
    disabled = Field(Boolean(), "Whether it gets no new servers. Its servers stay in lists and quotas, as in Nova.",
                     default=False, sample=False)
    database = Field(Text(), "Its database without user and password.", on=READ, sample="postgresql://db2/cell2")
    hosts = Field(Integer(), "Number of its hosts.", on=READ, sample=4)
