# SPDX-License-Identifier: GPL-3.0-or-later
"""What the control plane knows: one API database, one database for each cell, cell0."""
