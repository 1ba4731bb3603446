"""What may be shown of an address: not its password."""

from __future__ import annotations

import re

PASSWORD = re.compile(r"(://[^/@\s]*?:)[^@\s]*(?=@)|([?&](?:password|sslpassword|secret|token)=)[^&\s]*", re.IGNORECASE)


def shown(text: str) -> str:
    """An address, or a message with one in it, as it may be shown: without the password."""
    return PASSWORD.sub(lambda found: (found[1] or found[2]) + "***", text)
