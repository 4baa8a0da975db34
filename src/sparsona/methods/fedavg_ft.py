"""FedAvg with fine-tuning: each client fine-tunes the shared model on its own data before use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from typing_extensions import Doc

from sparsona.core.fields import Count
from sparsona.core.training import Ctx, train_on
from sparsona.method import Inbox, LocalData, Vector
from sparsona.methods.fedavg import Client, FedAvg


@dataclass(frozen=True, kw_only=True)
class FedAvgFT(FedAvg):
    """A shared model that every client tunes for itself."""

    tune_epochs: Annotated[Count, Doc("local epochs of tuning before the model is used")] = 1

    def personal(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> Vector:
        shared = inbox["server"]["theta"].values
        return train_on(self, shared, data.train, ctx, client, purpose="tune", epochs=self.tune_epochs)[0]
