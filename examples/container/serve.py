"""Loads every plan of a store and says so over HTTP: where your server's own work would begin.

    serve.py [--target T] [--device N] [--port 8080]    load, prepare, answer GET /healthz
    serve.py --verify                                   read every byte of the store, and exit

The store is that of CUDNN_AOT_STORE; CUDNN_AOT_PIN is checked when it is opened. Needs the plain
install alone. Nothing is written, and nobody's home folder is asked for.
"""

from __future__ import annotations

import argparse
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from cudnn_aot import runtime
from cudnn_aot.cache.reader import StoreReader
from cudnn_aot.errors import Error


def verify(path: str) -> list[str]:
    """What is wrong with the store at ``path``, and with its pin."""
    return [str(problem) for problem in StoreReader(path).verify()]


class _Handler(BaseHTTPRequestHandler):
    state: bytes = b""

    def do_GET(self) -> None:
        found = self.path == "/healthz"
        self.send_response(200 if found else 404)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        if found:
            self.wfile.write(self.state)

    def log_message(self, format: str, *args: object) -> None:
        """A probe every few seconds is no news."""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target")
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--verify", action="store_true")
    options = parser.parse_args()
    try:
        store = runtime.open(target=options.target)
        if options.verify:
            problems = verify(store.path)
            print("\n".join(problems) or f"{store.path}: every byte as recorded")
            return 1 if problems else 0
        plans = store.plans()
        for plan in plans.values():
            plan.prepare(options.device)
    except Error as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    state = {"store": store.path, "plans": len(plans), "closure": store.closure_digest()}
    _Handler.state = json.dumps(state).encode()
    server = ThreadingHTTPServer(("", options.port), _Handler)
    print(f"{len(plans)} plans ready, port {server.server_port}", flush=True)
    server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
