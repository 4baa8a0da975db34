"""DA-DPFL (Long et al., 2024): DisPFL in which clients wait for a few neighbours, and sparse models become sparser.

Who waits for whom is the topology's business (``topology.max_wait``). Once enough clients report that their models have
stopped drifting from where they began, all prune at rounds that come ever closer: as much of each layer as its
compressibility index says is spare, until a target sparsity. Steps are those of the paper's Algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sparsona.core import masks
from sparsona.core.fields import Natural, NonNegative, Positive, PositiveShare, Share
from sparsona.core.masks import PQ, Each
from sparsona.core.training import Ctx, train
from sparsona.core.wire import Message, Sparse
from sparsona.method import Inbox, LocalData, Mask, Vector
from sparsona.methods.dispfl import DisPFL


@dataclass(frozen=True)
class Client:
    k: int
    mask: Mask  # m_k, the newest
    drift: float = 0.0  # distance from the initial weights after the last round
    scale: float = 0.0  # and after the first round that it trained in
    score: float = 1.0  # how much it moved in the last round, relative to the first
    still: bool = False  # its vote: the score is below the threshold
    since: int | None = None  # t*: the round after which enough voted


@dataclass(frozen=True, kw_only=True)
class DADPFL(DisPFL):
    """Personal sparse models among peers, sparser with time."""

    masked: Literal["all", "weights"] = "weights"
    same_start: bool = True
    prune_rate: Share = 0.3
    recovery: Literal["random", "gradient"] = "gradient"
    target: Share = 0.8  # s*: at this sparsity of the masked tensors or above, pruning ends
    threshold: NonNegative = 0.02  # delta_pr: a model whose score is below it has stopped drifting
    quorum: PositiveShare = 0.5  # delta_v: the share of such votes that starts the pruning
    votes: Literal["all", "neighbours"] = "all"  # whose votes count
    drift: Literal["squared", "layers"] = "layers"  # |w - w0|^2, or the sum over tensors of |w - w0|
    delay: Natural = 0  # b
    frequency: Positive = 1.3  # c: the gaps between prunings shrink by it
    schedule: Literal["next", "strict", "reference"] = "next"  # a round after each t_p, or in it; or as the code rounds
    p: Positive = 0.5  # PQ index, 0 < p < q
    q: Positive = 1.0  # PQ index
    gamma: NonNegative = 1.0  # share of the spare weights that go
    slack: NonNegative = 0.0  # eta_c
    cap: Share = 0.9  # beta: share of a layer's weights that go at most
    each: Each = "layer"  # what the index is taken of: a tensor, or each of its output units

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.target < 1 - self.density:
            raise ValueError(f"target = {self.target} must be at least the initial sparsity, {1 - self.density:g}")
        if self.frequency < 1:
            raise ValueError(f"frequency = {self.frequency} must be at least 1")
        self.index()

    def index(self) -> PQ:
        """The compressibility index."""
        return PQ(self.p, self.q, self.slack, self.gamma, self.cap)

    def join(self, k: int, ctx: Ctx) -> Client:
        return Client(k, self.first(k, ctx))

    def post(self, client: Client, ctx: Ctx) -> Message:
        return self.message(ctx.theta0, client.mask, still=False)

    def message(self, theta: Vector, mask: Mask, still: bool) -> Message:
        """What neighbours are told."""
        return Message(model=Sparse.of(theta, mask), **({"still": still} if self.votes == "neighbours" else {}))

    def local(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> tuple[Client, Message, Vector]:
        since = self.decided(client, inbox, ctx)
        mask = client.mask
        theta = train(self, self.gathered(inbox) * mask, data.train, ctx, mask=mask)
        drift = self.distance(theta - ctx.theta0 * self.first(client.k, ctx), ctx)
        score = abs(drift - client.drift) / client.scale if client.scale > 0 else 1.0
        if self.due(since, ctx) and 1 - masks.density(ctx.layout, mask, self.scope(ctx)) < self.target:
            mask = masks.pq_prune(ctx.layout, mask, theta, self.index(), self.scope(ctx), self.each)
            theta = theta * mask
        new = self.searched(mask, theta, data, ctx)
        still = client.scale > 0 and score < self.threshold
        client = Client(client.k, new, drift, client.scale or drift, score, still, since)
        return client, self.message(theta, mask, still), theta

    def decided(self, client: Client, inbox: Inbox, ctx: Ctx) -> int | None:
        """t*: the first round, counted from 1, after which enough clients stood still."""
        if client.since is not None:
            return client.since
        if self.votes == "neighbours":
            said = [inbox[j]["still"] for j in inbox if j != "all"]
            return ctx.t if sum(said) >= self.quorum * len(said) else None
        if "all" in inbox:
            for t, votes in zip(inbox["all"]["rounds"].tolist(), inbox["all"]["votes"], strict=True):
                if int((votes == 1).sum()) >= self.quorum * int((votes != 2).sum()):
                    return int(t) + 1
        return None

    def due(self, since: int | None, ctx: Ctx) -> bool:
        """Whether to prune in this round."""
        if since is None:
            return False
        rounding: Literal["ceil", "reference"] = "reference" if self.schedule == "reference" else "ceil"
        when = masks.prune_rounds(since, self.delay, self.frequency, ctx.rounds, rounding)
        if self.schedule == "strict":
            return ctx.t + 1 in when and ctx.t + 1 > since
        return ctx.t in when

    def distance(self, change: Vector, ctx: Ctx) -> float:
        """How far a model is from where it began."""
        if self.drift == "squared":
            return float(change.double().square().sum())
        return sum(float(part.double().norm()) for part in ctx.layout.split(change))

    def vote(self, client: Client) -> bool | None:
        return client.still if self.votes == "all" and client.since is None else None

    def notes(self, client: Client, ctx: Ctx) -> dict[str, float]:
        return super().notes(client, ctx) | {"score": client.score, "still": float(client.still)}
