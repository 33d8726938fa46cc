# SPDX-License-Identifier: GPL-3.0-or-later
"""The routes of the Compute API, one file for each resource type, such as servers."""
