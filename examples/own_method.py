"""A method of your own: FedAvg whose clients predict with a mix of the shared model and their own."""

from dataclasses import dataclass
from typing import Annotated

from typing_extensions import Doc

import sparsona
from sparsona.core.aggregate import Mean
from sparsona.core.fields import Share
from sparsona.core.training import train
from sparsona.core.wire import Values
from sparsona.method import Message, Training, Vector
from sparsona.testing import check_method


@dataclass(frozen=True)
class Client:
    theta: Vector  # the model that it trained last


@dataclass(frozen=True, kw_only=True)
class HalfWay(Training):
    own: Annotated[Share, Doc("share of its own model that a client predicts with")] = 0.5

    def join(self, k, ctx):
        return None  # a client that has not trained yet keeps nothing

    def local(self, client, inbox, data, ctx):
        theta = train(self, inbox["server"]["theta"].values, data.train, ctx)
        return Client(theta), Message(theta=Values(theta), samples=len(data)), theta

    def personal(self, client, inbox, data, ctx):
        shared = inbox["server"]["theta"].values
        return shared if client is None else shared.lerp(client.theta, self.own)

    def start(self, clients, ctx):
        return ctx.theta0

    def down(self, server, k, ctx):
        return Message(theta=Values(server))

    def read(self, server, k, message, ctx):
        return message.floats("theta", ctx.layout.dim), message.whole("samples", 1)

    def merge(self, server, inbox, ctx):
        mean = Mean(ctx.layout.dim)
        for _, (theta, samples) in inbox:
            mean.add(theta, samples)
        return mean.value(otherwise=server)


if __name__ == "__main__":
    check_method(HalfWay())  # the promises that every method makes
    recipe = sparsona.load("quickstart", ["rounds=5", "model.name=digits-mlp"])["shared"]
    for own in (0.0, 0.5, 1.0):
        run = sparsona.run(recipe, method=HalfWay(lr=0.1, own=own))
        print(f"own = {own}: accuracy {run.summary['accuracy']:.1%}")
