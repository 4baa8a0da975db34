"""A data set from named arrays, wherever they come from: checked in full, so that a bad one is an error of one line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from sparsona.core.samples import Prepare
from sparsona.core.text import one_line
from sparsona.data.config import DataConfig
from sparsona.data.dataset import CLIENT, DataError, Dataset, Target

NAMES = ("x", "y", "client", "x_test", "y_test", "client_test", "mean", "std")
_FORMS = (
    "expected uint8 [n, height, width] or [n, height, width, channels] for pictures, ints [n, length] for "
    "token ids, or floats [n, ...] as the model reads them"
)
_TEXTS = ("y", "client", "y_test", "client_test")  # what may be texts
MAX_CLASSES = 100_000  # a model has an output for each, so a larger label is an identifier
_NOBODY = np.iinfo(np.int64).min  # the client of test samples that are nobody's


def from_arrays(where: str, given: Mapping[str, Any], config: DataConfig) -> Dataset:
    """A data set of x and y, and optionally client, x_test, y_test, client_test, and mean and std of pictures.

    x holds pictures as bytes [n, height, width] or [n, height, width, channels], token ids [n, length], or floats
    [n, ...] as the model reads them. y holds classes from 0 [n], numbers as floats [n] or [n, d], labels as 0 and 1
    [n, c], or the next token of each token [n, length].
    """
    arrays = _checked_names(where, given)
    x, train = _inputs(where, arrays), len(arrays["x"])
    words = x.dtype == np.int32
    target, y, names = _targets(where, arrays, config, words_like=x if words else None)
    prepare, shape = _prepared(where, arrays, x)
    if x.dtype == np.uint8 and x.ndim == 3:
        x = x[..., None]
    vocabulary = 0
    if words:
        largest = max(int(x.max()), int(y.max()) if target == "tokens" else 0)
        vocabulary = largest + 1 if config.vocabulary is None else config.vocabulary
        if largest >= vocabulary:
            raise DataError(
                f"{where}: token id {largest} is not allowed; expected an int < data.vocabulary = {vocabulary}"
            )
    keys = _clients(where, arrays, train, len(x) - train)
    tensors = torch.from_numpy(np.ascontiguousarray(x)), torch.from_numpy(np.ascontiguousarray(y))
    return Dataset(where, *tensors, train, names, shape, prepare, keys, vocabulary, target)


def form(array: np.ndarray) -> str:
    """The type and sizes of an array, as errors name them."""
    return f"{array.dtype} {list(array.shape)}"


def class_labels(
    where: str,
    y: np.ndarray,
    classes: int | tuple[str, ...] | None,
    place: Callable[[int], str] = "y of sample {}".format,
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Whole numbers from 0 as int64, and the names of their classes; errors name the ``place`` of a number."""
    if isinstance(classes, int) and classes > MAX_CLASSES:
        raise DataError(f"{where}: data.classes: {classes} is not allowed; expected an int <= {MAX_CLASSES:,}")
    last = int(y.argmax())
    if classes is None and y[last] >= MAX_CLASSES:
        raise DataError(f"{where}: {place(last)} is {int(y[last])}; expected a class in [0, {MAX_CLASSES - 1:,}]")
    count = int(y[last]) + 1 if classes is None else classes if isinstance(classes, int) else len(classes)
    wrong = (y < 0) | (y >= count)
    if wrong.any():
        at = int(wrong.argmax())
        much = (
            f"; expected a class in [0, {count - 1}], as data.classes = {count}"
            if y[at] >= 0
            else "; expected a class >= 0"
        )
        raise DataError(f"{where}: {place(at)} is {int(y[at])}{much}")
    if classes is None and (y == y[0]).all():
        raise DataError(
            f"{where}: y has only one class, {int(y[0])}; expected at least two, or set data.classes if others exist"
        )
    names = classes if isinstance(classes, tuple) else tuple(str(c) for c in range(count))
    return y.astype(np.int64), names


