from collections.abc import Callable, Sequence
from typing import Any

class Plan:
    def __init__(self, plan: tuple[Any, ...]) -> None: ...

class Columns:
    def __init__(self, layout: Sequence[tuple[int, tuple[int, ...]]]) -> None: ...
    def append(
        self,
        offsets_at: int,
        data_at: int,
        nulls: bytes | None,
        rows: int,
        framed: bool,
        plan_of: Callable[[int], Plan | str],
    ) -> dict[int, str]: ...
    def take(self) -> list[tuple[int, int, bytes | None, bytes | None, bytes | None]]: ...
