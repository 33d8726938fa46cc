# SPDX-License-Identifier: GPL-3.0-or-later
"""API processes that share one port: the process that keeps them, and what they ask each other."""
