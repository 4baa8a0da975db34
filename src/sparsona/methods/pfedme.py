"""pFedMe (Dinh et al., 2020): personal models held near a shared one by a Moreau envelope."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal

from sparsona.core.fields import Count, NonNegative, Positive, PositiveShare
from sparsona.core.training import Ctx, lr_at, train
from sparsona.core.wire import Message, Values
from sparsona.method import Inbox, LocalData, Vector
from sparsona.methods.fedavg import Answer, FedAvg


@dataclass(frozen=True)
class Client:
    theta: Vector | None  # theta_k; None: what is received


@dataclass(frozen=True, kw_only=True)
class PFedMe(FedAvg):
    """``prox``: one personal model each, drawn to their mean while it trains; ``original``: the paper's inner loops."""

    keeps_moments: ClassVar[bool] = False
    variant: Literal["prox", "original"] = "prox"  # as pFedGate's and FedEM's code has it, or as the paper
    pull: NonNegative = 1.0  # mu; original: lambda, which its authors set to 15
    inner_steps: Count = 5  # original: K, steps for the personal model on each batch
    inner_lr: Positive = 0.09  # original: learning rate of these steps; lr is eta, that of the shared model
    mix: PositiveShare = 1.0  # beta, how much of the mean the server takes

    def __post_init__(self) -> None:
        super().__post_init__()
        for field in ("momentum", "weight_decay", "clip"):
            if self.variant == "original" and getattr(self, field):
                raise ValueError(f'{field} = {getattr(self, field)}: the steps of variant = "original" are plain')
        if self.optimiser != "sgd":
            raise ValueError(f'optimiser = "{self.optimiser}": personal models are trained by "sgd" alone')

    def join(self, k: int, ctx: Ctx) -> Client:
        return Client(None)

    def local(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> tuple[Client, Message, Vector]:
        received = inbox["server"]["theta"].values
        if self.variant == "prox":
            own = self.personal(client, inbox, data, ctx)
            own = sent = train(self, own, data.train, ctx, anchor=received, pull=self.pull)
        else:
            own, sent = self.envelope(received, data, ctx)
        return Client(own), Message(theta=Values(sent), samples=len(data)), own

    def envelope(self, received: Vector, data: LocalData, ctx: Ctx) -> tuple[Vector, Vector]:
        """On each batch K steps of theta on its loss and pull/2 |theta - w|^2, then one of w towards theta."""
        task, n, lr = ctx.task, ctx.layout.params, lr_at(self, ctx.t, ctx.rounds)
        w, theta = received[:n].clone(), task.flat[:n]
        batches = data.train.epochs(ctx.rng("train"), self.epochs, self.batch, drop_last=self.drop_last)
        task.load(received)
        task.model.train()
        with batches.rng("layers").everywhere():
            for batch in batches:
                for _ in range(self.inner_steps):
                    g = task.gather(task.gradients(batch))
                    theta.sub_(g.add_(theta - w, alpha=self.pull), alpha=self.inner_lr)
                    task.charge(len(batch[1]))
                w.sub_(w - theta, alpha=lr * self.pull)
        task.settle()
        own = task.flat.clone()
        sent = own.clone()
        sent[:n] = w
        return own, sent

    def merge(self, server: Vector, inbox: Iterable[tuple[int, Answer]], ctx: Ctx) -> Vector:
        mean = super().merge(server, inbox, ctx)
        return mean if self.mix == 1 else server.lerp(mean, self.mix)

    def personal(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> Vector:
        theta: Vector = inbox["server"]["theta"].values if client.theta is None else client.theta
        return theta
