# SPDX-License-Identifier: GPL-3.0-or-later
"""The databases of the control plane: one API database, one for each cell, and cell0."""
