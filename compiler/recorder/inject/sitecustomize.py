"""Starts the recorder in a Python process whose PYTHONPATH names this folder.

The interpreter imports ``sitecustomize`` when it starts, so this reaches every child process that
inherits the environment. The module stands in front of a ``sitecustomize`` that the installation
has already, and runs that one in its own place. An interpreter too old for the recorder, down to
Python 2.7, has to be able to run this file, and notices nothing of it.
"""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120


def start_recorder():
    # type: () -> None
    """Load the hook by its path: the program's environment need not have this package."""
    spool = os.environ.get("CUDNN_AOT_RECORD_SPOOL")
    if not spool or sys.version_info < (3, 8):  # noqa: UP036
        return
    from importlib.machinery import SourceFileLoader

    path = os.path.join(os.path.dirname(HERE), "hook.py")  # noqa: PTH118, PTH120
    module = type(sys)("_cudnn_aot_recorder_hook")
    module.__file__ = path
    sys.modules[module.__name__] = module
    SourceFileLoader(module.__name__, path).exec_module(module)
    module.install(module.Recorder(spool))


def run_next():
    # type: () -> None
    """Run the ``sitecustomize`` that would have been imported without this folder."""
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != HERE]  # noqa: PTH100
    if sys.version_info < (3, 5):  # noqa: UP036
        run_next_by_imp()
        return
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        return
    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)  # what it raises is the program's own affair


def run_next_by_imp():
    # type: () -> None
    """The same where the only import machinery to be called is the old one."""
    imp = __import__("imp")
    try:
        file, path, description = imp.find_module("sitecustomize", sys.path)
    except ImportError:
        return
    try:
        imp.load_module("sitecustomize", file, path, description)
    finally:
        if file:
            file.close()


if __name__ == "sitecustomize":
    try:
        start_recorder()
    except Exception:  # recording is worth no error of the program
        pass
    run_next()
