"""Types of options that several commands have."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from cyclopts import Parameter, Token
from cyclopts.validators import Number


def _json_object(_: object, tokens: Sequence[Token]) -> dict[str, Any]:
    try:
        options = json.loads(tokens[0].value)
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from error
    if not isinstance(options, dict):
        raise ValueError(f"expected a JSON object, got a {type(options).__name__}")
    return options


def _whole(_: object, tokens: Sequence[Token]) -> int:
    return int(tokens[0].value)  # cyclopts would round 1.5


def _seed(_: object, tokens: Sequence[Token]) -> int | None:
    return None if tokens[0].value == "none" else int(tokens[0].value)


Count = Annotated[int, Parameter(converter=_whole, validator=Number(gte=1))]
CountOrNone = Annotated[int, Parameter(converter=_whole, validator=Number(gte=0))]
Port = Annotated[int, Parameter(converter=_whole, validator=Number(gte=0, lte=65535))]
Seed = Annotated[int | None, Parameter(converter=_seed)]
Seconds = Annotated[float, Parameter(validator=Number(gt=0, lt=math.inf))]
Price = Annotated[float, Parameter(validator=Number(gte=0, lt=math.inf))]
Json = Annotated[dict[str, Any] | None, Parameter(converter=_json_object, n_tokens=1, accepts_keys=False)]
OnBadMember = Literal["raise", "skip"]
AsJson = Annotated[bool, Parameter("--json")]
