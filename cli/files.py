"""Files that commands write beside the store."""

import os
import tempfile
from pathlib import Path


def publish(path: Path, text: str) -> None:
    """Write a file at once: a reader finds the old or the new one, whole; raises OSError."""
    descriptor, stage = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        Path(stage).chmod(0o644)
        Path(stage).replace(path)
    except BaseException:
        Path(stage).unlink(missing_ok=True)
        raise
