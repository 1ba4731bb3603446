"""Rate limits: how often a key may submit. Kept with the key in the database, so that all API processes agree."""

from __future__ import annotations

import math

from sqlalchemy import case, select, update
from sqlalchemy.orm import Session

from db.accounts import ApiKey
from db.errors import RateExceeded
from db.session import db_now


def submit(session: Session, key_id: str, per_minute: int) -> None:
    """Count a submission. A bucket holds `per_minute` of them and fills up at that rate, on the database's clock.

    One conditional update: of two that want the last one, one gets it. Raises RateExceeded.
    """
    filled = ApiKey.submissions + (db_now() - ApiKey.submissions_at) * (per_minute / 60.0)
    level = case((filled > per_minute, float(per_minute)), else_=filled)
    taken = session.execute(
        update(ApiKey)
        .where(ApiKey.id == key_id, level >= 1.0)
        .values(submissions=level - 1.0, submissions_at=db_now())
        .returning(ApiKey.id),
        execution_options={"synchronize_session": False},
    )
    if taken.first() is None:
        left = session.scalar(select(level).where(ApiKey.id == key_id)) or 0.0
        raise RateExceeded(per_minute, max(1, math.ceil((1.0 - left) * 60.0 / per_minute)))
