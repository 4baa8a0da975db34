"""DisPFL (Dai et al., 2022): personal sparse models without a server, averaged where neighbours' masks overlap.

Everybody takes in the models of its neighbours as they were when the round began, keeps what lies in its own mask,
trains within it, and then drops small weights and grows as many others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from typing_extensions import Doc

from sparsona.core import masks
from sparsona.core.fields import PositiveShare, Share
from sparsona.core.masks import Scope
from sparsona.core.search import regrown, scope_of
from sparsona.core.sparse_peers import check_density, first_mask, mean_of_neighbours, own_model
from sparsona.core.training import Ctx, MaskedClip, Training, train
from sparsona.core.wire import Message, Sparse
from sparsona.method import Inbox, LocalData, Mask, Report, Topology, Vector


@dataclass(frozen=True)
class Client:
    """What a client keeps between rounds."""

    mask: Mask  # the newest; its weights still lie in the mask that they were trained with, in its own last message


@dataclass(frozen=True, kw_only=True)
class DisPFL(MaskedClip, Training):
    """Personal sparse models without a server."""

    density: Annotated[PositiveShare, Doc("density of the masked tensors")] = 0.5
    masked: Annotated[
        Literal["all", "weights"],
        Doc("masked tensors: all trainable ones, or only convolution, linear and embedding weights"),
    ] = "all"
    dense: Annotated[
        tuple[str, ...], Doc('masked = "weights": names or patterns of tensors that stay dense, such as "*shortcut*"')
    ] = ()
    same_start: Annotated[bool, Doc("all clients start with the same mask")] = False
    prune_rate: Annotated[
        Share, Doc("fraction of each tensor's weights dropped in round 1, with cosine decay to 0 (alpha_0)")
    ] = 0.5
    recovery: Annotated[
        Literal["random", "gradient"], Doc("regrow the weights with the largest gradients, or random ones")
    ] = "random"

    @property
    def depends_on_rounds(self) -> str | None:
        return f"prune_rate = {self.prune_rate} falls to 0 in the last round" if self.prune_rate else None

    def scope(self, ctx: Ctx) -> Scope:
        """Which tensors are masked."""
        return scope_of(ctx.layout, self.masked, self.dense)

    def check(self, clients: int, topology: Topology, ctx: Ctx | None) -> None:
        if ctx is not None:
            check_density(self.density, self.scope(ctx), ctx)

    def join(self, k: int, ctx: Ctx) -> Client:
        return Client(first_mask(self.density, self.scope(ctx), k, ctx, same=self.same_start))

    def post(self, client: Client, ctx: Ctx) -> Message:
        return Message(model=Sparse.of(ctx.theta0, client.mask))

    def local(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> tuple[Client, Message, Vector]:
        mask = client.mask
        theta = train(self, mean_of_neighbours(inbox, ctx) * mask, data.train, ctx, mask=mask)
        new = regrown(
            mask, theta, data.train, ctx, batch=self.batch, prune_rate=self.prune_rate, recovery=self.recovery
        )
        return Client(new), Message(model=Sparse.of(theta, mask)), theta

    def personal(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> Vector:
        return own_model(inbox)

    def report(self, client: Client, server: None, k: int, ctx: Ctx) -> Report:
        return Report({"sparsity": 1 - masks.density(ctx.layout, client.mask, self.scope(ctx))})
