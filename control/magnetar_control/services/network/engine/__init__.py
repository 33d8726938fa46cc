# SPDX-License-Identifier: GPL-3.0-or-later
"""Engines of networks, and the worker that writes to them."""
