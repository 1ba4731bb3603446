"""What litellm does with a batch: `python litellm_calls.py BASE_URL`, in an environment that has litellm."""

from __future__ import annotations

import json
import sys
import time

import litellm

WHERE = {"custom_llm_provider": "openai", "api_base": sys.argv[1], "api_key": "none"}
message = {"role": "user", "content": "litellm says hello"}
body = {"model": "fake", "messages": [message]}
line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}
content = (json.dumps(line) + "\n").encode()

sent = litellm.create_file(file=("in.jsonl", content, "application/jsonl"), purpose="batch", **WHERE)
batch = litellm.create_batch(
    completion_window="24h", endpoint="/v1/chat/completions", input_file_id=sent.id, metadata={"by": "litellm"}, **WHERE
)
assert batch.id in [each.id for each in litellm.list_batches(**WHERE).data]
deadline = time.monotonic() + 60
while (batch := litellm.retrieve_batch(batch_id=batch.id, **WHERE)).status not in ("completed", "failed"):
    assert time.monotonic() < deadline, batch
    time.sleep(0.2)
answer = json.loads(litellm.file_content(file_id=batch.output_file_id, **WHERE).content)
direct = (
    litellm.completion(model="openai/fake", messages=[message], api_base=sys.argv[1], api_key="none")
    .choices[0]
    .message.content
)
text = answer["response"]["body"]["choices"][0]["message"]["content"]
assert text == direct, (text, direct)
print(batch.status, text)
