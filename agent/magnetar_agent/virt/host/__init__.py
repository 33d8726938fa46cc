# SPDX-License-Identifier: GPL-3.0-or-later
"""What the host can do: capabilities, KVM, devices."""
