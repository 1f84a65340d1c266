"""``cudnn-aot push`` and ``pull``: stores to and from URLs and registries."""

from pathlib import Path

import click

from cudnn_aot.cache.exchange import Received, pull_folder, pull_image, push_folder, push_image
from cudnn_aot.cache.place import is_url
from cudnn_aot.cache.registry import parse_reference
from cudnn_aot.cache.remote import open_remote
from cudnn_aot.cache.transfer import redacted
from cudnn_aot.cli.completion import complete_folders
from cudnn_aot.cli.merge import complain_of, prefer_options, preference
from cudnn_aot.cli.options import (
    choose_keys,
    choose_store,
    json_option,
    offline_choice,
    offline_option,
    store_option,
    target_option,
    trust_option,
)
from cudnn_aot.cli.output import print_json, say
from cudnn_aot.cli.progress import show_progress
from cudnn_aot.cli.table import format_bytes, plural
from cudnn_aot.errors import UsageError

_plain_http = click.option(
    "--plain-http", is_flag=True, help="Of a registry: no TLS. On this machine that is the default."
)


@click.command()
@click.argument("place", metavar="URL|IMAGE")
@_plain_http
@store_option
@json_option
def push(place: str, plain_http: bool, store: str | None, as_json: bool) -> int:
    """Copy a store to the folder at a URL, or to a registry as the image HOST/NAME[:TAG].

    What is there already is not sent again. Equal stores give equal images.

    \b
    cudnn-aot push s3://models/llama8b --store store
    cudnn-aot push ghcr.io/team/llama8b:v3 --store store
    """
    _need_network("push")
    reader = choose_store(store).only_reader(choose_keys())
    with show_progress(quiet=as_json) as progress:
        if _is_image(place):
            sent = push_image(reader, place, plain_http, progress=progress)
            name = str(parse_reference(place))
        else:
            sent = push_folder(reader, place, progress=progress)
            name = redacted(place)
    if as_json:
        print_json(
            {
                "store": reader.where,
                "place": name,
                "root_digest": sent.root_digest,
                "digest": sent.digest or None,
                "files": sent.files,
                "files_sent": sent.files_sent,
                "bytes_sent": sent.bytes_sent,
            }
        )
    else:
        shown = plural(sent.files_sent, "blob" if sent.digest else "file")
        say(f"{name}: sent {shown} of {sent.files}, {format_bytes(sent.bytes_sent)}")
        say(f"root digest {sent.root_digest}")
        if sent.digest:
            say(f"digest {sent.digest}")
    return 0


@click.command()
@click.argument("place", metavar="URL|IMAGE")
@click.option(
    "--output",
    "-o",
    required=True,
    metavar="DIR",
    shell_complete=complete_folders,
    help="The store to add to, or a new one.",
)
@target_option("Only what this target needs.")
@trust_option
@click.option("--digest", default="", metavar="D", help="The root digest that it must have.")
@prefer_options("is pulled")
@_plain_http
@offline_option
@json_option
def pull(
    place: str,
    output: str,
    target: str | None,
    trust: tuple[str, ...],
    digest: str,
    keep: bool,
    replace: bool,
    plain_http: bool,
    as_json: bool,
) -> int:
    """Add the store at a URL, or in the image HOST/NAME[:TAG][@sha256:DIGEST], to a folder.

    Everything is checked before anything is published: digests of manifest and layers, the root
    digest, a signature, and every file. Then it is added as `merge` adds a store: names and plans
    that differ are listed, and stay as they are: exit code 1, unless --keep or --replace decides.

    \b
    cudnn-aot pull ghcr.io/team/llama8b:v3 -o store --target h200
    """
    prefer = preference(keep, replace)
    keys = tuple(choose_keys(trust))
    path = Path(output)
    with show_progress(quiet=as_json) as progress:
        if _is_image(place):
            _need_network("pull of an image")
            got = pull_image(
                place,
                path,
                target=target,
                digest=digest,
                keys=keys,
                prefer=prefer,
                plain_http=plain_http,
                progress=progress,
            )
            name = str(parse_reference(place))
        else:
            files = open_remote(place, digest=digest, keys=keys)
            got = pull_folder(files, path, target, progress, prefer)
            name = redacted(place)
    code = complain_of(got.failures, got.conflicts, prefer)
    if as_json:
        print_json(_as_json(name, path, got))
    else:
        say(f"{path}: {plural(got.files_written, 'file')} written, from {name}")
        say(f"targets {', '.join(got.targets) or 'none'}; root digest {got.root_digest}")
        if got.source_root_digest != got.root_digest:
            say(f"the source has root digest {got.source_root_digest}")
    return code


def _need_network(what: str) -> None:
    choice = offline_choice()
    if choice.is_on:
        raise UsageError(f"{what} needs a network: {choice.chosen_by} says to be offline")


def _is_image(place: str) -> bool:
    return place.startswith("oci://") or not is_url(place)


def _as_json(name: str, path: Path, got: Received) -> dict[str, object]:
    return {
        "place": name,
        "store": str(path),
        "root_digest": got.root_digest,
        "source_root_digest": got.source_root_digest,
        "digest": got.digest or None,
        "targets": list(got.targets),
        "files_written": got.files_written,
        "conflicts": list(got.conflicts),
        "failures": list(got.failures),
    }
