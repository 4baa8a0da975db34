"""Jobs and results as a JSON head and blobs: the one form in which every transport carries them.

A head that comes over a fleet's network is checked field by field before anything is made of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeGuard, get_args

from sparsona.core.wire import WireError, decode, encode
from sparsona.engines.jobs import ANY_SIZE, Job, JobKind, Raw, Result, Score, Sent, Want, encoded
from sparsona.engines.measure import TOO_LARGE
from sparsona.engines.store import Blob, Elsewhere

Head = dict[str, Any]

_KINDS = get_args(JobKind)
_WANTS = get_args(Want)
_JOB_FIELDS = {"kind", "t", "k", "wants", "senders", "joined", "version"}
_RESULT_FIELDS = {
    *("k", "flops", "forward", "finite", "seconds", "score"),
    *("kept", "version", "vote", "notes", "spoke", "sent"),
}
_SCORE = ("correct", "samples", "loss")
_MAX_NOTES = 100  # numbers, and characters of a name
_MAX_VERSION = 40  # characters


class CodecError(ValueError):
    """A head or blobs that no job or result has."""


def job_parts(job: Job) -> tuple[Head, list[Raw]]:
    """A job as a head and blobs: the inbox in the order of its senders, then the client's value if it has one."""
    head = {
        "kind": job.kind,
        "t": job.t,
        "k": job.k,
        "wants": list(job.wants),
        "senders": list(job.inbox),
        "joined": job.client is not None,
        "version": job.version,
    }
    blobs = list(job.inbox.values())
    return head, blobs if job.client is None else [*blobs, job.client]


def read_job(head: Head, blobs: Sequence[Raw], *, trusted: bool = False) -> Job:
    """The job that ``job_parts`` took apart; raises CodecError if it is none, unless it is our own engine's."""
    if not trusted:
        _check_job(head, len(blobs))
    senders = head["senders"]
    client = _blob(blobs[-1]) if head["joined"] else None
    inbox = dict(zip(senders, blobs, strict=False))  # after the messages comes the client's value
    return Job(head["kind"], head["t"], head["k"], client, inbox, tuple(head["wants"]), head["version"])


def batch_parts(jobs: Iterable[Job]) -> tuple[list[Head], list[Raw]]:
    """Several jobs as the heads of each and the blobs of all."""
    heads, blobs = [], list[Raw]()
    for job in jobs:
        head, own = job_parts(job)
        heads.append(head)
        blobs += own
    return heads, blobs


def read_batch(heads: Sequence[Head], blobs: Sequence[Raw]) -> Iterator[Job]:
    """The jobs that ``batch_parts`` took apart, one after the other; they are our own engine's."""
    at = 0
    for head in heads:
        end = at + len(head["senders"]) + head["joined"]
        yield read_job(head, blobs[at:end], trusted=True)
        at = end


def read_results(heads: Sequence[Head], blobs: Sequence[Raw]) -> Iterator[Result]:
    """The results of our own worker, from the heads of each and the blobs of all."""
    at = 0
    for head in heads:
        end = at + head["kept"] + (head["spoke"] or head["sent"] is not None)
        yield read_result(head, blobs[at:end], trusted=True)
        at = end


def _check_job(head: Head, blobs: int) -> None:
    """Raise CodecError if a field of a job is missing or cannot be."""
    missing = sorted(_JOB_FIELDS - head.keys())
    if missing:
        raise CodecError(f"the job lacks {', '.join(missing)}")
    kind, t, k, wants, senders, joined = (head[key] for key in ("kind", "t", "k", "wants", "senders", "joined"))
    if kind not in _KINDS or not is_count(t) or not is_count(k):
        raise CodecError(f"the job is not valid: kind {kind!r}, round {t!r}, client {k!r}")
    if not isinstance(wants, list) or any(w not in _WANTS for w in wants):
        raise CodecError(f"wants: {wants!r} is not allowed; expected some of {', '.join(_WANTS)}")
    if not isinstance(joined, bool) or not isinstance(senders, list) or len(senders) + joined != blobs:
        raise CodecError(f"{blobs} blobs do not fit the senders {senders!r} and joined {joined!r}")
    if any(not (is_count(j) or j in ("server", "self", "all")) for j in senders) or len(set(senders)) < len(senders):
        raise CodecError(f"senders: {senders!r} is not allowed; expected different clients, server, self or all")
    _check_version(head["version"])


def result_parts(result: Result) -> tuple[Head, list[Blob]]:
    """A result as a head and blobs: the client's new value, then its message, each if there is one."""
    score = result.score
    head = {
        "k": result.k,
        "flops": result.flops,
        "forward": result.forward,
        "finite": result.finite,
        "seconds": result.seconds,
        "score": None if score is None else _score_head(score),
        **({} if result.trained is None else {"trained": _score_head(result.trained)}),
        "kept": result.client is not None,
        "version": result.version,
        "vote": result.vote,
        "notes": result.notes,
        "spoke": result.message is not None,
        "sent": None if result.sent is None else result.sent.value_nbytes,
    }
    blobs = [] if result.client is None else [result.client]
    if result.message is not None:
        blobs.append(encode(result.message))
    elif result.sent is not None:
        blobs.append(result.sent.data)
    return head, blobs


def _score_head(score: Score) -> Head:
    """A score; without metrics as before there were any, so that older devices and servers understand it."""
    head = {"correct": score.correct, "samples": score.samples, "loss": score.loss}
    return head | {"metrics": score.metrics} if score.metrics else head


