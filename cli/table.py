"""Plain text tables and quantities, the same on a terminal and in a file."""

from collections.abc import Sequence

from cudnn_aot.cli.output import printable


def format_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], right: str = ""
) -> list[str]:
    """Lines of columns two spaces apart; ``right`` names the columns to align to the right."""
    if not rows:
        return []
    cells = [list(header), *[[printable(str(cell)) for cell in row] for row in rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    aligned_right = [title in right.split() for title in header]
    lines = []
    for row in cells:
        parts = [
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(row, widths, aligned_right, strict=True)
        ]
        lines.append("  ".join(parts).rstrip())
    lines.insert(1, "  ".join("-" * width for width in widths))
    return lines


def format_bytes(count: int) -> str:
    """``57344`` as ``56.0 KiB``."""
    size = float(count)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.2f} GiB"


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def format_engines(engines: Sequence[str]) -> str:
    """``gemm.sm90.gemv +2`` for the first of three."""
    more = f" +{len(engines) - 1}" if len(engines) > 1 else ""
    return f"{engines[0]}{more}" if engines else "-"
