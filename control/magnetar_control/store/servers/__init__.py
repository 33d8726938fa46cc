# SPDX-License-Identifier: GPL-3.0-or-later
"""Rows of servers, and of objects that belong to servers."""
