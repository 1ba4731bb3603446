"""The JSON Schema test suite through a Grammar."""

from __future__ import annotations

import collections
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.parquet as pq

from engine.errors import UnsupportedFormat
from engine.format import Format, FormatKind
from engine.grammar import Grammars
from tests.engine.grammar.languages import canonical, matches

SUITE = Path(__file__).parents[1] / "data/json_schema_suite_2020_12.parquet"


@dataclass
class Verdicts:
    """What became of the suite's cases."""

    accepted: collections.Counter[bool] = field(default_factory=collections.Counter)  # by validity
    rejected: collections.Counter[bool] = field(default_factory=collections.Counter)
    refused: collections.Counter[str] = field(default_factory=collections.Counter)  # cases by the keyword named
    refused_schemas: set[str] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)  # ids of invalid instances that were accepted


def judge(backend: Grammars, every: int = 1) -> Verdicts:
    verdicts = Verdicts()
    for case in pq.read_table(SUITE).to_pylist()[::every]:
        format = Format(FormatKind.JSON_SCHEMA, case["schema"])
        try:
            accepted = matches(backend, format, canonical(case["schema"], case["data"]))
        except UnsupportedFormat as error:
            verdicts.refused[error.keyword] += 1
            verdicts.refused_schemas.add(case["schema"])
            continue
        (verdicts.accepted if accepted else verdicts.rejected)[case["valid"]] += 1
        if accepted and not case["valid"]:
            verdicts.wrong.append(case["id"])
    return verdicts
