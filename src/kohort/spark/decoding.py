"""A handler's decoder, shipped to Spark's workers, which create it once and keep it.

Rules:
- Spark unpickles a writer for each task. What a format has learnt (schemas by id, and
  what reads them) stays in the worker, by the bytes that it was pickled to.
"""

# pyspark's types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

import importlib
import pickle
from functools import partial
from typing import Any

from kohort.errors import ConfigError, KohortError
from kohort.retry.handling import Decode, Decoder
from kohort.serdes.basic import Serde
from kohort.spark.worker import keep_value


class ShippedDecoder:
    """Decodes by a function, or a format of `kohort.serdes`, that a worker keeps between tasks.

    Args:
        topic: the topic whose values it decodes.
        decode: what the handler was registered with.

    Raises ConfigError when `decode` cannot be pickled.
    """

    def __init__(self, topic: str, decode: Decoder | Serde[Any]) -> None:
        cloudpickle: Any = importlib.import_module("pyspark.cloudpickle")
        try:
            self._pickled: bytes = cloudpickle.dumps(decode)
        except KohortError:
            raise
        except Exception as error:  # what cannot be pickled says so in its own way
            raise ConfigError(
                f"the handler of {topic!r}: decode={decode!r} cannot be sent to Spark's workers "
                f"({error}); give a function of the bytes that makes what it needs when it is "
                "first called"
            ) from error
        self._topic = topic
        self._function: Decoder | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_topic": self._topic, "_pickled": self._pickled, "_function": None}

    def __call__(self, data: bytes) -> Any:
        """The value of these bytes. Raises as the decoder does."""
        if self._function is None:
            kept: Any = keep_value(self._pickled, lambda: pickle.loads(self._pickled))
            self._function = (
                partial(kept.deserialize, self._topic) if hasattr(kept, "deserialize") else kept
            )
        assert self._function is not None, "it was just made"
        return self._function(data)


def shipped(topic: str, decode: Decode | Serde[Any]) -> Decode:
    """`decode` of a handler as executors get it; the built-in ones are shipped by name."""
    if decode is None or decode in ("json", "text"):
        return decode  # pyright: ignore[reportReturnType]
    return ShippedDecoder(topic, decode)  # pyright: ignore[reportArgumentType]
