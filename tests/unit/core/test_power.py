# SPDX-License-Identifier: GPL-3.0-or-later
"""The table of power states and vm_states, and the ways between power states."""

from __future__ import annotations

import itertools

import pytest

from magnetar_core import power
from magnetar_core.actions import ACTIONS
from magnetar_core.power import (
    ACTIVE,
    CRASHED,
    ERROR,
    MISSING,
    OFF,
    OFFLOADED,
    PAUSED,
    POWERS,
    RESCUED,
    RESIZED,
    RUNNING,
    SHELVED,
    STEPS,
    STOPPED,
    SUSPENDED,
    VM_STATES,
    WANTED,
)


def test_numbers_are_novas() -> None:
    assert {word: power.power_number(word) for word in POWERS} == {
        RUNNING: 1, PAUSED: 3, OFF: 4, CRASHED: 6, SUSPENDED: 7, MISSING: 0}
    assert power.power_number("pending") == 0
    assert [power.power_of_number(number) for number in (1, 3, 4, 6, 7, 0, 99)] == [
        RUNNING, PAUSED, OFF, CRASHED, SUSPENDED, MISSING, MISSING]


def test_power_state_and_vm_state_agree() -> None:
    for word, row in POWERS.items():
        assert row.vm_state is None or word in VM_STATES[row.vm_state].powers
    assert POWERS[CRASHED].vm_state == STOPPED


@pytest.mark.parametrize(("vm_state", "number", "word"), [
    (ACTIVE, 4, RUNNING), (STOPPED, 6, OFF), (RESCUED, 4, RUNNING), (PAUSED, 3, PAUSED),
    (ERROR, 6, OFF), (ERROR, 1, RUNNING), (ERROR, 0, OFF), (RESIZED, 7, SUSPENDED), (SHELVED, 4, SHELVED),
    (OFFLOADED, 4, SHELVED)])
def test_power_that_is_wanted(vm_state: str, number: int, word: str) -> None:
    assert power.desired_power(vm_state, number) == word


@pytest.mark.parametrize(("have", "want"), list(itertools.permutations(WANTED, 2)))
def test_actions_lead_from_each_power_state_to_each_other(have: str, want: str) -> None:
    at = have
    for key, _verb in power.actions_between(have, want):
        assert POWERS[at].vm_state in ACTIONS[key].states
        at = (ACTIONS[key].want or {})["power"]
        assert ACTIONS[key].after == POWERS[at].vm_state
    assert at == want


@pytest.mark.parametrize("other", WANTED)
def test_the_ways_to_shelved_and_back(other: str) -> None:
    assert power.actions_between(other, SHELVED) == (("shelve", "shelve"),)
    first, *rest = power.actions_between(SHELVED, other)
    assert first == ("unshelve", "unshelve") and tuple(rest) == power.actions_between(RUNNING, other)
    assert POWERS[other].vm_state in ACTIONS["shelve"].states and ACTIONS["unshelve"].after == ACTIVE


def test_agent_does_at_once_what_needs_two_actions() -> None:
    assert power.verbs_between(OFF, PAUSED) == power.verbs_between(SUSPENDED, PAUSED) == ("start_paused",)
    assert power.verbs_between(PAUSED, SUSPENDED) == ("save",)
    assert power.verbs_between(OFF, SUSPENDED) == ("start", "save")
    assert power.verbs_between(PAUSED, OFF) == ("resume", "stop")
    assert all(power.verbs_between(word, word) == () for word in WANTED)


def test_each_step_is_an_action_that_wants_its_power_state() -> None:
    assert {key for key, row in ACTIONS.items() if row.want} == {key for key, _verb in STEPS.values()}


def test_status_words() -> None:
    assert {power.status_word(ACTIVE, f"reboot{word}_hard") for word in ("ing", "_pending",
                                                                         "_started")} == {"HARD_REBOOT"}
    assert {power.status_word(ACTIVE, f"reboot{word}") for word in ("ing", "_pending", "_started")} == {"REBOOT"}
    assert (power.status_word(PAUSED, "pausing"), power.status_word("strange")) == ("PAUSED", "UNKNOWN")
    words = ("rebuilding", "rebuild_block_device_mapping", "rebuild_spawning")
    assert power.states_of_status("REBUILD") == [(state, words) for state in (ACTIVE, STOPPED, ERROR)]
    assert power.states_of_status("SHUTOFF") == [(STOPPED, None)] and not power.states_of_status("STRANGE")
    assert power.tasks_with_status(RESIZED) == ("resize_reverting",) and power.tasks_with_status(SUSPENDED) == ()


def test_status_words_lead_back() -> None:
    for vm_state, row in VM_STATES.items():
        assert (vm_state, None) in power.states_of_status(row.status)
        for task, word in row.tasks.items():
            assert power.status_word(vm_state, task) == word
