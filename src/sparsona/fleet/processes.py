"""Flower's programs as child processes: started with what they need, stopped whatever happens."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from sparsona.fleet import FleetError, needs_flower

_LONGEST = 10_000_000  # bytes of a log, and as many of the one before: a fleet may run for months
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def environment(home: Path) -> dict[str, str]:
    """What Flower's programs read: where they are, where their settings lie, and that they send no telemetry."""
    there = {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FORWARDED_ALLOW_IPS": "127.0.0.1,::1",  # proxies whose forwarding headers are trusted
        "FLWR_INTERNAL_GRPC_CONTROL_API": "0",  # other ways to a SuperLink than the one that is guarded
        "FLWR_INTERNAL_GRPC_FLEET_API": "0",
        "PYTHONUNBUFFERED": "1",
    }
    wish = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2"}  # a second otherwise, in every round; a user's own comes first
    return wish | os.environ | there


class Child:
    """A program that runs until it is stopped; it never outlives us."""

    def __init__(self, command: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> None:
        self.command = list(command)
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        guard = [sys.executable, "-I", "-S", str(Path(__file__).with_name("child.py")), str(os.getpid())]
        self._read = log.stat().st_size if log.exists() else 0
        with log.open("ab") as out:
            out.write(f"--- {' '.join(self.command[:1])}\n".encode())
            self.process = subprocess.Popen(
                [*guard, *self.command], stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=env, process_group=0
            )

    @property
    def ended(self) -> bool:
        """Whether it runs no more."""
        return self.process.poll() is not None

    def news(self) -> str:
        """What it printed since this was last asked."""
        with suppress(OSError), self.log.open("rb") as file:
            file.seek(self._read)
            text = file.read()
            self._read += len(text)
            if self._read > _LONGEST:  # it writes at the end, wherever that is, and need not know
                shutil.copyfile(self.log, self.log.with_suffix(".old"))
                os.truncate(self.log, 0)
                self._read = 0
            return text.decode(errors="replace")
        return ""

    def last_words(self, lines: int = 1, most: int = 600) -> str:
        """The end of what it printed, in one line."""
        with suppress(OSError):
            text = _COLOUR.sub("", self.log.read_text(errors="replace").rpartition("--- ")[2])
            kept = [" ".join(line.split()) for line in text.splitlines()[1:] if line.strip(" :")]
            return " | ".join(kept[-lines:])[-most:]
        return ""

    def stop(self, patience: float = 20.0) -> None:
        """Ask it to end, and see to it that it does, with all that it started."""
        with suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(patience)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def stop_all(children: Sequence[Child]) -> None:
    """Stop many, the newest first; a Ctrl-C or another wish to end meanwhile does not leave any behind."""
    before = {}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        with suppress(ValueError):  # not in the main thread
            before[number] = signal.signal(number, signal.SIG_IGN)
    try:
        for child in reversed(children):
            with suppress(ProcessLookupError):
                os.kill(child.process.pid, signal.SIGINT)
        for child in reversed(children):
            child.stop()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def exclusive_lock(lock: Path, otherwise: str) -> Iterator[IO[str]]:
    """Hold a lock file until the process ends, even if it is killed; FleetError if another process holds it."""
    try:
        import fcntl  # not on Windows, where the command line must still start
    except ImportError:
        raise FleetError("servers and nodes of a fleet run on Linux only; on Windows use WSL 2") from None
    lock.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with lock.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise FleetError(otherwise) from None
        yield file


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


def port_is_free(host: str, port: int) -> bool:
    """Whether one could listen there."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind((host, port))
        except OSError:
            return False
    return True


def reachable(host: str, port: int, seconds: float = 1.0) -> bool:
    """Whether somebody listens there."""
    try:
        with socket.create_connection((host, port), timeout=seconds):
            return True
    except OSError:
        return False


def wait_until_reachable(child: Child, host: str, port: int, seconds: float = 120.0) -> None:
    """Wait until a server that was just started listens; raises FleetError if it ends or takes too long."""
    end = time.monotonic() + seconds
    while not reachable(host, port):
        if child.ended:
            raise FleetError(f"the server ended immediately: {child.last_words(3)}")
        if time.monotonic() > end:
            raise FleetError(f"the server does not listen on {host}:{port} after {seconds:g} seconds; see {child.log}")
        time.sleep(0.1)


def flwr(home: Path, *arguments: str, seconds: float = 180.0) -> dict[str, Any]:
    """What a command of Flower's answers, as JSON; raises FleetError with its reason if it fails."""
    needs_flower()
    command = [str(Path(sys.executable).with_name("flwr")), *arguments, "--format", "json"]
    try:
        process = subprocess.run(
            command, capture_output=True, text=True, env=environment(home), timeout=seconds, stdin=subprocess.DEVNULL
        )
    except FileNotFoundError as error:
        raise FleetError(f"{command[0]} is missing: pip install 'sparsona[flower]'") from error
    except subprocess.TimeoutExpired as error:
        raise FleetError(f"flwr {arguments[0]} took more than {seconds:g} seconds") from error
    start = process.stdout.find("{")
    try:
        answer: dict[str, Any] = json.loads(process.stdout[start:]) if start >= 0 else {}
    except ValueError:
        answer = {}
    if not answer.get("success"):
        reason = str(answer.get("error-message") or process.stderr or process.stdout)
        raise FleetError(f"flwr {' '.join(arguments[:2])}: {' '.join(_COLOUR.sub('', reason).split())[-400:]}")
    return answer
