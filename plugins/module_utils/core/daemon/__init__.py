# SPDX-License-Identifier: GPL-3.0-or-later
"""Helpers of serving processes: garbage collection, and reports on a signal."""
