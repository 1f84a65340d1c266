"""Graphs for the host's own processor, and one store that all tests of this folder compile into."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import cudnn_aot as cudnn
from cudnn_aot.compiler.planning import manifest
from cudnn_aot.compiler.planning.engine import Refusal
from cudnn_aot.recipes.gemm import host

SETTINGS = (
    "CUDNN_AOT_STORE",
    "CUDNN_AOT_PIN",
    "CUDNN_AOT_TARGET",
    "CUDNN_AOT_FORBID_COMPILE",
    "CUDNN_AOT_OPT_IN_ENGINES",
)


@pytest.fixture(scope="session")
def overlay(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("program") / "store"


@pytest.fixture(autouse=True)
def settings(monkeypatch: pytest.MonkeyPatch, overlay: Path) -> None:
    for name in SETTINGS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CUDNN_AOT_CACHE", str(overlay))


class Linear:
    """Y = relu(A @ B + bias) in float32, its buffers, and whether a call got it right."""

    def __init__(
        self,
        name: str = "linear",
        target: str | None = "cpu",
        io: str = "FLOAT",
        rows: int = 4,
        **kwargs,
    ) -> None:
        self.graph = g = cudnn.pygraph(name, io, "FLOAT", "FLOAT", target=target, **kwargs)
        self.a, self.b = g.tensor([1, rows, 8], name="A"), g.tensor([1, 8, 16], name="B")
        self.bias = g.tensor([1, 1, 16], name="bias")
        self.y = g.relu(g.bias(g.matmul(self.a, self.b), self.bias))
        self.y.set_output(True).set_name("Y")
        random = np.random.default_rng(7)
        self.buffers = [
            random.standard_normal(tensor.dim, np.float32) for tensor in (self.a, self.b, self.bias)
        ]
        self.result = np.full((1, rows, 16), np.nan, np.float32)

    def pack(self) -> dict:
        return dict(
            zip((self.a, self.b, self.bias, self.y), [*self.buffers, self.result], strict=True)
        )

    def check(self) -> None:
        """The result is right; it is cleared for the next call."""
        a, b, bias = self.buffers
        np.testing.assert_allclose(self.result, np.maximum(a @ b + bias, 0), rtol=1e-4, atol=1e-5)
        self.result.fill(np.nan)


@pytest.fixture
def empty_overlay(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Nothing is stored: what is tested is planning."""
    path = tmp_path / "cache" / "store"
    monkeypatch.setenv("CUDNN_AOT_CACHE", str(path))
    return path


@pytest.fixture
def linear() -> type[Linear]:
    return Linear


class Declining(host.GemmHostBlocked):
    """Takes every graph, and finds only when lowering that it cannot serve it."""

    name = "gemm.host.declining"

    def lower(self, facts, knobs, target):
        return Refusal("it has a bad day")


class Noted(host.GemmHostBlocked):
    name = "gemm.host.noted"
    behavior_notes = frozenset({cudnn.behavior_note.RUNTIME_COMPILATION})
    numerical_notes = frozenset({cudnn.numerical_note.TENSOR_CORE})


@pytest.fixture
def three_engines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Three engines for the host: one that declines late, the real one, and one with notes."""
    monkeypatch.setattr(host, "Declining", Declining, raising=False)
    monkeypatch.setattr(host, "Noted", Noted, raising=False)
    family = next(family for family in manifest.FAMILIES if family.name == "gemm")
    real = next(slot for slot in family.engines if slot.name == "gemm.host.blocked")
    slots = (
        manifest.EngineSlot(97, "gemm.host.declining", "gemm.host:Declining"),
        real,
        manifest.EngineSlot(98, "gemm.host.noted", "gemm.host:Noted"),
    )
    others = tuple(each for each in manifest.FAMILIES if each.name != "gemm")
    monkeypatch.setattr(manifest, "FAMILIES", (replace(family, engines=slots), *others))
    return [slot.name for slot in slots]
