# SPDX-License-Identifier: GPL-3.0-or-later
"""HTTP: the clients of agents and clouds, and the limits of a server's connections."""
