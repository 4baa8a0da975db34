"""A node: the device's process, which stays, and Flower's SuperNode beside it, started again when it ends."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Listener
from pathlib import Path

import sparsona
from sparsona.fleet import FleetError, needs_flower
from sparsona.fleet.client_runtime import ClientRuntime
from sparsona.fleet.data import NodeData
from sparsona.fleet.envelope import MAX_BYTES
from sparsona.fleet.keys import check_certificate, check_private
from sparsona.fleet.processes import Child, environment, exclusive_lock, free_port, reachable

_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_ASKS_WITHIN = 60.0  # seconds in which whoever connects to the device's process must begin to ask
_LET_IN = "SuperNode ID:"  # what Flower's log says then
_PAUSE = 6.0  # seconds between two starts: Flower takes a node back only when it has noticed that it was gone


@dataclass(frozen=True)
class NodeOptions:
    """The options of a node's command line."""

    server: str  # host:port
    client: int
    home: Path  # where the device keeps its values
    data: NodeData
    authority: Path | None = None  # ca.crt
    key: Path | None = None  # the node's private key
    insecure: bool = False
    max_bytes: int = MAX_BYTES
    port: int | None = None  # of the SuperNode itself, only on this machine


def split_address(address: str) -> tuple[str, int]:
    """Host and port of an address; raises FleetError if it is none."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise FleetError(f'server: "{address}" is not allowed; expected host:port, such as server.example.org:8000')
    return host.strip("[]"), int(port)


def check_secure(host: str, insecure: bool, authority: Path | None, key: Path | None) -> bool:
    """Whether to use TLS and keys; without them only on this machine, or by explicit wish."""
    if authority is not None and key is not None and not insecure:
        return True
    if insecure and (authority is not None or key is not None):
        raise FleetError("insecure: not allowed together with --ca or --key; leave out --insecure, or both of them")
    if not insecure and host not in _LOOPBACK:
        raise FleetError(
            f"server: {host} is another machine; give --ca and --key, or --insecure if you accept an open connection"
        )
    if not insecure:
        raise FleetError("ca, key: missing; give --ca and --key, or --insecure for a server on this machine")
    return False


def run_node(options: NodeOptions, say: Callable[[str], None], stop: threading.Event | None = None) -> None:
    """Serve until stopped; the SuperNode is started again, however often it ends."""
    needs_flower()
    stop = stop or threading.Event()
    host, port = split_address(options.server)
    secure = check_secure(host, options.insecure, options.authority, options.key)
    if secure:
        assert options.authority is not None
        assert options.key is not None
        check_private(options.key)
        check_certificate(options.authority)
    options.data.try_out()
    runtime = ClientRuntime(
        options.client, options.home, options.data.builder(), sparsona.__version__, options.max_bytes, say
    )
    child: Child | None = None
    with _place(options.home) as place:
        socket = place / "device"
        listener = Listener(str(socket), "AF_UNIX", backlog=16)  # one that waits must not keep others from asking
        try:
            socket.chmod(0o600)
            device = threading.Thread(target=_serve, args=(listener, runtime), daemon=True)
            device.start()
            last = ""  # the message of the last try
            while not stop.is_set():
                if not reachable(host, port, 5.0):
                    say(f"the server {options.server} cannot be reached; retrying every {_PAUSE:g} seconds")
                    while not reachable(host, port, 5.0) and not stop.wait(_PAUSE):
                        pass
                    continue
                began = time.monotonic()
                child = Child(_command(options, secure, socket), options.home / "supernode.log", environment(place))
                if not last:
                    say(f"client {options.client} is connecting to {options.server}")
                while not child.ended and not stop.wait(0.5):
                    if _LET_IN in child.news():
                        say(f"client {options.client} is connected to {options.server}")
                        last = ""
                    if not device.is_alive():  # to be online and never answer would be worse
                        raise FleetError("the node's worker thread has ended; start the node again")
                if child.ended:
                    if last != (last := _why(child)):
                        say(f"{last}; retrying every few seconds")
                    stop.wait(max(_PAUSE - (time.monotonic() - began), 1.0))
        finally:
            listener.close()
            if child is not None:
                child.stop(5.0)  # sooner than whoever stops us loses patience, for there is more to clear away


@contextmanager
def _place(home: Path) -> Iterator[Path]:
    """A short-lived folder for the node of a home, of which there is one at a time: a socket's path must be short."""
    with exclusive_lock(
        home / "node.lock", f"home: another node is running in {home}; give each node its own --home"
    ) as lock:
        lock.seek(0)
        before = Path(lock.read().strip() or "none")  # of a node that was killed
        if before.name.startswith("sparsona-") and before.parent == Path(tempfile.gettempdir()):
            _end_what_is_left(before)
            shutil.rmtree(before, ignore_errors=True)
        place = Path(tempfile.mkdtemp(prefix="sparsona-"))
        lock.truncate(0)
        lock.write(str(place))
        lock.flush()
        try:
            yield place
        finally:
            _end_what_is_left(place)
            shutil.rmtree(place, ignore_errors=True)


def _end_what_is_left(place: Path) -> None:
    """End processes of a node that is over: Flower's for a message are no children of ours, and stay for minutes."""
    mark = f"FLWR_HOME={place}".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                os.kill(int(entry.name), signal.SIGKILL)


def _serve(listener: Listener, runtime: ClientRuntime) -> None:
    """Answer requests over the socket, one after the other, until no client can connect any more."""
    socket = Path(str(listener.address))
    while socket.exists():  # closing removes it
        try:
            with listener.accept() as link:
                if link.poll(_ASKS_WITHIN):
                    link.send_bytes(runtime.answer(link.recv_bytes(runtime.max_bytes)))
        except (OSError, EOFError) as error:  # whoever asked is gone
            if "bad message length" in str(error):  # as the standard library says it
                runtime.report(f"refused a job of more than {runtime.max_bytes >> 20} MB; allow more with --max-mb")
            time.sleep(0.01)
        except Exception as error:  # such as too little memory for one envelope: the next may be smaller
            runtime.report(f"a job could not be read: {type(error).__name__}: {error}")


def _command(options: NodeOptions, secure: bool, socket: Path) -> list[str]:
    """Flower's SuperNode, with nothing in its settings but where the device's process listens."""
    trust = ["--insecure"]
    if secure:
        trust = ["--root-certificates", str(options.authority), "--auth-supernode-private-key", str(options.key)]
    return [
        str(Path(sys.executable).with_name("flower-supernode")),
        *("--superlink", options.server, *trust),
        *("--port", str(options.port or free_port())),
        *("--node-config", f'socket="{socket}" client={options.client}'),
    ]


def _why(child: Child) -> str:
    """Why a SuperNode ended, in one line."""
    words = child.last_words(40, 10_000)
    if "certificate verify failed" in words.lower() or "certificate_verify_failed" in words.lower():
        return "the server's certificate is not trusted: it is expired, for another host, or not signed by this ca.crt"
    if "code: 2004" in words:  # Flower says the same of all three
        return (
            "the server refuses this node: its key is not registered, another node uses it, or the node was just "
            "restarted and the server still counts it as online (for about a minute)"
        )
    if child.process.returncode == 0 and "terminated gracefully" in words:  # all that Flower says of a 401
        return "the server rejects this node's signature: the clock of the node or of the server is wrong"
    return f"the SuperNode ended (exit code {child.process.returncode}): {child.last_words(2)}"
