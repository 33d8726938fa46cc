# SPDX-License-Identifier: GPL-3.0-or-later
"""Disks and file systems: files, volumes, images, exports."""
