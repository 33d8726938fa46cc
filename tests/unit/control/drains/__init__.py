# SPDX-License-Identifier: GPL-3.0-or-later
"""Drains of hosts."""
