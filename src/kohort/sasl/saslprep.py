"""SASLprep (RFC 4013): one form for user names and passwords that look alike.

Rules:
- Stored names and passwords must be in the prepared form (`require_prepared`). Apache Kafka and
  librdkafka send and compare names and passwords as typed, others prepare them: a credential that
  preparing changes would work with some clients only, so it is refused when it is made.
- Names and passwords are sent as typed, as Apache Kafka does.
"""

from __future__ import annotations

from kohort.errors import ConfigError


def saslprep(text: str) -> str:
    """The prepared form. Raises ConfigError for what the RFC prohibits; never shows the text."""
    if text.isascii() and text.isprintable():
        return text
    import stringprep  # only for what is not plain ASCII: importing the tables takes its time
    from unicodedata import ucd_3_2_0

    mapped = "".join(
        " " if stringprep.in_table_c12(c) else c for c in text if not stringprep.in_table_b1(c)
    )
    prepared = ucd_3_2_0.normalize("NFKC", mapped)
    prohibited = (
        stringprep.in_table_c12,
        stringprep.in_table_c21_c22,
        stringprep.in_table_c3,
        stringprep.in_table_c4,
        stringprep.in_table_c5,
        stringprep.in_table_c6,
        stringprep.in_table_c7,
        stringprep.in_table_c8,
        stringprep.in_table_c9,
        stringprep.in_table_a1,
    )
    for at, c in enumerate(prepared):
        if any(table(c) for table in prohibited):
            raise ConfigError(
                f"character {at + 1} of {len(prepared)} is a control or unassigned character, "
                "which no user name or password may have (RFC 4013)"
            )
    right_to_left = [stringprep.in_table_d1(c) for c in prepared]
    if any(right_to_left) and (
        any(stringprep.in_table_d2(c) for c in prepared)
        or not (right_to_left[0] and right_to_left[-1])
    ):
        raise ConfigError(
            "text that runs from right to left must not be mixed with other text (RFC 4013)"
        )
    return prepared


def require_prepared(text: str, what: str) -> str:
    """`text`, when it is in the prepared form already. Raises ConfigError; `what` names it."""
    if not text:
        raise ConfigError(f"{what} is empty; give one")
    try:
        prepared = saslprep(text)
    except ConfigError as error:
        raise ConfigError(f"{what}: {error}") from None
    if prepared != text:
        raise ConfigError(
            f"{what} has characters that Kafka's clients write differently (SASLprep changes "
            "them, RFC 4013); use plain letters, digits and signs"
        )
    return text
