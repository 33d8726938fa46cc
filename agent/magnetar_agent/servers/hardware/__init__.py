# SPDX-License-Identifier: GPL-3.0-or-later
"""Hardware of servers: CPUs, memory, devices, firmware."""
