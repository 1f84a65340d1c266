"""libtvm_ffi for the executor, and its kernels."""

import pytest
from tables import library

from cudnn_aot import _native
from cudnn_aot.runtime.plan import initialise_ffi


@pytest.fixture(scope="session")
def load():
    """Loads a function of the hand-written kernels."""
    initialise_ffi()
    return lambda symbol, version=1: _native.load_kernel(library(version), symbol)
