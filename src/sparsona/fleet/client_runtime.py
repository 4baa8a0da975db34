"""A device of a fleet: envelopes in, envelopes out, and the client's value on its own disk in between."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sparsona.core.arithmetic import arithmetic
from sparsona.core.text import one_line
from sparsona.core.wire import Bits, Message, Sparse, Values, WireError, decode
from sparsona.engines.atomic_file import write
from sparsona.engines.codec import read_job, result_parts
from sparsona.engines.device import Device
from sparsona.engines.hardware import device_kind
from sparsona.engines.jobs import Job, Raw, Result, encoded
from sparsona.engines.local import out_of_memory, reason
from sparsona.engines.store import here
from sparsona.fleet.envelope import MAX_BYTES, decoded_bound, pack, unpack
from sparsona.fleet.versions import MAX_ROLLBACK, VersionedState, VersionLost

_MEMORY = "start this node with --device cpu, or lower method.batch or evaluate.batch in a new run"

Build = Callable[[dict[str, Any], int], tuple[Device, dict[str, Any]]]  # recipe and client to device and facts


class Refused(ValueError):
    """The device will not do what it was asked."""


@dataclass
class ClientRuntime:
    """Does the jobs of one client; it believes nothing that it is sent without a check."""

    client: int
    home: Path  # where values are kept, a folder for each run
    build: Build
    version: str  # of Sparsona: both ends must be the same
    max_bytes: int = MAX_BYTES  # of an envelope
    report: Callable[[str], None] = lambda text: None  # called with what goes wrong, each problem once
    _reported: set[str] = field(default_factory=set)
    _built: tuple[str, Device, dict[str, Any]] | None = None

    def answer(self, data: bytes) -> bytes:
        """The answer to an envelope; it names what goes wrong."""
        echo: dict[str, Any] = {"client": self.client}
        try:
            head, blobs = unpack(data, self.max_bytes)
            echo |= {key: head.get(key) for key in ("run", "ask", "t", "kind", "k")}
            if "refused" in head:
                self._reason(f"the server refuses this node: {one_line(head['refused'])}")
                return pack(echo)
            device, facts = self._device(head)
            if head.get("hello"):
                kind = device_kind((str(device.task.device),))
                return pack(echo | facts | {"sparsona": self.version, "device": kind})
            return self._work(echo, head, read_job(head | {"joined": False}, blobs), device)  # values are never sent
        except VersionLost as error:
            return pack(echo | {"lost": self._reason(str(error))})
        except (ValueError, OSError) as error:
            return pack(echo | {"error": self._reason(one_line(error))})
        except Exception as error:  # whatever a method or a model raises: the server reports it and continues
            return pack(echo | {"error": self._reason(one_line(reason(error, _MEMORY)))})

    def _reason(self, why: str) -> str:
        """Report a problem to the owner of this device, unless it was just reported, and return it for the answer."""
        if why not in self._reported:
            self._reported = {*list(self._reported)[:100], why}
            self.report(why)
        return why

    def _device(self, head: dict[str, Any]) -> tuple[Device, dict[str, Any]]:
        """The device that a recipe asks for, kept until another recipe comes."""
        if head.get("sparsona") != self.version:
            raise Refused(
                f"this node has Sparsona {self.version}, the server {head.get('sparsona')}; install the same version"
            )
        recipe = head.get("recipe")
        if not isinstance(recipe, dict):
            raise Refused("the job has no recipe")
        key = json.dumps(recipe, sort_keys=True)
        if self._built is None or self._built[0] != key:
            self._built = None  # before another data set is read
            self._built = (key, *self.build(recipe, self.client))
        return self._built[1:]

    def _work(self, echo: dict[str, Any], head: dict[str, Any], job: Job, device: Device) -> bytes:
        if job.k != self.client:
            raise Refused(f"this node is client {self.client}, and the job is for client {job.k}")
        run, before = head.get("run"), job.version
        if not isinstance(run, str) or not re.fullmatch(r"[0-9a-z-]{1,64}", run):
            raise Refused(f"run: {run!r} is not allowed; expected lower-case letters, digits and dashes")
        folder = self.home / run
        state = VersionedState(folder, min(int(head.get("depth", 1)), MAX_ROLLBACK))
        job, unread = _sifted(job, device, self.max_bytes)
        if before is not None and job.kind not in ("shared", "validate", "finish"):
            job = replace(job, client=state.get(before))
        with arithmetic():  # so that all machines agree
            result, suspects = _handled(job, device)
        unread |= suspects
        if job.kind != "local" and result.message is not None:  # the model stays here
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            write(folder / "model.safetensors", device.exported(result.message), private=True)
            self._reason(f"wrote this node's model of run {run} to {folder / 'model.safetensors'}")
            result = replace(result, message=None)
        if job.kind in ("local", "adapt") and result.client is not None:
            result = replace(result, version=state.put(before, here(result.client)))
        answer, blobs = result_parts(replace(result, client=None))  # the value stays here
        return pack(answer | echo | {"from": before, "unread": unread}, [encoded(blob) for blob in blobs])


def _handled(job: Job, device: Device) -> tuple[Result, dict[str, str]]:
    """The result of a job; one that fails runs again without peers, who are suspects if it then succeeds.

    Too little memory is nobody's fault, and a job that runs again may find some by chance.
    """
    try:
        return device.handle(job), {}
    except Exception as error:  # whatever a method raises
        without_peers: dict[str | int, Raw] = {j: m for j, m in job.inbox.items() if not isinstance(j, int)}
        if len(without_peers) == len(job.inbox) or out_of_memory(error) or isinstance(error, MemoryError):
            raise
        why = f"suspected: {type(error).__name__}: {one_line(error)}"
        return device.handle(replace(job, inbox=without_peers)), {
            str(j): why for j in job.inbox if j not in without_peers
        }


def _sifted(job: Job, device: Device, max_bytes: int) -> tuple[Job, dict[str, str]]:
    """The job without peers' messages that nobody could use, and what is wrong with them.

    The server forwards messages without reading them, so their first reader must check them.
    """
    wrong: dict[str, str] = {}
    own = job.inbox.get("self")
    if own is None or job.kind != "local":
        return job, wrong
    dim = device.task.layout.dim
    form = _form(_read(own, dim, max_bytes), dim)
    first: list[dict[str, str]] = []  # the form of what all begin with, made if it is needed
    for j, raw in job.inbox.items():
        if isinstance(j, int):
            try:
                message = _read(raw, dim, max_bytes)
            except WireError as error:
                wrong[str(j)] = str(error)
                continue
            other = _form(message, dim)
            odd = next((name for name in other if form.get(name, other[name]) != other[name]), None)
            if other.keys() != form.keys() and not first:
                begun = device.handle(Job("post", 0, job.k, None)).message
                first.append({} if begun is None else _form(begun, dim))
            usual = [f.keys() for f in (form, *first)]
            if not message.finite():
                wrong[str(j)] = "NaN or Inf"
            elif any(usual) and other.keys() not in usual:
                wrong[str(j)] = f"the parts are {', '.join(other) or 'none'}, not {' or '.join(map(', '.join, usual))}"
            elif odd is not None:
                wrong[str(j)] = f"{odd} is {other[odd]}, not {form[odd]}"
    return replace(job, inbox={j: m for j, m in job.inbox.items() if str(j) not in wrong}), wrong


def _read(raw: Any, dim: int, max_bytes: int) -> Message:
    return raw if isinstance(raw, Message) else decode(raw, max_bytes=decoded_bound(len(raw), dim, max_bytes))


def _form(message: Message, dim: int) -> dict[str, str]:
    """What the messages of a method have alike: the kinds of their parts, and the sizes of masks and whole models."""
    form = {}
    for name in message:
        part = message[name]
        size = len(part.mask) if isinstance(part, (Sparse, Bits)) else dim
        whole = not isinstance(part, Values) or len(part.values) == dim
        form[name] = f"{type(part).__name__} of {size if whole else 'part'}"
    return form
