"""Types of configuration fields, with the values that are allowed."""

from typing import Annotated

from annotated_types import Ge, Gt, Interval

Count = Annotated[int, Ge(1)]
Natural = Annotated[int, Ge(0)]
Positive = Annotated[float, Gt(0)]
NonNegative = Annotated[float, Ge(0)]
Share = Annotated[float, Interval(ge=0, le=1)]
Fraction = Annotated[float, Interval(ge=0, lt=1)]
PositiveShare = Annotated[float, Interval(gt=0, le=1)]
