# SPDX-License-Identifier: GPL-3.0-or-later
"""Rows of servers, and of what belongs to them."""
