# SPDX-License-Identifier: GPL-3.0-or-later
"""Drivers of the kinds of the network service."""
