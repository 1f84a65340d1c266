"""Plans as torch operators. The one module of the runtime that imports torch.

    linear = define("model::linear", store.plan("llama8b_qkv_dynamic"))
    y = linear(x, w)  # or torch.ops.model.linear(x, w)

An operator allocates its outputs and workspace with torch, runs on torch's current stream, has a
fake kernel (``torch.compile``, also with dynamic shapes) and can be captured into a CUDA graph once
its plan is prepared. With `Gradient`s it is differentiable.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from cudnn_aot.errors import UsageError
from cudnn_aot.runtime.plan import Plan

DTYPES: Mapping[str, torch.dtype] = {
    "FLOAT": torch.float32,
    "DOUBLE": torch.float64,
    "HALF": torch.float16,
    "BFLOAT16": torch.bfloat16,
    "FP8_E4M3": torch.float8_e4m3fn,
    "FP8_E5M2": torch.float8_e5m2,
    "FP8_E8M0": torch.float8_e8m0fnu,
    "INT8": torch.int8,
    "UINT8": torch.uint8,
    "INT32": torch.int32,
    "INT64": torch.int64,
    "BOOLEAN": torch.bool,
}

# Of launch tables, on integers and on torch's symbolic ones.
_ARITHMETIC: Mapping[str, Callable[..., Any]] = {
    "add": lambda *terms: sum(terms),
    "mul": lambda *factors: math.prod(factors),
    "sub": lambda a, b: a - b,
    "min": lambda *values: min(values),
    "max": lambda *values: max(values),
    "mod": lambda a, b: a % b,
    "floor_div": lambda a, b: a // b,
    "ceil_div": lambda a, b: -(-a // b),
    "round_up": lambda a, b: -(-a // b) * b,
}


@dataclass(frozen=True, slots=True)
class Gradient:
    """A plan that computes gradients of an operator.

    Attributes:
        plan: its operands are those named below.
        inputs: operand of ``plan`` -> operand of the operator that it is bound to. ``"grad Y"`` is
            the incoming gradient of the output ``Y``; ``"A.mT"`` and ``"grad Y.mT"`` are views with
            the last two axes exchanged.
        outputs: operand of ``plan`` -> the operator's input that it is the gradient of.
    """

    plan: Plan
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]


def define(
    name: str,
    plan: Plan,
    inputs: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
    gradients: Sequence[Gradient] = (),
) -> Any:
    """Register a plan as the torch operator ``name``, ``"namespace::operator"``, and return it.

    Args:
        inputs: the operands that are arguments, in this order; all that the plan reads, by
            ascending uid, unless given. A pass-by-value operand is a number, with the default that
            the plan has.
        outputs: the operands that are returned, one tensor or a tuple; by default all that the plan
            must write. One that is optional is computed if it is named here.
        gradients: plans that together give the gradients of the inputs that will need one.

    Raises:
        UsageError: there is an operator of this name, no such operand, an operand that the plan
            needs is not named, or its type has no torch dtype.
    """
    operator = _Operator(name, plan, inputs, outputs)
    steps = [
        _GradientStep(
            gradient,
            _Operator(
                f"{name}_grad{i}", gradient.plan, list(gradient.inputs), list(gradient.outputs)
            ),
        )
        for i, gradient in enumerate(gradients)
    ]
    for step in steps:
        _check_gradient(operator, step.gradient)
        step.operator.register()
    operator.register()
    setup, backward = _differentiate(operator, steps)
    torch.library.register_autograd(name, backward, setup_context=setup)
    return operator.overload()


class _Operator:
    """A plan with the operands that are arguments and results, and what computes the extents."""

    def __init__(
        self, name: str, plan: Plan, inputs: Sequence[str] | None, outputs: Sequence[str] | None
    ) -> None:
        if not re.fullmatch(r"\w+::\w+", name):
            raise UsageError(f"operator: got the name {name!r}, want 'namespace::operator'")
        self.name, self.plan = name, plan
        labels = {uid: label for label, uid in plan.uids.items()}
        operands = {
            labels.get(entry["uid"], entry["name"]): entry for entry in plan.table["operands"]
        }
        reads = {label: e for label, e in operands.items() if e["kind"] != "output"}
        writes = {label: e for label, e in operands.items() if e["kind"] == "output"}
        self.inputs = _choose(name, "input", reads, inputs)
        self.outputs = _choose(name, "output", writes, outputs)
        for label, entry in (self.inputs | self.outputs).items():
            if entry["dtype"] not in DTYPES and entry["kind"] != "scalar":
                raise UsageError(
                    f"operator {name!r}: operand {label!r} is {entry['dtype']}, which torch has no "
                    "dtype of"
                )
        self._let = plan.table.get("let", {})
        self._has_workspace = plan.workspace_bytes() > 0
        self._uids = [entry["uid"] for entry in (*self.inputs.values(), *self.outputs.values())]

    def register(self) -> None:
        """Define the operator with its kernel and its fake kernel."""
        if hasattr(getattr(torch.ops, self.name.split("::")[0]), self.name.split("::")[1]):
            raise UsageError(f"operator: got the name {self.name!r}, which torch has already")
        torch.library.define(self.name, self._schema(), tags=(torch.Tag.pt2_compliant_tag,))
        key = "CUDA" if self.plan.device == "cuda" else "CPU"
        torch.library.impl(self.name, key, self._run)
        torch.library.register_fake(self.name, self._fake)

    def overload(self) -> Any:
        namespace, operator = self.name.split("::")
        return getattr(getattr(torch.ops, namespace), operator).default

    def _schema(self) -> str:
        arguments = []
        for i, (label, entry) in enumerate(self.inputs.items()):
            argument = f"{re.sub(r'^[0-9]|[^0-9A-Za-z_]', '_', label)}_{i}"
            if entry["kind"] == "scalar":
                default = "" if entry.get("value") is None else f"={entry['value']}"
                arguments.append(f"Scalar {argument}{default}")
            else:
                arguments.append(f"Tensor {argument}")
        results = ", ".join("Tensor" for _ in self.outputs)
        return f"({', '.join(arguments)}) -> " + (
            results if len(self.outputs) == 1 else f"({results})"
        )

    def _run(self, *arguments: Any) -> Any:
        device = next(each.device for each in arguments if isinstance(each, torch.Tensor))
        symbols = self._symbols(arguments)
        results = self._allocate(symbols, device)
        workspace = None
        if self._has_workspace and (room := self.plan.workspace_bytes(self._free(symbols))):
            workspace = torch.empty(room, dtype=torch.uint8, device=device)
        stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else None
        bindings = dict(zip(self._uids, (*arguments, *results), strict=True))
        self.plan.execute(bindings, workspace, stream)
        return results[0] if len(results) == 1 else tuple(results)

    def _fake(self, *arguments: Any) -> Any:
        device = next(each.device for each in arguments if isinstance(each, torch.Tensor))
        results = self._allocate(self._symbols(arguments), device)
        return results[0] if len(results) == 1 else tuple(results)

    def _allocate(self, symbols: Mapping[str, Any], device: torch.device) -> list[torch.Tensor]:
        return [
            torch.empty_strided(
                [self._value(extent, symbols) for extent in entry["dim"]],
                [self._value(extent, symbols) for extent in entry["stride"]],
                dtype=DTYPES[entry["dtype"]],
                device=device,
            )
            for entry in self.outputs.values()
        ]

    def _free(self, symbols: Mapping[str, Any]) -> dict[str, Any]:
        """The symbols that the plan is not bound to."""
        return {name: value for name, value in symbols.items() if name not in self.plan.symbols}

    def _symbols(self, arguments: Sequence[Any]) -> dict[str, Any]:
        """Values of the plan's symbols, from the extents of the arguments."""
        symbols: dict[str, Any] = dict(self.plan.symbols)
        for entry, argument in zip(self.inputs.values(), arguments, strict=True):
            if isinstance(argument, torch.Tensor):
                _bind(entry["dim"], argument.shape, symbols)
        missing = [name for name in self.plan.table["symbols"] if name not in symbols]
        if missing:
            raise UsageError(
                f"operator {self.name!r}: no extent of an argument tells symbol {missing[0]!r}: "
                "bind the plan to it with plan.bind"
            )
        return symbols

    def _value(self, expression: Any, symbols: Mapping[str, Any]) -> Any:
        if isinstance(expression, str):
            if expression in self._let:
                return self._value(self._let[expression], symbols)
            return symbols[expression]
        if isinstance(expression, int):
            return expression
        operation, *parts = expression
        return _ARITHMETIC[operation](*(self._value(part, symbols) for part in parts))


