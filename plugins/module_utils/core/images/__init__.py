# SPDX-License-Identifier: GPL-3.0-or-later
"""Formats of disks and archives of other programs, which images are made of."""
