# SPDX-License-Identifier: GPL-3.0-or-later
"""Helpers that tests of several folders share."""
