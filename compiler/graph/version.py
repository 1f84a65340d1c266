"""Which cuDNN the op table follows.

Programs ask for a version to know what they may build. No cuDNN is loaded or needed: the numbers
say whose graph rules are followed, that of the cuDNN frontend 1.32 with the cuDNN it names.
"""

BACKEND = (9, 28, 1)


def backend_version() -> int:
    """The cuDNN version whose graphs can be built, as ``10000 * major + 100 * minor + patch``."""
    major, minor, patch = BACKEND
    return 10000 * major + 100 * minor + patch


def backend_version_string() -> str:
    """The same as text, ``"9.28.1"``."""
    return ".".join(map(str, BACKEND))
