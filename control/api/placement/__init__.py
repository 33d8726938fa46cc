# SPDX-License-Identifier: GPL-3.0-or-later
"""Placement's HTTP API 1.0 to 1.39, as far as it reads: hosts are its resource providers."""
