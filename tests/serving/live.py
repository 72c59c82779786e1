"""A real server in a process of its own, on a port that the system chose."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PATIENCE = 120  # seconds after which a server that does not start has failed


class Server:
    """A running service."""

    def __init__(self, process: subprocess.Popen, port: int, said: list[str]) -> None:
        self.process, self.port = process, port
        self.said = said  # its lines on stderr; all of them once the block has ended

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)

    def call(self, method: str, path: str, body: dict | None = None, *, over=None) -> tuple[int, dict]:
        connection = over or self.connect()
        headers = {"content-type": "application/json"}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        content = answer.read()
        if over is None:
            connection.close()
        return answer.status, json.loads(content) if content else {}

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(60)


@contextmanager
def serving(export: Path, log: Path | str, *options: str) -> Iterator[Server]:
    """A server that is ready; it is ended with the block, if it has not ended."""
    command = [sys.executable, "-m", "localpolicy", "serve", str(export), "--log", str(log), "--port", "0", *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    said: list[str] = []
    reading = None
    try:
        for line in process.stderr:
            said.append(line)
            if found := re.search(r"http://[\w.]+:(\d+)", line):
                break
        else:
            raise AssertionError(f"it did not start: {''.join(said)}")
        reading = threading.Thread(target=lambda: said.extend(process.stderr), daemon=True)
        reading.start()
        server = Server(process, int(found[1]), said)
        _ready(server)
        yield server
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        if reading is not None:
            reading.join()
        process.stderr.close()


def _ready(server: Server) -> None:
    """The socket listens before the workers do: a connection waits there until one answers."""
    for _ in range(PATIENCE):
        try:
            status, _ = server.call("GET", "/readyz")
        except (ConnectionError, http.client.HTTPException):
            threading.Event().wait(0.2)
            continue
        assert status == 200
        return
    raise AssertionError("it is not ready")
