"""DFedSAM (Shi et al., 2023): decentralised FedAvg with sharpness-aware minimisation (SAM) on the clients.

A client starts from the mean of its neighbours' models and its own. Each of its steps follows the gradient not where
the model is but a little up the slope (SAM, Foret et al., 2021), which takes two gradients a step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from typing_extensions import Doc

from sparsona.core.aggregate import Mean
from sparsona.core.fields import NonNegative, Share
from sparsona.core.training import Ctx, Training, train
from sparsona.core.wire import Message, Values
from sparsona.method import Client, Inbox, LocalData, Vector


@dataclass(frozen=True, kw_only=True)
class DFedSAM(Training):
    """Clients without a server exchange whole models; a client's personal model is the last one it sent."""

    momentum: Annotated[Share, Doc("SGD momentum")] = 0.9
    rho: Annotated[NonNegative, Doc("SAM: perturbation radius (rho)")] = 0.01

    def join(self, k: int, ctx: Ctx) -> Client:
        return None

    def post(self, client: Client, ctx: Ctx) -> Message:
        return Message()  # the common initial model, which everybody has

    def local(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> tuple[Client, Message, Vector]:
        theta = train(self, self.gathered(inbox, ctx), data.train, ctx, sam=self.rho)
        return None, Message(theta=Values(theta), samples=len(data)), theta

    def gathered(self, inbox: Inbox, ctx: Ctx) -> Vector:
        """The mean, by samples, of the models of the clients that trained, this one included."""
        mean = Mean(ctx.layout.dim)
        for j in sorted(inbox, key=str):
            if "theta" in inbox[j]:
                mean.add(inbox[j]["theta"].values, inbox[j]["samples"])
        return mean.value(otherwise=ctx.theta0)

    def personal(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> Vector:
        own = inbox["self"]
        theta: Vector = own["theta"].values if "theta" in own else ctx.theta0
        return theta
