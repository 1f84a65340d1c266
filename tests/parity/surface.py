"""What the cuDNN frontend's wheel declares: its builders, enums and public names, as plain values.

Runs in a process that has the wheel. Positional order and the keywords of Python builders are in
its tables; types, defaults and what is required are in the signatures of the compiled graph class.
"""

import enum
import inspect
import re
from typing import Any

REQUIRED = "required"
METHODS = (
    "__init__",
    "tensor",
    "tensor_like",
    "tensor_scalar",
    "matmul",
    "find_tensor",
    "get_node",
    "get_inputs",
    "get_outputs",
    "inspect",
    "validate",
    "build_operation_graph",
    "create_execution_plans",
    "create_execution_plan",
    "check_support",
    "build_plans",
    "build",
    "backend_plan_entries",
    "get_execution_plan_count",
    "get_plan_name_at_index",
    "get_engine_and_knobs_at_index",
    "select_plan",
    "build_plan_at_index",
    "get_behavior_notes",
    "get_behavior_notes_for_plan_at_index",
    "deselect_engines",
    "deselect_workspace_greater_than",
    "deselect_behavior_notes",
    "select_behavior_notes",
    "deselect_numeric_notes",
    "select_numeric_notes",
    "get_workspace_size",
    "get_workspace_size_plan_at_index",
    "execute",
    "execute_plan_at_index",
    "serialize",
    "deserialize",
    "key",
)
_COMMON = {"name": "", "compute_data_type": None, "out_dims": None}


def surface(cudnn: Any) -> dict[str, Any]:
    compiled = cudnn._pybind_module
    public = [name for name in dir(cudnn) if not name.startswith("_")]
    enums = {
        name: {member: int(value.value) for member, value in found.__members__.items()}
        for name in (*public, "convolution_mode")
        if _is_enum(found := getattr(cudnn, name, None) or getattr(compiled, name, None))
    }
    return {
        "version": cudnn.__version__,
        "ops": _ops(cudnn, compiled.backend_graph),
        "enums": enums,
        "names": [
            name
            for name in sorted({*public, *cudnn.__all__} - {*cudnn._LAZY_OPTIONAL_IMPORTS})
            if not _is_foreign(getattr(cudnn, name, None))
        ],
        "kernels": sorted(cudnn._LAZY_OPTIONAL_IMPORTS),
        "graph": [name for name in dir(cudnn.pygraph) if not name.startswith("_")],
        "tensor": [name for name in dir(cudnn.Tensor) if not name.startswith("_")],
        "methods": {name: parameters(getattr(cudnn.pygraph, name)) for name in METHODS},
        "functions": {
            name: parameters(getattr(cudnn, name))
            for name in (
                "create_handle",
                "destroy_handle",
                "set_stream",
                "get_stream",
                "graph",
                "jit",
                "graph_cache",
            )
        },
    }


def _is_foreign(value: Any) -> bool:
    """Whether it is of another package, which the frontend imports for itself."""
    if inspect.ismodule(value):
        return not value.__name__.startswith("cudnn")
    return getattr(value, "__module__", "") == "typing"


def _is_enum(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, enum.Enum)


def parameters(function: Any) -> list[list[Any]]:
    """[name, default, kind] of every parameter but self and those of variable number."""
    found = []
    for each in inspect.signature(function).parameters.values():
        if each.name != "self" and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD):
            kind = "keyword" if each.kind is each.KEYWORD_ONLY else "positional"
            found.append([each.name, plain(each.default, each.empty), kind])
    return found


def plain(default: Any, empty: Any = inspect.Parameter.empty) -> Any:
    """A default as JSON: members by name; nothing given is None, however it is spelled."""
    if default is empty:
        return REQUIRED
    if isinstance(default, enum.Enum):
        return None if default.name == "NOT_SET" else default.name
    return None if default in ((), []) else default


def _ops(cudnn: Any, compiled: Any) -> dict[str, Any]:
    from cudnn._pygraph import _CAPTURED_OPS, _STRUCTURED_OPS

    uniform = cudnn.pygraph._POINTWISE_TENSOR_ARGS
    explicit = ("matmul", *_explicit_pointwise(cudnn, uniform))
    ops = {name: _explicit(getattr(cudnn.pygraph, name)) for name in explicit}
    for name, ports in uniform.items():
        ops[name] = _row(ports, ("name", "compute_data_type"), {}, ["OUT_0"])
        ops[name]["defaults"].update(dict.fromkeys(ports, REQUIRED))
    for name, spec in {**_STRUCTURED_OPS, **_CAPTURED_OPS}.items():
        declared = _declared(getattr(compiled, name, None))
        captured = name in _CAPTURED_OPS
        positional = spec["pos"] if captured else (*spec["inputs"], *spec.get("attrs", ()))
        keyword = [
            *spec.get("keyword_inputs", ()),
            *spec.get("list_inputs", ()),
            *spec.get("python_only_attrs", ()),
            *spec.get("python_only_in_kwargs", ()),
            *spec.get("out_kwargs", ()),
            *(each for each in declared if captured),
            *_COMMON,
        ]
        ops[name] = _row(positional, keyword, declared, list(spec["outputs"]))
    return ops


def _explicit_pointwise(cudnn: Any, uniform: Any) -> list[str]:
    """Pointwise builders with a signature of their own: those that take scalar attributes."""
    found = []
    for name, method in inspect.getmembers(cudnn.pygraph, inspect.isfunction):
        names = list(inspect.signature(method).parameters)
        if not name.startswith("_") and names[1:2] in (["input"], ["loss"]):
            found += [name] if name not in uniform else []
    return found


def _explicit(method: Any) -> dict[str, Any]:
    rows = parameters(method)
    return {
        "positional": [name for name, _, kind in rows if kind == "positional"],
        "keyword": [name for name, _, kind in rows if kind == "keyword"],
        "defaults": {name: default for name, default, _ in rows},
        "outputs": None,
    }


def _row(
    positional: Any, keyword: Any, declared: dict[str, Any], outputs: list[str]
) -> dict[str, Any]:
    others = [name for name in dict.fromkeys(keyword) if name not in positional]
    defaults = {name: declared[name] for name in (*positional, *others) if name in declared}
    return {
        "positional": list(positional),
        "keyword": others,
        "defaults": {**defaults, **{name: _COMMON[name] for name in others if name in _COMMON}},
        "outputs": outputs,
    }


def _declared(method: Any) -> dict[str, Any]:
    """Defaults by parameter, from the first line of a compiled method's documentation."""
    if method is None:
        return {}
    text = method.__doc__.split("\n")[0]
    inside = text[text.index("(") + 1 : text.rindex(") ->")]
    found = {}
    for part in re.split(r", (?=\w+: )", inside):
        name, _, rest = part.partition(": ")
        if rest:
            found[name] = _default(rest.rpartition(" = ")[2]) if " = " in rest else REQUIRED
    return found


def _default(text: str) -> Any:
    if text in ("None", "[]") or text.endswith(".NOT_SET"):
        return None
    if text in ("True", "False"):
        return text == "True"
    if text.startswith("'"):
        return text[1:-1]
    try:
        return float(text) if "." in text else int(text)
    except ValueError:
        return text.rpartition(".")[2]
