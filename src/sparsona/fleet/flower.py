"""The way over Flower: envelopes as bytes in its messages. The one file that knows Flower, and it knows nothing else.

Flower starts a process for every message that a node gets. So what runs there imports no torch and holds nothing: it
hands the bytes to the device's own process, which stays, over a socket of that machine.
"""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from multiprocessing.connection import Client
from typing import Any

import httpx
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from sparsona.fleet.transport import Reply

_AGAIN = (3, 4, 5, 8)  # of Flower's errors: a message or node was not there, or its process ended; worth another try
_WENT = 5  # of these, that a node gives no sign of life
_AT_ONCE = 16  # answers that are fetched at a time
_PATIENCE = 0.5  # seconds that those who are there wait for one that takes long
_PIECE = 2 << 20  # bytes
_REST = 1.0  # seconds at most, and no longer than was asked: nodes ask the SuperLink too
GUARDED = "other machines can reach only the node API"  # what a SuperLink of ours says when it starts
_FOR_NODES = "/v1/fleet/"
_KEY = "parcel"  # the name on the wire
_KIND = "query.sparsona"


def client_app(ask: Callable[[bytes, Context], bytes] | None = None) -> ClientApp:
    """What runs on a node for each message: bytes in, bytes out."""
    app = ClientApp()

    @app.query("sparsona")
    def query(message: Message, context: Context) -> Message:
        data = _data(message)
        answer = ask(data, context) if ask else _through_socket(data, context, message.metadata.ttl)
        return Message(_content(answer), reply_to=message)

    return app


def server_app(main: Callable[[GridTransport, dict[str, Any]], None]) -> ServerApp:
    """What runs beside the SuperLink for each run."""
    app = ServerApp()

    @app.main()
    def start(grid: Grid, context: Context) -> None:
        main(GridTransport(grid), dict(context.run_config))

    return app


@dataclass
class _InTransit:
    """An envelope that is out."""

    node: int
    ends: float
    looked: float = 0.0  # when its answer was last asked for


class GridTransport:
    """Envelopes over a Grid, with our own look for answers: Flower's own waits seconds between two.

    Answers are fetched separately, some at a time. Flower hands out an answer when its upload has begun and waits for
    the rest, for minutes perhaps, and one that it cannot read takes along those that were fetched with it.
    """

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self._threads = ThreadPoolExecutor(_AT_ONCE)
        self._sent: dict[str, _InTransit] = {}
        self._out: dict[str, Future[Reply | None]] = {}  # by envelope, the fetching of its answer
        self._rests_until = 0.0

    def nodes(self) -> dict[int, str]:
        """The nodes that Flower takes to be there, and the keys that they proved to have."""
        return {node.node_id: node.public_key.decode("ascii") for node in self.grid.get_nodes()}

    def send(self, node: int, data: bytes, seconds: float) -> str | None:
        """Send an envelope, which Flower drops when its time is over; not to a node that still uploads an answer."""
        now = time.monotonic()
        self._sent = {n: sent for n, sent in self._sent.items() if sent.ends > now or n in self._out}
        if node in {self._sent[n].node for n, fetched in self._out.items() if n in self._sent and not fetched.done()}:
            return None
        numbers = list(self.grid.push_messages([Message(_content(data), node, _KIND, ttl=seconds)]))
        if not numbers or not numbers[0]:
            return None
        self._sent[numbers[0]] = _InTransit(node, now + seconds)
        return numbers[0]

    def receive(self, numbers: set[str]) -> Iterator[Reply]:
        """What has come back for these, and nothing of what takes long to come."""
        if not numbers:
            return
        for number in [n for n, fetched in self._out.items() if fetched.done() and n not in numbers]:
            if number not in self._sent or self._sent[number].ends < time.monotonic():
                del self._out[number]  # nobody will ask for it any more; others may be asked for by somebody else
        due = sorted(numbers - self._out.keys(), key=self._looked, reverse=True)  # the longest waiting first
        time.sleep(max(self._rests_until - time.monotonic(), 0.0))
        spent = 0.0
        while due or numbers & self._out.keys():
            while due and len(self._out) < _AT_ONCE:
                number = due.pop()
                self._out[number] = self._threads.submit(self._fetch, number)
                if number in self._sent:
                    self._sent[number].looked = time.monotonic()
            asked = {self._out[number]: number for number in numbers & self._out.keys()}
            began = time.monotonic()
            over, _ = wait(asked, _PATIENCE, FIRST_COMPLETED)
            spent += time.monotonic() - began
            self._rests_until = time.monotonic() + min(spent, _REST)
            if not over:  # or there was no place to ask
                return
            for fetched in over:
                del self._out[asked[fetched]]
                if (reply := fetched.result()) is not None:
                    yield reply

    def _looked(self, number: str) -> float:
        return self._sent[number].looked if number in self._sent else 0.0

    def _fetch(self, number: str) -> Reply | None:
        """The answer to an envelope, if it has come."""
        try:
            messages = list(self.grid.pull_messages([number]))
        except Exception as error:  # whatever Flower makes of what a node sent
            if not _of_the_sender(error):
                raise
            why = f"an answer that Flower cannot read: {type(error).__name__}: {error}"
            return Reply(number, 0, None, " ".join(why.split())[:300])
        message = next((m for m in messages if m.metadata.reply_to_message_id == number), None)
        if message is None:
            return None
        about = message.metadata
        if message.has_error():
            error_, gone = message.error, message.error.code in _AGAIN
            reason = "it went away" if error_.code == _WENT else error_.reason or "an error of Flower's"
            why = " ".join(f"{reason} (code {error_.code})".split())[:300]
            return Reply(about.reply_to_message_id, about.src_node_id, None, why, gone)
        return Reply(about.reply_to_message_id, about.src_node_id, _data(message))


