"""Stores as settings name them."""

from __future__ import annotations

from pathlib import Path

import pytest

from cudnn_aot import errors
from cudnn_aot.cache.place import cache_store, is_url, split_places


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("a", [Path("a")]),
        ("/a/b:c", [Path("/a/b"), Path("c")]),
        ("s3://bucket/store", ["s3://bucket/store"]),
        ("https://host:8080/store:/b", ["https://host:8080/store", Path("/b")]),
        ("https://host:8080:/b", ["https://host:8080", Path("/b")]),
        ("https://host:/b", ["https://host", Path("/b")]),
        ("/a:http://[::1]:80/s:memory://m", [Path("/a"), "http://[::1]:80/s", "memory://m"]),
        ("file:///a:file:///b", ["file:///a", "file:///b"]),
    ],
)
def test_lists_of_paths_and_urls(text, want):
    places = split_places(text, "--store")
    assert list(places) == want
    assert [is_url(place) for place in places] == [isinstance(place, str) for place in want]


@pytest.mark.parametrize("text", [":", "a:", ":a", "a::b", "http://host::b", "http://host/a:"])
def test_an_entry_is_not_empty(text):
    with pytest.raises(errors.UsageError, match="--store: got .*, want folders or packs, or URLs"):
        split_places(text, "--store")


def test_the_store_of_the_user(monkeypatch, tmp_path):
    monkeypatch.setenv("CUDNN_AOT_CACHE", str(tmp_path / "mine"))
    assert cache_store() == tmp_path / "mine"
    monkeypatch.delenv("CUDNN_AOT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_store() == tmp_path / "cudnn-aot" / "store"
