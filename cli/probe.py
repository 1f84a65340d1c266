"""``cudnn-aot targets probe``: the descriptor of a GPU that is here, for builders where it is not.

What a GPU has is asked of the driver. The host is named, not asked: a build for it serves other
machines too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from cudnn_aot.cli.completion import complete_files, complete_hosts
from cudnn_aot.cli.files import publish
from cudnn_aot.cli.options import json_option
from cudnn_aot.cli.output import complain, print_json, say
from cudnn_aot.compiler.target.flavor import FLAVORS, driver_min, why_not_arch
from cudnn_aot.compiler.target.host import parse_host, this_triple
from cudnn_aot.compiler.target.target import GPU_ARCHES, Target, known_targets, target_from
from cudnn_aot.errors import RequirementError, UsageError


@click.command()
@click.option(
    "--device",
    type=click.IntRange(0, 1023),
    default=0,
    show_default=True,
    metavar="N",
    help="CUDA device; a MIG slice is one.",
)
@click.option("--name", metavar="NAME", help="Its name. Default: architecture and SMs, sm_90a-132.")
@click.option(
    "--host",
    metavar="TRIPLE[/LEVEL]",
    shell_complete=complete_hosts,
    help="Its host. Default: the triple of this one, with the level of the shipped targets.",
)
@click.option(
    "--output",
    "-o",
    metavar="FILE",
    shell_complete=complete_files,
    help="Write the descriptor there, not to stdout.",
)
@json_option
def probe(
    device: int, name: str | None, host: str | None, output: str | None, as_json: bool
) -> None:
    """Describe a GPU of this machine as a target; needs its driver and a CUDA runtime, no compiler.

    The file is for every option and call that takes a target's name.

    \b
    cudnn-aot targets probe -o mine.json
    cudnn-aot build graphs --target mine.json
    """
    if name in known_targets():
        raise UsageError(f"--name: got {name!r}, a shipped target: want another name")
    named = parse_host(host or this_triple())
    attributes = _attributes(device)
    target = describe(attributes, name, *named)
    if attributes["driver_version"] < target.driver_min:
        complain(
            f"note: the driver is for CUDA {_release(attributes['driver_version'])}, kernels will "
            f"need one for CUDA {_release(target.driver_min)} or newer"
        )
    tell: Callable[[str], None] = say
    if output is not None:
        text = json.dumps(target.descriptor(), indent=2) + "\n"
        tell = publish(Path(output), text, "the descriptor")
    if as_json:
        print_json({"file": output, "target": target.descriptor()})
    elif output is None:
        print_json(target.descriptor(), version=None)  # it is the file
    else:
        tell(f"{target.name}: {target.gpu_arch} with {target.sm_count} SMs, written to {output}")


def describe(attributes: Mapping[str, Any], name: str | None, triple: str, level: str) -> Target:
    """The target that a device with these attributes, of ``_native.device_attributes``, is.

    Raises:
        RequirementError: no kernel is compiled for its compute capability.
        UsageError: the name is no name.
    """
    major, minor = attributes["compute_capability"]
    arch = next((a for a in (f"sm_{major}{minor}a", f"sm_{major}{minor}") if a in GPU_ARCHES), None)
    if arch is None:
        raise RequirementError(
            f"no target for compute capability {major}.{minor}: want one of the architectures "
            f"{', '.join(GPU_ARCHES)}"
        )
    flavor = next(flavor for flavor in FLAVORS if why_not_arch(flavor, arch) is None)
    document = {
        "name": name or f"{arch}-{attributes['sm_count']}",
        "kind": "cuda",
        "gpu_arch": arch,
        "sm_count": attributes["sm_count"],
        "l2_bytes": attributes["l2_bytes"],
        "smem_optin_bytes": attributes["smem_optin_bytes"],
        "driver_min": driver_min(flavor),
        "dsl_flavor": flavor,
        "host_triple": triple,
        "host_level": level,
    }
    return target_from(document, "of the device")


def _attributes(device: int) -> Mapping[str, Any]:
    """Of a device as this process sees it; raises RequirementError where there is none."""
    from cudnn_aot import _native
    from cudnn_aot.runtime import cudart

    cudart.find()
    return _native.device_attributes(device)


def _release(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"
