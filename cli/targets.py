"""``cudnn-aot targets``: what graphs can be built for."""

import dataclasses

import click

from cudnn_aot.cli.options import json_option
from cudnn_aot.cli.output import print_json, say
from cudnn_aot.cli.table import format_table
from cudnn_aot.compiler.target.target import known_targets, load_target


@click.command()
@json_option
def targets(as_json: bool) -> None:
    """List the targets that graphs can be built for, with what is known of each."""
    found = [load_target(name) for name in known_targets()]
    if as_json:
        print_json({"targets": [dataclasses.asdict(target) for target in found]})
        return
    rows = [
        (
            target.name,
            target.kind,
            target.gpu_arch or "-",
            str(target.sm_count or "-"),
            str(target.smem_optin_bytes or "-"),
            f"CUDA {target.driver_min // 1000}.{target.driver_min % 1000 // 10}"
            if target.driver_min
            else "-",
            f"{target.host_triple} {target.host_level}",
        )
        for target in found
    ]
    say(
        *format_table(
            ("target", "kind", "arch", "SMs", "shared memory", "driver for", "host"), rows
        )
    )
