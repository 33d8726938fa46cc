# SPDX-License-Identifier: GPL-3.0-or-later
"""The bill of materials has each package of the locks."""

from __future__ import annotations

import json

import yaml

from tools import lock, sbom


def test_it_lists_each_pin_with_its_hashes_and_its_licence():
    made = json.loads(sbom.sbom_text())
    assert (made["bomFormat"], made["specVersion"]) == ("CycloneDX", "1.6")
    pins = lock.read_lock("agent") | lock.read_lock("control")
    listed = {one["name"]: one for one in made["components"]}
    assert sorted(listed) == sorted(pins)
    for name, pin in pins.items():
        one = listed[name]
        assert (one["version"], one["purl"]) == (pin.version, f"pkg:pypi/{name}@{pin.version}")
        assert sorted(hashed["content"] for hashed in one["hashes"]) == sorted(pin.hashes)
        assert {hashed["alg"] for hashed in one["hashes"]} == {"SHA-256"}
    told = {name for name, one in listed.items() if one.get("licenses")}
    assert {"fastapi", "jinja2", "sqlalchemy"} <= told


def test_it_says_whose_it_is_and_who_needs_what():
    made = json.loads(sbom.sbom_text())
    galaxy = yaml.safe_load((lock.ROOT / "galaxy.yml").read_text())
    release = made["metadata"]["component"]
    assert (release["group"], release["name"], release["version"]) == ("magnetar", "compute", galaxy["version"])
    needs = {one["ref"]: one.get("dependsOn", []) for one in made["dependencies"]}
    assert {"fastapi", "psycopg", "setuptools"} <= {*needs["magnetar.compute"]}
    assert "starlette" not in needs["magnetar.compute"] and "starlette" in needs["fastapi"]


def test_no_licence_is_told_of_another_version():
    assert sbom.declared_licences("jinja2", "0.1") == [] == sbom.declared_licences("no-such-package", "1")
