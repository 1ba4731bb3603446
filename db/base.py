"""What all tables share."""

from __future__ import annotations

import enum
from typing import Any, ClassVar

from sqlalchemy import JSON, BigInteger, Enum, Float, Integer
from sqlalchemy.orm import DeclarativeBase

# SQLite gives an autoincrementing key to INTEGER alone.
BigId = BigInteger().with_variant(Integer, "sqlite")


class Base(DeclarativeBase):
    type_annotation_map: ClassVar = {float: Float(53), int: BigInteger, dict[str, Any]: JSON}


def text_enum(kind: type[enum.Enum]) -> Enum:
    """Stored as its value, as text with a check: readable in SQL and easy to extend by migration."""
    values = [member.value for member in kind]
    return Enum(kind, native_enum=False, length=32, create_constraint=True, values_callable=lambda _: values)
