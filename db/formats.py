"""Formats as a job names them: what its answers are held to, token by token. engine.Format gives the meaning."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from db import json_schemas
from db.spec_fields import Name, Spec, Text


class FormatOptions(Spec):
    """What every format has."""

    forced: Literal["verify", "commit"] = Field(
        default="verify",
        description="Text that the format leaves no choice about: `verify` has the model choose its tokens as it would "
        "any other, `commit` writes it in the tokenizer's own tokens without asking, which is faster.",
    )
    keep_raw: bool = Field(
        default=False, description="Adds the column `raw_output`: the answer as written, of failed rows too."
    )


class JsonOptions(FormatOptions):
    whitespace: bool = Field(default=False, description="Let the model put whitespace between the tokens of JSON.")


class SchemaOptions(JsonOptions):
    """JSON that a schema describes: one schema for the job, or one per row from a column of JSON text."""

    json_schema: dict[str, Any] | None = Field(
        default=None, description="A JSON Schema; in Python also a Pydantic model."
    )
    schema_column: Name | None = Field(default=None, description="Column with a JSON Schema per row.")
    on_unsupported: Literal["refuse", "validate"] = Field(
        default="refuse",
        description="A keyword that cannot be enforced while writing: the job (with a schema per row: the row) is "
        "refused, or finished answers are validated alone.",
    )

    @field_validator("json_schema", mode="before")
    @classmethod
    def _sound(cls, value: object) -> object:
        schema = json_schemas.as_schema(value)
        if isinstance(schema, dict):
            json_schemas.check(schema)
        return schema

    @model_validator(mode="after")
    def _one(self) -> SchemaOptions:
        if (self.json_schema is None) == (self.schema_column is None):
            raise ValueError("give either json_schema or schema_column")
        return self


class JsonSchemaFormat(SchemaOptions):
    type: Literal["json_schema"] = "json_schema"


class JsonObjectFormat(JsonOptions):
    """Any JSON object."""

    type: Literal["json_object"] = "json_object"


class RegexFormat(FormatOptions):
    """A text that a regular expression matches as a whole."""

    type: Literal["regex"] = "regex"
    pattern: Annotated[str, Field(min_length=1, max_length=100_000)] = Field(
        description="RE2's syntax: no look-around, no back-references."
    )


class ChoiceFormat(FormatOptions):
    """One of some texts, written token by token. The recipe `label` scores them instead, which is faster and exact."""

    type: Literal["choice"] = "choice"
    choices: tuple[Name, ...] = Field(min_length=1, max_length=10_000, description="The possible answers.")


class GrammarFormat(FormatOptions):
    """A context-free grammar in Lark's syntax, with the rule `start`."""

    type: Literal["grammar"] = "grammar"
    grammar: Annotated[Text, Field(min_length=1)] = Field(description="The rules; an answer is a word of `start`.")


OutputFormat = Annotated[
    JsonSchemaFormat | JsonObjectFormat | RegexFormat | ChoiceFormat | GrammarFormat, Field(discriminator="type")
]
