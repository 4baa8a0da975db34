"""Small networks: LeNets and other plain convolutional nets, a perceptron, a bag of words, and a character model.

LeNet-5 after LeCun et al., Gradient-based learning applied to document recognition, Proc. IEEE 1998.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsona.models.width import narrow

VOCABULARY = 10_000


class ConvNet(nn.Module):
    """Convolutions, each pooled by two, then fully connected layers; ReLU everywhere but at the end."""

    def __init__(
        self,
        classes: int,
        shape: tuple[int, int, int],
        *,
        widths: tuple[int, ...],
        hidden: tuple[int, ...],
        kernel: int = 5,
        padding: int = 0,
        dropout: float = 0.0,
        width: float = 1.0,
    ) -> None:
        super().__init__()
        sizes = (shape[0], *(narrow(n, width) for n in widths))
        self.convs = nn.ModuleList(nn.Conv2d(i, o, kernel, padding=padding) for i, o in pairwise(sizes))
        self.dropout = nn.Dropout(dropout)
        with torch.no_grad():
            flat = self.features(torch.zeros(1, *shape)).numel()
        self.hidden, self.head = _dense(flat, tuple(narrow(n, width) for n in hidden), classes)

    def features(self, x: Tensor) -> Tensor:
        """The convolutional part, flattened."""
        for conv in self.convs:
            x = F.max_pool2d(conv(x), 2).relu()  # pooling first: the same maths on a quarter of the data
        return x.flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of a batch of pictures."""
        x = self.dropout(self.features(x))
        for layer in self.hidden:
            x = layer(x).relu()
        logits: Tensor = self.head(x)
        return logits


class Perceptron(nn.Module):
    """Fully connected layers on the flattened input."""

    def __init__(
        self, classes: int, shape: tuple[int, ...], *, hidden: tuple[int, ...] = (64,), width: float = 1.0
    ) -> None:
        super().__init__()
        self.hidden, self.head = _dense(math.prod(shape), tuple(narrow(n, width) for n in hidden), classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of a batch of inputs of any shape."""
        x = x.flatten(1)
        for layer in self.hidden:
            x = layer(x).relu()
        logits: Tensor = self.head(x)
        return logits


class BagOfWords(nn.Module):
    """The mean embedding over all positions, padding included, and one linear layer; two classes share one logit."""

    def __init__(self, classes: int, vocabulary: int = VOCABULARY) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, 16)
        self.head = nn.Linear(16, 1 if classes == 2 else classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of a batch of token ids."""
        logits: Tensor = self.head(self.embedding(x.long()).mean(1))
        return logits


class CharacterCNN(nn.Module):
    """Convolutions that look back only, so that each position predicts the token that follows it."""

    def __init__(
        self, classes: int, vocabulary: int, *, widths: tuple[int, ...] = (64, 64), kernel: int = 5, width: float = 1.0
    ) -> None:
        super().__init__()
        sizes = (32, *(narrow(n, width) for n in widths))
        self.embedding = nn.Embedding(vocabulary, sizes[0])
        self.convs = nn.ModuleList(nn.Conv1d(i, o, kernel) for i, o in pairwise(sizes))
        self.head = nn.Linear(sizes[-1], classes)
        self.past = kernel - 1  # zeros before each text, so that a token is predicted from earlier ones only

    def forward(self, x: Tensor) -> Tensor:
        """Logits [n, length, classes] of a batch of token ids [n, length]."""
        h = self.embedding(x.long()).transpose(1, 2)
        for conv in self.convs:
            h = conv(F.pad(h, (self.past, 0))).relu()
        logits: Tensor = self.head(h.transpose(1, 2))
        return logits


def _dense(inputs: int, hidden: tuple[int, ...], classes: int) -> tuple[nn.ModuleList, nn.Linear]:
    sizes = (inputs, *hidden)
    layers = nn.ModuleList(nn.Linear(i, o) for i, o in pairwise(sizes))
    return layers, nn.Linear(sizes[-1], classes)
