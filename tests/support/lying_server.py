"""An HTTP server of a folder that lies as it is told, and that can be pushed to."""

from __future__ import annotations

import gzip
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

ALWAYS = 1 << 30
PACKED = gzip.compress(bytes(1 << 20)) * 64  # members of 1 MiB each


class Server:
    """``faults`` has, for the end of a path, what is wrong how many times."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.url = url
        self.faults: dict[str, tuple[str, int]] = {}
        self.requests: Counter[str] = Counter()
        self.sent_bytes = 0  # of answers without an end
        self.over = threading.Event()

    def fault_of(self, path: str) -> str:
        self.requests[path] += 1
        for end, (fault, times) in self.faults.items():
            if path.endswith(end) and times:
                self.faults[end] = (fault, times - 1)
                return fault
        return ""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Http

    def do_GET(self) -> None:
        lying = self.server.lying
        path = unquote(self.path.lstrip("/"))
        fault = lying.fault_of(path)
        file = lying.folder / path
        if fault in ("endless", "unpacking"):
            self._answer_without_end(packed=fault == "unpacking")
        elif fault.isdecimal():
            self._answer(int(fault), b"", 0)
        elif not file.is_file():
            self._answer(404, b"", 0)
        else:
            data = file.read_bytes()
            if fault == "wrong":
                data = bytes([data[0] ^ 1]) + data[1:]
            elif fault == "cut":  # a whole answer, of which the end is missing
                data = data[:-1]
            size = len(data)
            if fault == "closed early":
                data = data[: size // 2]
            if fault == "slow":
                data = data[:1]
            self._answer(200, data, size)
            if fault == "slow":
                lying.over.wait()
            if fault:
                self.close_connection = True

    def _answer(self, status: int, data: bytes, size: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(size))
        self.end_headers()
        self.wfile.write(data)
        self.wfile.flush()

    def _answer_without_end(self, packed: bool) -> None:
        """Zeros in chunks, or 64 MiB of them in as many KiB of gzip."""
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        piece = bytes(1 << 16)
        if packed:
            self.send_header("Content-Encoding", "gzip")
            piece = PACKED
        self.end_headers()
        self.close_connection = True
        try:
            while True:
                self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                self.server.lying.sent_bytes += len(piece)
                if packed:
                    self.wfile.write(b"0\r\n\r\n")
                    return
        except OSError:  # the other side has had enough
            pass

    def log_message(self, format: str, *args: object) -> None:
        pass


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    lying: Server


@contextmanager
def serve(folder: Path) -> Iterator[Server]:
    http = _Http(("127.0.0.1", 0), _Handler)
    http.lying = Server(folder, f"http://127.0.0.1:{http.server_port}")
    thread = threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield http.lying
    finally:
        http.lying.over.set()
        http.shutdown()
        http.server_close()
        thread.join()
