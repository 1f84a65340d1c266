"""Files of every form that is read, bent out of shape; for the tests and for bench/fuzz.py.

`wrecked` turns a document that reads well into bytes that may not, by choices of a `Source`, so the
same code serves random numbers, hypothesis and a coverage-guided fuzzer. `read` is what holds for
every input: a graph that survives being written, or one of two errors in one line.
"""

import copy
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from op_graphs import example

import cudnn_aot
from cudnn_aot.compiler.formats.graph_json import loads
from cudnn_aot.compiler.formats.load import read_bytes
from cudnn_aot.compiler.formats.peer_blob import MAGIC
from cudnn_aot.compiler.graph.ops.table import OPS
from cudnn_aot.errors import InvalidGraphError, cudnnGraphNotSupportedError

FORMS = ("graph", "plan", "blob", "lowered")
MAX_MESSAGE = 2000
_DATA = Path(__file__).parents[1] / "data/peer_graphs"
_SEED_BYTES = 20_000  # of the largest seed: small ones are read fast, and hold every construct

Source = Callable[[int], int]  # a number below the one that is given

VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 3, 8, 255, 2**31, 2**63 - 1, 2**63, -(2**63), 2**64, 10**25,
    0.5, 1.0, -0.0, 1e308, 5e-324, float("nan"), float("inf"), float("-inf"),
    "", "M", "K", "4096*M", "M*M*M*M*M*M*M*M*M", "9223372036854775807*M", "99999999999999999999",
    "-1", "M+1", "*", "\ud800", "\0", "x" * 300, "FLOAT", "HALF", "FP4_E2M1", "INT64", "NOT_SET",
    "matmul", "sdpa", "concatenate", "A", "input", "$tensor",
    [], {}, [[]], [0], [1, 2, 3], [2**62, 2**62, 2**62], [-1], ["M"], [None], [1] * 9, [1] * 500,
    {"$tensor": 1}, {"$tensor": 10**30}, {"$tuple": [1, 2]}, {"$tuple": {}},
    {"$enum": "cudnn._compiled_module:data_type", "name": "HALF"}, {"$enum": 1, "name": []},
    {"M": {"min": 0, "max": 2**31 - 1}}, {"M": {"multiple_of": 0}},
)  # fmt: skip


def seeds() -> dict[str, list[Any]]:
    """Documents that read well, by form."""
    files = sorted(_DATA.rglob("*.json"))
    found: dict[str, list[Any]] = {form: [] for form in FORMS}
    for path in files:
        if path.stat().st_size <= _SEED_BYTES:
            document = json.loads(path.read_text(encoding="utf-8"))
            found["lowered" if "json_version" in document else "plan"].append(document)
    found["blob"] = found["plan"][::4]
    for op in ("matmul", "relu", "sdpa", "batchnorm", "concatenate", "slice", "gdn_bwd", "reshape"):
        found["graph"].append(json.loads(cudnn_aot.dumps(example(OPS[op]))))
    symbolic = cudnn_aot.pygraph("s", "HALF", "FLOAT", "FLOAT", symbols={"M": {"max": 512}})
    x = symbolic.tensor(["M", 64], name="x")
    symbolic.add(symbolic.swish(x), symbolic.tensor_scalar(2.0)).set_output(True, optional=True)
    symbolic.exp(x).set_output(True)
    found["graph"].append(json.loads(cudnn_aot.dumps(symbolic)))
    return found


def wrecked(form: str, document: Any, below: Source) -> bytes:
    """The file of a document after a few changes to its values, then perhaps to its text."""
    document = copy.deepcopy(document)
    for _ in range(below(4)):
        _bend(document, below)
    text = json.dumps(document)
    change = below(8)
    if change == 0:
        text = _retyped(text, below)
    data = text.encode("utf-8", "surrogatepass")
    if form == "blob":
        length = len(data) if below(8) else below(2**16)
        data = MAGIC + length.to_bytes(8, "little") + data + b"\0" * below(16)
    if change == 1:
        data = data[: below(len(data) + 1)]
    elif change == 2:
        place = below(len(data))
        data = data[:place] + bytes([below(256)]) + data[place + below(2) :]
    return data


def _places(value: Any, found: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Every (container, key) inside `value`."""
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            found.append((value, key))
            _places(value[key], found)
    return found


def _bend(document: Any, below: Source) -> None:
    places = _places(document, [])
    if not places:
        return
    target, key = places[below(len(places))]
    change = below(6)
    if change == 0:
        del target[key]
    elif change == 1:
        other, of = places[below(len(places))]
        target[key] = copy.deepcopy(other[of])
    elif change == 2 and isinstance(target, dict):
        keys = [of for _, of in places if isinstance(of, str)]
        target[keys[below(len(keys))]] = copy.deepcopy(VALUES[below(len(VALUES))])
    elif change == 3 and isinstance(target, list):
        target.insert(below(len(target) + 1), copy.deepcopy(target[key]))
    elif change == 4 and isinstance(target[key], int) and not isinstance(target[key], bool):
        target[key] += below(5) - 2
    else:
        target[key] = copy.deepcopy(VALUES[below(len(VALUES))])


def _retyped(text: str, below: Source) -> str:
    """`text` with a key given twice, a number beyond any type, or nesting without end."""
    kind = below(4)
    if kind == 0:
        place = text.find('"', below(len(text)))
        end = text.find(":", place)
        if 0 <= place < end:
            return f"{text[:place]}{text[place:end]}: 1, {text[place:]}"
    digits = [place for place, letter in enumerate(text) if letter.isdigit()]
    if kind == 1 and digits:
        place = digits[below(len(digits))]
        return f"{text[:place]}{'7' * (1 + below(6000))}{text[place:]}"
    if kind == 2:
        depth = 1 + below(100_000)
        return text.replace("1", "[" * depth, 1)
    return text.replace("1", ("NaN", "Infinity", "-Infinity", "1e999", "0x1", "01")[below(6)], 1)


def read(data: bytes) -> str:
    """Read an input; ``"graph"``, ``"invalid"`` or ``"unsupported"``. Anything else is a fault."""
    try:
        graph = read_bytes(data, "fuzz")
    except (InvalidGraphError, cudnnGraphNotSupportedError) as error:
        message = str(error)
        assert "\n" not in message and 0 < len(message) <= MAX_MESSAGE, message[:400]
        return "invalid" if isinstance(error, InvalidGraphError) else "unsupported"
    again = loads(cudnn_aot.dumps(graph))
    assert again.key() == graph.key()
    return "graph"


def from_random(seed: int) -> Source:
    """A source of random numbers."""
    numbers = random.Random(seed)
    return lambda below: numbers.randrange(below) if below > 0 else 0
