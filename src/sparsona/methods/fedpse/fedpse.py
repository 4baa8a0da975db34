"""FedPSE (personalised sparsification with element-wise aggregation): sparse updates in both directions.

"Personalized Sparsification with Element-wise Aggregation for Federated Learning".

A client sends the largest entries of its update and keeps the rest for next time (UPS). The server averages each entry
over those who sent it (EWA). To each client it sends back as many entries of that average: those which are large both
there and in the client's own update, and of the others the more of the client's choice the less the two are alike
(DPS). A client adds them to its base model, from which it trains each round; base models differ.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Annotated, Literal

import torch
from typing_extensions import Doc

from sparsona.core import budgets, masks
from sparsona.core.aggregate import elementwise_mean, weighted_mean
from sparsona.core.imports import imported
from sparsona.core.layout import added
from sparsona.core.masks import PackedSparse, Piece
from sparsona.core.training import Ctx, State, StatefulTraining, train_on
from sparsona.core.wire import Message, Sparse, Values, WireError
from sparsona.method import Inbox, LocalData, Report, Vector
from sparsona.methods.fedpse.correlation import CORRELATIONS, Correlation, distance
from sparsona.methods.fedpse.selection import downstream, miscount, upstream

Answer = tuple[Sparse, int, Vector]  # an update, its number of samples, and the running statistics to be averaged


@dataclass(frozen=True)
class Client:
    """What a client keeps between rounds."""

    sparsity: float  # p
    base: Vector  # W_i before its last training; running statistics are those after it
    residual: Vector  # e_i, what is left out of its updates so far
    moments: State | None


@dataclass(frozen=True)
class Server:
    """What the server keeps between rounds."""

    pending: dict[int, PackedSparse] = field(default_factory=dict)  # what each client is sent when it is next drawn
    distances: dict[int, float] = field(default_factory=dict)  # d_s,i over the whole model, for the records
    running: Vector | None = None  # mean running statistics, where they are averaged


@dataclass(frozen=True, kw_only=True)
class FedPSE(StatefulTraining):
    """Personal base models, moved by sparse personal updates."""

    sparsity: Annotated[
        budgets.Fractions,
        Doc("fraction of entries not sent (p): a number, one per client, {low, high}, or {values, weights}"),
    ] = 0.9
    scope: Annotated[Piece, Doc("select entries and measure distances per tensor (layer), or over the whole model")] = (
        "layer"
    )
    elementwise: Annotated[
        bool, Doc("element-wise aggregation (EWA); false: entries that were not sent count as 0")
    ] = True
    personalise: Annotated[
        bool, Doc("personal downlink (DPS); false: all clients get the largest entries of the average")
    ] = True
    correlation: Annotated[str, Doc("DPS: similarity measure: cosine, pearson, signs, or package.module:function")] = (
        "cosine"
    )
    running: Annotated[
        Literal["local", "averaged"], Doc("batch-norm running statistics: kept local, or sent and averaged")
    ] = "local"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.correlated()

    def correlated(self) -> Correlation:
        """The correlation by its name."""
        return imported("correlation", self.correlation, CORRELATIONS)

    def sparsity_of(self, k: int, ctx: Ctx) -> float:
        """Client k's p, of its updates and of what it is sent."""
        return budgets.share(self.sparsity, k, ctx.common)

    def statistics(self, ctx: Ctx) -> int:
        """How many running statistics travel."""
        return ctx.layout.dim - ctx.layout.params if self.running == "averaged" else 0

    def start(self, clients: int, ctx: Ctx) -> Server:
        budgets.least("sparsity", self.sparsity, clients)
        return Server()

    def join(self, k: int, ctx: Ctx) -> Client:
        return Client(self.sparsity_of(k, ctx), ctx.theta0, ctx.theta0.new_zeros(ctx.layout.params), None)

    def down(self, server: Server, k: int, ctx: Ctx) -> Message:
        if k not in server.pending:
            return Message()  # it has not taken part yet, and has the common initial model
        running = {} if server.running is None else {"running": Values(server.running)}
        return Message(update=server.pending[k].sparse(), **running)

    def personal(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> Vector:
        message, base = inbox["server"], client.base
        if "update" in message:
            base = added(base, message["update"].mask, message["update"].values)
        if "running" in message:
            base[ctx.layout.params :] = message["running"].values
        return base

    def local(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> tuple[Client, Message, Vector]:
        base, n = self.personal(client, inbox, data, ctx), ctx.layout.params
        trained, moments = train_on(self, base, data.train, ctx, client.moments)
        update = (trained - base)[:n] + client.residual
        sent, residual = upstream(ctx.layout.trained, update, client.sparsity, self.scope)
        running = {"running": Values(trained[n:])} if self.statistics(ctx) else {}
        new = Client(client.sparsity, torch.cat([base[:n], trained[n:]]), residual, moments)
        return new, Message(update=sent, samples=len(data), **running), trained

    def read(self, server: Server, k: int, message: Message, ctx: Ctx) -> Answer:
        update, size = message.sparse("update", ctx.layout.params), self.statistics(ctx)
        if flaw := miscount(ctx.layout.trained, update.mask, self.sparsity_of(k, ctx), self.scope):
            raise WireError(f"the update {flaw}")
        return update, message.whole("samples", 1), message.floats("running", size) if size else torch.zeros(0)

    def merge(self, server: Server, inbox: Iterable[tuple[int, Answer]], ctx: Ctx) -> Server:
        layout, correlation, pending, distances = ctx.layout.trained, self.correlated(), {}, {}
        # DPS needs each update again when the average is known, so they are kept, in little space
        answers = {k: (PackedSparse.of_sparse(update), samples, running) for k, (update, samples, running) in inbox}
        if not answers:
            return server
        updates, weights = (p.sparse() for p, _, _ in answers.values()), [n for _, n, _ in answers.values()]
        if self.elementwise:
            average = elementwise_mean(layout, zip(updates, weights, strict=True), self.scope)
        else:
            average = weighted_mean((update.dense() for update in updates), weights)
        ps = {k: self.sparsity_of(k, ctx) for k in answers}
        for p, of_p in groupby(sorted(answers, key=ps.__getitem__), key=ps.__getitem__):
            top = Sparse.of(average, masks.largest(layout, average, p, self.scope))
            for k in of_p:
                update, chosen = answers[k][0].sparse(), top.mask
                if self.personalise:
                    chosen = downstream(layout, top, update, ctx.rng("down", k), self.scope, correlation)
                pending[k] = PackedSparse.of_sparse(Sparse.of(average, chosen))
                distances[k] = distance(correlation, top.dense(), update.dense())
        means = weighted_mean((r for _, _, r in answers.values()), weights) if self.statistics(ctx) else None
        return Server(server.pending | pending, server.distances | distances, means)

    def report(self, client: Client | None, server: Server | None, k: int, ctx: Ctx) -> Report:
        return Report() if server is None else Report({"distance": server.distances[k]})

    def forget(self, server: Server, k: int) -> Server:
        pending = {j: update for j, update in server.pending.items() if j != k}
        return replace(server, pending=pending, distances={j: d for j, d in server.distances.items() if j != k})
