"""DA-DPFL (Long et al., 2024): DisPFL where clients wait for some neighbours and prune their models further.

Who waits for whom is the topology's business (``topology.max_wait``). Once enough clients report that their models have
stopped drifting from where they began, all prune at rounds that come ever closer: as much of each layer as its
compressibility index says is spare, until a target sparsity. Steps are those of the paper's Algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from typing_extensions import Doc

from sparsona.core import masks
from sparsona.core.arithmetic import precise
from sparsona.core.fields import Natural, NonNegative, Positive, PositiveShare, Share
from sparsona.core.masks import Scope
from sparsona.core.search import regrown, scope_of
from sparsona.core.sparse_peers import check_density, first_mask, mean_of_neighbours, own_model
from sparsona.core.training import Ctx, MaskedClip, Training, train
from sparsona.core.wire import Message, Sparse
from sparsona.method import VOTE, Inbox, LocalData, Mask, Report, Topology, Vector
from sparsona.methods.dadpfl.pruning import PQ, Each, pq_prune, prune_rounds


@dataclass(frozen=True)
class Client:
    """What a client keeps between rounds."""

    k: int
    mask: Mask  # m_k, the newest
    drift: float = 0.0  # distance from the initial weights after the last round
    scale: float = 0.0  # and after the first round that it trained in
    score: float = 1.0  # how much it moved in the last round, relative to the first
    still: bool = False  # its vote: the score is below the threshold
    since: int | None = None  # t*: the round after which enough voted


@dataclass(frozen=True, kw_only=True)
class DADPFL(MaskedClip, Training):
    """Personal sparse models without a server, pruned further during training."""

    density: Annotated[PositiveShare, Doc("density of the masked tensors")] = 0.5
    masked: Annotated[
        Literal["all", "weights"],
        Doc("masked tensors: all trainable ones, or only convolution, linear and embedding weights"),
    ] = "weights"
    dense: Annotated[
        tuple[str, ...], Doc('masked = "weights": names or patterns of tensors that stay dense, such as "*shortcut*"')
    ] = ()
    same_start: Annotated[bool, Doc("all clients start with the same mask")] = True
    prune_rate: Annotated[
        Share, Doc("fraction of each tensor's weights dropped in round 1, with cosine decay to 0 (alpha_0)")
    ] = 0.3
    recovery: Annotated[
        Literal["random", "gradient"], Doc("regrow the weights with the largest gradients, or random ones")
    ] = "gradient"
    target: Annotated[Share, Doc("target sparsity of the masked tensors; pruning stops there (s* in the paper)")] = 0.8
    threshold: Annotated[
        NonNegative, Doc("a client votes for pruning when its drift score is below this (delta_pr in the paper)")
    ] = 0.02
    quorum: Annotated[PositiveShare, Doc("fraction of votes that starts pruning (delta_v in the paper)")] = 0.5
    votes: Annotated[
        Literal["all", "neighbours"], Doc("whose votes a client counts: all clients', or its neighbours'")
    ] = "all"
    drift: Annotated[
        Literal["squared", "layers"],
        Doc("distance from the initial weights: squared norm, or sum of the norms of all tensors"),
    ] = "layers"
    delay: Annotated[Natural, Doc("offset of the pruning schedule, in rounds (b in the paper)")] = 0
    frequency: Annotated[
        Positive, Doc("factor by which the interval between prunings shrinks, at least 1 (c in the paper)")
    ] = 1.3
    schedule: Annotated[
        Literal["next", "strict", "reference"],
        Doc("prune in the round after each t_p (next), in t_p (strict), or as in the paper's code"),
    ] = "next"
    p: Annotated[Positive, Doc("PQ index: lower norm p; must be less than q")] = 0.5
    q: Annotated[Positive, Doc("PQ index: upper norm q")] = 1.0
    gamma: Annotated[NonNegative, Doc("pruning scale: fraction of the redundant weights to prune")] = 1.0
    slack: Annotated[NonNegative, Doc("PQ index: slack; larger values prune more (eta_c in the paper)")] = 0.0
    cap: Annotated[Share, Doc("maximum fraction of a layer's weights to prune at a time (beta in the paper)")] = 0.9
    each: Annotated[Each, Doc("compute the PQ index per tensor (layer), or per output unit (neuron)")] = "layer"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.target < 1 - self.density:
            raise ValueError(
                f"target: {self.target} is not allowed; expected a float >= {1 - self.density:g}, the initial sparsity"
            )
        if self.frequency < 1:
            raise ValueError(f"frequency: {self.frequency} is not allowed; expected a float >= 1")
        self.index()

    @property
    def depends_on_rounds(self) -> str | None:
        if self.prune_rate:
            return f"prune_rate = {self.prune_rate} falls to 0 in the last round"
        return 'schedule = "strict" prunes by the number of rounds' if self.schedule == "strict" else None

    def index(self) -> PQ:
        """The compressibility index."""
        return PQ(self.p, self.q, self.slack, self.gamma, self.cap)

    def scope(self, ctx: Ctx) -> Scope:
        """Which tensors are masked."""
        return scope_of(ctx.layout, self.masked, self.dense)

    def check(self, clients: int, topology: Topology, ctx: Ctx | None) -> None:
        if ctx is not None:
            check_density(self.density, self.scope(ctx), ctx)

    def first(self, k: int, ctx: Ctx) -> Mask:
        """Client k's first mask."""
        return first_mask(self.density, self.scope(ctx), k, ctx, same=self.same_start)

    def join(self, k: int, ctx: Ctx) -> Client:
        return Client(k, self.first(k, ctx))

    def post(self, client: Client, ctx: Ctx) -> Message:
        return Message(
            model=Sparse.of(ctx.theta0, client.mask), **({"still": False} if self.votes == "neighbours" else {})
        )

    def ballot(self, client: Client) -> dict[str, bool]:
        """A client's vote as it travels, to its neighbours or to all, who need it until enough have voted."""
        if self.votes == "neighbours":
            return {"still": client.still}
        return {VOTE: client.still} if client.since is None else {}

    def local(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> tuple[Client, Message, Vector]:
        since = self.decided(client, inbox, ctx)
        mask = client.mask
        theta = train(self, mean_of_neighbours(inbox, ctx) * mask, data.train, ctx, mask=mask)
        drift = self.distance(theta - ctx.theta0 * self.first(client.k, ctx), ctx)
        score = abs(drift - client.drift) / client.scale if client.scale > 0 else 1.0
        if self.due(since, ctx) and 1 - masks.density(ctx.layout, mask, self.scope(ctx)) < self.target:
            mask = pq_prune(ctx.layout, mask, theta, self.index(), self.scope(ctx), self.each)
            theta = theta * mask
        new = regrown(
            mask, theta, data.train, ctx, batch=self.batch, prune_rate=self.prune_rate, recovery=self.recovery
        )
        still = client.scale > 0 and score < self.threshold
        client = Client(client.k, new, drift, client.scale or drift, score, still, since)
        return client, Message(model=Sparse.of(theta, mask), **self.ballot(client)), theta

    def decided(self, client: Client, inbox: Inbox, ctx: Ctx) -> int | None:
        """t*: the first round, counted from 1, after which enough clients stood still."""
        if client.since is not None:
            return client.since
        if self.votes == "neighbours":
            still_votes = [inbox[j]["still"] for j in inbox if j != "all"]
            return ctx.t if sum(still_votes) >= self.quorum * len(still_votes) else None
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
        when = prune_rounds(since, self.delay, self.frequency, ctx.rounds, rounding)
        if self.schedule == "strict":
            return ctx.t + 1 in when and ctx.t + 1 > since
        return ctx.t in when

    def distance(self, change: Vector, ctx: Ctx) -> float:
        """How far a model is from where it began."""
        if self.drift == "squared":
            return float(precise(change).double().square().sum())
        return sum(float(part.double().norm()) for part in ctx.layout.split(precise(change)))

    def personal(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> Vector:
        return own_model(inbox)

    def report(self, client: Client, server: None, k: int, ctx: Ctx) -> Report:
        sparsity = 1 - masks.density(ctx.layout, client.mask, self.scope(ctx))
        return Report({"sparsity": sparsity, "score": client.score, "still": float(client.still)})
