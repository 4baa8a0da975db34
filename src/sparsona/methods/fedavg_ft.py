"""FedAvg with fine-tuning: before use, each client tunes a copy of the shared model on its own data."""

from __future__ import annotations

from dataclasses import dataclass

from sparsona.core.fields import Count
from sparsona.core.training import Ctx, train_on
from sparsona.method import Client, Inbox, LocalData, Vector
from sparsona.methods.fedavg import FedAvg


@dataclass(frozen=True, kw_only=True)
class FedAvgFT(FedAvg):
    """A shared model that every client tunes for itself."""

    tune_epochs: Count = 1  # passes before use

    def personal(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> Vector:
        shared = inbox["server"]["theta"].values
        return train_on(self, shared, data.train, ctx, client, purpose="tune", epochs=self.tune_epochs)[0]
