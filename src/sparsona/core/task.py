"""All computation with the model: one model per process, over flat buffers of its parameters and gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Literal, cast

import torch
from torch import Tensor, nn

from sparsona.core.layout import CPU, Layout, Mask, Vector
from sparsona.core.objective import Objective
from sparsona.core.operations import KNOWN_LAYERS
from sparsona.core.samples import Batch, Batches
from sparsona.core.tally import Tally

Precision = Literal["float32", "bf16"]
# gives a tensor the contents of another, and keeps whoever holds it
_SWAP = cast(Callable[[Tensor, Tensor], None], torch.utils.swap_tensors)


class Task:
    """A model whose parameters are views of one vector; it computes logits, losses and gradients at any vector.

    All of it lies on one device, ``layout.device``. With the precision "bf16" the model computes in bfloat16 where
    PyTorch considers that safe (autocast), while weights, outputs, losses and gradients are float32. ``objective`` is
    its training loss. The task also counts operations: ``flops`` is the cost of all gradients so far, by the papers'
    convention (2 per multiply-add on non-zero weights, training is three times the forward pass), and ``forward`` the
    part of it that went forward.
    """

    def __init__(
        self,
        model: nn.Module,
        layout: Layout,
        example: Tensor | None = None,
        objective: Objective | None = None,
        precision: Precision = "float32",
    ) -> None:
        self.model = model
        self.layout = layout
        device = layout.device
        # a batch of inputs that the model can read
        self.example = torch.empty(0, device=device) if example is None else example.to(device)
        self.objective = Objective() if objective is None else objective
        self.precision = precision
        self.flops = 0
        self.forward = 0
        self.tally = Tally()  # of the batches that gradients were computed for
        self.charges = 0  # how often something was counted: without, what was spent is not known
        self.flat = torch.zeros(layout.dim, device=device)
        self.grads = torch.zeros(layout.params, device=device)
        self.weights, self._buffers = _bind(model, layout, self.flat)
        self._grad_views = [s.view(self.grads[s.where]) for s in layout.slots if s.kind != "buffer"]
        self._live, self._live_views = self.weights, self._grad_views  # what has a gradient now: all, or what moves
        self._dense_price = self._price = layout.training_flops(), layout.flops()  # of a sample's gradient, and forward

    @staticmethod
    def of(
        model: nn.Module,
        example: Tensor,
        objective: Objective | None = None,
        device: torch.device = CPU,
        precision: Precision = "float32",
    ) -> tuple[Task, Vector]:
        """A task on a device, and the model's initial vector there."""
        layout = replace(Layout.of(model, example), device=device)
        theta0 = layout.flatten({**dict(model.named_buffers()), **dict(model.named_parameters())})
        return Task(model, layout, example, objective, precision), theta0

    @property
    def device(self) -> torch.device:
        """Where the model and its vector lie."""
        return self.layout.device

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.example.shape[1:])

    def logits(self, theta: Vector, x: Tensor) -> Tensor:
        """Outputs for a batch, in evaluation mode."""
        self.load(theta)
        if self.model.training:  # to ask is much quicker than to tell each module
            self.model.eval()
        with torch.no_grad():
            return self.outputs(x)

    def outputs(self, x: Tensor) -> Tensor:
        """The loaded model's outputs for a batch, in the task's precision, as float32."""
        with self.autocast():
            out: Tensor = self.model(x)
        return out if self.precision == "float32" else out.float()

    def autocast(self) -> AbstractContextManager[object]:
        """Within the block models compute in the task's precision; what they give may be bfloat16."""
        if self.precision == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)

    def gradient_at(self, theta: Vector, batch: Batch, *, tally: bool = True) -> Vector:
        """The dense gradient of the loss at theta, in evaluation mode; it includes the pruned weights."""
        self.load(theta)
        self.model.eval()
        out = torch.zeros_like(self.flat)
        out[: self.layout.params] = self.gradient(batch, tally=tally)
        return out

    def gradient(self, batch: Batch, *, tally: bool = True) -> Vector:
        """The gradient of the loss at the loaded vector [params], in a buffer that the next call overwrites."""
        return self.gather(self.gradients(batch, tally=tally))

    def gradients(self, batch: Batch, *, tally: bool = True) -> list[Tensor]:
        """The gradient of the loss at the loaded vector, tensor by tensor, fresh from the backward pass.

        Without ``tally`` the batch does not count for the training loss, because another gradient of it does.
        """
        x, y = batch
        outputs = self.outputs(x)
        loss = self.objective(outputs, y)
        fresh = torch.autograd.grad(loss, self._live, allow_unused=True)
        self.charge_gradient(len(y))
        if tally:
            self.tally.add(self.objective, loss, outputs, y)
        return [torch.zeros_like(w) if g is None else g for w, g in zip(self._live, fresh, strict=True)]

    def gather(self, gradients: list[Tensor]) -> Vector:
        """Gradients as one flat vector, in a buffer that the next call overwrites."""
        torch._foreach_copy_(self._live_views, gradients)
        return self.grads

    def charge_gradient(self, samples: int) -> None:
        """Count the operations of a gradient over this number of samples."""
        training, forward = self._price
        self.charge(samples * forward, samples * (training - forward))

    def charge(self, forward: int, backward: int) -> None:
        """Count operations of gradients that were not computed by this task; zeros mean that they cost nothing."""
        self.charges += 1
        self.flops += forward + backward
        self.forward += forward

    def load(self, theta: Vector) -> None:
        """Load a vector into the model."""
        if theta.shape != self.flat.shape:
            raise ValueError(f"theta: a vector of {theta.numel()} entries does not fit a model of {self.layout.dim}")
        self.flat.copy_(theta)

    def settle(self) -> None:
        """Copy back buffers that the model replaced instead of updating in place."""
        for module, leaf, view in self._buffers:
            current = module._buffers[leaf]
            if current is not view and current is not None:
                view.copy_(current)
                module._buffers[leaf] = view

    @contextmanager
    def training(self, batches: Batches, *, mask: Mask | None = None, still: Sequence[bool] = ()) -> Iterator[None]:
        """Within the block the model is in training mode and draws (dropout and the like) by the batches' key.

        Gradients cost what a model with this mask costs. Tensors that stay still, one flag each, have none.
        """
        self.model.train()
        self._price = self.layout.training_flops(mask, still), self.layout.flops(mask)
        try:
            with self.frozen(still) if any(still) else nullcontext(), batches.rng("layers").everywhere(self.device):
                yield
        finally:
            self._price = self._dense_price
            self.settle()

    @contextmanager
    def trained_by(self, objective: Objective) -> Iterator[None]:
        """Within the block, compute gradients of another loss."""
        usual, self.objective = self.objective, objective
        try:
            yield
        finally:
            self.objective = usual

    @contextmanager
    def scaled(self, width: float) -> Iterator[None]:
        """Within the block outputs of the body's layers are divided by this width (HeteroFL's scaler).

        Layers that hold a share of their inputs then say about as much as whole ones. A model with normalisation layers
        stays as it is, since these undo any such factor.
        """
        hooks = []
        if width != 1 and not any(slot.kind == "norm" for slot in self.layout.slots):
            names = {slot.layer for slot in self.layout.slots if slot.uses and not slot.head}
            layers = [self.model.get_submodule(name) for name in sorted(names)]
            hooks = [m.register_forward_hook(_divided(width)) for m in layers if isinstance(m, KNOWN_LAYERS)]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    @contextmanager
    def frozen(self, still: Sequence[bool]) -> Iterator[None]:
        """Within the block these tensors, one flag each, have no gradients: the backward pass stops above the lowest.

        Where a flat gradient is asked for, theirs is 0.
        """
        try:
            for weight, stays in zip(self.weights, still, strict=True):
                weight.requires_grad_(not stays)
            self._live = [w for w, stays in zip(self.weights, still, strict=True) if not stays]
            self._live_views = [v for v, stays in zip(self._grad_views, still, strict=True) if not stays]
            self.grads.zero_()
            yield
        finally:
            for weight in self.weights:
                weight.requires_grad_(True)
            self._live, self._live_views = self.weights, self._grad_views


