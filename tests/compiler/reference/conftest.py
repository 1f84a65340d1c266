"""The independent implementation that many references are held against: torch's answers.

They are recorded in tests/data/torch_answers.npz, so that a machine without torch compares as well;
where torch can be imported, every such test runs a second time against torch itself. An answer is
kept with a digest of its inputs: a test whose inputs changed fails and says how to record anew.
"""

import hashlib
import importlib.util
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

Arrays = list[np.ndarray]
# torch and one tensor per input -> one tensor or several, which need not be detached
Answer = Callable[..., Any]

ANSWERS = Path(__file__).parents[2] / "data" / "torch_answers.npz"
COMMAND = "pytest tests/compiler/reference --record-torch"
_made = pytest.StashKey[dict[str, np.ndarray]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--record-torch",
        action="store_true",
        help=f"ask torch, and write its answers to {ANSWERS.name} if every test passes",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "torch_answer" in metafunc.fixturenames:
        if metafunc.config.getoption("--record-torch", False):
            sources = ["live"]
        else:
            sources = ["recorded", "live"] if importlib.util.find_spec("torch") else ["recorded"]
        metafunc.parametrize("torch_answer", sources, indirect=True)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    made = session.config.stash.get(_made, {})
    if exitstatus == pytest.ExitCode.OK and session.config.getoption("--record-torch", False):
        versions = f"torch {_torch().__version__}, numpy {np.__version__}"
        about = np.array(f"answers of {versions}, written by `{COMMAND}`")
        np.savez_compressed(ANSWERS, about=about, **{key: made[key] for key in sorted(made)})


@pytest.fixture(autouse=True)
def _inputs_of_its_own(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test draws the same inputs whichever tests ran before it."""
    if hasattr(request.module, "RNG"):
        seed = zlib.crc32(_name(request).encode())
        monkeypatch.setattr(request.module, "RNG", np.random.default_rng(seed))


@pytest.fixture(scope="session")
def recorded_answers() -> Iterator[np.lib.npyio.NpzFile]:
    with np.load(ANSWERS) as answers:
        yield answers


@pytest.fixture
def torch_answer(request: pytest.FixtureRequest) -> Callable[..., Arrays]:
    """``torch_answer(function, *inputs)``: the arrays of ``function(torch, *tensors)``."""
    source = request.node.callspec.params["torch_answer"]
    test = f"{request.path.stem}::{_name(request)}"
    calls = 0

    def answer(function: Answer, *inputs: np.ndarray) -> Arrays:
        nonlocal calls
        key, calls = f"{test} {calls}", calls + 1
        if source == "recorded":
            return _recorded(request.getfixturevalue("recorded_answers"), key, _digest(inputs))
        arrays = _live(function, inputs)
        made = request.config.stash.setdefault(_made, {})
        made[f"{key} inputs"] = np.array(_digest(inputs))
        made.update({f"{key} output {i}": array for i, array in enumerate(arrays)})
        return arrays

    return answer


def _name(request: pytest.FixtureRequest) -> str:
    """The test with its parameters, less where its answers come from."""
    return re.sub(r"\[(recorded|live)-?", "[", request.node.name).removesuffix("[]")


def _digest(inputs: tuple[np.ndarray, ...]) -> str:
    """Over single precision: the last bits of a double may depend on a machine's libm."""
    digest = hashlib.sha256()
    for array in inputs:
        digest.update(f"{array.shape}{array.dtype}".encode())
        digest.update(np.ascontiguousarray(array, np.float32).tobytes())
    return digest.hexdigest()


def _recorded(answers: np.lib.npyio.NpzFile, key: str, digest: str) -> Arrays:
    kept = str(answers[f"{key} inputs"]) if f"{key} inputs" in answers else None
    if kept != digest:
        found = "no answer" if kept is None else "an answer to other inputs"
        pytest.fail(f"{key}: {ANSWERS.name} has {found}; with torch installed, run `{COMMAND}`")
    arrays = []
    while (name := f"{key} output {len(arrays)}") in answers:
        arrays.append(answers[name])
    return arrays


def _live(function: Answer, inputs: tuple[np.ndarray, ...]) -> Arrays:
    torch = _torch()
    result = function(torch, *(torch.from_numpy(array.copy()) for array in inputs))
    tensors = result if isinstance(result, tuple) else (result,)
    return [tensor.detach().numpy() for tensor in tensors]


def _torch() -> Any:
    import torch

    torch.set_num_threads(1)
    return torch
