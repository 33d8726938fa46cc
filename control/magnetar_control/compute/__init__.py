# SPDX-License-Identifier: GPL-3.0-or-later
"""The use cases of the cloud, one file for each resource type, such as servers. They take a caller and arguments, and
return documents or raise the core's errors."""
