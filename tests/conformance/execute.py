# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs the cases of the samples: makes what they need, sends, waits until it is done, compares."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from .bind import bind, path, query
from .compare import Difference, absent, differences, expectation, short
from .fixtures import PATIENCE, Blocked, Fixtures
from .outcome import ABSENT, BLOCKED, FAIL, NOBODY, NOT_APPLICABLE, PASS, Absence, Result, fault, headers
from .plan import Case
from .samples import UNLIMITED, Evidence, Operation, Sample, minor
from .scenes import Scene, prepare
from .transport import Cloud, Exchange

#: Operations whose answers name no microversion.
UNVERSIONED = ("versions.root", "versions.v2", "versions.root.multi")
#: What creating makes: path, key of the answer, name of the id, path of the removal.
MADE = {
    "/servers": ("server", "id", "/servers/{}"),
    "/flavors": ("flavor", "id", "/flavors/{}"),
    "/os-keypairs": ("keypair", "name", "/os-keypairs/{}"),
    "/os-aggregates": ("aggregate", "id", "/os-aggregates/{}"),
    "/os-server-groups": ("server_group", "id", "/os-server-groups/{}"),
}
#: Pages that are followed at most: a list of usage has one for each server that the run has made.
PAGES = 300
#: Actions that leave an image behind.
IMAGED = ("createImage", "createBackup")


