# SPDX-License-Identifier: GPL-3.0-or-later
"""Quick requests go through a few at a time, and one that is stuck keeps nobody waiting for long."""

import asyncio

from magnetar_control.web import asgi


def test_a_few_at_a_time():
    inside, most = 0, 0

    async def one(turnstile):
        nonlocal inside, most
        async with turnstile.passed():
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0)
            inside -= 1

    async def all_():
        turnstile = asgi.Turnstile()
        for _again in range(3):  # all have left again, each once
            await asyncio.gather(*(one(turnstile) for _number in range(20)))

    asyncio.run(all_())
    assert most == asgi.QUICK


def test_what_waits_for_a_database_that_is_away_lets_others_in(monkeypatch):
    monkeypatch.setattr(asgi, "PATIENCE", 0.001)

    async def stuck(turnstile, over):
        async with turnstile.passed():
            await over.wait()

    async def all_():
        turnstile, over = asgi.Turnstile(), asyncio.Event()
        held = [asyncio.create_task(stuck(turnstile, over)) for _number in range(asgi.QUICK * 3)]
        async with asyncio.timeout(20):
            async with turnstile.passed():
                pass
        over.set()
        await asyncio.gather(*held)
        return turnstile._free._value

    assert asyncio.run(all_()) == asgi.QUICK
