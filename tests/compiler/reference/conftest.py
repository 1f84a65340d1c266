"""The independent implementation that many references are held against."""

from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def torch() -> ModuleType:
    """torch on the CPU, one thread; without it, the test that asks for it is skipped."""
    module = pytest.importorskip("torch", reason="torch, the independent implementation, is absent")
    module.set_num_threads(1)
    return module