def _divided(by: float) -> Callable[[nn.Module, object, Tensor], Tensor]:
    return lambda module, inputs, out: out / by


def _bind(model: nn.Module, layout: Layout, flat: Tensor) -> tuple[list[Tensor], list[tuple[nn.Module, str, Tensor]]]:
    """Make the model's parameters and buffers views of the flat buffer; give both, the trained ones in its order."""
    parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    for module in model.modules():
        if (
            isinstance(module, nn.modules.batchnorm._NormBase)
            and module.track_running_stats
            and module.momentum is None
        ):
            raise ValueError(
                "model: batch norm with momentum=None is not allowed; "
                "its batch counter would pass from client to client"
            )
    bound = []
    for module in model.modules():  # numbers that are not floats, such as counters and indices
        for leaf, buffer in module._buffers.items():
            if buffer is not None and not buffer.is_floating_point():
                module._buffers[leaf] = buffer.to(flat.device)
    for slot in layout.slots:
        view = slot.view(flat[slot.where])
        if slot.name in parameters:
            parameter = parameters[slot.name]
            view.copy_(parameter.detach())
            if flat.is_cpu:
                parameter.data = view
            else:  # ``data`` cannot be given another kind of tensor
                _SWAP(parameter, nn.Parameter(view, requires_grad=parameter.requires_grad))
        else:
            view.copy_(buffers[slot.name])
            owner, _, leaf = slot.name.rpartition(".")
            model.get_submodule(owner)._buffers[leaf] = view
            bound.append((model.get_submodule(owner), leaf, view))
    return [parameters[slot.name] for slot in layout.slots if slot.kind != "buffer"], bound
