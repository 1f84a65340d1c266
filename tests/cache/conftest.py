"""Toy templates and stores for the cache's tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import toy_store

from cudnn_aot.cache.compile import CompilerPool


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user-cache"))  # kept logs


@pytest.fixture(scope="session", autouse=True)
def toys() -> None:
    toy_store.use_toys()


@pytest.fixture(scope="session")
def pool() -> Iterator[CompilerPool]:
    with CompilerPool(1) as shared:
        yield shared


@pytest.fixture(scope="session")
def toy_build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with one compiled host kernel and one compiled GPU kernel."""
    store = tmp_path_factory.mktemp("toys") / "store"
    toy_store.finish(toy_store.start(store, "host=2", "device=2", "--jobs", "2"))
    return store
