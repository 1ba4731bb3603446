"""From an output row of the recipe openai to what the API answers: a response body, or the error of the row."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any

from api.openai.errors import error_object
from db.openai_body import CHAT

# Row error code -> what the API would have answered: status, the parameter at fault, and its code.
INPUT_ERRORS = {
    "too_long": ("messages", "context_length_exceeded"),
    "text_too_large": ("messages", "context_length_exceeded"),
    "unsupported_format": ("response_format", "unsupported_value"),
    "invalid_schema": ("response_format", "invalid_value"),
    "invalid_messages": ("messages", "invalid_value"),
    "invalid_request": (None, "invalid_value"),
}
# Rows that no answer was tried for: not an HTTP error, in the contract's words.
UNDONE = {
    "expired": ("batch_expired", "This request could not be executed before the completion window expired."),
    "cancelled": ("batch_cancelled", "This request was not executed because the batch was cancelled."),
}
BROKEN = "\N{REPLACEMENT CHARACTER}"
# What clients that split text into lines take for the end of one, and JSON does not.
BREAKS = re.compile("[\x85\u2028\u2029]")
COLUMNS = ("custom_id", "choices", "error", "prompt_tokens", "cached_tokens", "output_tokens")


@dataclass(frozen=True, slots=True)
class Answers:
    """How the answers of one batch, or of one call, are written. The same row always gives the same bytes."""

    key: str  # of the batch or call: ids are made from it
    endpoint: str
    model: str
    created: int
    fingerprint: str | None = None

    def body(self, row: dict[str, Any], index: int) -> dict[str, Any]:
        """The response body of a row that succeeded."""
        chat = self.endpoint == CHAT
        choice = _chat_choice if chat else _text_choice
        prompt, output = row["prompt_tokens"], row["output_tokens"]
        return {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{self.id(index)}",
            "object": "chat.completion" if chat else "text_completion",
            "created": self.created,
            "model": self.model,
            "choices": [choice(place, each) for place, each in enumerate(row["choices"])],
            "usage": {
                "prompt_tokens": prompt,
                "completion_tokens": output,
                "total_tokens": prompt + output,
                "prompt_tokens_details": {"cached_tokens": row["cached_tokens"]},
            },
            "system_fingerprint": self.fingerprint,
        }

    def line(self, row: dict[str, Any], index: int) -> bytes:
        """The line of a row in the output file, or in the error file if it failed."""
        response: dict[str, Any] | None
        if row["error"] is None:
            response, error = self._response(200, self.body(row, index), index), None
        elif row["error"]["code"] in UNDONE:
            code, message = UNDONE[row["error"]["code"]]
            response, error = None, {"code": code, "message": message}
        else:
            status, body = self.refusal(row["error"])
            response, error = self._response(status, {"error": body}, index), None
        return self._written(row["custom_id"], index, response, error)

    def undone(self, custom_id: str, index: int, code: str, message: str) -> bytes:
        """The line of a row that its job never came to."""
        return self._written(custom_id, index, None, {"code": code, "message": message})

    def refusal(self, error: dict[str, str]) -> tuple[int, dict[str, Any]]:
        """Status and error object for a row's error."""
        code, message = error["code"], error["message"]
        if code not in INPUT_ERRORS:
            return 500, error_object(message, 500, None, code)
        param, name = INPUT_ERRORS[code]
        if param == "messages" and self.endpoint != CHAT:
            param = "prompt"
        return 400, error_object(message, 400, param, name)

    def id(self, index: int) -> str:
        return hashlib.blake2b(f"{self.key}/{index}".encode(), digest_size=15).hexdigest()

    def _response(self, status: int, body: dict[str, Any], index: int) -> dict[str, Any]:
        return {"status_code": status, "request_id": f"req_{self.id(index)}", "body": body}

    def _written(
        self, custom_id: str, index: int, response: dict[str, Any] | None, error: dict[str, str] | None
    ) -> bytes:
        line = {"id": f"batch_req_{self.id(index)}", "custom_id": custom_id, "response": response, "error": error}
        text = json.dumps(line, ensure_ascii=False, separators=(",", ":"))
        return BREAKS.sub(lambda found: f"\\u{ord(found[0]):04x}", text).encode() + b"\n"


def _chat_choice(place: int, choice: dict[str, Any]) -> dict[str, Any]:
    logprobs = None
    if choice["logprobs"] is not None:
        content = [
            {**_token(entry), "top_logprobs": [_token(top) for top in entry["top"]]}
            for entry in json.loads(choice["logprobs"])
        ]
        logprobs = {"content": content, "refusal": None}
    message = {"role": "assistant", "content": choice["text"], "refusal": None}
    return {"index": place, "message": message, "logprobs": logprobs, "finish_reason": choice["finish_reason"]}


def _text_choice(place: int, choice: dict[str, Any]) -> dict[str, Any]:
    logprobs = None
    if choice["logprobs"] is not None:
        entries = json.loads(choice["logprobs"])
        starts = [0]
        for entry in entries:
            starts.append(starts[-1] + len(entry["token"]))
        logprobs = {
            "tokens": [entry["token"] for entry in entries],
            "token_logprobs": [entry["logprob"] for entry in entries],
            "top_logprobs": [{top["token"]: top["logprob"] for top in entry["top"]} for entry in entries],
            "text_offset": starts[:-1],
        }
    return {"index": place, "text": choice["text"], "logprobs": logprobs, "finish_reason": choice["finish_reason"]}


def _token(entry: dict[str, Any]) -> dict[str, Any]:
    """`bytes` is null where the token is a part of a character, whose bytes its text does not tell."""
    text = entry["token"]
    return {
        "token": text,
        "logprob": entry["logprob"],
        "bytes": None if BROKEN in text else list(text.encode()),
    }
