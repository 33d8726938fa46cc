# SPDX-License-Identifier: GPL-3.0-or-later
"""The API service: Nova v2.1 with microversions, and the agents' protocol for a whole cloud."""
