"""Your own model: a small transformer over sentences of different lengths, first shared, then started from a file."""

import numpy as np
import torch
from torch import nn

import sparsona


class Transformer(nn.Module):
    """Classifies sentences of token ids, of which 0 is padding."""

    def __init__(self, classes, shape, vocabulary, width=16, heads=2, depth=1):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(0.1 * torch.randn(shape[0], width))
        layer = nn.TransformerEncoderLayer(width, heads, 2 * width, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)

    def forward(self, tokens):
        padding = tokens == 0
        hidden = self.layers(self.embed(tokens) + self.places, src_key_padding_mask=padding)
        return self.head(hidden.masked_fill(padding[..., None], 0).sum(1) / (~padding).sum(1, keepdim=True))


# Sentences of 3 to 10 words by four writers. Word 20 or 21 decides the class, and what it means depends on the writer.
rng = np.random.default_rng(1)
writer, length = np.repeat(np.arange(4), 120), rng.integers(3, 11, 480)
tokens = np.where(np.arange(10) < length[:, None], rng.integers(1, 20, (480, 10)), 0)
label = rng.integers(0, 2, 480)
tokens[np.arange(480), rng.integers(0, 3, 480)] = 20 + (label + writer) % 2
np.savez("sentences.npz", x=tokens, y=label, client=np.array(["Ada", "Bo", "Cy", "Di"])[writer])

recipe = {
    "name": "sentences",
    "rounds": 6,
    "data": {"source": "sentences.npz"},
    "model": {"name": "transformer:Transformer", "args": {"depth": 2}},
    "method": {"name": "ditto", "optimiser": "adam", "lr": 0.005},
    "engine": {"name": "local"},
    "results": {"figures": False, "models": True},
}
# other processes would import the class by its name; a script gives the class itself
first = sparsona.run(sparsona.check_recipe(recipe), "first", model=Transformer)
print(f"{first.summary['accuracy']:.1%} accuracy, {first.summary['total']['flops'] / 1e9:.2f} GFLOP")

# the model of the first writer, as a start for another run of all
started = {**recipe, "rounds": 1, "model": {**recipe["model"], "weights": "first/models/client-00000.safetensors"}}
second = sparsona.run(sparsona.check_recipe(started), model=Transformer)
print(f"{second.summary['accuracy']:.1%} after one round from the model of {first.client_names[0]}")
