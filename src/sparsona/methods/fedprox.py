"""FedProx (Li et al., 2020): FedAvg whose local training is held near the model received."""

from __future__ import annotations

from dataclasses import dataclass

from sparsona.core.fields import NonNegative
from sparsona.core.training import Ctx, train_on
from sparsona.method import Client, LocalData, Vector
from sparsona.methods.fedavg import FedAvg


@dataclass(frozen=True, kw_only=True)
class FedProx(FedAvg):
    """Local loss plus mu/2 |w - w_received|^2."""

    mu: NonNegative = 0.1  # strength of the pull towards the model received

    def step(self, client: Client, theta: Vector, data: LocalData, ctx: Ctx) -> tuple[Vector, Client]:
        return train_on(self, theta, data.train, ctx, client, anchor=theta, pull=self.mu)
