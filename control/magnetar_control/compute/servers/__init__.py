# SPDX-License-Identifier: GPL-3.0-or-later
"""Use cases about servers and their actions."""
