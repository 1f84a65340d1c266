"""Where the C++ half of the installed package lies: ``python -m cudnn_aot --cmakedir``."""

import argparse
import importlib.util
from pathlib import Path

from cudnn_aot import __version__

# Option -> folder beside the extension module, and what it is.
FOLDERS = {
    "cmakedir": ("lib/cmake/cudnn_aot", "the CMake package, for -Dcudnn_aot_DIR="),
    "includedir": ("include", "cudnn_aot.h and cudnn_aot.hpp"),
    "libdir": ("lib", "libcudnn_aot.so"),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m cudnn_aot", description=__doc__)
    parser.add_argument("--version", action="version", version=__version__)
    choice = parser.add_mutually_exclusive_group(required=True)
    for option, (folder, what) in FOLDERS.items():
        shown = f"print the folder of {what}"
        choice.add_argument(
            f"--{option}", action="store_const", const=folder, dest="at", help=shown
        )
    spec = importlib.util.find_spec("cudnn_aot._native")
    assert spec is not None and spec.origin is not None  # every install has it
    # In an editable install that is another folder than the sources'.
    print(Path(spec.origin).parent / parser.parse_args().at)


if __name__ == "__main__":
    main()