def _of_the_sender(error: Exception) -> bool:
    """Whether a node's answer is the cause, for what it is made of; otherwise the way to the SuperLink is."""
    return not isinstance(error, (ConnectionError, httpx.HTTPError))


def _content(data: bytes) -> RecordDict:
    """An envelope in pieces: Flower gives a sender three minutes for each."""
    view = memoryview(data)
    pieces = [bytes(view[i : i + _PIECE]) for i in range(0, len(view), _PIECE)]
    return RecordDict({f"{i:06d}": ConfigRecord({_KEY: piece}) for i, piece in enumerate(pieces)})


def _data(message: Message) -> bytes:
    """The envelope in a message, or nothing if it is made of anything else."""
    pieces = []
    for name in sorted(message.content):
        piece = message.content[name].get(_KEY)
        if not isinstance(piece, bytes):
            return b""
        pieces.append(piece)
    return b"".join(pieces)


def _through_socket(data: bytes, context: Context, seconds: float) -> bytes:
    """Ask the process that stays; when the message's time is over, nobody wants the answer."""
    with Client(str(context.node_config["socket"]), "AF_UNIX") as link:
        link.send_bytes(data)
        if not link.poll(seconds):
            raise TimeoutError(f"the device did not answer within {seconds:g} seconds")
        return link.recv_bytes()


class GatekeeperApp:
    """Lets other machines reach what nodes need of a SuperLink, and this machine all of it.

    On the same port Flower serves what starts runs and registers nodes, and asks nobody for a login.
    """

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Pass on a request, or refuse it."""
        for_nodes = scope["type"] == "http" and scope["path"].startswith(_FOR_NODES)
        if scope["type"] == "lifespan" or for_nodes or _from_here(scope):
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            await send({"type": "http.response.start", "status": 403, "headers": [(b"content-type", b"text/plain")]})
            await send({"type": "http.response.body", "body": b"allowed only from the server's own machine"})
        else:
            await send({"type": "websocket.close", "code": 1008})


def _from_here(scope: dict[str, Any]) -> bool:
    """Whether a request comes from the machine that it came to: from loopback, or with its own address."""
    there, here = ((scope.get(end) or ("",))[0] for end in ("client", "server"))
    try:
        address = ipaddress.ip_address(there)
    except ValueError:
        return False
    return there == here or (getattr(address, "ipv4_mapped", None) or address).is_loopback


def own_answers(push: Callable[..., Any]) -> Callable[..., Any]:
    """Flower's handler of what nodes send; it accepts only answers in the node's own name.

    Flower looks at the key of who sends, but not at the name in a message; and what is no answer to anything would be
    handed out together with others' answers.
    """
    from starlette.exceptions import HTTPException

    def handle(request: Any, state: Any) -> Any:
        for message in request.messages_list:
            about = message.metadata
            if about.src_node_id != request.node.node_id or not about.reply_to_message_id:
                raise HTTPException(403, "a node may only answer its own messages")
        return push(request=request, state=state)

    return handle


def superlink() -> None:
    """Flower's own ``flower-superlink``, behind the gate."""
    import uvicorn
    from flwr.superlink.cli import flower_superlink
    from flwr.superlink.servicer.fleet import fleet_handlers

    fleet_handlers.push_messages = own_answers(fleet_handlers.push_messages)
    run = uvicorn.run

    def guarded(app: Any, **options: Any) -> None:
        print(GUARDED, flush=True)
        run(GatekeeperApp(app), **options)

    uvicorn.run = guarded
    flower_superlink()


if __name__ == "__main__":
    superlink()
