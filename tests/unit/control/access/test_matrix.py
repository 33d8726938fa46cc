# SPDX-License-Identifier: GPL-3.0-or-later
"""Every route, asked by everybody about everything: each answer is what the tables say, and none tells of what is
another project's."""

import pytest

from . import matrix
from .matrix import ALLOWED, FACES, READS
from .world import World

SAID = {face: matrix.table(face) for face in FACES}
REFUSED = [(face, at) for face in FACES for at, _one in enumerate(SAID[face].get("refused", ()))]
#: Statuses after which nothing has changed.
UNCHANGED = (400, 401, 403, 404)
#: Of those about whom another project's things are asked.
CURIOUS = {"reader": ("reader", "other reader"), "manager": ("manager", "other manager"), "member": (
    "member", "other member")}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    made = World(tmp_path_factory.mktemp("world"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def routes(world):
    """Face to the routes by their keys."""
    return {face: {one.key: one for one in matrix.every(world, face)} for face in FACES}


def answered(world, asked, persona, corner):
    """What is answered and what is wrong with it. The world is as before."""
    reply, sent = matrix.ask(world, asked, persona, corner)
    if asked.method not in READS and reply.status not in UNCHANGED:
        world.restore()
    leaked = matrix.leaked(world, asked, persona, reply, sent)
    return reply, f"tells of another project's {', '.join(leaked)}" if leaked else None


@pytest.mark.parametrize("face", FACES)
def test_every_route_has_its_line(world, face):
    assert matrix.every(world, face)


@pytest.mark.parametrize(("face", "key"), [(face, key) for face in FACES for key in SAID[face]["routes"]])
def test_who_may(world, routes, face, key):
    asked, wrong = routes[face][key], []
    corners = matrix.corners(world, asked)
    for persona in world.personas.values():
        found = {}
        for corner in corners:
            reply, leak = answered(world, asked, persona, corner)
            want = matrix.expected(world, asked, persona, corner)
            found[corner] = reply.status
            good = reply.status in want or (
                want == ALLOWED and (reply.status < 400 or reply.status in asked.told.get("answers", ())))
            words = "success" if want == ALLOWED else " or ".join(map(str, sorted(want)))
            wrong += [f"{persona.name}, {corner or 'at all'}: {why}" for why in (
                leak, None if good else f"{reply.status} in place of {words}: {reply.told[-300:]}") if why]
        wrong += [f"{persona.name} learns from {found[corner]} that there is what {corner} has: it is "
                  f"{found['missing']} for what there is not"
                  for corner in corners if corner not in (None, "missing") and "missing" in found
                  and not matrix.visible(persona, corner, asked) and found[corner] != found["missing"]]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(("face", "at"), REFUSED)
def test_what_others_have_is_not_there_to_name(world, routes, face, at):
    told = dict(SAID[face]["refused"][at])
    asked = routes[face][told.pop("route")]
    names, told = CURIOUS[told.pop("who", "member")], {**asked.told, **told}
    for name in names:
        persona = world.personas[name]
        reply, leak = answered(world, asked._replace(told=told), persona, persona.project)
        missing, _leak = answered(world, asked._replace(told=matrix.nowhere(told)), persona, persona.project)
        assert 400 <= reply.status < 500 and reply.status != 409, (name, reply)
        assert reply.status == missing.status, (name, reply, missing)
        assert leak is None, (name, leak, reply)


@pytest.mark.parametrize("path", ["/v2.1/{foreign.project}/servers", "/v2/{foreign.project}/servers",
                                  "/volume/v3/{foreign.project}/volumes"])
def test_the_project_of_a_path_is_that_of_the_token(world, path):
    for name in ("member", "other member", "manager", "no project", "service"):
        persona = world.personas[name]
        reply = world.ask(persona, "GET", matrix.filled(world, path, persona, None))
        assert reply.status == 400, (name, reply)
