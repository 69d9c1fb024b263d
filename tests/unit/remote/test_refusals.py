"""What is no URL, no name, no library or no folder of ours is refused."""

import re
import sys
from pathlib import Path

import pytest
from imaging import write
from remotes import COMMON, pulled, pushed

from gcr.errors import LibraryMissing, UsageError
from gcr.image.remote.folder import remote_at
from gcr.image.remote.push import part_bytes, push
from gcr.image.remote.remote import Remote
from gcr.image.remote.transfer import PART, Transfer
from gcr.image.store.store import Store
from gcr.imageerrors import StoreUnusable

BAD = ["warm", "s3://", "file://host/folder", "ftp://a/b", "http://a/b", "memory:///", "s3://[", ""]


SECRET = ["s3://key:secret@bucket/p", "s3://secret@bucket", "az://a/b?sig=secret", "file:///a#secret"]


@pytest.mark.parametrize("url", BAD + SECRET)
def test_what_is_no_url_of_a_store_is_refused_and_no_secret_repeated(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        remote_at(url)
    assert "secret" not in caught.value.message + caught.value.hint


@pytest.mark.parametrize("name", ["../warm", "Warm", ""])
def test_what_is_no_name_of_an_image_is_refused(store: Store, other: Store, away: Path, name: str) -> None:
    away.mkdir()
    for act in (pushed, pulled):
        with pytest.raises(UsageError):
            act(store, away, name)


def test_without_the_library_it_is_said_how_to_get_it(
    store: Store, away: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(store, "warm", [COMMON])
    monkeypatch.setitem(sys.modules, "obstore", None)
    for act in (pushed, pulled):
        with pytest.raises(LibraryMissing) as caught:
            act(store, away)
        assert "[remote]" in caught.value.hint
    assert not away.exists()


def test_what_the_file_system_says_is_a_refusal(store: Store, away: Path) -> None:
    write(store, "warm", [COMMON])
    away.write_text("a file")
    for act in (pushed, pulled):
        with pytest.raises(StoreUnusable, match=re.escape(away.as_uri())):
            act(store, away)


def test_no_object_has_more_parts_than_s3_takes() -> None:
    for size in (1, PART, 10_000 * PART, 10_000 * PART + 1, 5 << 40):
        assert part_bytes(size) >= PART
        assert -(-size // part_bytes(size)) <= 10_000


def test_a_folder_that_others_may_enter_is_refused_with_one_that_may_be_made(store: Store, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o775)
    write(store, "warm", [COMMON])
    with pytest.raises(StoreUnusable, match="belongs to one user") as caught:
        push(store, "warm", shared.as_uri(), Transfer("push"))
    below = caught.value.hint.rpartition(" ")[2]
    assert below.startswith(f"{shared.as_uri()}/")
    push(store, "warm", below, Transfer("push"))
    assert not [*shared.glob("*.json")]


@pytest.mark.parametrize(
    ("url", "allowed", "told"),
    [
        ("s3://bucket/prefix", "", "AWS_ALLOW_HTTP=true"),
        ("s3://bucket/prefix", "true", "credentials"),
        ("file:///nowhere", "", "disk"),
    ],
)
def test_a_place_that_does_not_answer_comes_with_the_next_step(
    monkeypatch: pytest.MonkeyPatch, url: str, allowed: str, told: str
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ALLOW_HTTP", allowed)
    remote = Remote(url)
    with pytest.raises(StoreUnusable) as caught, remote._answering():
        raise ValueError("no")
    assert told in caught.value.hint