def read_result(head: Head, blobs: Sequence[Raw], max_bytes: int = ANY_SIZE, *, trusted: bool = False) -> Result:
    """The result that ``result_parts`` took apart; raises CodecError if it is none.

    Our own workers are ``trusted``: in a simulation the loss of a model that diverged may be NaN.
    """
    if not trusted:
        _check_result(head, len(blobs))
    sent, score, message = head["sent"], head["score"], None
    if head["spoke"]:
        try:
            message = decode(encoded(blobs[-1]), max_bytes=max_bytes)
        except WireError as error:
            raise CodecError(str(error)) from error
    letter = None
    if sent is not None:
        data = _blob(blobs[-1])
        letter = Sent(data, sent if trusted or isinstance(data, Elsewhere) else min(sent, len(data)))
    return Result(
        head["k"],
        _blob(blobs[0]) if head["kept"] else None,
        message,
        letter,
        head["vote"],
        head["notes"],
        None if score is None else Score(**{"metrics": {}, **score}),
        None if (trained := head.get("trained")) is None else Score(**{"metrics": {}, **trained}),
        head["flops"],
        head["forward"],
        head["finite"],
        float(head["seconds"]),
        version=head["version"],
    )


def _check_result(head: Head, blobs: int) -> None:
    """Raise CodecError if a field of a result is missing or cannot be: a device may say anything."""
    missing = sorted(_RESULT_FIELDS - head.keys())
    if missing:
        raise CodecError(f"the result lacks {', '.join(missing)}")
    k, flops, forward, finite, seconds = (head[key] for key in ("k", "flops", "forward", "finite", "seconds"))
    unknown = flops is None and forward is None
    if not is_count(k) or not (unknown or (is_count(flops) and is_count(forward) and forward <= flops)):
        raise CodecError(f"the result is not valid: client {k!r}, flops {flops!r}, forward {forward!r}")
    if not isinstance(finite, bool) or not _is_number(seconds) or seconds < 0:
        raise CodecError(f"the result is not valid: finite {finite!r}, seconds {seconds!r}")
    vote, notes = head["vote"], head["notes"]
    if not (vote is None or isinstance(vote, bool)):
        raise CodecError(f"vote: {vote!r} is not allowed; expected true or false")
    if notes is not None and not (
        isinstance(notes, dict)
        and len(notes) <= _MAX_NOTES
        and all(len(name) <= _MAX_NOTES and _is_number(value) for name, value in notes.items())
    ):
        raise CodecError(f"notes: the value is not allowed; expected at most {_MAX_NOTES} numbers by name")
    _check_version(head["version"])
    _check_score(head["score"])
    _check_score(head.get("trained"))
    kept, sent, spoke = head["kept"], head["sent"], head["spoke"]
    if not isinstance(spoke, bool) or not (sent is None or is_count(sent)) or (spoke and sent is not None):
        raise CodecError(f"the result is not valid: spoke {spoke!r}, sent {sent!r}")
    if not isinstance(kept, bool) or blobs != kept + (spoke or sent is not None):
        raise CodecError(f"{blobs} blobs do not fit kept {kept!r}, spoke {spoke!r} and sent {sent!r}")


def _check_score(score: Any) -> None:
    if score is None:
        return
    if not isinstance(score, dict) or score.keys() - {"metrics"} != {*_SCORE}:
        raise CodecError("score: the fields are not allowed; expected correct, samples, loss and perhaps metrics")
    correct, samples, loss = (score[key] for key in _SCORE)
    right = correct is None or (is_count(correct) and is_count(samples) and correct <= samples)  # None: of numbers
    if not right or not is_count(samples) or not _is_sane(loss):
        raise CodecError(f"score: {correct!r} correct of {samples!r} with loss {loss!r} is not valid")
    metrics = score.get("metrics", {})
    if not (
        isinstance(metrics, dict)
        and len(metrics) <= _MAX_NOTES
        and all(len(name) <= _MAX_NOTES and (value is None or _is_sane(value)) for name, value in metrics.items())
    ):
        raise CodecError(
            f"score.metrics: the value is not allowed; expected at most {_MAX_NOTES} finite numbers by name"
        )
    if taken := metrics.keys() & {*_SCORE}:
        raise CodecError(f"score.metrics: the name {min(taken)!r} is reserved")


def _is_sane(value: Any) -> bool:
    """Whether it is no NaN, and does not make a mean or a spread infinite."""
    return isinstance(value, float) and abs(value) < TOO_LARGE


def _check_version(version: Any) -> None:
    if version is not None and not (isinstance(version, str) and len(version) <= _MAX_VERSION and version.isascii()):
        shown = str(version)[:_MAX_VERSION]
        raise CodecError(f"version: {shown!r} is not allowed; expected a string of at most {_MAX_VERSION} characters")


def _blob(raw: Raw) -> Blob:
    """Bytes that outlive the memory they came in, or stay elsewhere."""
    if isinstance(raw, (bytes, Elsewhere)):
        return raw
    return bytes(raw if isinstance(raw, memoryview) else encoded(raw))


def is_count(value: Any) -> TypeGuard[int]:
    """Whether a value from elsewhere is a whole number from 0 that fits 63 bits."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def _is_number(value: Any) -> TypeGuard[float]:
    if isinstance(value, int) and not isinstance(value, bool):
        return abs(value) < 1 << 63  # more may not even be a float
    return isinstance(value, float) and math.isfinite(value)
