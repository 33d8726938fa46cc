# SPDX-License-Identifier: GPL-3.0-or-later
"""Use cases about flavors and the hardware that they ask for."""
