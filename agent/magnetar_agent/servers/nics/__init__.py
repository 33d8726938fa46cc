# SPDX-License-Identifier: GPL-3.0-or-later
"""NICs of servers."""
