"""Builds graphs through the public names of a module, the cuDNN frontend's or ours.

Runs in a process that has the frontend's wheel, as ``python perform.py < calls.json``, and in the
tests with our package: one program, so what differs is the library. Imports nothing of ours.

A call is ``{"op", "tensors": [{dim, stride, data_type}], "args", "kwargs", "virtual", "context"}``;
without ``context`` the graph names no types, and what a caller passes names its own. A value
among the arguments is plain, ``{"$tensor": index}``, ``{"$enum": [type, member]}``,
``{"$slice": [start, stop, step]}`` or a list of values.
"""

import json
import sys
from typing import Any


def value_of(module: Any, tensors: list[Any], value: Any) -> Any:
    if isinstance(value, list):
        return [value_of(module, tensors, item) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, inner),) = value.items()
    if kind == "$tensor":
        return tensors[inner]
    if kind == "$slice":
        return slice(*inner)
    if kind == "$tuple":
        return tuple(value_of(module, tensors, item) for item in inner)
    return getattr(enum_of(module, inner[0]), inner[1])


def enum_of(module: Any, name: str) -> Any:
    """An enum of the module, also one that the frontend keeps in its compiled part."""
    found = getattr(module, name, None)
    return found if found is not None else getattr(module._pybind_module, name)


def described(tensor: Any) -> dict[str, Any] | None:
    if tensor is None:
        return None
    dtype = tensor.get_data_type()
    return {
        "name": tensor.get_name(),
        "dim": [int(extent) for extent in tensor.get_dim()],
        "stride": [int(step) for step in tensor.get_stride()],
        "data_type": None if dtype is None or dtype.name == "NOT_SET" else dtype.name,
        "is_virtual": tensor.get_is_virtual(),
    }


def perform(module: Any, call: dict[str, Any]) -> dict[str, Any]:
    """What a call returns at once, and what its results are once the graph is validated."""
    types = module.data_type
    context = {
        "io_data_type": types.HALF,
        "intermediate_data_type": types.FLOAT,
        "compute_data_type": types.FLOAT,
    }
    graph = module.pygraph(**(context if call["context"] else {}))
    own = None if call["context"] else types.HALF
    tensors = [
        graph.tensor(
            dim=each["dim"],
            stride=each["stride"],
            data_type=getattr(types, each["data_type"]) if each["data_type"] else own,
            name=each["name"],
        )
        for each in call["tensors"]
    ]
    args = [value_of(module, tensors, value) for value in call["args"]]
    kwargs = {name: value_of(module, tensors, value) for name, value in call["kwargs"].items()}
    try:
        returned = getattr(graph, call["op"])(*args, **kwargs)
    except Exception as error:
        return {"error": type(error).__name__, "text": str(error)}
    results = returned if isinstance(returned, list) else [returned]
    answer: dict[str, Any] = {
        "is_list": isinstance(returned, list),
        "built": [described(tensor) for tensor in results],
    }
    reader = None

    def output(tensor: Any) -> Any:
        tensor.set_output(True)
        return tensor if own is None else tensor.set_data_type(own)

    for index, tensor in enumerate(results):
        if tensor is not None and not (call["virtual"] and index == 0):
            output(tensor)
        elif tensor is not None:
            reader = output(graph.identity(tensor))
    try:
        graph.validate()
    except Exception as error:  # the frontend's goes on to lower the graph, which wants a driver
        answer["refused"] = f"{type(error).__name__}: {error}"
    answer["validated"] = [described(tensor) for tensor in [*results, reader]]
    answer["node"] = node_of(graph)
    return answer


def behaviour(module: Any) -> dict[str, Any]:
    """What a few lines of a program see, beside the ops."""
    types = module.data_type

    def graph(**arguments: Any) -> Any:
        return module.pygraph(
            io_data_type=types.HALF,
            intermediate_data_type=types.FLOAT,
            compute_data_type=types.FLOAT,
            **arguments,
        )

    def attempt(run: Any) -> Any:
        try:
            return run()
        except Exception as error:
            return f"raises {type(error).__name__}"

    g = graph()
    moved = g.tensor(dim=[1], uid=3)
    moved.set_uid(9)
    uids = [g.tensor(dim=[1]).get_uid() for _ in range(5)]
    taken = g.tensor(dim=[1], uid=4)
    uids += [tensor.get_uid() for tensor in (taken, g.tensor(dim=[1]), g.tensor(dim=[1], uid=12))]
    uids += [g.tensor(dim=[1]).get_uid() for _ in range(4)]

    g = graph()
    x = g.tensor(dim=[2, 4])
    scalar = g.tensor_scalar(2.0, module.scalar_type.RUNTIME_PARAM)
    value = attempt(lambda: g.tensor(dim=[1], is_pass_by_value=True, pass_by_value=2.0))
    y = g.relu(x, negative_slope=0.5)
    y.set_output(True)
    node, found = g.nodes[0], g.inspect()
    return {
        "uids": uids,
        "tensor.name": x.get_name(),
        "tensor.stride": list(x.get_stride()),
        "tensor(pass_by_value=)": value if isinstance(value, str) else value.pass_by_value,
        "tensor_scalar.name": scalar.get_name(),
        "tensor_scalar.dim": list(scalar.get_dim()),
        "node.params": dict(node.params) if hasattr(node, "params") else "absent",
        "node.node_type": node.node_type.name if hasattr(node, "node_type") else "absent",
        "inspect().context": sorted(found["context"].items()),
        "inspect().nodes": [sorted(row) for row in found["nodes"]],
        "inspect().nodes.inputs": [list(row["inputs"].values()) for row in found["nodes"]],
        "inspect().tensors": sorted(str(key) for key in found["tensors"]),
        "inspect().tensors.fields": sorted(
            {key for row in found["tensors"].values() for key in row}
        ),
        "pygraph(sm_count=)": attempt(lambda: graph(sm_count=132) and "taken"),
    }


def node_of(graph: Any) -> dict[str, Any]:
    node = graph.nodes[0]
    dtype = node.compute_data_type
    return {
        "name": node.name,
        "inputs": {port: tensor.get_name() for port, tensor in node.inputs.items()},
        "outputs": {port: tensor.get_name() for port, tensor in node.outputs.items()},
        "compute_data_type": None if dtype is None else dtype.name,
    }


if __name__ == "__main__":
    import cudnn
    from surface import surface

    asked = json.load(sys.stdin)
    answers = [perform(cudnn, call) for call in asked]
    found = {"surface": surface(cudnn), "answers": answers, "behaviour": behaviour(cudnn)}
    json.dump(found, sys.stdout)
