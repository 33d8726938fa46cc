# SPDX-License-Identifier: GPL-3.0-or-later
"""Events of the cloud's resources, for clients that follow them."""
