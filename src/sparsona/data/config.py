"""The section [data] of a recipe: the data set, its partition over clients, and the test samples."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from annotated_types import Ge, Gt, Interval
from typing_extensions import Doc

from sparsona.core.text import nearest
from sparsona.data.dataset import Target

SOURCE_NAMES = (
    *("digits", "mnist", "fashion-mnist", "emnist-letters", "emnist-byclass", "femnist"),
    *("cifar10", "cifar100", "imdb", "shakespeare", "ham10000"),
)

PartitionName = Literal["iid", "dirichlet", "pathological", "shards", "lambda", "natural", "file"]
SplitName = Literal["ratio", "label_mix", "same"]
Missing = Literal["mean", "drop"]
# Typed as what they are once the data are read; None until then, where a source of the user's own decides.
_OPEN = cast(Any, None)
OPEN = ("clients", "partition", "key", "split", "classes")  # what the data decide if a recipe does not
_BUILT_IN = {"clients": 20, "partition": "dirichlet", "split": "ratio", "vocabulary": 10_000, "length": 256}
_NATURAL = {"femnist": "writer", "shakespeare": "role"}  # sources divided by this key unless a recipe says otherwise
_OF_SOURCE: dict[str, dict[str, Any]] = {
    **{name: {"partition": "natural"} for name in _NATURAL},
    "shakespeare": {"partition": "natural", "vocabulary": 82, "length": 80},
}


@dataclass(frozen=True)
class DataConfig:
    """The data set, its partition over clients, and the test samples of each client."""

    source: Annotated[
        str,
        Doc('built-in data set, path of a file or folder, or "package.module:name"; see docs/bring-your-data.md'),
    ] = "digits"
    clients: Annotated[
        Annotated[int, Ge(1)], Doc("number of clients; default: all clients named in your data, else 20")
    ] = _OPEN
    partition: Annotated[
        PartitionName,
        Doc("how samples are divided among clients; default: natural if the data name clients, else dirichlet"),
    ] = _OPEN
    alpha: Annotated[
        Annotated[float, Interval(gt=0, le=1e6)], Doc("dirichlet: concentration; smaller values give more label skew")
    ] = 0.3
    balanced: Annotated[bool, Doc("dirichlet: give all clients the same number of samples")] = False
    classes_per_client: Annotated[Annotated[int, Ge(1)], Doc("pathological: number of classes per client")] = 2
    shards_per_client: Annotated[
        Annotated[int, Ge(1)], Doc("shards: number of shards per client, cut from the data sorted by label")
    ] = 2
    noniid: Annotated[
        Annotated[float, Interval(ge=0, le=1)], Doc("lambda: fraction of the samples that is sorted by label; 0 is IID")
    ] = 1.0
    key: Annotated[
        str, Doc("natural: key to group by (writer, role, site, ...); default: the clients that the data name")
    ] = ""
    merge_keys: Annotated[
        bool, Doc("natural: use all keys, several per client; false: one randomly drawn key per client")
    ] = False
    partition_file: Annotated[str, Doc("file: path of the partition file")] = ""
    min_samples: Annotated[
        Annotated[int, Ge(1)],
        Doc("minimum samples per client: dirichlet moves samples, natural skips smaller keys, others fail"),
    ] = 10
    sample_share: Annotated[
        Annotated[float, Interval(gt=0, le=1)], Doc("fraction of the samples to use, drawn at random")
    ] = 1.0
    samples_per_client: Annotated[
        Annotated[int, Ge(1)] | None, Doc("maximum samples per client, drawn at random; unset: no limit")
    ] = None
    split: Annotated[
        SplitName,
        Doc("source of test samples: the client's data (ratio) or the test set (label_mix, same); default: by data"),
    ] = _OPEN
    pool: Annotated[bool, Doc("ratio: merge the official training and test sets before dividing them")] = False
    train_share: Annotated[
        Annotated[float, Gt(0)], Doc("training share; relative to the other two, so 450, 50, 100 is allowed")
    ] = 0.7
    validation_share: Annotated[Annotated[float, Ge(0)], Doc("validation share; these samples are not trained on")] = (
        0.1
    )
    test_share: Annotated[Annotated[float, Gt(0)], Doc("test share; used only with split ratio")] = 0.2
    test_samples: Annotated[Annotated[int, Ge(1)], Doc("label_mix: test samples per client")] = 100
    test_overlap: Annotated[bool, Doc("label_mix: let clients share test samples when a class runs out")] = True
    augment: Annotated[
        Literal["none", "crop", "crop-flip"],
        Doc("images, in training: random crop after padding by 4 pixels; flip: random mirroring"),
    ] = "none"
    side: Annotated[
        Annotated[int, Interval(ge=1, le=4096)] | None,
        Doc("images: resize to this height and width, in pixels; unset: original size"),
    ] = None
    copies: Annotated[
        tuple[Annotated[int, Ge(1)], ...],
        Doc("oversampling: how many times each class's training samples are used; empty: once"),
    ] = ()
    vocabulary: Annotated[
        Annotated[int, Interval(ge=3, le=1_000_000)],
        Doc(
            "text: vocabulary size; default: 10,000 words (imdb), 82 characters (shakespeare), or all ids in your data"
        ),
    ] = _OPEN
    length: Annotated[
        Annotated[int, Interval(ge=1, le=10_000)],
        Doc("text: tokens per sample; default: the last 256 words (imdb), 80 characters (shakespeare, text files)"),
    ] = _OPEN
    seed: Annotated[
        Annotated[int, Ge(0)] | None, Doc("seed of the partition and the splits; default: the recipe's seed")
    ] = None
    label: Annotated[
        str | tuple[str, ...] | None, Doc('tables: column to predict, or a list of columns; default: "label"')
    ] = None
    client: Annotated[str | None, Doc('tables: column that names the clients; default: "client" if it exists')] = None
    features: Annotated[tuple[str, ...] | None, Doc("tables: input columns; default: all other columns")] = None
    target: Annotated[
        Target | None, Doc("what to predict; default by data type: class for integers and strings, number for floats")
    ] = None
    classes: Annotated[
        Annotated[int, Ge(2)] | tuple[str, ...] | None,
        Doc("your own data: number of classes, or their names; default: the classes that occur"),
    ] = None
    missing: Annotated[
        Missing | None, Doc("tables: replace missing inputs by the mean, or drop their rows; default: raise an error")
    ] = None
    test: Annotated[
        str | None,
        Doc('tables: column that marks test rows (0/1 or false/true); default: "test" if it is boolean'),
    ] = None
    encoding: Annotated[
        str | None,
        Doc("your own data: JSON file of scales, categories, classes and alphabet; default: from the training samples"),
    ] = None
    args: Annotated[dict[str, Any] | None, Doc('keyword arguments for a source "package.module:name"')] = field(
        default=None, hash=False
    )

    def __post_init__(self) -> None:
        filled = [name for name in _BUILT_IN if getattr(self, name) is None] if self.built_in else []
        defaults = _BUILT_IN | _OF_SOURCE.get(self.source, {})
        for name in filled:
            object.__setattr__(self, name, defaults[name])
        if self.partition == "natural" and not self.key and self.source in _NATURAL:
            object.__setattr__(self, "key", _NATURAL[self.source])
            filled.append("key")
        object.__setattr__(self, "_filled", tuple(filled))
        self._check_own()
        if self.pool and self.split not in ("ratio", None):
            raise ValueError(
                f'split: "{self.split}" is not allowed with pool = true, which leaves no test set; expected "ratio"'
            )
        if self.partition == "natural" and not self.key and self.built_in:
            raise ValueError('key: missing; partition = "natural" needs a key, such as "writer", "site" or "movie"')
        if self.partition == "file" and not self.partition_file:
            raise ValueError('partition_file: missing; partition = "file" needs the path of a partition file')
        if self.partition == "file" and self.split == "same":
            raise ValueError(
                'split: "same" is not allowed with partition = "file"; list the test samples in the partition file'
            )
        if self.copies and (self.split == "ratio" or self.partition == "file"):
            raise ValueError(
                'copies: not allowed with split = "ratio", which might test on a copy, or with partition = "file"; '
                'use split = "label_mix" or "same", and another partition'
            )
        least = 2 if self.split == "ratio" else 1
        if self.samples_per_client is not None and self.samples_per_client < least:
            split = f'"{self.split}"' if self.split else "unset"
            raise ValueError(
                f"samples_per_client: {self.samples_per_client} is not allowed; "
                f"expected an int >= {least} with split = {split}"
            )

    @property
    def built_in(self) -> bool:
        """Whether the data come with a reader of ours, and not from the user."""
        return self.source in SOURCE_NAMES

    @property
    def plugin(self) -> bool:
        """Whether the source is code of the user's, package.module:name."""
        return re.fullmatch(r"[\w.]+:[\w.]+", self.source) is not None

    @property
    def given(self) -> bool:
        """Whether the source is a Python object, which only the process that made it has."""
        return self.source.startswith("<")

    def with_object(self, name: str) -> DataConfig:
        """The configuration for a Python object of this name as the source; the object fills what was not set."""
        unset: dict[str, Any] = {field: "" if field == "key" else None for field in self._filled}  # type: ignore[attr-defined]
        return replace(self, source=name, **unset)

    def located(self) -> DataConfig:
        """The configuration with the whole path of a user's file, so that a run can be resumed from any folder."""
        if self.encoding is not None:
            absolute = str(Path(self.encoding).expanduser().resolve())
            if absolute != self.encoding:
                return replace(self, encoding=absolute).located()
        if self.built_in or self.plugin or self.given:
            return self
        path = Path(self.source).expanduser()
        if path.exists() or path.suffix or path.is_absolute() or len(path.parts) > 1:
            return replace(self, source=str(path.resolve()))
        known = nearest(self.source, SOURCE_NAMES)
        own = "" if known.endswith("?") else ', or your own: a path or "package.module:name"'
        raise ValueError(f'source: "{self.source}" not found{known}{own}')

    def _check_own(self) -> None:
        if self.built_in:
            for name in ("label", "client", "features", "target", "classes", "missing", "test", "encoding"):
                if getattr(self, name) is not None:
                    raise ValueError(
                        f'{name}: not allowed with the built-in source "{self.source}", '
                        "only with your own data; set data.source, or leave it out"
                    )
        if self.args is not None and not self.plugin and not self.given:
            raise ValueError(
                f'args: not allowed with source = "{self.source}", only with package.module:name; leave them out'
            )
        for name in ("label", "features", "classes"):
            value = getattr(self, name)
            if isinstance(value, tuple) and (not value or len(set(value)) < len(value)):
                raise ValueError(f"{name}: {list(value)} is not allowed; expected at least one name, and each once")
