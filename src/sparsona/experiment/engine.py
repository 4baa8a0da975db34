"""The section [engine]: where the clients of a run are, and in which precision they compute."""

from __future__ import annotations

import dataclasses
import sys
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from typing_extensions import Doc

from sparsona.core.fields import Count, Positive
from sparsona.core.task import Precision
from sparsona.engines.hardware import Machine, check_device, devices_of
from sparsona.experiment.checking import RecipeError, check_value, shown

DECIDING = ("precision", "tf32")  # the fields that change results; of the others, only the kind of device does


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Where clients run and in which precision. Only the device type and the precision can change results."""

    name: Annotated[
        Literal["local", "pool", "ray"], Doc("execution backend: in this process, a pool of worker processes, or Ray")
    ] = "pool"
    workers: Annotated[
        Count | Literal["auto"],
        Doc("pool, ray: worker processes, on GPUs per GPU; auto: one per core, or two per GPU"),
    ] = "auto"
    device: Annotated[
        str | tuple[str, ...],
        Doc("auto (a GPU if there is one), cpu, cuda, cuda:1, mps, or a list of GPUs"),
    ] = "auto"
    device_cache: Annotated[
        Positive, Doc("GPU memory for clients' data in GB; the least recently used data are dropped first")
    ] = 4.0
    precision: Annotated[Precision, Doc("training and testing precision; weights stay float32")] = "float32"
    tf32: Annotated[bool, Doc("GPU: use TF32 for float32 products, which is faster and less exact")] = False
    address: Annotated[str, Doc("ray: address of a running cluster; empty: start one on this machine")] = ""
    checkpoint_every: Annotated[Count, Doc("write a checkpoint every N rounds")] = 1


def check_placement(config: EngineConfig) -> None:
    """Raise RecipeError for devices that no machine has, or for more than the engine can use."""
    try:
        check_device(config.device)
    except ValueError as error:
        raise RecipeError(f"engine.{error}") from error
    if config.name == "local" and not isinstance(config.device, str) and len(config.device) > 1:
        what = 'needs worker processes, but engine.name = "local" has none; expected one device, or "pool"'
        raise RecipeError(f"engine.device: {shown(config.device)} {what}")


def devices_for(config: EngineConfig) -> tuple[str, ...]:
    """The devices that clients run on; RecipeError if they are not here, or if workers are asked for without any.

    Those of a Ray cluster are what its machines have.
    """
    if config.name == "local" and config.workers not in (1, "auto"):  # reading a run's recipe allows it
        what = 'needs worker processes, but engine.name = "local" has none; expected 1 or "auto", or'
        raise RecipeError(f'engine.workers: {config.workers} {what} engine.name = "pool"')
    if config.name == "pool" and sys.platform == "win32":
        raise RecipeError('engine.name: "pool" does not run on Windows; set engine.name = "local"')
    if config.name == "ray" and config.address:
        return (config.device,) if isinstance(config.device, str) else config.device
    try:
        return devices_of(config.device, Machine.here())
    except ValueError as error:
        raise RecipeError(f"engine.{error}") from error


def moved(config: EngineConfig, changes: Mapping[str, Any]) -> EngineConfig:
    """The section with other values of fields that do not change results; RecipeError for any other.

    A recorded number of workers does not follow a run to the engine "local".
    """
    free = [f.name for f in dataclasses.fields(config) if f.name not in DECIDING]
    hints = typing.get_type_hints(EngineConfig, include_extras=True)
    for key in changes:
        if key not in free:
            what = "cannot change in a run that has started" if key in hints else "no such field"
            raise RecipeError(f"engine.{key}: {what}; expected {', '.join(free)}")
    config = dataclasses.replace(config, **{k: check_value(hints[k], v, f"engine.{k}") for k, v in changes.items()})
    if config.name == "local" and "workers" not in changes:
        config = dataclasses.replace(config, workers=1)
    check_placement(config)
    return config
