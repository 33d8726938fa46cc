# SPDX-License-Identifier: GPL-3.0-or-later
"""Modules that make servers of guests of other programs."""
