"""docs/parity.md, from the differences: ``python tests/parity/document.py > docs/parity.md``."""

from parity_differences import DIFFERENCES

HEAD = """\
# Next to the cuDNN frontend

Made by `python tests/parity/document.py` from the table that the tests hold against the frontend's own wheel
(nvidia-cudnn-frontend 1.32.0); do not edit.

A program that builds its graphs with `import cudnn` builds the same graphs with `import cudnn_aot as cudnn`: all 107 ops, with the names, order and
defaults of their arguments, the places of results that do not exist, their names, extents, strides and types; the enums with their numbers; handles; the
`graph`, `jit` and `graph_cache` decorators and `Graph`. The tests call every op in both with its required ports, with all of them, with each optional port
and each attribute alone, by position and by keyword, and with other extents, and compare what comes back and what is inferred.

What the same names mean here:

| name | here |
|---|---|
| `backend_version()`, `backend_version_string()` | the cuDNN whose graphs can be built, 92801 and `"9.28.1"`; no cuDNN is loaded |
| `create_handle()`, `set_stream`, `get_stream`, `destroy_handle` | a handle remembers a stream, and is what names it: `execute(..., handle=handle)`; a destroyed one is refused |
| `graph(handle)` | makes a graph, as there |
| `build`, `execute` and what lies between | as there, over the plans of this package, which come from stores or are compiled: [in-process.md](in-process.md) |
| `jit`, `Graph` | give the graph back built, as there; without a target to build for it is sealed, and built when a plan is first needed |
| `key()` | 64 hex digits, the same in every process |
| `serialize`, `deserialize` | as there; the bytes are of a format of this package |
| `datatypes.torch_to_cudnn_data_type` | as there, for torch and numpy types; torch is not imported |
| `knob_type` | the whole vocabulary; engines here use a part of it |

## Differences

`{a,b}` stands for either, `*` for anything.
"""  # noqa: E501


def markdown() -> str:
    """The text of docs/parity.md."""
    parts = [HEAD]
    kind = ""
    for heading, pattern, reason in DIFFERENCES:
        if heading != kind:
            kind = heading
            parts.append(f"\n**{kind}**\n\n| difference | why |\n|---|---|\n")
        shown = pattern.replace(",", ", ") if "{" in pattern else pattern
        parts.append(f"| `{shown}` | {reason} |\n")
    return "".join(parts)


if __name__ == "__main__":
    print(markdown(), end="")
