# SPDX-License-Identifier: GPL-3.0-or-later
"""Audit periods: the hours, days, months or years (``instance_usage_audit_period``) of usage reports. Moments are in
UTC."""

from __future__ import annotations

from datetime import datetime, timedelta


def last_period(unit: str, moment: datetime) -> tuple[datetime, datetime]:
    """Return (begin, end) of the last audit period that ended before *moment*. *unit*: hour, day, month or year."""
    end = _beginning(unit, moment)
    if end == moment:
        end = _earlier(unit, end)
    return _earlier(unit, end), end


def current_period(unit: str, moment: datetime) -> tuple[datetime, datetime]:
    """Return (begin, end) of the current audit period so far: the begin of the period that contains *moment*, and
    *moment* itself. *unit*: hour, day, month or year."""
    return _beginning(unit, moment), moment


def _beginning(unit: str, moment: datetime) -> datetime:
    day = moment.replace(hour=0, minute=0, second=0, microsecond=0)
    return {"hour": moment.replace(minute=0, second=0, microsecond=0), "day": day, "month": day.replace(day=1),
            "year": day.replace(month=1, day=1)}[unit]


def _earlier(unit: str, moment: datetime) -> datetime:
    """Return the beginning of the audit period that ends at *moment*. *unit*: hour, day, month or year."""
    if unit == "year":
        return moment.replace(year=moment.year - 1)
    if unit == "month":
        return (moment - timedelta(days=1)).replace(day=1)
    return moment - timedelta(**{f"{unit}s": 1})
