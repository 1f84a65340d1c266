"""``cudnn-aot pack``: a store as one file; standard library and click."""

from pathlib import Path

import click

from cudnn_aot.cache.pack_writer import write_pack
from cudnn_aot.cache.reader import StoreReader
from cudnn_aot.cache.writer import source_date_epoch
from cudnn_aot.cli.completion import complete_files
from cudnn_aot.cli.options import choose_keys, choose_store, json_option, store_option
from cudnn_aot.cli.output import print_json, say
from cudnn_aot.cli.table import format_bytes, plural


@click.command()
@click.option(
    "--output",
    "-o",
    required=True,
    metavar="FILE",
    shell_complete=complete_files,
    help="The pack; replaced if there.",
)
@store_option
@json_option
def pack(output: str, store: str | None, as_json: bool) -> int:
    """Write a store as one file, which every command and `runtime.open` take as a store.

    Equal stores give equal packs. A store that has damage is refused; files that are not the
    store's own are left out.

    \b
    cudnn-aot pack --store store -o store.pack
    """
    reader = choose_store(store).only_reader(choose_keys())
    path = Path(output)
    foreign = reader.foreign()
    files = write_pack(reader, path, source_date_epoch())
    size, digest = path.stat().st_size, StoreReader(path).root_digest()
    if as_json:
        document = {"store": reader.where, "pack": str(path), "files": files, "bytes": size}
        print_json({**document, "root_digest": digest, "foreign": foreign})
    else:
        left_out = f"; left out {plural(len(foreign), 'file')} not of the store" if foreign else ""
        say(f"{path}: {plural(files, 'file')} of {reader.where}, {format_bytes(size)}{left_out}")
        say(f"root digest {digest}")
    return 0
