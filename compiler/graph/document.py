"""docs/ops.md, made from the op table: ``python -m cudnn_aot.compiler.graph.document > docs/ops.md``.

One table per family; a test holds the file equal to what this writes.
"""  # noqa: E501

from __future__ import annotations

from cudnn_aot.compiler.graph.attr import Attr, plain
from cudnn_aot.compiler.graph.enums import data_type
from cudnn_aot.compiler.graph.op import ROW_MAJOR, Op, Output, Port
from cudnn_aot.compiler.graph.ops import (
    attention,
    linear_attention,
    matmul,
    norms,
    pointwise,
    structured,
)

HEAD = """\
# Ops

Made from the op table by `python -m cudnn_aot.compiler.graph.document`; do not edit. How an op is added: [adding-an-op.md](adding-an-op.md).

A builder takes the input ports in the order below, then the attributes; ports after `;` and everything of an attention op but its required ports by
keyword. `?`: optional. `[]`: a list, whose tensors are wired as `<port>_0`, `<port>_1`, ... `^`: a tensor that the caller declares and the node writes.
`*`: the cuDNN backend has no field for it. An attribute shows its default, `!` if it has none and has to be given, `off` if it is off unless given.
Unless a row says otherwise, an output's type is the graph's (`io_data_type`, or `intermediate_data_type` while it is virtual), and its strides are
row-major. A builder returns the tensor of an op's only output, or a list in the order below with `None` for an output that does not exist.

Each family ends with its semantic rules, see [validation.md](validation.md). Where two ports or letters are named alike, they are the same; a port that is
not wired is left out.
"""  # noqa: E501

FAMILIES = (
    ("Matrix product", "", matmul.ROWS),
    (
        "Pointwise",
        "Extents: the right-aligned broadcast of the inputs. "
        "Strides: those of the first operand that has the result's extents.",
        pointwise.ROWS,
    ),
    ("Normalisation", "", norms.ROWS),
    ("Reduction, block scaling, experts, convolution, moves", "", structured.ROWS),
    ("Attention", "", attention.ROWS),
    ("Linear attention", "The cuDNN backend has none of these.", linear_attention.ROWS),
)


def markdown() -> str:
    """The text of docs/ops.md."""
    parts = [HEAD]
    for title, note, rows in FAMILIES:
        parts.append(f"\n## {title}\n")
        if note:
            parts.append(f"\n{note}\n")
        parts.append("\n| op | inputs | attributes | outputs |\n|---|---|---|---|\n")
        parts += [f"{_line(row)}\n" for row in rows]
        parts += _rules(rows)
        parts += _spellings(rows)
    return "".join(parts)


def _spellings(rows: tuple[Op, ...]) -> list[str]:
    """In which of several attributes the key says a thing, and which ops have them."""
    users: dict[str, list[str]] = {}
    for row in rows:
        for spelling in row.spellings:
            users.setdefault(spelling.text, []).append(row.name)
    lines = [f"| {text} | {_ops(names, rows)} |\n" for text, names in users.items()]
    return ["\n| one spelling in the key | ops |\n|---|---|\n", *lines] if lines else []


def _rules(rows: tuple[Op, ...]) -> list[str]:
    """What the semantic rules of a family say, and which of its ops have them."""
    users: dict[str, list[str]] = {}
    for row in rows:
        for text in dict.fromkeys(rule.__doc__ or "" for rule in row.rules):
            users.setdefault(text, []).append(row.name)
    lines = [f"| {text} | {_ops(names, rows)} |\n" for text, names in users.items()]
    return ["\n| rule | ops |\n|---|---|\n", *lines] if lines else []


def _ops(names: list[str], rows: tuple[Op, ...]) -> str:
    others = [row.name for row in rows if row.name not in names]
    if len(others) < len(names) and len(names) > 1:
        listed = ", ".join(f"`{name}`" for name in others)
        return f"all but {listed}" if others else "all"
    return ", ".join(f"`{name}`" for name in names)


def _line(row: Op) -> str:
    positional = [p for p in row.ports if not (p.is_keyword_only or p.is_list)]
    keyword = [p for p in row.ports if p.is_keyword_only or p.is_list]
    inputs = ", ".join(map(_port, positional))
    if keyword:
        inputs = (
            f"{inputs}; {', '.join(map(_port, keyword))}" if inputs else f"; {_port(keyword[0])}"
        )
    attrs = ", ".join(map(_attr, row.attrs))
    outputs = "<br>".join(_output(output, row.is_pointwise) for output in row.outputs)
    return f"| `{row.name}` | {inputs} | {attrs} | {outputs} |"


def _port(port: Port) -> str:
    marks = (
        ("[]", port.is_list),
        ("^", port.is_result),
        ("?", port.optional and not port.is_result),
        ("*", port.is_python_only),
    )
    return f"`{port.name}`" + "".join(mark for mark, holds in marks if holds)


def _attr(attr: Attr) -> str:
    default = plain(attr.default)
    shown = "!" if attr.required else "off" if default is None else str(default).lower()
    if isinstance(default, str):
        shown = default
    choices = f"; {' or '.join(str(plain(c)) for c in attr.choices)}" if attr.choices else ""
    return f"`{attr.name}`{'*' if attr.is_python_only else ''} ({shown}{choices})"


def _output(output: Output, is_pointwise: bool) -> str:
    if is_pointwise:
        return f"`{output.name}`"
    notes = [output.shape.text]
    if isinstance(output.data_type, data_type):
        notes.append(output.data_type.name)
    elif output.data_type is not None:
        notes.append(f"type of {output.data_type}")
    if output.layout is not ROW_MAJOR:
        notes.append(f"strides {output.layout.text}")
    if output.when is not None:
        notes.append(f"if {output.when.text}")
    return f"`{output.name}`: {'; '.join(notes)}"


if __name__ == "__main__":
    print(markdown(), end="")
