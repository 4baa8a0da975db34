"""Jobs and results between processes: a JSON head and raw blobs over a connection, messages encoded as on a network."""

from __future__ import annotations

import json
from dataclasses import asdict
from multiprocessing.connection import Connection
from typing import Any

from sparsona.core.wire import Message, decode, encode
from sparsona.engines.device import Job, Result, Score


def send(to: Connection, head: dict[str, Any], blobs: list[bytes]) -> None:
    """Send a head and its blobs."""
    to.send_bytes(json.dumps(head | {"blobs": len(blobs)}).encode())
    for blob in blobs:
        to.send_bytes(blob)


def receive(source: Connection) -> tuple[dict[str, Any], list[bytes]]:
    """Receive a head and its blobs."""
    head = json.loads(source.recv_bytes())
    return head, [source.recv_bytes() for _ in range(head["blobs"])]


def send_job(to: Connection, job: Job) -> None:
    """Send a job."""
    head = {"kind": job.kind, "t": job.t, "k": job.k, "wants": job.wants, "joined": job.client is not None}
    blobs = [encode(m) for m in job.inbox.values()]
    send(to, head | {"senders": list(job.inbox)}, blobs if job.client is None else [job.client, *blobs])


def read_job(head: dict[str, Any], blobs: list[bytes]) -> Job:
    """A job that was received."""
    client = blobs[0] if head["joined"] else None
    messages = [decode(b) for b in (blobs[1:] if head["joined"] else blobs)]
    inbox: dict[str | int, Message] = dict(zip(head["senders"], messages, strict=True))
    return Job(head["kind"], head["t"], head["k"], client, inbox, tuple(head["wants"]))


def send_result(to: Connection, result: Result) -> None:
    """Send a result."""
    head = {
        "k": result.k,
        "flops": result.flops,
        "seconds": result.seconds,
        "score": None if result.score is None else asdict(result.score),
        "kept": result.client is not None,
        "spoke": result.message is not None,
    }
    blobs = [] if result.client is None else [result.client]
    send(to, head, blobs if result.message is None else [*blobs, encode(result.message)])


def read_result(head: dict[str, Any], blobs: list[bytes]) -> Result:
    """A result that was received."""
    return Result(
        head["k"],
        blobs[0] if head["kept"] else None,
        decode(blobs[-1]) if head["spoke"] else None,
        None if head["score"] is None else Score(**head["score"]),
        head["flops"],
        head["seconds"],
    )
