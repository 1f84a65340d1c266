"""Fixtures of the GPU tests: a store built elsewhere, one device, one test at a time on it.

The store comes from ``CUDNN_AOT_TEST_STORE``; nothing is compiled here.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from filelock import FileLock

from cudnn_aot import runtime
from cudnn_aot.cache.reader import StoreReader

TARGET = "h200"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(scope="session")
def torch():
    return pytest.importorskip("torch", reason="GPU tests take buffers and references from torch")


@pytest.fixture(scope="session")
def store_path() -> Path:
    path = os.environ.get("CUDNN_AOT_TEST_STORE")
    if not path:
        pytest.fail("set CUDNN_AOT_TEST_STORE to a store built with --target h200")
    return Path(path)


@pytest.fixture(scope="session")
def store(store_path, torch):
    if not torch.cuda.is_available():
        pytest.fail("no CUDA device; run these with -m gpu on a GPU host only")
    return runtime.open(store_path, target=TARGET)


@pytest.fixture(scope="session")
def reader(store_path):
    return StoreReader(store_path)


@pytest.fixture(scope="session", autouse=True)
def one_user_of_the_gpu(tmp_path_factory):
    with FileLock("/tmp/cudnn_aot_gpu_tests.lock"):
        yield
