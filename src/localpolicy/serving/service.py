"""`serve`: runs an export behind HTTP, in one process or several."""

from __future__ import annotations

import inspect
import logging
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any

from localpolicy.errors import ConfigError, LocalPolicyError
from localpolicy.ranker.layer import FILE as LAYER
from localpolicy.runtime.files import read_json, sha256
from localpolicy.runtime.locks import lock_if_free, make_locked
from localpolicy.serving.config import ServeConfig, is_loopback
from localpolicy.serving.database import without_password
from localpolicy.serving.deployment import Deployment
from localpolicy.serving.exports import read_export
from localpolicy.serving.layers import layer_deployment
from localpolicy.serving.log import Log

LOG = logging.getLogger(__name__)
BACKLOG = 1024  # connections that wait to be accepted
PAUSES = 8  # turns of the event loop: about as long as it takes to wake an idle worker
NUMBERS = "localpolicy-metrics-"  # begins the name of the folder where workers of one service put their metrics


def exported(path: Path) -> Path:
    """Return the export at `path`; export a run into its folder first, unless that was done."""
    if (path / "export.json").exists() or not (path / "policy.json").exists():
        return path
    made = path / "export"
    if not (made / "export.json").exists() or not is_export_of(made, path):
        from localpolicy.serving.export import export  # the only part that needs torch

        LOG.info("exporting %s to %s", path, made)
        export(path, out=made, force=True)
    return made


def is_export_of(made: Path, run: Path) -> bool:
    """Whether an export was made from this run as it is now."""
    written = read_export(made, verify=False)
    manifest = read_json(run / "manifest.json") if (run / "manifest.json").exists() else {}
    now = (manifest.get("policy_sha256"), sha256(run / "policy.json"))
    return (written.policy_sha256, written.policy_json_sha256) == now


def serve(
    run: Path | str,
    *,
    token: str | None = None,
    changes: Sequence[str] = (),
    **settings: Any,
) -> None:
    """Serve a run or an export until stopped. `settings` are the fields of `ServeConfig`, `changes` more of them."""
    try:
        import uvicorn

        from localpolicy.serving.app import SETTINGS, TOKEN
        from localpolicy.serving.limits import PatientProtocol
        from localpolicy.serving.metrics import FOLDER
    except ImportError as error:
        raise LocalPolicyError(f"the service needs {error.name}: pip install 'localpolicy[serve]'.") from None
    folder = exported(Path(run))
    config = ServeConfig.parse({**settings, "export": folder.resolve()}).with_changes(changes)
    if not (token or config.without_token or is_loopback(config.host)):
        raise ConfigError(
            f"other machines reach {config.host}, and clients need no token: set LPI_TOKEN, listen on 127.0.0.1, or "
            "answer everyone with --set without_token=true."
        )
    _check(config)
    bound = _bind(config)
    LOG.info(
        f"serving {folder} on http://{config.host}:{bound.getsockname()[1]}, log in {without_password(config.log)}"
    )
    os.environ[SETTINGS] = config.model_dump_json()
    if token:
        os.environ[TOKEN] = token
    server = uvicorn.Config(
        "localpolicy.serving.app:from_environment", factory=True, host=config.host, port=config.port,
        workers=config.workers, http=PatientProtocol, ws="none", log_level="warning", access_log=False,
        server_header=False, proxy_headers=bool(config.proxies), forwarded_allow_ips=list(config.proxies),
        timeout_keep_alive=30, timeout_graceful_shutdown=10, backlog=BACKLOG,
    )  # fmt: skip
    if config.workers == 1:
        uvicorn.Server(server).run(sockets=[bound])
        return
    from uvicorn.supervisors import Multiprocess

    # Until uvicorn 0.50 the supervisor was also given what a worker runs.
    takes_target = "target" in inspect.signature(Multiprocess).parameters
    target: dict[str, Any] = {"target": uvicorn.Server(server).run} if takes_target else {}
    with shared_numbers() as numbers:
        os.environ.setdefault(FOLDER, str(numbers))
        Multiprocess(server, sockets=[bound], **target).run()


@contextmanager
def shared_numbers() -> Iterator[Path]:
    """Context manager: a temporary folder for the metrics of all workers; those of killed services are removed."""
    for left in Path(tempfile.gettempdir()).glob(f"{NUMBERS}*"):
        if (lock := lock_if_free(left)) is not None:
            shutil.rmtree(left, ignore_errors=True)  # another user's stays
            os.close(lock)
    # The lock is held as long as this process lives.
    folder, held = make_locked(lambda: Path(tempfile.mkdtemp(prefix=NUMBERS)))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if held is not None:
            os.close(held)


def _check(config: ServeConfig) -> None:
    """Open export and log once before the workers start, so that errors reach the user."""
    if (config.export / LAYER).exists():
        layer_deployment(config)
    else:
        Deployment(config.export, rollout=config.rollout)
    Log(config.log).close()


class Listening(socket.socket):
    """A listening socket that workers share: each takes one connection at a time, and leaves the next to the others.

    asyncio accepts all that wait at once: the connections of a pool, opened together and kept, were one worker's.
    """

    _pauses = 0

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection; raise BlockingIOError for the next PAUSES calls."""
        if self._pauses:
            self._pauses -= 1
            raise BlockingIOError
        accepted = super().accept()
        self._pauses = PAUSES
        return accepted

    def __reduce__(self) -> Any:
        """What a worker makes it again from, while it is started."""
        return type(self)._of, (self.family, self.type, self.proto, DupFd(self.fileno()))

    @classmethod
    def _of(cls, family: int, kind: int, protocol: int, copied: Any) -> Listening:
        return cls(family, kind, protocol, fileno=copied.detach())


def _bind(config: ServeConfig) -> socket.socket:
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    # With its protocol named, asyncio switches Nagle's algorithm off. Else every answer waits 40 ms for the client's
    # delayed acknowledgement: headers and body leave in two segments.
    kind = socket.socket if config.workers == 1 else Listening
    bound = kind(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((config.host, config.port))
        bound.listen(BACKLOG)  # who connects from here on waits until a worker is ready
    except OSError as error:
        bound.close()
        raise ConfigError(f"{config.host}:{config.port} cannot be listened on ({error.strerror}): choose another "
                          "--port, or 0 for any that is free.") from None  # fmt: skip
    bound.set_inheritable(True)
    return bound
