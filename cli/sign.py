"""``cudnn-aot sign``: signatures of stores and keys to make them."""

from pathlib import Path

import click

from cudnn_aot.cache.trust import load_private_key, new_private_key, public_path, sign_digest
from cudnn_aot.cache.writer import StoreWriter
from cudnn_aot.cli.completion import complete_files
from cudnn_aot.cli.options import choose_store, json_option, store_option
from cudnn_aot.cli.output import print_json, say
from cudnn_aot.cli.progress import show_progress
from cudnn_aot.errors import DamagedError, UsageError


@click.command()
@click.option(
    "--key", metavar="FILE", shell_complete=complete_files, help="An Ed25519 private key as PEM."
)
@click.option(
    "--new-key",
    metavar="FILE",
    shell_complete=complete_files,
    help="Make a key, and FILE.pub to trust, and sign nothing.",
)
@store_option
@json_option
def sign(key: str | None, new_key: str | None, store: str | None, as_json: bool) -> int:
    """Sign a store as it is: its root digest, and so every document and what they name.

    A store with damage is refused. Each key has a signature of its own, in signatures/; a build
    that changes the store makes them invalid.

    \b
    cudnn-aot sign --new-key release.pem
    cudnn-aot sign --key release.pem --store store
    cudnn-aot verify --trust release.pem.pub --store store
    """
    if (key is None) == (new_key is None) or new_key is not None and store is not None:
        raise UsageError("want either --key FILE, to sign, or --new-key FILE alone, to make one")
    if new_key is not None:
        path = Path(new_key)
        public = new_private_key(path)
        if as_json:
            made = {"key": str(path), "public_key": str(public_path(path)), "key_id": public.id}
            print_json({**made, "base64": str(public)})
        else:
            say(f"{path}: the private key, for whoever signs")
            say(f"{public_path(path)}: the public key, to trust; in base64 {public}")
        return 0
    assert key is not None
    private = load_private_key(Path(key))
    with StoreWriter(choose_store(store).path, create=False) as writer:
        with show_progress(quiet=as_json) as progress:
            problems = writer.reader.verify(progress)
        if problems:
            raise DamagedError(
                f"store {writer.reader.where!r} has {len(problems)} faults, the first: "
                f"{problems[0]}; build or pull it again"
            )
        root_digest = writer.reader.root_digest()
        relative, data = sign_digest(root_digest, private)
        writer.put_file(relative, data)
    if as_json:
        print_json({"store": writer.reader.where, "root_digest": root_digest, "file": relative})
    else:
        say(f"{writer.path / relative}: signs root digest {root_digest}")
    return 0
