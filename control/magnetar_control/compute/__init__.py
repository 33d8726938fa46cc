# SPDX-License-Identifier: GPL-3.0-or-later
"""The use cases of the cloud, one file per noun: who asks, and what for, in; documents and the core's errors out."""
