# SPDX-License-Identifier: GPL-3.0-or-later
"""An object store with the S3 protocol, in a thread of the test.

It checks the signature of each request with botocore, and the hash of each body. Tests may have it fail."""

from __future__ import annotations

import contextlib
import hashlib
import ssl
import threading
from collections.abc import Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import pytest

from magnetar_core.http.s3_location import S3Location

ACCESS_KEY, SECRET_KEY, BUCKET, PREFIX, REGION = "AKIDTEST", "s3cr3t/+key", "backups", "magnetar/lab", "eu-test-1"
NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"


def signature_of(method: str, url: str, headers: dict[str, str], region: str, secret: str = SECRET_KEY) -> str:
    """Return the signature of a request as botocore computes it. *headers*: those that are signed, in lower case."""
    auth = pytest.importorskip("botocore.auth", reason="botocore is not installed")
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    request = AWSRequest(method=method, url=url, headers=headers)
    request.context["timestamp"] = headers["x-amz-date"]
    signer = auth.S3SigV4Auth(Credentials(ACCESS_KEY, secret), "s3", region)
    return str(signer.signature(signer.string_to_sign(request, signer.canonical_request(request)), request))


class FakeS3:
    """The object store. *objects*: content by key, of the bucket ``BUCKET``. *requests*: all requests as ``METHOD
    target``. *faults*: answers to the next requests, instead of the right ones: (status, code), pieces of a whole
    answer, or ``None`` for a connection that ends. *ignores*: parameters of lists that it ignores. *capacity*: bytes
    that it stores at most. *secret*: the secret key that it accepts."""

    def __init__(self, folder: Path, tls: tuple[Path, Path] | None = None) -> None:
        pytest.importorskip("botocore", reason="botocore is not installed")
        self.objects: dict[str, bytes] = {}
        self.requests: list[str] = []
        self.faults: list[tuple[int, str] | Iterable[bytes] | None] = []
        self.ignores: tuple[str, ...] = ()
        self.capacity, self.secret, self.page = 1 << 40, SECRET_KEY, 1000
        self.credentials_file = folder / "s3-credentials"
        self.credentials_file.touch(0o600)
        self.credentials_file.write_text(f"[default]\naws_access_key_id = {ACCESS_KEY}\n"
                                         f"aws_secret_access_key = {SECRET_KEY}\n")
        handler = type("Handler", (_Handler,), {"store": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*tls)
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.endpoint_url = f"{'https' if tls else 'http'}://127.0.0.1:{self.server.server_port}"

    def location(self, **fields: Any) -> S3Location:
        """Return the location of the bucket for a client."""
        return S3Location(**{"endpoint_url": self.endpoint_url, "bucket": BUCKET, "prefix": PREFIX, "region": REGION,
                             "credentials_file": str(self.credentials_file), **fields})

    def settings(self) -> dict[str, Any]:
        """Return the settings of an agent that backs up to the bucket."""
        return {"backup_s3_endpoint_url": self.endpoint_url, "backup_s3_store_bucket": BUCKET,
                "backup_s3_prefix": PREFIX, "backup_s3_region": REGION,
                "backup_s3_credentials_file": self.credentials_file}

    @contextlib.contextmanager
    def running(self) -> Iterator[FakeS3]:
        """Answer requests within the context."""
        thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.server.shutdown()
            self.server.server_close()
            thread.join(10)


class _Handler(BaseHTTPRequestHandler):
    """One request to the store."""

    protocol_version = "HTTP/1.1"
    store: FakeS3

    def log_message(self, *_args: Any) -> None:
        """Print nothing."""

    def _answer(self, status: int, body: bytes = b"", code: str = "", message: str = "") -> None:
        if code:
            body = (f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{escape(message or code)}.</Message>"
                    "</Error>").encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _serve(self) -> None:
        store, body = self.store, self.rfile.read(int(self.headers.get("content-length") or 0))
        store.requests.append(f"{self.command} {self.path}")
        if store.faults:
            fault = store.faults.pop(0)
            if isinstance(fault, tuple):
                self._answer(fault[0], code=fault[1])
            else:
                self.close_connection = True
                with contextlib.suppress(OSError):  # the client has enough
                    for piece in fault or ():
                        self.wfile.write(piece)
        elif code := self._refusal(body):
            self._answer(403 if code != "XAmzContentSHA256Mismatch" else 400, code=code)
        else:
            url = urlsplit(self.path)
            bucket, slash, key = unquote(url.path)[1:].partition("/")
            if bucket != BUCKET:
                self._answer(404, code="NoSuchBucket")
            elif not slash:
                self._bucket({name: values[0] for name, values in parse_qs(url.query).items()
                              if name not in store.ignores})
            else:
                getattr(self, f"_{self.command.lower()}")(key, body)

    do_GET = do_PUT = do_HEAD = do_DELETE = _serve

    def _refusal(self, body: bytes) -> str:
        """Return the code of the error if the request is not signed as it should be; "" if it is."""
        words = dict(word.split("=", 1) for word in self.headers["authorization"].partition(" ")[2].split(", "))
        key, _date, region, *_scope = words["Credential"].split("/")
        if key != ACCESS_KEY:
            return "InvalidAccessKeyId"
        signed = {name: self.headers[name] for name in words["SignedHeaders"].split(";")}
        url = f"http://{self.headers['host']}{self.path}"
        if region != REGION or words["Signature"] != signature_of(self.command, url, signed, region,
                                                                  self.store.secret):
            return "SignatureDoesNotMatch"
        return "" if signed["x-amz-content-sha256"] == hashlib.sha256(body).hexdigest() else "XAmzContentSHA256Mismatch"

    def _bucket(self, query: dict[str, str]) -> None:
        if self.command == "HEAD":
            self._answer(200)
            return
        prefix, delimiter, after = query.get("prefix", ""), query.get("delimiter"), query.get("continuation-token", "")
        page = min(self.store.page, int(query.get("max-keys", 1000)))
        found = set()
        for key in [key for key in self.store.objects if key.startswith(prefix)]:
            rest = key[len(prefix):]
            found.add(prefix + rest.partition("/")[0] + "/" if delimiter and delimiter in rest else key)
        rows = sorted(row for row in found if row > after)
        more = len(rows) > page
        texts = [f"<CommonPrefixes><Prefix>{escape(row)}</Prefix></CommonPrefixes>" if delimiter and row.endswith("/")
                 else f"<Contents><Key>{escape(row)}</Key></Contents>" for row in rows[:page]]
        token = f"<NextContinuationToken>{escape(rows[page - 1])}</NextContinuationToken>" if more else ""
        self._answer(200, (f"<?xml version='1.0'?><ListBucketResult xmlns='{NAMESPACE}'>"
                           f"<IsTruncated>{str(more).lower()}</IsTruncated>{''.join(texts)}{token}"
                           "</ListBucketResult>").encode())

    def _put(self, key: str, body: bytes) -> None:
        used = sum(len(content) for name, content in self.store.objects.items() if name != key)
        if used + len(body) > self.store.capacity:
            self._answer(403, code="QuotaExceeded")
            return
        self.store.objects[key] = body
        self._answer(200)

    def _get(self, key: str, _body: bytes) -> None:
        content = self.store.objects.get(key)
        if content is None:
            self._answer(404, code="NoSuchKey", message="The specified key does not exist")
        elif span := self.headers.get("range"):
            first, last = span.removeprefix("bytes=").split("-")
            if int(first) >= len(content):
                self._answer(416, code="InvalidRange")
            else:
                self._answer(206, content[int(first):int(last) + 1])
        else:
            self._answer(200, content)

    def _head(self, key: str, _body: bytes) -> None:
        self._answer(200 if key in self.store.objects else 404)

    def _delete(self, key: str, _body: bytes) -> None:
        self.store.objects.pop(key, None)
        self._answer(204)