class Runner:
    """Keeps the exchanges of one run: a request's sample and its answer's sample are two cases of one exchange."""

    def __init__(self, evidence: Evidence, cloud: Cloud, fx: Fixtures) -> None:
        self.evidence = evidence
        self.cloud = cloud
        self.fx = fx
        self.absence = Absence(cloud)
        self._exchanges: dict[tuple[str, int], Exchange | Blocked] = {}
        self._served: dict[str, bool] = {}
        #: What was wrong after an accepted request, by its exchange; and operations that did not end.
        self._after: dict[int, Difference] = {}
        self._endless: set[str] = set()
        #: The server that an exchange was about.
        self._focus: dict[int, str] = {}

    def run(self, case: Case) -> Result:
        """One case of a sample."""
        sample = case.sample
        if case.reason or sample is None:
            return Result(case, NOT_APPLICABLE, case.reason)
        operation = self.evidence.operations[sample.operation]
        if sample.replay != "gone" and not self.served(operation):
            return Result(case, ABSENT)
        try:
            answer = self.exchange(case, sample, operation)
        except Blocked as why:
            return Result(case, BLOCKED, str(why))
        if sample.status in (410, *range(400)) and self.absence(answer, operation.action):
            return Result(case, ABSENT, exchange=answer)
        found = self.twin(case, answer) if case.kind == "twin" else list(self.judge(case, sample, operation, answer))
        return Result(case, FAIL if found else PASS, differences=found, exchange=answer)

    def served(self, operation: Operation) -> bool:
        """Whether the API knows the operation at its newest microversion: asked about a thing that is not there."""
        if operation.id not in self._served:
            body: Any = {operation.action: None} if operation.action else {}
            answer = self.cloud.compute(operation.method, filled(operation),
                                        None if operation.method in ("GET", "DELETE") else body,
                                        version=min(operation.max, self.cloud.target.maximum))
            self._served[operation.id] = not self.absence(answer, operation.action)
        return self._served[operation.id]

    # ---- sending

    def exchange(self, case: Case, sample: Sample, operation: Operation) -> Exchange:
        """The exchange of a case, made once."""
        request: Sample | None = sample
        if sample.direction == "response":
            request = self.evidence.request_of(sample, case.version)
        key = (request.file if request else sample.file, case.version)
        if key not in self._exchanges:
            mark = self.fx.made
            try:
                self._exchanges[key] = self.send(sample, request, operation, case.version)
            except Blocked as why:
                self._exchanges[key] = why
            finally:
                self.fx.release(mark)
        there = self._exchanges[key]
        if isinstance(there, Blocked):
            raise there
        return self.cloud.noted(there)

    def send(self, sample: Sample, request: Sample | None, operation: Operation, version: int) -> Exchange:
        """Prepare, bind, send, and wait for what follows."""
        status = sample.status if sample.direction == "response" else (request or sample).status
        scene = Scene(self.fx, operation, version, sample, (request or sample).file, status)
        prepare(scene)
        body = bind(scene, self.evidence.body(request.file)) if request else None
        persona = "member" if "non-admin" in sample.file else "admin"
        answer = self.cloud.compute(operation.method, path(scene) + query(scene), body, version=version,
                                    persona=persona)
        if answer.status < 300 and operation.method != "GET":
            self.follow(scene, operation, answer)
        for one in self.pages(answer, version):
            self._after[id(answer)] = one
        self._focus[id(answer)] = str(scene.known.get("server", ""))
        return answer

    def follow(self, scene: Scene, operation: Operation, answer: Exchange) -> None:
        """Wait for what the request began, and note what it made."""
        if "spent" in scene.known:
            self.ended(scene.known["spent"], operation, answer)
        if operation.action in IMAGED:
            self.fx.undo("images", self.fx.remove_images)
        made = MADE.get(operation.path)
        if made and operation.method == "POST" and isinstance(answer.body, dict):
            key, name, place = made
            inner = answer.body.get(key)
            if inner:
                self.fx.undo(key, lambda: self.remove(key, place.format(inner[name])))
            if operation.path == "/servers":
                self.fx.undo("servers", self.sweep)

    def ended(self, server_id: str, operation: Operation, answer: Exchange) -> None:
        """Wait until nothing goes on with a server; note when that does not come, or ends in ERROR."""
        status = self.fx.settle(server_id, PATIENCE if operation.id in self._endless else None)
        if status != "ACTIVE":
            self.fx.forget("server reused")
        if status == "STUCK":
            self._endless.add(operation.id)
            self._after[id(answer)] = Difference("#server", "afterwards", "an end of the work", "the server is stuck")
        elif status == "ERROR" and operation.action != "os-resetState":
            server = self.cloud.compute("GET", f"/servers/{server_id}").body["server"]
            self._after[id(answer)] = Difference("#server", "afterwards", "success",
                                                 f"ERROR: {short(server.get('fault', {}).get('message'))}")

    def remove(self, key: str, place: str) -> None:
        """Remove what a case made."""
        if key == "server":
            server = place.rpartition("/")[2]
            if server not in self.fx.stuck:
                self.fx.settle(server)
            self.fx.delete(server)
        else:
            self.cloud.compute("DELETE", place)

    def sweep(self) -> None:
        """Remove the servers that no fixture knows (one request may have made several)."""
        for one in (self.cloud.compute("GET", "/servers").body or {}).get("servers", []):
            if one["id"] not in self.fx.servers:
                self.remove("server", f"/servers/{one['id']}")

    # ---- judging

    def judge(self, case: Case, sample: Sample, operation: Operation, answer: Exchange) -> Iterator[Difference]:
        """Every difference between the answer and what the sample says."""
        versioned = operation.id not in UNVERSIONED
        if sample.status >= 400:
            yield from fault(answer, (sample.status,), versioned)
            return
        statuses = self.statuses(sample, operation, case.version)
        if answer.status not in statuses:
            yield Difference("#status", "status", " or ".join(map(str, statuses)),
                             f"{answer.status} {short(answer.message)}")
            return
        yield from headers(answer, versioned)
        has = "location" in answer.headers
        if sample.location and not has:
            yield Difference("#header/location", "header", "the thing's URL", "nothing")
        if sample.direction == "request":
            if id(answer) in self._after:
                yield self._after[id(answer)]
            if operation.row.get("response") is None and answer.raw and not sample.response:
                yield Difference("", "body", "an empty body", short(answer.raw[:80]))
            return
        if answer.body is None:
            yield Difference("", "body", "a JSON document", short(answer.raw[:80]))
            return
        expected = expectation(self.evidence, sample, case.version, self.prefixes(operation), self._focus[id(answer)])
        yield from differences(expected, answer.body)
        if operation.method == "GET" and id(answer) in self._after:
            yield self._after[id(answer)]

    def statuses(self, sample: Sample, operation: Operation, version: int) -> tuple[int, ...]:
        """The status codes of success at *version*: the table's; the sample's own where the table says none."""
        found = []
        for row in operation.row.get("success") or []:
            if not isinstance(row, dict):
                found.append(int(row))
                continue
            low, high = minor(row.get("min"), 1), minor(row.get("max"), UNLIMITED)
            if low <= version <= high:
                found.append(int(row["code"]))
        return tuple(found) if found else (sample.status,)

    def prefixes(self, operation: Operation) -> dict[str, str]:
        """How links begin, by their relation."""
        if operation.area == "versions":
            return {}
        base = self.cloud.target.url.rstrip("/")
        return {"self": f"{base}/v2.1", "bookmark": base}

    def pages(self, answer: Exchange, version: int) -> Iterator[Difference]:
        """Follow the links to next pages until they end."""
        seen: set[str] = set()
        link = following(answer.body)
        while link:
            if len(seen) == PAGES:
                return
            if link in seen:
                yield Difference("/*_links", "pages", "an end", f"{len(seen)} pages and {link}")
                return
            seen.add(link)
            with contextlib.suppress(ValueError):
                link_path = link[link.index("/v2.1") + len("/v2.1"):]
                there = self.cloud.compute("GET", link_path, version=version)
                if there.status != 200:
                    yield Difference("/*_links", "pages", "200", f"{there.status} for {link}")
                    return
                link = following(there.body)
                continue
            yield Difference("/*_links", "pages", "a URL below /v2.1", link)
            return

    def twin(self, case: Case, answer: Exchange) -> list[Difference]:
        """One microversion earlier: the request is refused, or the new keys are not there."""
        if case.direction == "request":
            return fault(answer, (400,))
        if answer.status >= 300:
            return [Difference("#status", "status", "200", f"{answer.status} {short(answer.message)}")]
        return absent(list(case.extra["new"]), answer.body)


def filled(operation: Operation, id: str = NOBODY) -> str:
    """The operation's path with things that are not there."""
    path = operation.path
    if path.startswith("(service root)"):
        return "(root)" + path.removeprefix("(service root)").strip().replace("/v2 or ", "").replace(
            "{anything else}", "magnetar")
    if path == "/v2.1/":
        return f"(root){path}"
    if path.startswith("/os-aggregates/") and id == NOBODY:
        id = "999999"
    parts = [id if part in ("{server_id}", "{id}") and place == 2 else NOBODY if part.startswith("{") else part
             for place, part in enumerate(path.split("/"))]
    return "/".join(parts)


def following(body: Any) -> str:
    """The link to the next page."""
    if isinstance(body, dict):
        for key, value in body.items():
            if key.endswith("links") and isinstance(value, list):
                for link in value:
                    if isinstance(link, dict) and link.get("rel") == "next":
                        return str(link.get("href"))
    return ""
