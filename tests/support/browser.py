"""A real browser without a window: what a page becomes, what it says, and what it asks for."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from html import unescape
from pathlib import Path

import pytest

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
needs_browser = pytest.mark.skipif(
    not BROWSER, reason="no chromium: scripts/test_services.sh installs it"
)
_FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-default-apps", "--disable-extensions", "--virtual-time-budget=5000",
    "--enable-logging=stderr", "--v=0", "--host-resolver-rules=MAP * ~NOTFOUND",
)  # fmt: skip
# What the browser asks for by itself, whatever it shows.
_ITS_OWN = re.compile(r"https?://[a-z0-9.-]*\.(google|googleapis)\.com/")


@dataclass(frozen=True)
class Visit:
    """A page after its scripts ran.

    Attributes:
        dom: its HTML then.
        console: the lines that it wrote on the console, errors among them.
        requests: the addresses that were asked for, but for the page's own.
    """

    dom: str
    console: tuple[str, ...]
    requests: tuple[str, ...]

    def rows(self, table: str) -> list[list[str]]:
        """The text of the cells of a table's body, in the order in which they are shown."""
        found = re.search(rf'<table id="{table}-table">.*?<tbody>(.*?)</tbody>', self.dom, re.S)
        if found is None:
            return []
        rows = re.findall(r"<tr>(.*?)</tr>", found.group(1), re.S)
        return [
            [
                unescape(re.sub(r"<[^>]*>", "", cell))
                for cell in re.findall(r"<td.*?>(.*?)</td>", row)
            ]
            for row in rows
        ]


def visit(page: Path, fragment: str = "", width: int = 1280, *flags: str) -> Visit:
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "net.json"
        address = f"{page.absolute().as_uri()}#{fragment}"
        done = subprocess.run(
            [BROWSER, *_FLAGS, *flags, f"--user-data-dir={folder}/profile", f"--log-net-log={log}",
             f"--window-size={width},900", "--dump-dom", address],
            capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        asked = _requests(log)
    console = tuple(line for line in done.stderr.splitlines() if "CONSOLE" in line)
    own = page.absolute().as_uri()
    others = (url for url in asked if url.split("#")[0] != own and not _ITS_OWN.match(url))
    return Visit(done.stdout, console, tuple(others))


def _requests(log: Path) -> list[str]:
    text = log.read_text(encoding="utf-8").rstrip().rstrip(",")
    try:
        document = json.loads(text)
    except ValueError:  # the browser ended before it closed the list
        document = json.loads(text + "]}")
    started = document["constants"]["logEventTypes"]["URL_REQUEST_START_JOB"]
    events = [event for event in document["events"] if event["type"] == started]
    return [event["params"]["url"] for event in events if "url" in event.get("params", {})]


def screenshot(page: Path, picture: Path, width: int = 1280, *flags: str) -> bytes:
    """The page as a PNG."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [BROWSER, *_FLAGS, *flags, f"--user-data-dir={folder}/profile",
             f"--window-size={width},900", f"--screenshot={picture}", page.absolute().as_uri()],
            capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    return picture.read_bytes()
