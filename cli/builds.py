"""``cudnn-aot ls --builds``: what the builds of a store were asked to make, and from what."""

from typing import Any

from cudnn_aot.cache.layers import AnyReader
from cudnn_aot.cli.output import complain, print_json, say
from cudnn_aot.cli.table import format_table
from cudnn_aot.errors import StoreError


def list_builds(reader: AnyReader, as_json: bool) -> int:
    """Print every build record; exit code 1 if one is damaged, the rest is printed."""
    builds: list[dict[str, Any]] = []
    faults = []
    for digest in reader.builds():
        try:
            builds.append({"build": digest, **reader.build(digest)})
        except StoreError as error:
            faults.append(f"error: build {digest[:12]}: {error}")
    if as_json:
        print_json({"store": reader.where, "builds": builds})
    else:
        header = ("build", "version", "sources", "targets", "engines", "graphs", "tuning")
        rows = [
            (
                build["build"][:12],
                build["version"],
                build["sources"][:12],
                ",".join(target["name"] for target in build["targets"]),
                ",".join(build["engines"]),
                str(len(build["graphs"])),
                build["tuning"][:12] or "-",
            )
            for build in builds
        ]
        say(*(format_table(header, rows, right="graphs") or ["no builds"]))
    for fault in faults:
        complain(fault)
    return 1 if faults else 0
