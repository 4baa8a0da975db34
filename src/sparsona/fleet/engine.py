"""The engine of a fleet: jobs go to nodes in envelopes, and what comes back is checked before it counts.

A client's value stays on its device. Jobs and results name its version instead, and so does the server's checkpoint:
one version of every client, whatever the devices did since.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from sparsona.engines.codec import CodecError, job_parts, read_result
from sparsona.engines.device import Device
from sparsona.engines.jobs import Absent, Job, Result, Score, encoded
from sparsona.engines.rounds import TooFew
from sparsona.fleet.envelope import MAX_BYTES, decoded_bound, pack, unpack
from sparsona.fleet.transport import Reply, Transport

POLL = 0.05  # seconds between the first looks for answers
_SLOWEST = 0.5  # between later ones: a round that takes long need not be noticed at once
_LOOK = 2.0  # seconds between two looks for nodes that have come back
_GRACE = 5.0  # seconds that an envelope outlives its round, so that a late node reads our reason, not Flower's
ATTEMPTS = 3  # time-outs that a round with too few answers may take


@dataclass
class _PendingJob:
    """A job that waits for its answer."""

    job: Job
    place: int
    ask: str  # drawn at random, so that no old answer fits
    number: str | None = None  # of the envelope, while it is out
    node: int = 0
    reached: bool = False  # whether it has been out
    why: str = "not there"


@dataclass
class FleetEngine:
    """An engine whose clients are nodes of a fleet."""

    transport: Transport
    seats: Callable[[], dict[int, int]]  # by client, the node that speaks for it, among those that are there
    device: Device  # the server's own: it has no data, and makes what needs none
    head: dict[str, Any]  # goes with every job: run, recipe, version of Sparsona
    timeout: float = 600.0
    least: int = 1
    max_bytes: int = MAX_BYTES
    on_event: Callable[[dict[str, Any]], None] = lambda event: None
    poll: float = POLL
    kind: str = ""  # nodes say it of themselves
    traffic: dict[int, dict[str, Any]] = field(default_factory=dict)  # by client: when last seen, bytes

    def map(self, jobs: Iterable[Job]) -> Iterator[Result]:
        """The results in the order of the jobs, each as soon as those before it have come or the time is over."""
        results: dict[int, Result] = {}
        asked: list[_PendingJob] = []
        for place, job in enumerate(jobs):
            if job.kind == "post":  # a client's beginning is known to all, from the seed
                results[place] = replace(self.device.handle(job), client=None)
                continue
            asked.append(_PendingJob(job, place, secrets.token_hex(8)))
        needs, given = 0, 0
        if asked:
            first = asked[0].job
            needs = min(self.least, len(asked)) if first.kind == "local" else 0
            if "bytes" in first.wants:  # among peers these may be one wave of many, so that being there must do
                self._wait_for_enough(first.t)
                needs = 0
        for one, result in self._gather(asked, needs):
            if result.absent is not None and one.job.kind != "local":  # rounds report their own
                about = {"client": result.k, "round": one.job.t + 1, "job": one.job.kind}
                self.on_event({"event": "not tested", **about, "why": result.absent.why})
            results[one.place] = result
            while given in results:
                yield results.pop(given)
                given += 1
        for place in sorted(results):
            yield results.pop(place)

    def close(self) -> None:
        """Nothing was started here."""

    def _wait_for_enough(self, t: int) -> None:
        """Wait until there are as many clients as a round needs."""
        end = time.monotonic() + ATTEMPTS * self.timeout
        while (there := len(self.seats())) < self.least:
            if time.monotonic() > end:
                raise TooFew(f"round {t + 1}: {there} clients are online; expected at least {self.least}")
            time.sleep(_SLOWEST)

    def _gather(self, asked: list[_PendingJob], needs: int) -> Iterator[tuple[_PendingJob, Result]]:
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
                    one.job = replace(one.job, inbox={})  # each may have had a different message
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
            if answers >= needs or not open_ or reset:  # a client that starts over is asked again in its new state
                break
            names = ", ".join(str(one.job.k) for one in open_)
            self.on_event({"event": "too few answers", "answers": answers, "needed": needs, "missing": names})
        if answers < needs:
            whys += [f"client {one.job.k}: {one.why}" for one in open_]
            reason = f"round {asked[0].job.t + 1} has {answers} answers; expected at least {needs}: {'; '.join(whys)}"
            raise TooFew(reason, reset)
        for one in open_:
            yield one, Result(one.job.k, absent=Absent(one.why, one.reached))

    def _send(self, open_: list[_PendingJob], end: float) -> None:
        """Send what is not out yet to those who are there; an envelope is made when it goes out, and not kept."""
        waiting = [one for one in open_ if one.number is None]
        seats = self.seats() if waiting else {}
        for one in waiting:
            node = seats.get(one.job.k)
            if node is None:
                continue
            head, blobs = job_parts(one.job)
            envelope = pack(self.head | head | {"ask": one.ask}, [encoded(blob) for blob in blobs])
            one.number = self.transport.send(node, envelope, max(end - time.monotonic(), 1.0) + _GRACE)
            if one.number is None:
                one.why = "there, but not to be asked: it still sends an earlier answer, or has just gone"
                continue
            one.node, one.reached = node, True
            self._count(one.job.k, "down", len(envelope))

    def _receive(self, open_: list[_PendingJob]) -> Iterator[tuple[_PendingJob, Result]]:
        by_number = {one.number: one for one in open_ if one.number is not None}
        for reply in self.transport.receive(set(by_number)):
            one = by_number.pop(reply.number, None)  # once: what comes a second time is nobody's
            if one is None:
                continue
            if reply.data is not None:
                self._count(one.job.k, "up", len(reply.data))
            if reply.gone:
                one.number, one.why = None, reply.why
                continue
            yield one, self._read(one, reply)

    def _read(self, one: _PendingJob, reply: Reply) -> Result:
        """A device's answer, if it is one to this job and can be."""
        k = one.job.k
        if reply.data is None:
            return Result(k, absent=Absent(reply.why))
        if reply.node != one.node:
            return Result(k, absent=Absent(f"node {reply.node} answered for node {one.node}"))
        try:
            head, blobs = unpack(reply.data, self.max_bytes)
            if "error" in head:
                return Result(k, absent=Absent(str(head["error"])[:500]))
            before = one.job.version
            due = {"run": self.head["run"], "ask": one.ask, "t": one.job.t, "kind": one.job.kind, "k": k}
            if "lost" not in head:
                due["from"] = before
            for key, value in due.items():
                if head.get(key) != value:
                    raise CodecError(f"an answer to something else: {key} is {head.get(key)!r}, not {value!r}")
            if "lost" in head:
                return Result(k, absent=Absent(f"restarted without its state: {str(head['lost'])[:300]}", reset=True))
            dim = self.device.task.layout.dim
            limit = decoded_bound(0, dim, self.max_bytes)
            if "bytes" in one.job.wants and sum(map(len, blobs)) > limit:  # it would be passed on to all its peers
                raise CodecError(f"a message of {sum(map(len, blobs)):,} bytes; at most {limit:,} can be of use")
            # a client's value has no place in an answer: it stays on the device
            result = read_result(head | {"kept": False}, blobs, decoded_bound(len(reply.data), dim, self.max_bytes))
            if one.job.kind == "local":
                self._report_unread(k, one.job.t, head.get("unread"))
                if (result.score is None) == ("score" in one.job.wants):
                    raise CodecError("an answer without the score that was wanted, or with one that was not")
                if (result.message if "bytes" not in one.job.wants else result.sent) is None:
                    raise CodecError("an answer without a message, or with its message in another form than wanted")
                if result.version is not None and not _follows(result.version, before):
                    raise CodecError(f"an answer with version {result.version!r} after {before!r}")
            elif result.score is None:  # all others are tests
                raise CodecError("an answer without a score")
            if result.score is not None:
                self._check_score(result.score)
            if result.trained is not None:
                if one.job.kind != "local" or result.trained.metrics:
                    raise CodecError("an answer with a training loss that does not belong there")
                self._check_score(result.trained)
        except CodecError as error:
            return Result(k, absent=Absent(str(error)))
        except Exception as error:  # whatever a device says, it ends its own part in the round and nobody else's
            return Result(k, absent=Absent(f"an answer that cannot be read: {type(error).__name__}: {error}"[:500]))
        return result

    def _check_score(self, score: Score) -> None:
        """Raise CodecError if a score has other figures than the task of the run."""
        if strange := score.metrics.keys() - self.device.measures.keys():
            raise CodecError(f"a score with {min(strange)!r}, which is no metric of this run")
        if (score.correct is None) != (self.device.task.objective.target == "number"):
            raise CodecError(f"a score of {score.correct} correct, which does not fit the targets of this run")

    def _report_unread(self, k: int, t: int, unread: Any) -> None:
        """A peer could not use what another one sent."""
        if isinstance(unread, dict):
            for j, why in list(unread.items())[:100]:
                event = {"event": "unusable message", "client": str(j)[:20], "by": k, "round": t + 1}
                self.on_event(event | {"why": str(why)[:300]})

    def _count(self, k: int, way: str, nbytes: int) -> None:
        seen = self.traffic.setdefault(k, {"down": 0, "up": 0, "seen": None})
        seen[way] += nbytes
        if way == "up":
            seen["seen"] = time.time()


def _follows(version: str, before: str | None) -> bool:
    """Whether a version is the one after another."""
    number, dash, digest = version.partition("-")
    if not dash or not number.isdigit() or len(digest) != 16 or set(digest) - set("0123456789abcdef"):
        return False
    return int(number) == (0 if before is None else int(before.partition("-")[0]) + 1)
