"""What fields mean is read from their annotations."""

from dataclasses import dataclass
from typing import Annotated, Literal

import pytest
from typing_extensions import Doc

from sparsona.core.fields import Positive
from sparsona.experiment.checking import RecipeError, allowed, check_value
from sparsona.experiment.field_docs import field_docs


@dataclass(frozen=True)
class Section:
    """Some fields."""

    rate: Annotated[Positive, Doc("learning rate")] = 0.1
    way: Annotated[Literal["fast", "slow"] | None, Doc("how to go")] = None


def test_docs_are_read_and_do_not_change_what_is_allowed() -> None:
    assert field_docs(Section) == {"rate": "learning rate", "way": "how to go"}
    assert allowed(Annotated[Positive, Doc("learning rate")]) == "float > 0"
    with pytest.raises(
        RecipeError, match=r'section\.way: "fats" is not allowed; expected one of "fast", "slow"; did you mean "fast"'
    ):
        check_value(Section, {"way": "fats"}, "section")
