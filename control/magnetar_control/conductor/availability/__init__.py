# SPDX-License-Identifier: GPL-3.0-or-later
"""Automatic evacuation: hosts that have died are noticed and fenced, and their servers are evacuated."""