def text_labels(
    where: str,
    what: str,
    values: np.ndarray,
    classes: int | tuple[str, ...] | None,
    place: Callable[[int, str], str] = ": y of sample {} is {}".format,
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Names as classes: those that are given, or all that occur, in their order."""
    texts = values.astype(str).tolist()
    names = classes if isinstance(classes, tuple) else tuple(str(v) for v in np.unique(values))
    if isinstance(classes, int) and len(names) != classes:
        raise DataError(
            f"{where}: {what} has {len(names)} different strings, and data.classes = {classes}; list the names in it"
        )
    if len(names) > MAX_CLASSES:
        raise DataError(
            f"{where}: {what} has {len(names):,} different values; expected at most {MAX_CLASSES:,} classes"
        )
    codes = {text: code for code, text in enumerate(names)}
    for at, text in enumerate(texts):
        if text not in codes:
            raise DataError(f"{where}{place(at, text)}; expected one of data.classes, {', '.join(names)}")
    if len(names) < 2:
        raise DataError(f"{where}: {what} has only one class, {names[0]}; expected at least two")
    return np.array([codes[text] for text in texts], np.int64), names


def _checked_names(where: str, given: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The arrays, each under a name that has a meaning, in pairs that belong together."""
    for name in ("x", "y"):
        if name not in given:
            raise DataError(f"{where}: array {name} is missing; found {', '.join(map(str, given)) or 'nothing'}")
    for name in given:
        if name not in NAMES:
            raise DataError(f"{where}: array {name!r} is not allowed; expected one of {', '.join(NAMES)}")
    if ("x_test" in given) != ("y_test" in given):
        raise DataError(
            f"{where}: {'y_test' if 'x_test' in given else 'x_test'} is missing; "
            "expected both x_test and y_test, or neither"
        )
    if "client_test" in given and not ("client" in given and "x_test" in given):
        raise DataError(f"{where}: client_test is not allowed without client and x_test; add them, or leave it out")
    arrays = {}
    for name, value in given.items():
        try:
            arrays[name] = np.asarray(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise DataError(f"{where}: {name} is not an array: {one_line(error)}") from error
        if arrays[name].dtype.hasobject:
            arrays[name] = _texts(where, name, arrays[name])
    return arrays


def _texts(where: str, name: str, values: np.ndarray) -> np.ndarray:
    """Clients or classes as texts, which are objects in a column of pandas."""
    items = values.tolist() if values.ndim == 1 and name in _TEXTS else []
    if not any(isinstance(item, str) for item in items):
        raise DataError(f"{where}: {name} is an array of objects; expected numbers, or strings for clients and classes")
    for at, item in enumerate(items):
        if not isinstance(item, str):
            raise DataError(f"{where}: {name} of sample {at} is {one_line(item)}; expected a string, as others")
    return np.array(items, dtype=np.str_)


def _inputs(where: str, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """The inputs of training and test samples: bytes of pictures, int32 token ids, or float32."""
    parts = []
    for name in ("x", "x_test"):
        if name not in arrays:
            continue
        x = arrays[name]
        if x.dtype == np.uint8 and x.ndim in (3, 4):
            kind: Any = np.uint8
        elif x.dtype.kind in "iu" and x.ndim == 2:
            kind = np.int32
        elif x.dtype.kind in "fb" and x.ndim >= 2:
            kind = np.float32
        else:
            raise DataError(f"{where}: {name} is {form(x)}; {_FORMS}")
        if 0 in x.shape:
            raise DataError(f"{where}: {name} is {form(x)}; expected at least one sample and no size of 0")
        if kind is np.int32 and (x.min() < 0 or x.max() >= 1_000_000):
            raise DataError(f"{where}: {name} has token ids from {x.min()} to {x.max()}; expected ints in [0, 999,999]")
        parts.append(_float32(where, name, x) if kind is np.float32 else x.astype(kind, copy=False))
    if len(parts) == 2 and (parts[0].dtype != parts[1].dtype or parts[0].shape[1:] != parts[1].shape[1:]):
        raise DataError(
            f"{where}: x_test is {form(arrays['x_test'])}; expected the type and sizes of x, {form(arrays['x'])}"
        )
    return np.concatenate(parts) if len(parts) == 2 else parts[0]


def _float32(where: str, name: str, values: np.ndarray) -> np.ndarray:
    """Finite numbers as float32; a number beyond its range is refused like Inf."""
    with np.errstate(over="ignore"):
        narrow = values.astype(np.float32, copy=False)
    if not (fine := np.isfinite(narrow).reshape(len(narrow), -1).all(1)).all():
        at = int((~fine).argmax())
        what = "a number outside the range of float32" if np.isfinite(values[at]).all() else "NaN or Inf"
        raise DataError(f"{where}: {name} has {what} in sample {at}; expected finite numbers")
    return narrow


def _targets(
    where: str, arrays: Mapping[str, np.ndarray], config: DataConfig, words_like: np.ndarray | None
) -> tuple[Target, np.ndarray, tuple[str, ...]]:
    """What is predicted, of training and test samples, and the names of classes."""
    y = arrays["y"]
    for x_name, name in (("x", "y"), ("x_test", "y_test")):
        if name in arrays:
            _check_targets(where, arrays, x_name, name)
    both = np.concatenate([y, arrays["y_test"]]) if "y_test" in arrays else y
    if both.dtype.kind == "U":
        if config.target not in (None, "class"):
            raise DataError(f'{where}: y has strings; expected numbers, as data.target = "{config.target}"')
        return "class", *text_labels(where, "y", both, config.classes)
    target = config.target or _guessed(both, words_like)
    if target == "class":
        if both.ndim != 1 or (both.dtype.kind == "f" and (both % 1).any()):
            raise DataError(f"{where}: y is {form(y)}; expected classes as ints [n] from 0")
        return target, *class_labels(where, both, config.classes)
    if target == "number":
        if both.ndim > 2:
            raise DataError(f"{where}: y is {form(y)}; expected numbers [n] or [n, d]")
        parts = [_float32(where, name, arrays[name]) for name in ("y", "y_test") if name in arrays]
        return target, np.concatenate(parts), ()
    if target == "labels":
        wrong = ~np.isin(both, (0, 1))
        if both.ndim != 2 or wrong.any():
            raise DataError(f"{where}: y is {form(y)}; expected labels of 0 and 1, [n, c]")
        names = config.classes if isinstance(config.classes, tuple) else tuple(str(c) for c in range(both.shape[1]))
        if len(names) != both.shape[1]:
            raise DataError(f"{where}: y has {both.shape[1]} labels; expected {len(names)}, as data.classes names")
        return target, both.astype(np.float32), names
    if words_like is None or both.shape != words_like.shape or both.dtype.kind not in "iu":
        raise DataError(
            f"{where}: y is {form(y)}; expected next tokens as ints of the sizes of x, which must hold token ids"
        )
    if ((both < 0) & (both != -100)).any():
        raise DataError(f"{where}: y has a negative token id; expected ids >= 0, or -100 for tokens to ignore")
    return target, both.astype(np.int64), ()


def _check_targets(where: str, arrays: Mapping[str, np.ndarray], x_name: str, name: str) -> None:
    x, y = arrays[x_name], arrays[name]
    if y.ndim == 0 or len(y) != len(x):
        raise DataError(f"{where}: {name} is {form(y)}; expected {len(x)} entries, one per sample of {x_name}")
    if y.dtype.kind == "U" and (y.ndim > 1 or (y == "").any()):
        what = f"of sample {int((y == '').argmax())} is empty" if y.ndim == 1 else f"is {form(y)}; expected [n]"
        raise DataError(f"{where}: {name} {what}")
    if y.dtype.kind not in "iufbU":
        raise DataError(f"{where}: {name} is {form(y)}; expected numbers, such as classes from 0")
    if (
        y.ndim != arrays["y"].ndim
        or (y.dtype.kind == "U") != (arrays["y"].dtype.kind == "U")
        or y.shape[1:] != arrays["y"].shape[1:]
    ):
        raise DataError(f"{where}: {name} is {form(y)}; expected the kind and sizes of y, {form(arrays['y'])}")
    if y.dtype.kind == "f" and not (fine := np.isfinite(y).reshape(len(y), -1).all(1)).all():
        raise DataError(f"{where}: {name} has NaN or Inf in sample {int((~fine).argmax())}; expected finite numbers")


def _guessed(y: np.ndarray, words_like: np.ndarray | None) -> Target:
    if y.dtype.kind == "f":
        return "number"
    if y.ndim == 1:
        return "class"
    return "tokens" if words_like is not None and y.shape == words_like.shape else "labels"


def _prepared(where: str, arrays: Mapping[str, np.ndarray], x: np.ndarray) -> tuple[Prepare, tuple[int, ...]]:
    """How inputs become what the model reads, and the shape of one."""
    if x.dtype != np.uint8:
        for name in ("mean", "std"):
            if name in arrays:
                raise DataError(
                    f"{where}: {name} is only for uint8 pictures, and x is {form(arrays['x'])}; leave it out"
                )
        return Prepare(), tuple(x.shape[1:])
    channels = 1 if x.ndim == 3 else x.shape[3]
    scale = {}
    for name in ("mean", "std"):
        values = np.atleast_1d(arrays.get(name, np.full(channels, 0.5))).astype(np.float64)
        scaled = " > 0" if name == "std" else ""
        if values.shape != (channels,) or not np.isfinite(values).all() or (name == "std" and (values <= 0).any()):
            raise DataError(
                f"{where}: {name} is {values.tolist()}; expected {channels} finite numbers{scaled}, "
                "one per channel, for pixels in [0, 1]"
            )
        scale[name] = tuple(float(v) for v in values)
    return Prepare(scale["mean"], scale["std"]), (channels, *x.shape[1:3])


def _clients(where: str, arrays: Mapping[str, np.ndarray], train: int, test: int) -> dict[str, np.ndarray]:
    """The client of each sample as a natural key, if there are any."""
    if CLIENT not in arrays:
        return {}
    parts = []
    for name, count in (("client", train), ("client_test", test)):
        if name not in arrays:
            continue
        who = arrays[name]
        if who.shape != (count,) or who.dtype.kind not in "iuU":
            raise DataError(f"{where}: {name} is {form(who)}; expected {count} ints or strings, one per sample")
        if who.dtype.kind == "U" and (who == "").any():
            raise DataError(f"{where}: {name} of sample {int((who == '').argmax())} is empty; expected a name")
        parts.append(who)
    if len(parts) == 1 and test:
        kind = parts[0].dtype.kind
        parts.append(np.full(test, "") if kind == "U" else np.full(test, _NOBODY))
    elif len(parts) == 2:
        if (parts[0].dtype.kind == "U") != (parts[1].dtype.kind == "U"):
            raise DataError(f"{where}: client_test is {parts[1].dtype}; expected the type of client, {parts[0].dtype}")
        strange = ~np.isin(parts[1], parts[0])
        if strange.any():
            at = int(strange.argmax())
            raise DataError(
                f"{where}: client_test of sample {at} is {parts[1][at]!s}; expected a client with training samples"
            )
    return {CLIENT: np.concatenate(parts)}
