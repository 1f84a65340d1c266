"""Run by a serving interpreter: execute one CPU plan with nothing but the plain install.

    serve_plan.py STORE NAME FOLDER '{"M": 3}'

Operands are FOLDER/<uid>.in and FOLDER/<uid>.out (which gives the size to allocate); results
replace the latter. The interpreter must not have imported anything but the standard library.
"""

import ctypes
import json
import sys
from pathlib import Path

from cudnn_aot import runtime


def main() -> None:
    store, name, folder, symbols = sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4]
    plan = runtime.open(store).plan(name)
    plan.prepare()
    buffers = {}
    for path in folder.iterdir():
        data = path.read_bytes()
        buffers[int(path.stem)] = ctypes.create_string_buffer(data, max(len(data), 1))
    workspace = ctypes.create_string_buffer(max(plan.workspace_bytes(json.loads(symbols)), 1))
    plan.execute(
        {uid: ctypes.addressof(buffer) for uid, buffer in buffers.items()},
        ctypes.addressof(workspace),
        symbols=json.loads(symbols),
    )
    for path in folder.glob("*.out"):
        path.write_bytes(buffers[int(path.stem)].raw[: path.stat().st_size])
    foreign = {"click", "filelock", "rich", "numpy", "torch", "cutlass", "tvm_ffi"} & set(
        module.split(".")[0] for module in sys.modules
    )
    assert not foreign, foreign


if __name__ == "__main__":
    main()
