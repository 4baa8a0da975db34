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
from sparsona.engines.parcels import MOST, ParcelError, bound, job_parts, pack, read_result, unpack
from sparsona.engines.rounds import TooFew
from sparsona.engines.store import here

POLL = 0.05  # seconds between the first looks for answers
_SLOWEST = 0.5  # between later ones: a round that takes long need not be noticed at once
_LOOK = 2.0  # seconds between two looks for nodes that have come back
_GRACE = 5.0  # seconds that a parcel outlives its round, so that who is late is told in our words, not in Flower's
ATTEMPTS = 3  # time-outs that a round with too few answers may take


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

    def receive(self, numbers: set[str]) -> Iterable[Reply]:
        """What has come back for these, a few at a time."""


@dataclass
class _Asked:
    """A job that waits for its answer."""

    job: Job
    place: int
    ask: str  # drawn at random, so that no old answer fits
    number: str | None = None  # of the parcel, while it is out
    node: int = 0
    reached: bool = False  # whether it has been out
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

    def map(self, jobs: Iterable[Job]) -> Iterator[Result]:
        """The results in the order of the jobs, each as soon as those before it have come or the time is over."""
        done: dict[int, Result] = {}
        asked: list[_Asked] = []
        for place, job in enumerate(jobs):
            if job.kind == "post":  # a client's beginning is known to all, from the seed
                done[place] = replace(self.device.handle(job), client=None)
                continue
            asked.append(_Asked(job, place, secrets.token_hex(8)))
        needs, given = 0, 0
        if asked:
            first = asked[0].job
            needs = min(self.least, len(asked)) if first.kind == "local" else 0
            if "bytes" in first.wants:  # among peers these may be one wave of many, so that being there must do
                self._wait_for_enough(first.t)
                needs = 0
        for one, result in self._gather(asked, needs):
            if result.absent is not None and one.job.kind != "local":  # rounds name those of their own
                about = {"client": result.k, "round": one.job.t + 1, "job": one.job.kind}
                self.tell({"event": "not tested", **about, "why": result.absent.why})
            done[one.place] = result
            while given in done:
                yield done.pop(given)
                given += 1
        for place in sorted(done):
            yield done.pop(place)

    def close(self) -> None:
        """Nothing was started here."""

    def _wait_for_enough(self, t: int) -> None:
        """Wait until there are as many clients as a round needs."""
        end = time.monotonic() + ATTEMPTS * self.timeout
        while (there := len(self.seats())) < self.least:
            if time.monotonic() > end:
                raise TooFew(f"round {t + 1} needs at least {self.least} clients, and {there} are there")
            time.sleep(_SLOWEST)

    def _gather(self, asked: list[_Asked], needs: int) -> Iterator[tuple[_Asked, Result]]:
        """Send, and collect until all who are there have answered; too few answers make it wait and ask again."""
        open_ = list(asked)
        answers, whys = 0, list[str]()
        reset: dict[int, str] = {}
        for _ in range(ATTEMPTS):
            if not open_:
                break
            began = time.monotonic()
            end = began + self.timeout
            looked, over = 0.0, False
            while open_ and not over:
                over = time.monotonic() >= end  # whoever takes the results may be slow: what came meanwhile is in time
                if time.monotonic() >= looked and not over:
                    self._send(open_, end)
                    looked = time.monotonic() + _LOOK
                for one, result in self._receive(open_):
                    open_.remove(one)
                    one.job = replace(one.job, inbox={})  # each may have had a message of its own
                    if result.absent is None:
                        answers += 1
                    else:
                        whys.append(f"client {one.job.k}: {result.absent.why}")
                        if result.absent.reset:
                            reset[one.job.k] = result.absent.why
                    yield one, result
                if not any(one.number for one in open_) and answers >= needs:
                    break  # the others are not there, and nobody waits for them
                if open_ and not over:
                    time.sleep(min(max(self.poll, 0.02 * (time.monotonic() - began)), _SLOWEST))
            for one in open_:
                if one.number is not None:
                    one.number, one.why = None, f"no answer within {self.timeout:g} seconds"
            if answers >= needs or not open_ or reset:  # who begins anew is asked again as what it is now
                break
            names = ", ".join(str(one.job.k) for one in open_)
            self.tell({"event": "too few answers", "answers": answers, "needed": needs, "missing": names})
        if answers < needs:
            whys += [f"client {one.job.k}: {one.why}" for one in open_]
            told = f"round {asked[0].job.t + 1} has {answers} of at least {needs} answers: {'; '.join(whys)}"
            raise TooFew(told, reset)
        for one in open_:
            yield one, Result(one.job.k, absent=Absent(one.why, one.reached))

    def _send(self, open_: list[_Asked], end: float) -> None:
        """Send what is not out yet to those who are there; a parcel is made when it goes out, and not kept."""
        waiting = [one for one in open_ if one.number is None]
        seats = self.seats() if waiting else {}
        for one in waiting:
            node = seats.get(one.job.k)
            if node is None:
                continue
            head, blobs = job_parts(one.job)
            parcel = pack(self.head | head | {"ask": one.ask, "version": _version(one.job)}, blobs)
            one.number = self.post.send(node, parcel, max(end - time.monotonic(), 1.0) + _GRACE)
            if one.number is None:
                one.why = "there, but not to be asked: it still sends an earlier answer, or has just gone"
                continue
            one.node, one.reached = node, True
            self._count(one.job.k, "down", len(parcel))

    def _receive(self, open_: list[_Asked]) -> Iterator[tuple[_Asked, Result]]:
        by_number = {one.number: one for one in open_ if one.number is not None}
        for reply in self.post.receive(set(by_number)):
            one = by_number.pop(reply.number, None)  # once: what comes a second time is nobody's
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
            before = _version(one.job)
            due = {"run": self.head["run"], "ask": one.ask, "t": one.job.t, "kind": one.job.kind, "k": k}
            if "lost" not in head:
                due["from"] = before
            for key, value in due.items():
                if head.get(key) != value:
                    raise ParcelError(f"an answer to something else: {key} is {head.get(key)!r}, not {value!r}")
            if "lost" in head:
                return Result(k, absent=Absent(f"begins anew: {str(head['lost'])[:300]}", reset=True))
            dim = self.device.task.layout.dim
            most = bound(0, dim, self.most)
            if "bytes" in one.job.wants and sum(map(len, blobs)) > most:  # it would be passed on to all its peers
                raise ParcelError(f"a message of {sum(map(len, blobs)):,} bytes; at most {most:,} can be of use")
            result = read_result(head, blobs, bound(len(reply.data), dim, self.most))
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


def _version(job: Job) -> str | None:
    """Which of its client's values a job is about."""
    return None if job.client is None else here(job.client).decode("ascii")


def _follows(version: Any, before: str | None) -> bool:
    """Whether a version is the one after another."""
    if not isinstance(version, str) or len(version) > 40 or not version.isascii():
        return False
    number, dash, digest = version.partition("-")
    if not dash or not number.isdigit() or len(digest) != 16 or set(digest) - set("0123456789abcdef"):
        return False
    return int(number) == (0 if before is None else int(before.partition("-")[0]) + 1)
