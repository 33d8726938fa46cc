# SPDX-License-Identifier: GPL-3.0-or-later
"""Placement's HTTP API 1.0 to 1.39: hosts are its resource providers, with their devices below them."""
