# SPDX-License-Identifier: GPL-3.0-or-later
"""Tasks that take long have a thread of their own."""

import threading
from types import SimpleNamespace

from magnetar_control.conductor.periodic import periodic
from magnetar_control.conductor.periodic.periodic import Periodic, PeriodicTask


def test_no_task_waits_for_the_audit(monkeypatch):
    assert [task.name for task in periodic.TASKS if task.own_thread] == [
        "watching for dead hosts", "audit", "checking room to fail", "migrating data"]
    over, others = threading.Event(), threading.Event()
    slow = PeriodicTask("slow", 0.0, lambda _periodic: over.wait(120), one_conductor=False, own_thread=True)
    quick = PeriodicTask("quick", 0.0, lambda _periodic: others.set(), one_conductor=False)
    monkeypatch.setattr(periodic, "TASKS", (slow, quick))
    monkeypatch.setattr(periodic, "TICK", 0.01)
    made = Periodic.__new__(Periodic)
    made.conductor = SimpleNamespace(over=over)
    thread = threading.Thread(target=made.run)
    thread.start()
    try:
        assert others.wait(120)
    finally:
        over.set()
        thread.join()


def test_the_audit_rests_in_proportion():
    waits = []
    made = Periodic.__new__(Periodic)
    made.conductor = SimpleNamespace(over=SimpleNamespace(wait=waits.append))
    for seconds in (0.1, 60.0):
        made.rest_after(seconds)
    assert waits == [periodic.REST * 0.1, periodic.LONGEST_REST]
