"""FedProx (Li et al., 2020): FedAvg with a proximal term that keeps local training near the received model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from typing_extensions import Doc

from sparsona.core.descent import Pull
from sparsona.core.fields import NonNegative
from sparsona.core.training import Ctx, train_on
from sparsona.method import LocalData, Vector
from sparsona.methods.fedavg import Client, FedAvg


@dataclass(frozen=True, kw_only=True)
class FedProx(FedAvg):
    """Local loss plus mu/2 |w - w_received|^2."""

    mu: Annotated[NonNegative, Doc("coefficient of the proximal term")] = 0.1

    def step(self, client: Client, theta: Vector, data: LocalData, ctx: Ctx) -> tuple[Vector, Client]:
        """Train with the proximal term."""
        return train_on(self, theta, data.train, ctx, client, pull=Pull(theta, self.mu))
