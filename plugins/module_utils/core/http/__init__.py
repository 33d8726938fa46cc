# SPDX-License-Identifier: GPL-3.0-or-later
"""HTTP: clients of agents and clouds, and the limits of connections."""
