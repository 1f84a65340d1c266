"""``cudnn-aot sign``: signatures of stores and keys to make them."""

from pathlib import Path

import click

from cudnn_aot.cache.trust import load_private_key, new_private_key, public_pem, sign_digest
from cudnn_aot.cache.writer import StoreWriter
from cudnn_aot.cli.files import publish
from cudnn_aot.cli.options import choose_store, json_option
from cudnn_aot.cli.output import print_json, say
from cudnn_aot.errors import DamagedError, UsageError


@click.command()
@click.argument("store", required=False)
@click.option("--key", metavar="FILE", help="An Ed25519 private key as PEM.")
@click.option(
    "--new-key", metavar="FILE", help="Make a key, and FILE.pub to trust, and sign nothing."
)
@json_option
def sign(store: str | None, key: str | None, new_key: str | None, as_json: bool) -> int:
    """Sign the store STORE as it is: its root digest, and so every document and what they name.

    STORE defaults to the store in use. A store with damage is refused. Each key has a signature of
    its own, in signatures/; a build that changes the store makes them invalid.
    """
    if (key is None) == (new_key is None) or new_key is not None and store is not None:
        raise UsageError("want either --key FILE, to sign, or --new-key FILE alone, to make one")
    if new_key is not None:
        path = Path(new_key)
        public = new_private_key(path)
        public_path = path.with_name(path.name + ".pub")
        publish(public_path, public_pem(public).decode("ascii"), "the public key")
        if as_json:
            made = {"key": str(path), "public_key": str(public_path), "key_id": public.id}
            print_json({**made, "base64": str(public)})
        else:
            say(f"{path}: the private key, for whoever signs")
            say(f"{public_path}: the public key, to trust; in base64 {public}")
        return 0
    assert key is not None
    private = load_private_key(Path(key))
    with StoreWriter(choose_store(store).path, create=False) as writer:
        problems = writer.reader.verify()
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
