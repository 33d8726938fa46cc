# SPDX-License-Identifier: GPL-3.0-or-later
"""The engines of networks, and the worker that writes changes to them."""
