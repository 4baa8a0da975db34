"""A device of a real fleet: parcels in, parcels out, and the client's value on its own disk in between."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sparsona.core.arithmetic import arithmetic
from sparsona.core.wire import Bits, Message, Sparse, Values, WireError, decode
from sparsona.engines.device import Device, Job, Raw, Result
from sparsona.engines.files import write
from sparsona.engines.frames import result_parts
from sparsona.engines.keep import DEEPEST, Keep, Lost
from sparsona.engines.parcels import MOST, ParcelError, bound, one_line, pack, read_job, unpack
from sparsona.engines.store import here

Build = Callable[[dict[str, Any], int], tuple[Device, dict[str, Any]]]  # recipe and client to device and facts


class Refused(ValueError):
    """The device will not do what it was asked."""


@dataclass
class Station:
    """Does the jobs of one client; it believes nothing that it is sent without a check."""

    client: int
    home: Path  # where values are kept, a folder for each run
    build: Build
    version: str  # of Sparsona: both ends must be the same
    most: int = MOST  # bytes of a parcel
    tell: Callable[[str], None] = lambda text: None  # hears what goes wrong, each thing once
    _told: set[str] = field(default_factory=set)
    _built: tuple[str, Device, dict[str, Any]] | None = None

    def answer(self, data: bytes) -> bytes:
        """The answer to a parcel; what goes wrong is told in it."""
        echo: dict[str, Any] = {"client": self.client}
        try:
            head, blobs = unpack(data, self.most)
            echo |= {key: head.get(key) for key in ("run", "ask", "t", "kind", "k")}
            if "refused" in head:
                self._say(f"the server refuses this node: {one_line(head['refused'])}")
                return pack(echo)
            device, facts = self._device(head)
            if head.get("hello"):
                return pack(echo | facts | {"sparsona": self.version})
            return self._work(echo, head, read_job(head, blobs), device)
        except Lost as error:
            return pack(echo | {"lost": self._say(str(error))})
        except (ParcelError, Refused, ValueError, OSError) as error:
            return pack(echo | {"error": self._say(one_line(error))})
        except Exception as error:  # whatever a method or a model raises: the server names it and goes on
            return pack(echo | {"error": self._say(f"{type(error).__name__}: {one_line(error)}")})

    def _say(self, why: str) -> str:
        """Tell whoever looks after this device, unless it was just said, and give it back for the answer."""
        if why not in self._told:
            self._told = {*list(self._told)[:100], why}
            self.tell(why)
        return why

    def _device(self, head: dict[str, Any]) -> tuple[Device, dict[str, Any]]:
        """The device that a recipe asks for, kept until another recipe comes."""
        if head.get("sparsona") != self.version:
            raise Refused(f"this device has Sparsona {self.version}, the server {head.get('sparsona')}")
        recipe = head.get("recipe")
        if not isinstance(recipe, dict):
            raise Refused("no recipe came with the job")
        key = json.dumps(recipe, sort_keys=True)
        if self._built is None or self._built[0] != key:
            self._built = None  # before another data set is read
            self._built = (key, *self.build(recipe, self.client))
        return self._built[1:]

    def _work(self, echo: dict[str, Any], head: dict[str, Any], job: Job, device: Device) -> bytes:
        if job.k != self.client:
            raise Refused(f"this device is client {self.client}, the job is for client {job.k}")
        run, before = head.get("run"), head.get("version")
        if not isinstance(run, str) or not re.fullmatch(r"[0-9a-z-]{1,64}", run):
            raise Refused(f"run = {run!r}: must be small letters, digits and dashes")
        folder = self.home / run
        keep = Keep(folder, min(int(head.get("depth", 1)), DEEPEST))
        job, unread = _sifted(job, device, self.most)
        if before is not None and job.kind not in ("shared", "validate", "finish"):
            job = replace(job, client=keep.get(str(before)))
        with arithmetic():  # so that all machines agree
            result, suspects = _handled(job, device)
        unread |= suspects
        if job.kind != "local" and result.message is not None:  # the model stays here
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            write(folder / "model.safetensors", device.exported(result.message), private=True)
            self._say(f"this device's model of run {run} is in {folder / 'model.safetensors'}")
            result = replace(result, message=None)
        after = None
        if job.kind in ("local", "adapt") and result.client is not None:
            after = keep.put(None if before is None else str(before), here(result.client))
        return _packed(echo | {"from": before, "version": after, "unread": unread}, result)


def _handled(job: Job, device: Device) -> tuple[Result, dict[str, str]]:
    """What comes of a job; one that fails is done without peers, and if that goes well, they are suspects."""
    try:
        return device.handle(job), {}
    except Exception as error:  # whatever a method raises
        alone: dict[str | int, Raw] = {j: m for j, m in job.inbox.items() if not isinstance(j, int)}
        if len(alone) == len(job.inbox):
            raise
        why = f"suspected: {type(error).__name__}: {one_line(error)}"
        return device.handle(replace(job, inbox=alone)), {str(j): why for j in job.inbox if j not in alone}


def _sifted(job: Job, device: Device, most: int) -> tuple[Job, dict[str, str]]:
    """The job without peers' messages that nobody could use, and what is wrong with them.

    The server passes on what it does not read; so whoever is the first to read it has to look.
    """
    wrong: dict[str, str] = {}
    own = job.inbox.get("self")
    if own is None or job.kind != "local":
        return job, wrong
    dim = device.task.layout.dim
    form = _form(_read(own, dim, most), dim)
    first: list[dict[str, str]] = []  # the form of what all begin with, made if it is needed
    for j, raw in job.inbox.items():
        if isinstance(j, int):
            try:
                message = _read(raw, dim, most)
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


def _read(raw: Any, dim: int, most: int) -> Message:
    return raw if isinstance(raw, Message) else decode(raw, max_bytes=bound(len(raw), dim, most))


def _form(message: Message, dim: int) -> dict[str, str]:
    """What the messages of a method have alike: the kinds of their parts, and the sizes of masks and whole models."""
    form = {}
    for name in message:
        part = message[name]
        size = len(part.mask) if isinstance(part, (Sparse, Bits)) else dim
        whole = not isinstance(part, Values) or len(part.values) == dim
        form[name] = f"{type(part).__name__} of {size if whole else 'part'}"
    return form


def _packed(head: dict[str, Any], result: Result) -> bytes:
    rest, blobs = result_parts(replace(result, client=None))
    return pack(rest | head, blobs)
