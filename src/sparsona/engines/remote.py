"""Clients on devices of their own: jobs go out as parcels, and what comes back is checked before it counts.

The loops of ``rounds.py`` do not know of it. What they take for a client's value is its version here: the value stays
on the device, and the version says which of its values a job is about. So a checkpoint of the server names one version
of every client, whatever the devices did since.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from sparsona.engines.device import Absent, Device, Job, Result
from sparsona.engines.parcels import MOST, ParcelError, job_parts, pack, read_result, unpack

POLL = 0.05  # seconds between the first looks for answers
_SLOWEST = 0.5  # between later ones: a round that takes long need not be noticed at once
_LATE = 1000  # answers that are still listened for when their round is over
ATTEMPTS = 3  # time-outs that a round with too few answers may take


class TooFew(RuntimeError):
    """A round had fewer answers than it needs; the last checkpoint is intact."""


@dataclass(frozen=True)
class Reply:
    """What came back for a parcel: bytes, or why there are none."""

    number: str  # of the parcel that it answers
    node: int  # who sent it
    data: bytes | None
    why: str = ""
    gone: bool = False  # the node is not there: it may be asked again when it is back


class Post(Protocol):
    """Carries parcels to nodes and brings their answers."""

    def nodes(self) -> dict[int, str]:
        """The nodes that are there, and their public keys."""

    def send(self, node: int, data: bytes, seconds: float) -> str | None:
        """Send a parcel that is of use for so many seconds and give its number; None if it was not taken."""

    def receive(self, numbers: set[str]) -> list[Reply]:
        """What has come back for these."""


@dataclass
class _Asked:
    """A job that waits for its answer."""

    job: Job
    place: int
    parcel: bytes
    ask: str  # drawn at random, so that no old answer fits
    number: str | None = None  # of the parcel, once it is out
    node: int = 0
    why: str = "not there"


@dataclass
class Remote:
    """An engine whose clients are nodes of a fleet."""

    post: Post
    seats: Callable[[], dict[int, int]]  # by client, the node that speaks for it, among those that are there
    device: Device  # the server's own: it has no data, and makes what needs none
    head: dict[str, Any]  # goes with every job: run, recipe, version of Sparsona
    timeout: float = 600.0
    least: int = 1
    most: int = MOST
    tell: Callable[[dict[str, Any]], None] = lambda event: None
    poll: float = POLL
    traffic: dict[int, dict[str, Any]] = field(default_factory=dict)  # by client: when last seen, bytes
    _late: dict[str, _Asked] = field(default_factory=dict)

    def map(self, jobs: Iterable[Job]) -> Iterator[Result]:
        """The results in the order of the jobs, when all who are there have answered or the time is over."""
        done: dict[int, Result] = {}
        asked: list[_Asked] = []
        for place, job in enumerate(jobs):
            if job.kind == "post":  # a client's beginning is known to all, from the seed
                done[place] = replace(self.device.handle(job), client=None)
                continue
            asked.append(self._asked(place, job))
        if asked:
            needs = min(self.least, len(asked)) if asked[0].job.kind == "local" else 0
            if "bytes" in asked[0].job.wants:  # among peers these may be one wave of many, so that being there must do
                self._wait_for_enough(asked[0].job.t)
                needs = 0
            self._gather(asked, done, needs)
        for place in range(len(done)):
            result = done.pop(place)
            if result.absent is not None and asked[0].job.kind != "local":  # rounds name those of their own
                about = {"client": result.k, "round": asked[0].job.t + 1, "job": asked[0].job.kind}
                self.tell({"event": "not tested", **about, "why": result.absent.why})
            yield result

    def close(self) -> None:
        """Nothing was started here."""

    def _wait_for_enough(self, t: int) -> None:
        """Wait until there are as many clients as a round needs."""
        end = time.monotonic() + ATTEMPTS * self.timeout
        while (there := len(self.seats())) < self.least:
            if time.monotonic() > end:
                raise TooFew(f"round {t + 1} needs at least {self.least} clients, and {there} are there")
            time.sleep(_SLOWEST)

    def _asked(self, place: int, job: Job) -> _Asked:
        ask = secrets.token_hex(8)
        head, blobs = job_parts(job)
        version = None if job.client is None else job.client.decode("ascii")
        parcel = pack(self.head | head | {"ask": ask, "version": version}, blobs)
        return _Asked(replace(job, inbox={}), place, parcel, ask)

    def _gather(self, asked: list[_Asked], done: dict[int, Result], needs: int) -> None:
        """Send, and collect until all who are there have answered; too few answers make it wait and ask again."""
        open_ = list(asked)
        answers = 0
        for _ in range(ATTEMPTS):
            began = time.monotonic()
            end = began + self.timeout
            looked = 0.0
            while open_ and time.monotonic() < end:
                if time.monotonic() >= looked:
                    self._send(open_, end)
                    looked = time.monotonic() + 2
                for one, result in self._receive(open_):
                    done[one.place] = result
                    open_.remove(one)
                    answers += result.absent is None
                if not any(one.number for one in open_) and answers >= needs:
                    break  # the others are not there, and nobody waits for them
                if open_:
                    time.sleep(min(max(self.poll, 0.02 * (time.monotonic() - began)), _SLOWEST))
            for one in open_:
                if one.number is not None:
                    one.why = f"no answer within {self.timeout:g} seconds"
                    self._late[one.number] = replace(one, parcel=b"")
                    one.number = None
            for number in list(self._late)[:-_LATE]:
                del self._late[number]
            if answers >= needs or not open_:
                break
            names = ", ".join(str(one.job.k) for one in open_)
            self.tell({"event": "too few answers", "answers": answers, "needed": needs, "missing": names})
        for one in open_:
            reached = one.why != "not there"
            done[one.place] = Result(one.job.k, absent=Absent(one.why, reached))
        if answers < needs:
            whys = [f"client {r.k}: {r.absent.why}" for _, r in sorted(done.items()) if r.absent is not None]
            raise TooFew(f"round {asked[0].job.t + 1} has {answers} of at least {needs} answers: {'; '.join(whys)}")

    def _send(self, open_: list[_Asked], end: float) -> None:
        """Send what is not out yet to those who are there."""
        waiting = [one for one in open_ if one.number is None]
        seats = self.seats() if waiting else {}
        for one in waiting:
            node = seats.get(one.job.k)
            if node is None:
                continue
            one.number = self.post.send(node, one.parcel, max(end - time.monotonic(), 1.0))
            one.node = node
            self._count(one.job.k, "down", len(one.parcel))

    def _receive(self, open_: list[_Asked]) -> Iterator[tuple[_Asked, Result]]:
        by_number = {one.number: one for one in open_ if one.number is not None}
        for reply in self.post.receive({*by_number, *self._late}):
            if (late := self._late.pop(reply.number, None)) is not None:
                if reply.data is not None:
                    self.tell({"event": "late answer", "client": late.job.k, "round": late.job.t + 1})
                continue
            one = by_number.get(reply.number)
            if one is None:
                continue
            if reply.data is not None:
                self._count(one.job.k, "up", len(reply.data))
            if reply.gone:
                one.number, one.why = None, reply.why
                continue
            yield one, self._read(one, reply)

    def _read(self, one: _Asked, reply: Reply) -> Result:
        """A device's answer, if it is one to this job and can be."""
        k = one.job.k
        if reply.data is None:
            return Result(k, absent=Absent(reply.why))
        if reply.node != one.node:
            return Result(k, absent=Absent(f"node {reply.node} answered for node {one.node}"))
        try:
            head, blobs = unpack(reply.data, self.most)
            if "error" in head:
                return Result(k, absent=Absent(str(head["error"])[:500]))
            before = None if one.job.client is None else one.job.client.decode("ascii")
            due = {"run": self.head["run"], "ask": one.ask, "t": one.job.t, "kind": one.job.kind, "k": k}
            if "lost" not in head:
                due["from"] = before
            for key, value in due.items():
                if head.get(key) != value:
                    raise ParcelError(f"an answer to something else: {key} is {head.get(key)!r}, not {value!r}")
            if "lost" in head:
                return Result(k, absent=Absent(f"begins anew: {str(head['lost'])[:300]}", reset=True))
            result = read_result(head, blobs, self.most)
            version = head.get("version")
            if one.job.kind == "local":
                self._told_of_others(k, one.job.t, head.get("unread"))
                if (result.score is None) == ("score" in one.job.wants):
                    raise ParcelError("an answer without the score that was wanted, or with one that was not")
                if (result.message if "bytes" not in one.job.wants else result.sent) is None:
                    raise ParcelError("an answer without a message, or with its message in another form than wanted")
                if version is not None and not _follows(version, before):
                    raise ParcelError(f"an answer with version {version!r} after {before!r}")
                if version is not None:
                    result = replace(result, client=version.encode("ascii"))
            elif result.score is None:  # all others are tests
                raise ParcelError("an answer without a score")
        except ParcelError as error:
            return Result(k, absent=Absent(str(error)))
        except Exception as error:  # whatever a device says, it ends its own part in the round and nobody else's
            return Result(k, absent=Absent(f"an answer that cannot be read: {type(error).__name__}: {error}"[:500]))
        return result

    def _told_of_others(self, k: int, t: int, unread: Any) -> None:
        """A peer could not use what another one sent."""
        if isinstance(unread, dict):
            for j, why in list(unread.items())[:100]:
                event = {"event": "unusable message", "client": str(j)[:20], "by": k, "round": t + 1}
                self.tell(event | {"why": str(why)[:300]})

    def _count(self, k: int, way: str, nbytes: int) -> None:
        seen = self.traffic.setdefault(k, {"down": 0, "up": 0, "seen": None})
        seen[way] += nbytes
        if way == "up":
            seen["seen"] = time.time()


def _follows(version: Any, before: str | None) -> bool:
    """Whether a version is the one after another."""
    if not isinstance(version, str) or len(version) > 40 or not version.isascii():
        return False
    number, dash, digest = version.partition("-")
    if not dash or not number.isdigit() or len(digest) != 16 or set(digest) - set("0123456789abcdef"):
        return False
    return int(number) == (0 if before is None else int(before.partition("-")[0]) + 1)