def _choose(
    name: str, kind: str, operands: Mapping[str, Any], chosen: Sequence[str] | None
) -> dict[str, Any]:
    """The operands that are chosen, in that order; all but optional outputs unless told."""
    if chosen is None:
        chosen = [
            label for label, e in operands.items() if kind == "input" or not e.get("optional")
        ]
    for label in chosen:
        if label not in operands:
            known = ", ".join(map(repr, operands))
            raise UsageError(f"operator {name!r}: got the {kind} {label!r}, want some of {known}")
    for label, entry in operands.items():
        needed = not entry.get("optional") and not (
            entry["kind"] == "scalar" and entry.get("value") is not None
        )
        if needed and label not in chosen:
            raise UsageError(
                f"operator {name!r}: the plan needs {kind} {label!r}, which is not named"
            )
    return {label: operands[label] for label in chosen}


def _bind(dim: Sequence[Any], shape: Sequence[Any], symbols: dict[str, Any]) -> None:
    """Add the symbols that are extents of a declaration, for a tensor of this shape.

    A tensor of other rank may have or lack unit axes, or be the flat run of a declaration that has
    one symbol: as the executor takes them.
    """
    if len(dim) != len(shape):
        dim = [extent for extent in dim if extent != 1]
        if len(dim) != len(shape):
            shape = [extent for extent in shape if extent != 1]
    if len(dim) == len(shape):
        pairs = zip(dim, shape, strict=True)
    else:
        fixed = [extent for extent in dim if isinstance(extent, int)]
        if len(fixed) != len(dim) - 1 or not all(fixed):
            return
        pairs = zip(
            [extent for extent in dim if not isinstance(extent, int)],
            [math.prod(shape) // math.prod(fixed)],
            strict=True,
        )
    for declared, extent in pairs:
        if isinstance(declared, str):
            symbols.setdefault(declared, extent)


# ---- Gradients ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _GradientStep:
    gradient: Gradient
    operator: _Operator


def _source(label: str) -> str:
    """The tensor that an input of a gradient is, or is a view of."""
    return label.removesuffix(".mT")


def _check_gradient(operator: _Operator, gradient: Gradient) -> None:
    known = {*operator.inputs, *operator.outputs, *(f"grad {label}" for label in operator.outputs)}
    for label in map(_source, gradient.inputs.values()):
        if label not in known:
            raise UsageError(
                f"operator {operator.name!r}: a gradient reads {label!r}, want one of "
                f"{', '.join(map(repr, sorted(known)))}"
            )
    for label in gradient.outputs.values():
        if label not in operator.inputs:
            raise UsageError(
                f"operator {operator.name!r}: a gradient is of {label!r}, want one of "
                f"{', '.join(map(repr, operator.inputs))}"
            )


def _differentiate(
    operator: _Operator, steps: Sequence[_GradientStep]
) -> tuple[Callable[..., None], Callable[..., Any]]:
    """What torch calls after the forward operator, and for its gradients."""
    read = {_source(label) for step in steps for label in step.gradient.inputs.values()}
    saved = [label for label in (*operator.inputs, *operator.outputs) if label in read]

    def setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        results = output if isinstance(output, tuple) else (output,)
        of = dict(zip((*operator.inputs, *operator.outputs), (*inputs, *results), strict=True))
        ctx.save_for_backward(*(of[label] for label in saved))

    def backward(ctx: Any, *incoming: Any) -> Any:
        known = dict(zip(saved, ctx.saved_tensors, strict=True))
        known |= {
            f"grad {label}": each for label, each in zip(operator.outputs, incoming, strict=True)
        }
        needed = [
            label for label, need in zip(operator.inputs, ctx.needs_input_grad, strict=True) if need
        ]
        found: dict[str, Any] = {}
        for step in steps:
            if not any(label in needed for label in step.gradient.outputs.values()):
                continue
            arguments = [_tensor(known, label) for label in step.gradient.inputs.values()]
            results = step.operator.overload()(*arguments)
            results = results if isinstance(results, tuple) else (results,)
            found |= dict(zip(step.gradient.outputs.values(), results, strict=True))
        for label in needed:
            if label not in found:
                raise UsageError(
                    f"operator {operator.name!r}: no plan gives the gradient of {label!r}"
                )
        gradients = tuple(found.get(label) for label in operator.inputs)
        return gradients if len(gradients) > 1 else gradients[0]

    return setup, backward


def _tensor(known: Mapping[str, torch.Tensor], label: str) -> torch.Tensor:
    tensor = known[_source(label)]
    if 0 in tensor.stride():  # an incoming gradient may be expanded, an operand of a plan is not
        tensor = tensor.contiguous()
    return tensor.mT if label.endswith(".mT") else tensor
