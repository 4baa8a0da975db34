"""pFedMe (Dinh et al., 2020): personal models, kept near the shared model by a Moreau envelope."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Literal

from typing_extensions import Doc

from sparsona.core.descent import Pull
from sparsona.core.fields import Count, NonNegative, Positive, PositiveShare
from sparsona.core.star import Answer, FineTuning, Weighting, fine_tuned, mean_model, whole_model
from sparsona.core.training import Ctx, SgdTraining, batches_of, lr_at, train
from sparsona.core.wire import Message, Values
from sparsona.method import Inbox, LocalData, Vector


@dataclass(frozen=True)
class Client:
    """What a client keeps between rounds."""

    theta: Vector | None  # theta_k; None: what is received


@dataclass(frozen=True, kw_only=True)
class PFedMe(FineTuning, Weighting, SgdTraining):
    """``prox``: one personal model each, drawn to their mean while it trains; ``original``: the paper's inner loops."""

    variant: Annotated[
        Literal["prox", "original"], Doc("prox: as in the code of pFedGate and FedEM; original: as in the paper")
    ] = "prox"
    mu: Annotated[NonNegative, Doc("coefficient of the proximal term (lambda in the paper, where it is 15)")] = 1.0
    inner_steps: Annotated[Count, Doc("original: steps of the personal model per batch (K in the paper)")] = 5
    inner_lr: Annotated[
        Positive, Doc("original: learning rate of the personal model; lr (eta) is that of the shared model")
    ] = 0.09
    mix: Annotated[
        PositiveShare, Doc("server mixing rate: 1 replaces the shared model by the mean (beta in the paper)")
    ] = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for field in ("momentum", "weight_decay", "clip"):
            if self.variant == "original" and getattr(self, field):
                raise ValueError(
                    f'{field}: {getattr(self, field)} is not allowed; variant = "original" uses plain gradient steps'
                )

    def start(self, clients: int, ctx: Ctx) -> Vector:
        return ctx.theta0

    def down(self, server: Vector, k: int, ctx: Ctx) -> Message:
        return Message(theta=Values(server))

    def join(self, k: int, ctx: Ctx) -> Client:
        return Client(None)

    def local(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> tuple[Client, Message, Vector]:
        received = inbox["server"]["theta"].values
        if self.variant == "prox":
            own = self.personal(client, inbox, data, ctx)
            own = sent = train(self, own, data.train, ctx, pull=Pull(received, self.mu))
        else:
            own, sent = self.envelope(received, data, ctx)
        return Client(own), Message(theta=Values(sent), samples=len(data)), own

    def envelope(self, received: Vector, data: LocalData, ctx: Ctx) -> tuple[Vector, Vector]:
        """On each batch K steps of theta on its loss and mu/2 |theta - w|^2, then one of w towards theta."""
        task, n, lr = ctx.task, ctx.layout.params, lr_at(self, ctx.t, ctx.rounds)
        w, theta, batches = received[:n].clone(), task.flat[:n], batches_of(self, data.train, ctx)
        task.load(received)
        with task.training(batches):
            for batch in batches:
                for _ in range(self.inner_steps):
                    theta.sub_(task.gradient(batch).add_(theta - w, alpha=self.mu), alpha=self.inner_lr)
                w.sub_(w - theta, alpha=lr * self.mu)
        own = task.flat.clone()
        sent = own.clone()
        sent[:n] = w
        return own, sent

    def read(self, server: Vector, k: int, message: Message, ctx: Ctx) -> Answer:
        return whole_model(message, ctx)

    def merge(self, server: Vector, inbox: Iterable[tuple[int, Answer]], ctx: Ctx) -> Vector:
        mean = mean_model(server, inbox, self)
        return mean if self.mix == 1 else server.lerp(mean, self.mix)

    def shared(self, server: Vector) -> Vector:
        return server

    def finish(self, shared: Vector, data: LocalData, ctx: Ctx) -> Vector:
        return fine_tuned(self, self.finish_epochs, shared, data, ctx)

    def personal(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> Vector:
        theta: Vector = inbox["server"]["theta"].values if client.theta is None else client.theta
        return theta
