"""`dataclass` for modules imported with a client: the same, without its cost at import.

The standard one compiles up to eight methods for each class when it is defined, and imports
`inspect`: 0.4 ms a class, a third of what importing `Consumer` took. Here `__init__` is compiled
when the first object is made, and the other methods need no compiling.

Rules:
- It offers a part of `dataclasses`, with the same meaning: `frozen`, `slots`, `eq`, `repr`;
  defaults, `field(default_factory=...)`, `repr=`, `compare=`; `__post_init__`; inheritance.
- Its classes are dataclasses to all others: `dataclasses.fields`, `replace` and `asdict` work.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeVar, cast, dataclass_transform, overload

T = TypeVar("T")
MISSING: Final[Any] = object()
_FACTORY: Final = object()
quick: Final = cast("Any", tuple).__new__
"""`quick(Named, (a, b))` is `Named(a, b)` of a `NamedTuple` with all its fields, in half the time:
its own `__new__` is a Python function. For what is made for every request or record."""


class Field(NamedTuple):
    """One field of a class; `default` and `default_factory` are `MISSING` where there is none."""

    name: str = ""
    default: Any = MISSING
    default_factory: Any = MISSING
    repr: bool = True
    compare: bool = True


def field(
    *,
    default: Any = MISSING,
    default_factory: Any = MISSING,
    repr: bool = True,
    compare: bool = True,
) -> Any:
    """As `dataclasses.field`."""
    return Field("", default, default_factory, repr, compare)


def fields(cls: Any) -> tuple[Field, ...]:
    """The fields of a class or object, in order."""
    declared: dict[str, Field] = cls.__lean_fields__
    return tuple(declared.values())


def replace(made: T, /, **changes: Any) -> T:
    """As `dataclasses.replace`."""
    for each in fields(made):
        changes.setdefault(each.name, getattr(made, each.name))
    return type(made)(**changes)


@overload
def dataclass(cls: type[T], /) -> type[T]:
    """Plain."""


@overload
def dataclass(
    *, frozen: bool = False, slots: bool = False, eq: bool = True, repr: bool = True
) -> Callable[[type[T]], type[T]]:
    """With options."""


@dataclass_transform(field_specifiers=(field,))
def dataclass(
    cls: Any = None,
    /,
    *,
    frozen: bool = False,
    slots: bool = False,
    eq: bool = True,
    repr: bool = True,
) -> Any:
    """As `dataclasses.dataclass`."""

    def make(plain: Any) -> Any:
        return _make(plain, frozen=frozen, slots=slots, eq=eq, shows=repr)

    return make if cls is None else make(cls)


def _make(cls: Any, *, frozen: bool, slots: bool, eq: bool, shows: bool) -> Any:
    own = cls.__dict__
    declared: dict[str, Field] = {}
    for base in reversed(cls.__mro__[1:]):
        if "__dataclass_fields__" in base.__dict__ and "__lean_fields__" not in base.__dict__:
            raise TypeError(f"{cls.__name__} derives from {base.__name__}: make that lean, too")
        declared |= base.__dict__.get("__lean_fields__", {})
    names = [n for n, hint in own.get("__annotations__", {}).items() if not _is_class_var(hint)]
    for name in names:
        default = own.get(name, MISSING)
        each = default if isinstance(default, Field) else Field(default=default)
        if each.default.__class__.__hash__ is None:
            raise ValueError(f"{cls.__name__}.{name}: a mutable default; give a default_factory")
        declared[name] = each._replace(name=name)
    if slots:
        cls = _with_slots(cls, names)
    else:
        for name in names:
            if isinstance(own.get(name), Field):
                if declared[name].default is MISSING:
                    delattr(cls, name)
                else:
                    setattr(cls, name, declared[name].default)
    own = cls.__dict__
    cls.__lean_fields__ = declared
    cls.__lean_frozen__ = frozen
    cls.__dataclass_fields__ = _StandardFields()
    cls.__dataclass_params__ = _StandardParams()
    methods: dict[str, Any] = {"__match_args__": tuple(declared), "__init__": _first_init(cls)}
    if shows:
        methods["__repr__"] = _repr_of(tuple(f.name for f in declared.values() if f.repr))
    if eq:
        methods |= _comparing([f.name for f in declared.values() if f.compare], frozen=frozen)
    if frozen:
        methods |= _frozen(cls, declared, slots=slots)
    for name, method in methods.items():
        if name not in own or (name == "__hash__" and own[name] is None and "__eq__" not in own):
            setattr(cls, name, method)
    return cls


def _is_class_var(hint: object) -> bool:
    return str(hint).startswith(("ClassVar", "typing.ClassVar"))


def _with_slots(cls: Any, names: list[str]) -> Any:
    """The class again, with slots: they cannot be added to an existing one."""
    taken = {slot for base in cls.__mro__[1:-1] for slot in base.__dict__.get("__slots__", ())}
    space = {name: value for name, value in cls.__dict__.items() if name not in names}
    space.pop("__dict__", None)
    space.pop("__weakref__", None)
    space["__slots__"] = tuple(name for name in names if name not in taken)
    made: Any = type(cls)(cls.__name__, cls.__bases__, space)
    made.__qualname__ = cls.__qualname__
    return made


def _first_init(cls: Any) -> Callable[..., None]:
    """Compiles the real `__init__`, puts it into its own place, and calls it."""

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        compile_init(cls)(self, *args, **kwargs)

    cls.__signature__ = _Signature()
    return __init__


def compile_init(cls: Any) -> Callable[..., None]:
    """The real `__init__` of a class, in its place from now on."""
    space: dict[str, Any] = {"_set": object.__setattr__, "_factory": _FACTORY}
    parameters, body = ["self"], list[str]()
    for name, each in cast("dict[str, Field]", cls.__lean_fields__).items():
        value = name
        if each.default_factory is not MISSING:
            space[f"_make_{name}"] = each.default_factory
            parameters.append(f"{name}=_factory")
            value = f"_make_{name}() if {name} is _factory else {name}"
        elif each.default is not MISSING:
            space[f"_default_{name}"] = each.default
            parameters.append(f"{name}=_default_{name}")
        else:
            parameters.append(name)
        put = f"_set(self, {name!r}, {value})" if cls.__lean_frozen__ else f"self.{name} = {value}"
        body.append(put)
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    lines = "\n    ".join(body or ["pass"])
    exec(f"def __init__({', '.join(parameters)}):\n    {lines}", space)
    init: Callable[..., None] = space["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    init.__module__ = cls.__module__
    cls.__init__ = init
    if "__signature__" in cls.__dict__:
        del cls.__signature__
    return init


def _repr_of(names: tuple[str, ...]) -> Callable[[Any], str]:
    def __repr__(self: Any) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{type(self).__qualname__}({shown})"

    return __repr__


def _comparing(names: list[str], *, frozen: bool) -> dict[str, Any]:
    values: Callable[[Any], Any] = attrgetter(*names) if names else _nothing

    def __eq__(self: Any, other: object) -> Any:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return values(self) == values(other)

    def __hash__(self: Any) -> int:
        return hash(values(self))

    return {"__eq__": __eq__, "__hash__": __hash__ if frozen else None}


def _nothing(_: object) -> tuple[()]:
    return ()


def _frozen(cls: Any, declared: dict[str, Field], *, slots: bool) -> dict[str, Any]:
    def refuse(self: Any, name: str) -> None:
        if type(self) is cls or name in declared:
            from dataclasses import FrozenInstanceError  # only who breaks the rule pays for it

            raise FrozenInstanceError(f"cannot change {name!r} of a {cls.__name__}")

    def __setattr__(self: Any, name: str, value: Any) -> None:
        refuse(self, name)
        object.__setattr__(self, name, value)

    def __delattr__(self: Any, name: str) -> None:
        refuse(self, name)
        object.__delattr__(self, name)

    def __getstate__(self: Any) -> list[Any]:
        return [getattr(self, name) for name in declared]

    def __setstate__(self: Any, state: list[Any]) -> None:
        for name, value in zip(declared, state, strict=True):
            object.__setattr__(self, name, value)

    methods = {"__setattr__": __setattr__, "__delattr__": __delattr__}
    if slots:  # the usual way would set attributes
        methods |= {"__getstate__": __getstate__, "__setstate__": __setstate__}
    return methods


class _Signature:
    """`__signature__` before the real `__init__` is there: asking for it makes that."""

    def __get__(self, made: object, cls: Any) -> Any:
        from inspect import signature

        owner = next(c for c in cls.__mro__ if "__lean_fields__" in c.__dict__)
        whole = signature(compile_init(owner))
        return whole.replace(parameters=list(whole.parameters.values())[1:])


class _StandardFields:
    """`__dataclass_fields__`, made when it is first read."""

    def __get__(self, made: object, cls: Any) -> dict[str, Any]:
        import dataclasses

        owner = next(c for c in cls.__mro__ if "__lean_fields__" in c.__dict__)
        hints: dict[str, Any] = {}
        for base in cast("list[type]", owner.__mro__[::-1]):
            hints |= vars(base).get("__annotations__", {})
        standard: dict[str, Any] = {}
        for name, each in owner.__lean_fields__.items():
            options: dict[str, Any] = {"kw_only": False, "repr": each.repr, "compare": each.compare}
            if each.default is not MISSING:
                options["default"] = each.default
            if each.default_factory is not MISSING:
                options["default_factory"] = each.default_factory
            one: Any = dataclasses.field(**options)
            one.name, one.type = name, hints[name]
            one._field_type = vars(dataclasses)["_FIELD"]
            standard[name] = one
        owner.__dataclass_fields__ = standard
        return standard


class _StandardParams:
    """`__dataclass_params__`, which `dataclasses` reads of a class that it derives from."""

    def __get__(self, made: object, cls: Any) -> Any:
        frozen: bool = cls.__lean_frozen__
        return type("Params", (), {"frozen": frozen, "init": True, "repr": True, "eq": True})
