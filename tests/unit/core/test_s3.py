# SPDX-License-Identifier: GPL-3.0-or-later
"""The client of object stores, against a store that checks signatures with botocore."""

from __future__ import annotations

import datetime as dt
import hashlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from magnetar_core.errors import InvalidSettings
from magnetar_core.http.s3 import S3Bucket, S3Error, sign_s3_request
from magnetar_core.http.s3_location import S3Credentials, read_s3_credentials
from tests.support import s3
from tests.support.agent.pki import Pki

#: From "Authenticating Requests: Using the Authorization Header" of the documentation of Amazon S3.
EXAMPLE = S3Credentials("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
MOMENT = dt.datetime(2013, 5, 24, tzinfo=dt.UTC)
HOST = "https://examplebucket.s3.amazonaws.com"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[s3.FakeS3]:
    with s3.FakeS3(tmp_path).running() as running:
        yield running


@pytest.fixture
def waits() -> list[float]:
    """The seconds that the client has waited."""
    return []


@pytest.fixture
def bucket(store: s3.FakeS3, waits: list[float]) -> S3Bucket:
    return S3Bucket(store.location(), wait=waits.append)


@pytest.mark.parametrize(("method", "target", "headers", "body", "signature"), [
    ("GET", "/test.txt", {"range": "bytes=0-9"}, b"",
     "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"),
    ("PUT", "/test%24file.text", {"date": "Fri, 24 May 2013 00:00:00 GMT", "x-amz-storage-class": "REDUCED_REDUNDANCY"},
     b"Welcome to Amazon S3.", "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"),
    ("GET", "/?lifecycle=", {}, b"", "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"),
    ("GET", "/?max-keys=2&prefix=J", {}, b"", "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7")])
def test_requests_are_signed_as_amazon_documents(method: str, target: str, headers: dict[str, str], body: bytes,
                                                 signature: str) -> None:
    signed = sign_s3_request(method, HOST + target, headers, hashlib.sha256(body).hexdigest(), "us-east-1", EXAMPLE,
                             MOMENT)
    assert signed["authorization"].endswith(f", Signature={signature}")


def test_a_token_of_temporary_keys_is_signed(store: s3.FakeS3) -> None:
    url = "http://store:9000/b/a%20key?list-type=2"
    signed = sign_s3_request("GET", url, {}, hashlib.sha256(b"").hexdigest(), s3.REGION,
                             S3Credentials(s3.ACCESS_KEY, s3.SECRET_KEY, "token"), MOMENT)
    authorization = signed.pop("authorization")
    assert signed["x-amz-security-token"] == "token" and "x-amz-security-token" in authorization
    assert authorization.endswith(s3.signature_of("GET", url, signed, s3.REGION))


def test_objects_are_put_read_listed_and_deleted(store: s3.FakeS3, bucket: S3Bucket) -> None:
    store.page = 2
    bucket.check_access()
    keys = [f"one/part {number} ~$&é" for number in range(5)]
    for number, key in enumerate(keys):
        bucket.put_object(key, bytes([number]) * 10)
    bucket.put_object("two/empty", b"")
    bucket.put_object("alone", b"x")
    assert all(key.startswith(f"{s3.PREFIX}/") for key in store.objects)
    assert bucket.get_object(keys[3]) == b"\3" * 10 and bucket.get_object("two/empty") == b""
    bucket.put_object(keys[3], bytes(range(10)))
    assert bucket.get_object(keys[3], 4, 3) == b"\4\5\6"
    assert list(bucket.list_objects("one/")) == keys
    assert next(bucket.list_objects("one/", limit=1)) == keys[0]
    assert list(bucket.list_folders()) == ["one", "two"]
    assert list(S3Bucket(store.location(prefix="")).list_folders()) == ["magnetar"]
    bucket.delete_object(keys[0])
    bucket.delete_object(keys[0])
    assert not bucket.has_object(keys[0]) and bucket.has_object("alone")
    for read in (lambda: bucket.get_object(keys[0]), lambda: bucket.get_object("alone", 0, 2),
                 lambda: bucket.get_object("alone", 5, 2)):
        with pytest.raises(S3Error):
            read()


def test_a_list_with_other_keys_is_refused(store: s3.FakeS3, bucket: S3Bucket) -> None:
    for key in ("one/a", "one/b", "two/a"):
        bucket.put_object(key, b"x")
    store.ignores = ("prefix",)
    assert list(bucket.list_objects("")) == ["one/a", "one/b", "two/a"]
    with pytest.raises(S3Error, match="listed the key 'magnetar/lab/one/a', which does not begin with"):
        next(bucket.list_objects("two/"))
    store.objects = {"other/folder/one/a": b"x"}
    for listed in (bucket.list_objects(""), bucket.list_folders()):
        with pytest.raises(S3Error, match="which does not begin with 'magnetar/lab/' as asked"):
            list(listed)


@pytest.mark.parametrize("token", ["", "<NextContinuationToken>same</NextContinuationToken>"])
def test_a_part_of_a_list_is_no_list(store: s3.FakeS3, bucket: S3Bucket, token: str) -> None:
    page = f"<L><IsTruncated>true</IsTruncated>{token}</L>".encode()
    store.faults = [[b"HTTP/1.1 200 OK\r\n\r\n", page]] * 5
    with pytest.raises(S3Error, match="a part of the list of objects"):
        list(bucket.list_objects("one/"))


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n"])
def test_a_longer_answer_than_expected_is_not_read(store: s3.FakeS3, bucket: S3Bucket, head: bytes) -> None:
    for read in (lambda: bucket.get_object("key", 0, 10), lambda: bucket.get_object("key", most=10)):
        store.faults = [[head, b"x" * 99]]
        with pytest.raises(S3Error, match="more than the 10 bytes"):
            read()
    store.faults = [[head[:-2] + b"Connection: close\r\n\r\n", b"x" * 98]] * 5
    if b"99" in head:
        with pytest.raises(S3Error, match=r"does not answer \(IncompleteRead"):
            bucket.get_object("key")


@pytest.mark.parametrize("head", [b"", b"HTTP/1.1 200 OK\r\n\r\n"])
def test_an_answer_that_trickles_in_ends(store: s3.FakeS3, head: bytes) -> None:
    def trickle() -> Iterator[bytes]:
        yield head or b"HTTP/1.1 200 "
        for _piece in range(300):
            time.sleep(0.1)
            yield b"x"

    store.faults, begun = [trickle()], time.monotonic()
    with pytest.raises(S3Error, match="an answer took longer than 5 s"):
        S3Bucket(store.location(), attempts=1, timeout=0.5).get_object("key")
    assert time.monotonic() - begun < 25


def test_a_404_of_a_proxy_tells_nothing_of_an_object(store: s3.FakeS3, bucket: S3Bucket) -> None:
    for fault, missing in (((404, ""), False), ((404, "NoSuchKey"), True)):
        store.faults = [fault]
        with pytest.raises(S3Error) as raised:
            bucket.get_object("key")
        assert raised.value.missing is missing


def test_failures_that_may_be_temporary_are_repeated(store: s3.FakeS3, bucket: S3Bucket, waits: list[float]) -> None:
    store.faults = [(503, "SlowDown"), None, (500, "InternalError"), (400, "RequestTimeout")]
    bucket.put_object("key", b"content")
    assert len(store.requests) == 5 and store.objects == {f"{s3.PREFIX}/key": b"content"}
    assert len(waits) == 4 and 0.5 <= waits[0] <= 1 and 4 <= waits[3] <= 8
    store.faults = [(503, "SlowDown")] * 5
    with pytest.raises(S3Error, match=r"PUT was answered with 503 SlowDown \(SlowDown\)"):
        bucket.put_object("key", b"other")
    assert store.objects == {f"{s3.PREFIX}/key": b"content"}


@pytest.mark.parametrize(("status", "code", "remedy"), [
    (403, "AccessDenied", "Check the keys in the credentials file"), (403, "QuotaExceeded", "raise the quota"),
    (403, "RequestTimeTooSkewed", "Set the clock"), (301, "PermanentRedirect", "the region"),
    (404, "NoSuchBucket", "Create the bucket")])
def test_a_refusal_is_not_repeated(store: s3.FakeS3, bucket: S3Bucket, status: int, code: str, remedy: str) -> None:
    store.faults = [(status, code)]
    with pytest.raises(S3Error, match=code) as raised:
        bucket.put_object("key", b"content")
    assert remedy in raised.value.remedy and len(store.requests) == 1


def test_a_store_that_does_not_answer_and_wrong_keys(store: s3.FakeS3, bucket: S3Bucket, waits: list[float]) -> None:
    silent = S3Bucket(store.location(endpoint_url="http://127.0.0.1:1"), attempts=3, wait=waits.append)
    with pytest.raises(S3Error, match=r"127.0.0.1:1 does not answer \(.*refused\)") as raised:
        silent.check_access()
    assert len(waits) == 2 and "reaches it" in raised.value.remedy
    with pytest.raises(S3Error, match="does not answer"):
        S3Bucket(store.location(endpoint_url=f"http://{'x' * 70}.example"), attempts=1).check_access()
    with pytest.raises(S3Error, match="404"):
        S3Bucket(store.location(bucket="none")).check_access()
    store.secret = "another"
    with pytest.raises(S3Error, match="SignatureDoesNotMatch"):
        bucket.get_object("key")
    with pytest.raises(S3Error, match="403 Forbidden"):
        bucket.check_access()


def test_certificates_are_checked(tmp_path: Path) -> None:
    pki = Pki(tmp_path / "pki")
    with s3.FakeS3(tmp_path, pki.issue("store")).running() as store:
        S3Bucket(store.location(ca_file=str(pki.ca))).put_object("key", b"content")
        assert len(store.objects) == 1
        waits: list[float] = []
        with pytest.raises(S3Error, match="The certificate of 127.0.0.1:.* is not accepted") as raised:
            S3Bucket(store.location(), wait=waits.append).put_object("key", b"other")
        assert "CA" in raised.value.remedy and not waits
        assert [*store.objects.values()] == [b"content"]


@pytest.mark.parametrize(("content", "mode", "message"), [
    ("[default]\naws_access_key_id = a\naws_secret_access_key = b\n", 0o640, "Run: chmod 600"),
    ("[default]\naws_access_key_id = a\n b\naws_secret_access_key = b\n", 0o600, "without spaces"),
    ("aws_access_key_id = a\n", 0o600, r"must have a section \[default\]"),
    ("[default]\naws_access_key_id = a\n", 0o600, r"must have a section \[default\]"), (None, 0, "cannot be read")])
def test_a_wrong_credentials_file(tmp_path: Path, content: str | None, mode: int, message: str) -> None:
    path = tmp_path / "keys"
    if content is not None:
        path.write_text(content)
        path.chmod(mode)
    with pytest.raises(InvalidSettings, match=message):
        read_s3_credentials(str(path))


def test_keys_may_have_any_characters(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.touch(0o600)
    path.write_text("[default]\naws_access_key_id=AK\naws_secret_access_key=%(x)s/+=#;y\naws_session_token=t==\n"
                    "[other]\naws_access_key_id=no\n")
    credentials = read_s3_credentials(str(path))
    assert credentials == S3Credentials("AK", "%(x)s/+=#;y", "t==")
    assert "y" not in repr(credentials).partition("AK")[2]
